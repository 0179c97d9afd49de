"""The job of a source: read its log, stage its tables, answer barriers.

One coroutine per source feeds all of its tables. Between barriers it reads; at a checkpoint it
stages what it has read and hands over the position right after it, so rows and position are
in the same epoch or in none. What it holds in memory is bounded in bytes: when that is full,
it reads on only after the next checkpoint.
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
from headwater.model.barrier import Barrier, Pause, Resume, Stop, Throttle
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.record import StagedWork
from headwater.model.table_commit import TableCommit
from headwater.runtime.blocking import Blocking
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    poll_s: float = 0.05
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
        self._waiting: SourceBatch | None = None

    async def run(self) -> None:
        barriers = self._local.subscribe_barrier(self._actor)
        waiting: asyncio.Task[Barrier] | None = None
        reading: asyncio.Task[SourceBatch] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(_next(barriers))
                if reading is None and self._may_read():
                    reading = asyncio.ensure_future(self._read())
                tasks = [task for task in (waiting, reading) if task is not None]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    barrier = waiting.result()
                    waiting = None
                    await self._answer(barrier)
                    if isinstance(barrier.mutation, Stop) and (
                        self._job.job in barrier.mutation.jobs
                    ):
                        return
                elif reading is not None and reading.done():
                    self._take(reading.result())
                    reading = None
        finally:
            for task in (waiting, reading):
                if task is not None and not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    def _may_read(self) -> bool:
        full = self._held.bulk or self._held.bytes >= self._job.max_bytes
        return not (self._paused or self._limit == 0 or full or self._waiting is not None)

    async def _read(self) -> SourceBatch:
        loop = asyncio.get_running_loop()
        if (wait := self._idle_until - loop.time()) > 0:
            await asyncio.sleep(wait)
        room = self._job.max_bytes - self._held.bytes
        return await self._job.source.read(self._held.position, max_bytes=room)

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
        work = StagedWork()
        if barrier.kind.durable and self._held.moved:
            work = await self._stage(barrier.epoch.prev)
        self._local.collect(self._actor, barrier, work)

    async def _stage(self, epoch: Epoch) -> StagedWork:
        held = self._held
        self._held = _Held(held.position)
        if self._waiting is not None:
            self._held.take(self._waiting)
            self._waiting = None
        stages = [
            self._job.blocking(self._stage_one, self._job.tables[name], epoch, chunks)
            for name, chunks in sorted(held.changes.items())
            if name in self._job.tables
        ]
        commits = await asyncio.gather(*stages)
        return StagedWork(
            tables=tuple(commit for commit in commits if commit is not None),
            positions={self._job.source.name: held.position or ""},
        )

    @staticmethod
    def _stage_one(
        table: StateTable, epoch: Epoch, changes: "list[pa.Table] | DataFrame"
    ) -> TableCommit | None:
        whole = pa.concat_tables(changes) if isinstance(changes, list) else changes
        return table.stage(epoch, whole)


async def _next(barriers: BarrierReceiver) -> Barrier:
    return await anext(barriers)
