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
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.catalog.change import (
    AlterObject,
    AlterTable,
    CatalogChange,
    CreateObject,
    CreateSource,
    CreateTable,
    DropObject,
    DropTable,
    ShowTable,
)
from headwater.catalog.relation import (
    ObjectDef,
    ObjectKind,
    SourceDef,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.crash_points import crash_point
from headwater.errors import (
    HeadwaterError,
    NotSupported,
    RetryableError,
)
from headwater.model.epoch import Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema
from headwater.runtime.committer import Definition
from headwater.runtime.connectors import find_connector
from headwater.runtime.creating.job import FillingJob, job_key
from headwater.runtime.creating.views import Creating
from headwater.runtime.ddl_base import folder_of, refuse_taken, store_of
from headwater.runtime.ddl_replacing import ReplacingDdl
from headwater.runtime.followers import evolved_sinks
from headwater.runtime.recovery import table_spec
from headwater.runtime.sinks.into_table import into_key
from headwater.runtime.view_plan import PlannedView, view_in_making
from headwater.runtime.view_world import KeptView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Ddl(ReplacingDdl):
    """Defines relations."""

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
            refuse_taken(await self.snapshot(), name, tables)
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

    async def create_view(self, view: TableDef, planned: PlannedView) -> Epoch:
        """Create a materialized view and fill it, all in the epoch that is returned.

        Replay: done with that epoch or not at all.
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
            beside = [store_of(main, id_, s) for id_, s in zip(ids[1:], schemas[1:], strict=True)]
            for table in (main, *beside):
                self._around.store.create(table_spec(table))
            stores = tuple(self._around.store[id_] for id_ in ids)
            definition = Definition(
                changes=[CreateTable(table=table) for table in (main, *beside)],
                views=(KeptView(main, planned.layout, stores),),
            )
            return await self._define(definition, undo=ids)

    async def begin_view(self, intent: ObjectDef, planned: PlannedView) -> Creating:
        """Begin to fill a materialized view beside the epochs; its name is taken from now on.

        One that replaces another takes its place when it is filled; until then the other is there.
        Replay: begun with one epoch or not at all; an engine that starts goes on with it.
        """
        around = self._around
        async with self._one:
            if intent.replaces is not None:
                self._replaceable(await self.snapshot(), intent, planned)
            schemas = planned.layout.schemas
            ids = await self._ids(1 + len(schemas))
            stores = tuple(TableId(id_) for id_ in ids[1:])
            named = replace(intent, id=ids[0], query=replace(planned.query, stores=stores))
            tables = [store_of(named, id_, s) for id_, s in zip(stores, schemas, strict=True)]
            for table in tables:
                around.store.create(table_spec(table))
            creating = around.creating.open(named, view_in_making(named, planned, around.store))
            changes: list[CatalogChange] = [CreateObject(object=named)]
            changes += [CreateTable(table=table) for table in tables]
            job = creating.job
            around.committer.define(job.job, Definition(changes=changes, creates=stores))
            crash_point("catalog.before_create")
            try:
                await around.blocking(around.catalog.check, changes)
                await around.coordinator.add([job])
            except HeadwaterError as error:
                around.committer.undefine(job.job)
                creating.error = error
                around.creating.forget(named.id)
                for id_ in stores:
                    around.store.drop(id_)
                raise
            crash_point("catalog.after_create")
            return creating

    async def join_view(self, creating: Creating, after: Epoch) -> Epoch:
        """Let a view that is filled up to an epoch join those that are kept current.

        Replay: done with the epoch returned or not at all.
        """
        async with self._one:
            if creating.over:
                raise RetryableError("the view is not being created any more")
            intent, view = creating.intent, creating.view
            gone: tuple[TableId, ...] = ()
            if intent.replaces is None:
                definition = Definition(
                    changes=[DropObject(object=intent.id), ShowTable(table=view.table)],
                    joins=((view, after),),
                    facts={creating.job.key: ""},
                )
            else:
                definition, gone = await self._replacement(creating, after)
            epoch = await self._define(definition)
            crash_point("snapshot.after_merge")
            creating.over, creating.joined = True, epoch
            await self._end_job(creating.job)
            self._around.creating.forget(intent.id)
            if gone:
                await self._delete_files(gone)
            return epoch

    async def _end_job(self, job: FillingJob) -> None:
        """Let a job that fills something end, however often that has to be asked."""
        around = self._around
        pause = 0.1
        while job.job in around.coordinator:
            try:
                await around.coordinator.stop_jobs([job.job])
            except RetryableError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        await around.blocking(around.unpin, job.key)

    async def limit_view(self, intent: ObjectDef, rows_per_s: int | None) -> Epoch:
        """Limit how fast a view in the making is filled; 0 stops it, None lifts the limit.

        Replay: the catalog has the new limit or the old one; a job that starts reads it there.
        """
        async with self._one:
            creating = await self._set_making(intent, "backfill_rate_limit", rows_per_s)
            return await self._around.coordinator.throttle({creating.job.job: rows_per_s})

    async def scale_view(self, intent: ObjectDef, slices: int | None) -> None:
        """Let so many slices of a view in the making be read side by side, where they can be.

        Replay: as of `limit_view`.
        """
        async with self._one:
            creating = await self._set_making(intent, "backfill_parallelism", slices)
            creating.job.scale()

    async def _set_making(self, intent: ObjectDef, name: str, value: int | None) -> Creating:
        creating = self._around.creating.running.get(intent.id)
        if creating is None:
            raise relation_error(f'"{intent.name}" is not being created any more', "55000")
        settings = {**creating.intent.settings, name: "" if value is None else str(value)}
        changed = replace(creating.intent, settings=settings)
        await self._define(Definition(changes=[AlterObject(object=changed)]))
        creating.intent = changed
        return creating

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

    async def alter_object(
        self, known: ObjectDef, change: Callable[[ObjectDef], ObjectDef]
    ) -> Epoch:
        """Change an object as it is by now: others may have changed it since it was `known`.

        A sink that runs hears of it: its series go on under its new name. Replay: whole or not
        at all.
        """
        async with self._one:
            altered = change(await self._as_it_is(known))
            epoch = await self._define(Definition(changes=[AlterObject(object=altered)]))
            if altered.kind is ObjectKind.SINK:
                self._around.sinks.renamed(altered)
            return epoch

    async def _as_it_is(self, known: ObjectDef) -> ObjectDef:
        found = (await self.snapshot()).by_id(known.id)
        if not isinstance(found, ObjectDef):
            raise relation_error(f'"{known.name}" does not exist any more', "42704")
        return found

    async def alter_table(
        self, known: TableDef, change: Callable[[TableDef, CatalogSnapshot], TableDef]
    ) -> Epoch:
        """Give a table another name, owner, limit or schema, as it is by now.

        Its source may have given it other columns since it was `known`. Replay: whole or not at
        all.
        """
        around = self._around
        async with self._one:
            snapshot = await self.snapshot()
            before = snapshot.table_by_id(known.id)
            table = change(before, snapshot)
            if before.schema == table.schema:
                return await self._define(Definition(changes=[AlterTable(table=table)]))
            sinks = evolved_sinks(snapshot, table)
            changes: list[CatalogChange] = [AlterTable(table=table)]
            changes += [AlterObject(object=sink) for sink in sinks]
            # Rows on their way have the old columns: they go into an epoch of their own first.
            async with around.dml.source.writing:
                await around.coordinator.flush()
                epoch = await self._define(
                    Definition(changes=changes),
                    prepare=lambda key: around.dml.alter(key, {table.id: table.schema}),
                )
                # Before anybody writes a row that has the new columns.
                await around.sinks.evolved(sinks)
                return epoch

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
                    stores = each.query.stores if each.query is not None else ()
                    tables += stores
                    changes += [DropTable(table=id_) for id_ in stores]
                    continue
                query = each.detail.query
                tables += [each.id, *(query.stores if query else ())]
                changes += [DropTable(table=id_) for id_ in tables[tables.index(each.id) :]]
            await self._around.blocking(self._around.catalog.check, changes)
            await self._end_creating(relations)
            self._around.dml.remove(tables)
            for job in self._around.cdc.jobs.values():
                job.tables.remove(tables)
            await self._around.upstreams.forget(tables)
            if tables:
                # What is staged of them on its way must not come after the drop.
                await self._around.coordinator.flush()
            gone = {job_key(each.id): "" for each in relations if _is_creating(each)}
            gone |= self._around.upstreams.facts_of(tables)
            sinks = [s for s in relations if isinstance(s, ObjectDef) and s.kind is ObjectKind.SINK]
            definition = Definition(
                changes=changes,
                drops=tuple(tables),
                facts=gone,
                ends=tuple(sink.id for sink in sinks),
                forgets=tuple(
                    SourceName(into_key(sink.settings["ident"])) for sink in sinks if sink.into
                ),
            )
            epoch = await self._define(definition)
            for each in relations:
                self._around.creating.forget(each.id)
                if isinstance(each, TableDef) and each.source in self._around.cdc.jobs:
                    self._around.cdc.jobs[each.source].tables.forget(each.upstream)
            await self._delete_files(tables)
            return epoch

    async def _end_creating(self, relations: Sequence[TableDef | ObjectDef]) -> None:
        """Stop filling views that are about to go."""
        around = self._around
        for each in relations:
            creating = around.creating.running.get(each.id) if _is_creating(each) else None
            if creating is not None:
                creating.over = True
                await self._end_job(creating.job)


def _is_creating(each: TableDef | ObjectDef) -> bool:
    return each.kind is ObjectKind.CREATING
