"""Create, change and drop relations: one at a time, each done with one epoch or not at all.

    what                      its barrier carries   with that epoch
    a source and its tables   Add                   they exist, empty, and the job reads
    a table, a view, ...      Define                they exist; a view is filled
    a drop                    Stop, Define          they are gone; their files go right after
    a change                  Define                the definition is the new one

Whoever waits for a command and goes away changes nothing: the command goes on. After a crash
the catalog says whether it was done. Files that a crash left behind are deleted by recovery.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.barrier.coordinator import Coordinator
from headwater.catalog.catalog import Catalog
from headwater.catalog.change import (
    AlterObject,
    AlterSource,
    AlterTable,
    CatalogChange,
    CreateObject,
    CreateSource,
    CreateTable,
    DropObject,
    DropSource,
    DropTable,
)
from headwater.catalog.relation import Detail, ObjectDef, SourceDef, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.cdc.external_table import ExternalDatabase
from headwater.cdc.schema_change import SchemaChange
from headwater.cdc.source import Source, Upstream
from headwater.crash_points import crash_point
from headwater.errors import (
    CommitUnknown,
    ConfigError,
    HeadwaterError,
    NotSupported,
    RetryableError,
)
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId, SourceName, TableId
from headwater.model.schema import Schema
from headwater.observe.events import EventKind
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_job import CdcJob
from headwater.runtime.cdc_sources import CdcSources
from headwater.runtime.cdc_tables import SchemaStep, StepKind
from headwater.runtime.committer import Definition, EpochCommitter
from headwater.runtime.connectors import Connector, find_connector
from headwater.runtime.dml_job import DmlTables
from headwater.runtime.followers import followers, with_columns
from headwater.runtime.maintenance import Maintenance
from headwater.runtime.recovery import table_spec
from headwater.runtime.source_job import SourceJob
from headwater.runtime.view_keeper import KeptView
from headwater.runtime.view_plan import PlannedView
from headwater.state.store import StateStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_PREPARE_S = 75.0

MakeJob = Callable[[SourceDef, Sequence[TableDef], Source], SourceJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the engine lends to whoever defines relations."""

    catalog: Catalog
    store: StateStore
    committer: EpochCommitter
    coordinator: Coordinator
    maintenance: Maintenance
    blocking: Blocking
    connectors: Mapping[str, Connector] | None
    sources: dict[SourceName, Source]
    job: MakeJob
    dml: DmlTables
    cdc: CdcSources


class Ddl:
    """Defines relations."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._one = asyncio.Lock()

    async def snapshot(self) -> CatalogSnapshot:
        """What exists now."""
        return await self._around.blocking(self._around.catalog.snapshot)

    # Sources

    async def create_source(
        self,
        name: str,
        kind: str,
        options: Mapping[str, Any],
        *,
        tables: Mapping[str, Schema],
        defined_at: str = "",
    ) -> Epoch:
        """Create a source and its tables; they exist, empty, from the epoch returned on.

        Replay: done with that epoch or not at all; a second time it exists already.
        """
        around = self._around
        async with self._one:
            _refuse_taken(await self.snapshot(), name, tables)
            connector = find_connector(kind, around.connectors)
            source = connector(SourceName(name), options)
            crash_point("catalog.before_create")
            ids = await self._ids(1 + len(tables))
            definition = SourceDef(
                id=ids[0],
                name=SourceName(name),
                kind=kind,
                options={key: json.dumps(value) for key, value in options.items()},
                defined_at=defined_at,
            )
            created = [
                TableDef(
                    id=TableId(id_),
                    name=table,
                    schema=schema,
                    folder=folder_of(table, id_),
                    source=SourceName(name),
                    upstream=table,
                    defined_at=defined_at,
                )
                for id_, (table, schema) in zip(ids[1:], tables.items(), strict=True)
            ]
            for table in created:
                around.store.create(table_spec(table))
            job = around.job(definition, created, source)
            changes: list[CatalogChange] = [CreateSource(source=definition)]
            changes += [CreateTable(table=table) for table in created]
            around.committer.define(
                job.job, Definition(changes=changes, creates=tuple(t.id for t in created))
            )
            try:
                epoch = await around.coordinator.add([job])
            except HeadwaterError:
                around.committer.undefine(job.job)
                around.sources.pop(source.name, None)
                for table in created:
                    around.store.drop(table.id)
                await source.close()
                raise
            crash_point("catalog.after_create")
            return epoch

    async def create_database_source(self, definition: SourceDef) -> Epoch:
        """Create a source of an external database; what it needs there is made as well.

        Replay: done with that epoch or not at all. What a crash leaves undone upstream is
        made by the job, which makes it before anything else.
        """
        around = self._around
        # Before the lock: a database that answers slowly must not keep other definitions waiting.
        await around.blocking(around.cdc.database(definition).validate)
        async with self._one:
            _refuse_taken(await self.snapshot(), definition.name, {})
            (id_,) = await self._ids(1)
            definition = replace(definition, id=id_)
            job = around.cdc.job(definition)
            around.committer.define(job.job, Definition(changes=[CreateSource(source=definition)]))
            crash_point("catalog.before_create")
            try:
                epoch = await around.coordinator.add([job])
            except HeadwaterError:
                around.committer.undefine(job.job)
                around.cdc.jobs.pop(definition.name, None)
                raise
            job.upstream.known = True
            job.tables.changed.set()
            crash_point("catalog.after_create")
        try:
            await job.upstream.wait_prepared(_PREPARE_S)
        except HeadwaterError:
            await self.drop_source(definition.name, reach=False)
            raise
        return epoch

    async def alter_database_source(self, definition: SourceDef) -> Epoch:
        """Reach the database of a source in another way, which was tried before.

        Replay: the options are the new ones with the epoch returned, or the old ones stay.
        """
        around = self._around
        # Before the lock: a database that answers slowly must not keep other definitions waiting.
        database = around.cdc.database(definition)
        await around.blocking(
            _try_out, database, around.cdc.jobs[definition.name].upstream.identity
        )
        async with self._one:
            epoch = await self._define(Definition(changes=[AlterSource(source=definition)]))
            around.cdc.renew(definition, database)
            return epoch

    async def create_database_table(self, table: TableDef) -> Epoch:
        """Create a table that follows one of an external database; it is filled by and by.

        Replay: done with the epoch returned or not at all.
        """
        around = self._around
        assert table.source is not None
        job = around.cdc.jobs[table.source]
        # Before the lock: a database that answers slowly must not keep other definitions waiting.
        await job.upstream.prepare([table.upstream], begun=job.position() is not None)
        crash_point("cdc.before_table")
        async with self._one:
            if around.cdc.jobs.get(table.source) is not job:
                raise relation_error(f'source "{table.source}" does not exist', "42704")
            (id_,) = await self._ids(1)
            named = replace(table, id=TableId(id_), folder=folder_of(table.name, id_))
            around.store.create(table_spec(named))
            definition = Definition(changes=[CreateTable(table=named)], creates=(named.id,))
            epoch = await self._define(definition, undo=[named.id])
            job.tables.add(around.cdc.table(named, job.upstream))
            return epoch

    async def drop_source(self, name: str, *, reach: bool = True) -> Epoch:
        """Drop a source with its tables and their files.

        Without `reach` it goes also when its database does not answer: what may be left there
        is told as an event. Replay: dropped with that epoch or not at all; files left by a crash
        are deleted by recovery.
        """
        around = self._around
        async with self._one:
            snapshot = await self.snapshot()
            source = snapshot.source(name)
            tables = snapshot.tables_of(name)
            job = JobId(source.id)
            changes: list[CatalogChange] = [DropTable(table=table.id) for table in tables]
            changes.append(DropSource(source=source.name))
            # A view may read its tables; refused in the commit, that would end the engine.
            await around.blocking(around.catalog.check, changes)
            followed = around.cdc.jobs.get(source.name)
            if followed is not None:
                # What is ours upstream goes first: after a crash the source is still here to
                # be dropped again.
                await self._drop_upstream(followed, reach=reach)
                crash_point("cdc.after_drop")
            around.committer.define(job, Definition(changes=changes, forgets=(source.name,)))
            try:
                epoch = await around.coordinator.stop_jobs([job])
            except HeadwaterError:
                around.committer.undefine(job)
                raise
            closed: Upstream | None = around.sources.pop(source.name, None)
            if followed is not None:
                closed = around.cdc.jobs.pop(source.name).upstream
            if closed is not None:
                await closed.close()
            await self._delete_files([table.id for table in tables])
            return epoch

    async def _drop_upstream(self, job: CdcJob, *, reach: bool) -> None:
        try:
            await job.upstream.drop()
        except HeadwaterError as error:
            if reach:
                raise
            job.upstream.lost = error
            job.tell(
                EventKind.SOURCE_UNAVAILABLE,
                job.upstream.name,
                f"it could not be created, and what was made at its server may still be there "
                f"({error}). Create and drop it again once the server answers",
            )

    # Tables and views

    async def create_table(
        self, table: TableDef, rows: "Callable[[], pa.Table | DataFrame] | None" = None
    ) -> Epoch:
        """Create a table that users write; its id and its folder are given here.

        `rows` gives the changes that it begins with. Replay: done with the epoch returned or
        not at all.
        """
        async with self._one:
            await self._around.dml.start()
            (id_,) = await self._ids(1)
            named = replace(table, id=TableId(id_), folder=folder_of(table.name, id_))
            self._around.store.create(table_spec(named))
            definition = Definition(
                changes=[CreateTable(table=named)], creates=(named.id,), rows=rows
            )
            epoch = await self._define(definition, undo=[named.id])
            self._around.dml.add(self._around.store[named.id])
            return epoch

    async def create_view(
        self, view: TableDef, planned: PlannedView, *, first: Sequence[CatalogChange] = ()
    ) -> Epoch:
        """Create a materialized view and fill it, all in the epoch that is returned.

        `first` are changes that are made before. Replay: done with that epoch or not at all.
        """
        async with self._one:
            schemas = planned.layout.schemas
            ids = [TableId(id_) for id_ in await self._ids(len(schemas))]
            query = replace(planned.query, stores=tuple(ids[1:]))
            main = replace(
                view,
                id=ids[0],
                schema=schemas[0],
                folder=folder_of(view.name, ids[0]),
                kind=TableKind.MATERIALIZED_VIEW,
                detail=replace(view.detail, query=query),
            )
            beside = [_store_of(main, id_, s) for id_, s in zip(ids[1:], schemas[1:], strict=True)]
            for table in (main, *beside):
                self._around.store.create(table_spec(table))
            stores = tuple(self._around.store[id_] for id_ in ids)
            definition = Definition(
                changes=[*first, *(CreateTable(table=table) for table in (main, *beside))],
                views=(KeptView(main, planned.layout, stores),),
            )
            return await self._define(definition, undo=ids)

    async def create_object(self, made: ObjectDef) -> Epoch:
        """Create a schema, a view or an index. Replay: done with that epoch or not at all."""
        async with self._one:
            (id_,) = await self._ids(1)
            return await self._define(
                Definition(changes=[CreateObject(object=replace(made, id=id_))])
            )

    async def replace_object(self, made: ObjectDef) -> Epoch:
        """Give a schema, a view or an index another definition."""
        async with self._one:
            return await self._define(Definition(changes=[AlterObject(object=made)]))

    async def alter_table(self, table: TableDef) -> Epoch:
        """Give a table another name, owner, comment or schema. Replay: whole or not at all."""
        around = self._around
        async with self._one:
            before = (await self.snapshot()).table_by_id(table.id)
            definition = Definition(changes=[AlterTable(table=table)])
            if before.schema == table.schema:
                return await self._define(definition)
            # Rows on their way have the old columns: they go into an epoch of their own first.
            async with around.dml.source.writing:
                await around.coordinator.flush()
                return await self._define(
                    definition, prepare=lambda key: around.dml.alter(key, {table.id: table.schema})
                )

    async def follow_change(self, step: SchemaStep) -> Epoch:
        """Give a table that follows another the columns that this one has now.

        The source's actor asks for it, and reads nothing until it is done. Replay: whole or not
        at all; a crash before leaves the log before the change, which then tells of it again.
        """
        around = self._around
        async with self._one:
            snapshot = await self.snapshot()
            table = snapshot.table_by_id(step.table)
            altered = with_columns(table, step.change)
            replans = followers(snapshot, altered, around.store)
            # Rows on their way have the old columns: they go into an epoch of their own first.
            await around.coordinator.flush()
            change = AlterTable(table=altered, anew=step.change.rewrites)
            epoch = await self._step(step, Definition(changes=[change], replans=replans))
            self._redefined(altered)
            around.cdc.tell(EventKind.RELATION_CHANGED, table.name, step.change.text)
            return epoch

    async def refresh_followed(self, table: TableDef, schema: Schema) -> Epoch:
        """Empty a table that follows another, and fill it anew in another schema.

        Replay: a crash in between leaves it empty and stopped, or as it was; refresh it again.
        """
        around = self._around
        async with self._one:
            snapshot = await self.snapshot()
            altered = replace(snapshot.table_by_id(table.id), schema=schema)
            replans = followers(snapshot, altered, around.store)
            change = SchemaChange(schema=schema)
            clear = SchemaStep(kind=StepKind.CLEAR, table=table.id, change=change)
            await self._step(clear, Definition(changes=[]))
            step = SchemaStep(kind=StepKind.REPLACE, table=table.id, change=change)
            changes = [AlterTable(table=altered, anew=True)]
            epoch = await self._step(step, Definition(changes=changes, replans=replans))
            self._redefined(altered)
            return epoch

    async def _step(self, step: SchemaStep, definition: Definition) -> Epoch:
        """Have a source's actor stage a step with the epoch that brings the definition."""
        table = (await self.snapshot()).table_by_id(step.table)
        assert table.source is not None
        steps = self._around.cdc.jobs[table.source].tables.steps
        keys: list[int] = []

        def prepare(key: int) -> None:
            keys.append(key)
            steps[key] = step

        try:
            return await self._define(definition, prepare=prepare)
        finally:
            for key in keys:
                steps.pop(key, None)

    def _redefined(self, table: TableDef) -> None:
        assert table.source is not None
        job = self._around.cdc.jobs[table.source]
        job.tables.add(self._around.cdc.table(table, job.upstream.database))

    async def drop(self, relations: Sequence[TableDef | ObjectDef]) -> Epoch:
        """Drop relations, those that need others first, with all that they keep.

        Replay: dropped with the epoch returned or not at all.
        """
        for each in relations:
            if isinstance(each, TableDef) and each.source in self._around.sources:
                raise NotSupported(
                    f'table "{each.name}" cannot be dropped alone: source "{each.source}" feeds it',
                    hint=f"Use DROP SOURCE {each.source} CASCADE.",
                )
        async with self._one:
            changes: list[CatalogChange] = []
            tables: list[TableId] = []
            for each in relations:
                if isinstance(each, ObjectDef):
                    changes.append(DropObject(object=each.id))
                    continue
                query = each.detail.query
                tables += [each.id, *(query.stores if query else ())]
                changes += [DropTable(table=id_) for id_ in tables[tables.index(each.id) :]]
            await self._around.blocking(self._around.catalog.check, changes)
            self._around.dml.remove(tables)
            for job in self._around.cdc.jobs.values():
                job.tables.remove(tables)
            if tables:
                # What is staged of them on its way must not come after the drop.
                await self._around.coordinator.flush()
            epoch = await self._define(Definition(changes=changes, drops=tuple(tables)))
            for each in relations:
                if isinstance(each, TableDef) and each.source in self._around.cdc.jobs:
                    self._around.cdc.jobs[each.source].tables.forget(each.upstream)
            await self._delete_files(tables)
            return epoch

    # Inside

    async def _define(
        self,
        definition: Definition,
        *,
        undo: Sequence[TableId] = (),
        prepare: Callable[[int], None] = lambda key: None,
    ) -> Epoch:
        around = self._around
        await around.blocking(around.catalog.check, definition.changes)
        proposal = around.committer.propose(definition)
        prepare(proposal.key)
        crash_point("catalog.before_create")
        done: Awaitable[Epoch] = around.coordinator.define(proposal.key)
        try:
            epoch = await asyncio.shield(asyncio.ensure_future(done))
            if proposal.refused is not None:
                raise proposal.refused
        except HeadwaterError:
            for id_ in undo:
                around.store.drop(id_)
            raise
        finally:
            around.committer.withdraw(proposal)
        crash_point("catalog.after_create")
        return epoch

    async def _delete_files(self, tables: Sequence[TableId]) -> None:
        around = self._around
        async with around.maintenance.between_rounds:
            for table in tables:
                around.store.drop(table)
            # They are dropped; what cannot be deleted now, a later round deletes.
            with contextlib.suppress(RetryableError, CommitUnknown):
                await around.maintenance.purge()

    async def _ids(self, count: int) -> list[int]:
        return [await self._around.blocking(self._around.catalog.next_id) for _ in range(count)]


def _try_out(database: ExternalDatabase, identity: str) -> None:
    """Raise unless the database can be reached and is the one that was followed so far."""
    found = str(database.identity())
    if identity and found != identity:
        raise ConfigError(
            "these options lead to another server",
            detail=f"The source follows {identity}, and this is {found}.",
            hint="Create another source for it.",
        )
    database.validate()
    if identity:
        database.expect(identity)


def folder_of(name: str, id_: int) -> str:
    """The folder of a table: readable, and never used twice."""
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return f"{plain}-{id_}"


def _store_of(view: TableDef, id_: TableId, schema: Schema) -> TableDef:
    name = f"_hw_store_{id_}_of_{view.id}"
    return TableDef(
        id=id_,
        name=name,
        namespace=view.namespace,
        schema=schema,
        folder=folder_of(f"{view.name}_store", id_),
        kind=TableKind.STORE,
        detail=Detail(part_of=view.id),
    )


def _refuse_taken(snapshot: CatalogSnapshot, name: str, tables: Mapping[str, Schema]) -> None:
    taken: dict[str, str] = {source.name: "42710" for source in snapshot.sources}
    taken |= {table.name: "42P07" for table in snapshot.tables}
    for wanted in (name, *tables):
        if wanted in taken:
            raise relation_error(f'relation "{wanted}" already exists', taken[wanted])
