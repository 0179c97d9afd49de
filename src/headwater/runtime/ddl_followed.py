"""Define sources of external databases, their tables, and what follows a change upstream."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.catalog.change import (
    AlterObject,
    AlterSource,
    AlterTable,
    CatalogChange,
    CreateSource,
    CreateTable,
    DropSource,
    DropTable,
)
from headwater.catalog.relation import SourceDef, TableDef
from headwater.catalog.snapshot import relation_error
from headwater.cdc.external_table import ExternalDatabase
from headwater.cdc.schema_change import SchemaChange
from headwater.cdc.source import Upstream
from headwater.crash_points import crash_point
from headwater.errors import (
    ConfigError,
    HeadwaterError,
)
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId, SourceName, TableId
from headwater.model.schema import Schema
from headwater.observe.events import EventKind
from headwater.runtime.cdc_job import CdcJob
from headwater.runtime.cdc_tables import SchemaStep, StepKind
from headwater.runtime.committer import Definition
from headwater.runtime.ddl_base import DdlBase, folder_of, refuse_taken
from headwater.runtime.followers import evolved_sinks, followers, with_columns
from headwater.runtime.recovery import table_spec

if TYPE_CHECKING:
    pass

_PREPARE_S = 75.0


class FollowedDdl(DdlBase):
    """Defines what follows an external database."""

    async def create_database_source(self, definition: SourceDef) -> Epoch:
        """Create a source of an external database; what it needs there is made as well.

        Replay: done with that epoch or not at all. What a crash leaves undone upstream is
        made by the job, which makes it before anything else.
        """
        around = self._around
        # Before the lock: a database that answers slowly must not keep other definitions waiting.
        await around.blocking(around.cdc.database(definition).validate)
        async with self._one:
            refuse_taken(await self.snapshot(), definition.name, {})
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

    async def alter_database_source(
        self, name: SourceName, change: Callable[[SourceDef], SourceDef]
    ) -> Epoch:
        """Reach the database of a source in another way, which is tried before.

        What others have changed while it was tried stays: the two together are tried again.
        Replay: the options are the new ones with the epoch returned, or the old ones stay.
        """
        around = self._around
        while True:
            known = (await self.snapshot()).source(name)
            definition = change(known)
            # Before the lock: a database that answers slowly must not keep others waiting.
            database = around.cdc.database(definition)
            await around.blocking(_try_out, database, around.cdc.jobs[name].upstream.identity)
            async with self._one:
                if (await self.snapshot()).source(name) != known:
                    continue
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

    async def create_upstream_source(self, definition: SourceDef) -> Epoch:
        """Create a source of another workspace, which is looked at first.

        Replay: done with that epoch or not at all; nothing is made in that workspace.
        """
        around = self._around
        await around.blocking(around.upstreams.check, definition)
        async with self._one:
            refuse_taken(await self.snapshot(), definition.name, {})
            (id_,) = await self._ids(1)
            definition = replace(definition, id=id_)
            job = around.upstreams.job(definition)
            around.committer.define(job.job, Definition(changes=[CreateSource(source=definition)]))
            crash_point("catalog.before_create")
            try:
                epoch = await around.coordinator.add([job])
            except HeadwaterError:
                around.committer.undefine(job.job)
                await around.upstreams.drop(definition.name)
                raise
            crash_point("catalog.after_create")
            return epoch

    async def create_upstream_table(self, table: TableDef) -> Epoch:
        """Create a table that follows one of another workspace; it is filled by and by.

        Replay: done with the epoch returned or not at all.
        """
        around = self._around
        async with self._one:
            if table.source not in around.upstreams.jobs:
                raise relation_error(f'source "{table.source}" does not exist', "42704")
            (id_,) = await self._ids(1)
            named = replace(table, id=TableId(id_), folder=folder_of(table.name, id_))
            around.store.create(table_spec(named))
            definition = Definition(changes=[CreateTable(table=named)], creates=(named.id,))
            epoch = await self._define(definition, undo=[named.id])
            around.upstreams.follow(named)
            return epoch

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
            crash_point("cdc.after_old_rows")
            change = AlterTable(table=altered, anew=step.change.rewrites)
            sinks = evolved_sinks(snapshot, altered)
            changes: list[CatalogChange] = [change]
            changes += [AlterObject(object=sink) for sink in sinks]
            epoch = await self._step(step, Definition(changes=changes, replans=replans))
            crash_point("cdc.after_change")
            self._redefined(altered)
            await around.sinks.evolved(sinks)
            if step.change.rewrites or set(table.schema.names) - set(altered.schema.names):
                around.creating.disturbed(table.id, f'columns of table "{table.name}" changed')
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
            clear = SchemaStep(kind=StepKind.CLEAR, table=table.id, change=change, name=table.name)
            await self._step(clear, Definition(changes=[]))
            crash_point("cdc.after_clear")
            step = SchemaStep(kind=StepKind.REPLACE, table=table.id, change=change)
            changes = [AlterTable(table=altered, anew=True)]
            epoch = await self._step(step, Definition(changes=changes, replans=replans))
            self._redefined(altered)
            around.creating.disturbed(table.id, f'table "{table.name}" was filled anew')
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
        job.tables.add(self._around.cdc.table(table, job.upstream))

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
            workspace = around.upstreams.jobs.get(source.name)
            facts = around.upstreams.facts_of([table.id for table in tables])
            definition = Definition(changes=changes, forgets=(source.name,), facts=facts)
            around.committer.define(job, definition)
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
            if workspace is not None:
                await around.upstreams.forget([table.id for table in tables])
                await around.upstreams.drop(source.name)
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
