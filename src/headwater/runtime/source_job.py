"""The job of a source: read its log, stage its tables, answer barriers.

One coroutine per source feeds all of its tables. Between barriers it reads; at a checkpoint it
stages what it has read and hands over the position right after it, so rows and position are
in the same epoch or in none. What it holds in memory is bounded in bytes: when that is full,
it reads on only after the next checkpoint.

A FLUSH also reads what the log holds at that moment, so that whoever wrote upstream before it
finds the rows after it. A source that does not answer in a second is flushed without that.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.barrier.local import BarrierReceiver, LocalBarrierManager
from headwater.barrier.participant import LocalOutputs, Site
from headwater.cdc.source import Source, SourceBatch
from headwater.errors import SourceUnavailable
from headwater.model.barrier import (
    Barrier,
    BarrierKind,
    Define,
    Pause,
    Resume,
    Stop,
    Throttle,
)
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.record import StagedWork
from headwater.model.schema import Schema
from headwater.model.table_commit import TableCommit
from headwater.runtime.absence import Absence
from headwater.runtime.blocking import Blocking
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_FLUSH_READ_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceJob:
    """Builds the actor of one source; the barrier room may build it again after a failure."""

    job: JobId
    source: Source
    tables: Mapping[str, StateTable]
    position: Callable[[], str | None]
    """The position in the ledger, asked again at every start."""
    blocking: Blocking
    max_bytes: int
    away: Callable[[str], None] = lambda text: None
    """Hears once, each time that the source goes away."""
    poll_s: float = 0.05
    at_once: bool = False
    """Whether reading costs nothing, so that every checkpoint may read to the end."""
    schemas: Callable[[int], Mapping[str, Schema]] = lambda key: {}
    """The schemas that a proposed definition gives to tables of this source."""
    depends_on: tuple[JobId, ...] = ()

    @property
    def table_ids(self) -> tuple[TableId, ...]:
        """The tables it writes."""
        return tuple(table.id for table in self.tables.values())

    @property
    def actor_count(self) -> int:
        """One reader per source: its log has one order."""
        return 1

    async def build(self, site: Site) -> None:
        """Nothing is slow here: the actor starts from the position in the ledger."""

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be the actor, until a barrier stops it."""
        await _SourceActor(self, actor, site.local).run()


@dataclass(slots=True)
class _Held:
    """What has been read and not yet staged."""

    position: str | None
    changes: "dict[str, list[pa.Table] | DataFrame]" = field(default_factory=dict)
    bytes: int = 0
    bulk: bool = False
    moved: bool = False
    facts: dict[str, str] = field(default_factory=dict)

    def take(self, batch: SourceBatch) -> int:
        rows = 0
        for table, changes in batch.changes.items():
            if not isinstance(changes, pa.Table):
                self.changes[table] = changes
                self.bulk = True
            elif changes.num_rows:
                chunks = self.changes.setdefault(table, [])
                assert isinstance(chunks, list)
                chunks.append(changes)
                self.bytes += changes.nbytes
                rows += changes.num_rows
        self.moved |= batch.position != self.position
        self.position = batch.position
        self.facts.update(batch.facts)
        return rows


class _SourceActor:
    def __init__(self, job: SourceJob, actor: ActorId, local: LocalBarrierManager) -> None:
        self._job = job
        self._actor = actor
        self._local = local
        self._held = _Held(job.position())
        self._paused = False
        self._limit: int | None = None
        self._idle_until = 0.0
        self._absence = Absence(job.away)
        self._waiting: SourceBatch | None = None
        self._reading: asyncio.Task[SourceBatch] | None = None

    async def run(self) -> None:
        barriers = self._local.subscribe_barrier(self._actor)
        waiting: asyncio.Task[Barrier] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(_next(barriers))
                idle = self._start_reading()
                tasks = [task for task in (waiting, self._reading) if task is not None]
                await asyncio.wait(tasks, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    barrier, waiting = waiting.result(), None
                    await self._answer(barrier)
                    stop = barrier.mutation
                    if isinstance(stop, Stop) and self._job.job in stop.jobs:
                        return
                else:
                    self._take_what_is_read()
        finally:
            for task in (waiting, self._reading):
                if task is not None and not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    def _start_reading(self) -> float | None:
        """Read if it is time to; answers how long to wait until it is."""
        if self._reading is not None or not self._may_read():
            return None
        wait = self._idle_until - asyncio.get_running_loop().time()
        if wait > 0:
            return wait
        room = self._job.max_bytes - self._held.bytes
        self._reading = asyncio.ensure_future(
            self._job.source.read(self._held.position, max_bytes=room)
        )
        return None

    def _take_what_is_read(self) -> None:
        if self._reading is None or not self._reading.done():
            return
        reading, self._reading = self._reading, None
        try:
            self._take(reading.result())
            self._absence.over()
        except SourceUnavailable as error:
            # Barriers go on; whoever flushes gets what is here.
            wait = self._absence.failed(str(error))
            self._idle_until = asyncio.get_running_loop().time() + wait

    async def _read_to_the_end(self) -> None:
        """For a FLUSH: have what the log held when it was asked for, if the source answers."""
        for _ in range(2):
            # The first read may have begun before; the second has not.
            # Also a source that was away: it may just have come back.
            if self._limit is None:
                self._idle_until = 0.0
            self._start_reading()
            if self._reading is not None:
                await asyncio.wait([self._reading], timeout=_FLUSH_READ_S)
                self._take_what_is_read()

    def _may_read(self) -> bool:
        full = self._held.bulk or self._held.bytes >= self._job.max_bytes
        return not (self._paused or self._limit == 0 or full or self._waiting is not None)

    def _take(self, batch: SourceBatch) -> None:
        if batch.bulk and self._held.changes:
            self._waiting = batch
            return
        rows = self._held.take(batch)
        now = asyncio.get_running_loop().time()
        if self._limit:
            self._idle_until = now + rows / self._limit
        elif not batch.more:
            self._idle_until = now + self._job.poll_s

    async def _answer(self, barrier: Barrier) -> None:
        match barrier.mutation:
            case Pause():
                self._paused = True
            case Resume():
                self._paused = False
            case Throttle(limits=limits) if self._job.job in limits:
                self._limit = limits[self._job.job]
            case _:
                pass
        self._take_what_is_read()
        at_once = self._job.at_once and barrier.kind.durable
        if at_once or barrier.kind is BarrierKind.SYNC_CHECKPOINT:
            await self._read_to_the_end()
        work = StagedWork()
        if barrier.kind is BarrierKind.INITIAL:
            await self._create(barrier.epoch.prev)
        schemas: Mapping[str, Schema] = {}
        if isinstance(barrier.mutation, Define):
            schemas = self._job.schemas(barrier.mutation.key)
        if barrier.kind.durable and (self._held.moved or schemas) and self._exists():
            work = await self._stage(barrier.epoch.prev, schemas)
        self._local.collect(self._actor, barrier, work)

    def _exists(self) -> bool:
        """Whether the ledger has the tables; files of others would have no one to collect them."""
        return all(table.committed > NO_EPOCH for table in self._job.tables.values())

    async def _create(self, epoch: Epoch) -> None:
        """Stage the creation of tables that are new; the record of `epoch` picks it up.

        Replay: a table that is there is left alone.
        """
        for table in self._job.tables.values():
            if table.missing:
                await self._job.blocking(table.stage, epoch)

    async def _stage(self, epoch: Epoch, schemas: Mapping[str, Schema]) -> StagedWork:
        held = self._held
        self._held = _Held(held.position)
        if self._waiting is not None:
            self._held.take(self._waiting)
            self._waiting = None
        stages = [
            self._job.blocking(
                self._stage_one,
                self._job.tables[name],
                epoch,
                held.changes.get(name),
                schemas.get(name),
            )
            for name in sorted({*held.changes, *schemas})
            if name in self._job.tables
        ]
        # All of them end before the first error is raised: none may stage after a discard.
        ended = await asyncio.gather(*stages, return_exceptions=True)
        commits: list[TableCommit] = []
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                commits.append(outcome)
        positions: dict[str, str] = dict(held.facts)
        if held.position:
            positions[self._job.source.name] = held.position
        return StagedWork(tables=tuple(commits), positions=positions)

    @staticmethod
    def _stage_one(
        table: StateTable,
        epoch: Epoch,
        changes: "list[pa.Table] | DataFrame | None",
        schema: Schema | None,
    ) -> TableCommit | None:
        whole = pa.concat_tables(changes) if isinstance(changes, list) else changes
        return table.stage(epoch, whole, schema=schema)


async def _next(barriers: BarrierReceiver) -> Barrier:
    return await anext(barriers)
