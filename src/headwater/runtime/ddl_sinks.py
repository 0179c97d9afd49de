"""Create, change, rewind and drop sinks: each done with one epoch or not at all."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.catalog.change import AlterObject, CreateObject
from headwater.catalog.relation import SINK_VIEW, Detail, ObjectDef, ObjectKind, TableDef, TableKind
from headwater.catalog.snapshot import relation_error
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError, RetryableError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.runtime.committer import Definition
from headwater.runtime.ddl import Ddl
from headwater.runtime.sinks.filling import FILLING, FillingSink
from headwater.runtime.sinks.keeper import Owed
from headwater.runtime.view_plan import PlannedView
from headwater.sql.statement import CreateMaterializedView

_UNKNOWN = Schema((Column("x", BIGINT),), ("x",))


class SinkDdl(Ddl):
    """Defines sinks, beside all other relations."""

    async def make_view_for_sink(
        self, statement: CreateMaterializedView, planned: PlannedView, owner: str
    ) -> None:
        """The materialized view that a sink AS SELECT keeps for itself.

        Replay: one that a crash left without its sink is dropped by the next engine.
        """
        name = statement.name.name
        if self._around.creating.is_small(planned.layout):
            view = TableDef(
                id=TableId(0),
                name=name,
                schema=_UNKNOWN,
                folder="",
                kind=TableKind.MATERIALIZED_VIEW,
                detail=Detail(definition=statement.text, owner=owner),
            )
            await self.create_view(view, planned)
            return
        intent = ObjectDef(
            id=0,
            kind=ObjectKind.CREATING,
            name=name,
            definition=statement.text,
            owner=owner,
            settings={"backfill_rate_limit": "", "backfill_order": ""},
        )
        creating = await self.begin_view(intent, planned)
        await asyncio.shield(creating.done)

    async def create_sink(
        self, sink: ObjectDef, *, snapshot: bool, limit: int | None = None
    ) -> "asyncio.Future[Epoch] | None":
        """Create a sink, which is owed everything that changes from the next epoch on.

        With `snapshot` it is also owed the rows that are there: at once while they are few, else
        by a job of its own, whose end the future tells. Replay: done with one epoch or not at all.
        """
        around = self._around
        async with self._one:
            (id_,) = await self._ids(1)
            assert sink.table is not None
            rows = around.store[sink.table].view().rows
            beside = snapshot and (limit is not None or rows > around.sinks.at_once_rows)
            said = {**sink.settings, "backfill_rate_limit": "" if limit is None else str(limit)}
            if beside:
                said[FILLING] = "true"
            named = replace(sink, id=id_, settings=said)
            live = await around.sinks.open(named)
            if beside:
                return await self._begin_filling(named)
            owed = Owed(live, after=None if snapshot else Owed.NOTHING)
            try:
                await self._define(Definition(changes=[CreateObject(object=named)], owed=(owed,)))
            except HeadwaterError:
                await around.sinks.forget(id_)
                raise
            around.sinks.start(id_)
            return None

    async def _begin_filling(self, sink: ObjectDef) -> "asyncio.Future[Epoch]":
        around = self._around
        filling = around.sinks.fill(sink)
        job = filling.job
        changes = [CreateObject(object=sink)]
        around.committer.define(job.job, Definition(changes=changes))
        crash_point("catalog.before_create")
        try:
            await around.blocking(around.catalog.check, changes)
            await around.coordinator.add([job])
        except HeadwaterError:
            around.committer.undefine(job.job)
            await around.sinks.forget(sink.id)
            raise
        crash_point("catalog.after_create")
        around.sinks.start(sink.id)
        return filling.done

    async def join_sink(self, filling: FillingSink, after: Epoch) -> Epoch:
        """Let a sink whose snapshot is in its log be owed every epoch from now on.

        Replay: done with the epoch returned or not at all.
        """
        around = self._around
        async with self._one:
            if filling.over:
                raise RetryableError("the sink is not being filled any more")
            live = around.sinks.delivering[filling.sink.id].live
            said = {
                name: value for name, value in live.definition.settings.items() if name != FILLING
            }
            joined = replace(live.definition, settings=said)
            definition = Definition(
                changes=[AlterObject(object=joined)],
                owed=(Owed(live, after=after, joins=True),),
                facts={filling.job.key: ""},
            )
            epoch = await self._define(definition)
            crash_point("snapshot.after_merge")
            live.definition = joined
            filling.over = True
            await self._end_job(filling.job)
            around.sinks.filling.pop(filling.sink.id, None)
            filling.end(epoch)
            return epoch

    async def alter_sink(self, sink: ObjectDef, said: Mapping[str, str]) -> Epoch:
        """Give a sink other options or limits; the rest stays as it is by now.

        Replay: whole or not at all.
        """
        async with self._one:
            now = await self._as_it_is(sink)
            altered = replace(now, settings={**now.settings, **said})
            epoch = await self._define(Definition(changes=[AlterObject(object=altered)]))
            await self._around.sinks.altered(altered)
            return epoch

    async def rewind_sink(self, sink: ObjectDef, epoch: Epoch) -> Epoch:
        """Owe a sink once more what changed after an epoch.

        Raises `HistoryGone` when that is not kept any more. Replay: whole or not at all.
        """
        async with self._one:
            live = self._around.sinks.delivering[sink.id].live
            if FILLING in sink.settings:
                raise relation_error(
                    f'sink "{sink.name}" is still being filled', "55000", hint="WAIT for it first."
                )
            assert sink.table is not None
            self._around.store[sink.table].view(epoch)
            done = await self._define(Definition(changes=[], owed=(Owed(live, after=epoch),)))
            await self._around.sinks.owed_again(sink.id)
            return done

    async def drop(self, relations: Sequence[TableDef | ObjectDef]) -> Epoch:
        """Drop relations; with a sink goes the view that it keeps for itself."""
        snapshot = await self.snapshot()
        going = list(relations)
        sinks = [each for each in going if each.kind is ObjectKind.SINK]
        for sink in sinks:
            assert isinstance(sink, ObjectDef)
            own = snapshot.by_id(sink.table or 0)
            if own is not None and own.name.startswith(SINK_VIEW) and own not in going:
                going.append(own)
            filling = self._around.sinks.filling.get(sink.id)
            if filling is not None:
                filling.over = True
                await self._end_job(filling.job)
        epoch = await super().drop(going)
        for sink in sinks:
            filling = self._around.sinks.filling.get(sink.id)
            if filling is not None:
                filling.cancelled()
            await self._around.sinks.forget(sink.id, gone=True)
        return epoch

    async def drop_lost_views(self) -> None:
        """Drop views that were made for sinks which never came to be."""
        snapshot = await self.snapshot()
        for view in snapshot.materialized_views:
            if view.sinks_own and not list(snapshot.readers(view.id)):
                with contextlib.suppress(HeadwaterError):
                    await self.drop([view])
