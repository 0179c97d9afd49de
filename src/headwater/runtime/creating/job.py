"""The job of a view that is being created: an actor between barriers and its executor."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from headwater.backfill.rate_limit import RateLimit, RateLimiter
from headwater.backfill.snapshot.executor import (
    Filled,
    SnapshotBackfillExecutor,
    Surroundings,
)
from headwater.backfill.snapshot.machine import Pace, SnapshotBackfillMachine
from headwater.backfill.snapshot.order import Order
from headwater.backfill.snapshot.slices import Group, SnapshotFile, groups_of
from headwater.backfill.snapshot.state import TableProgress, decoded
from headwater.barrier.participant import LocalOutputs, Site
from headwater.barrier.progress import CreateMviewProgressReporter
from headwater.errors import HeadwaterError
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.record import StagedWork
from headwater.runtime.blocking import Blocking
from headwater.runtime.creating.steps import Reading, reading_of
from headwater.runtime.creating.target import ViewTarget
from headwater.runtime.view_world import KeptView, SparkSource
from headwater.state.manifest import TableView
from headwater.state.store import StateStore

_AT_ONCE = 1 << 16
"""Slices that need nothing of each other are bounded by the executor, which reads one at a time."""


BACKFILL = "backfill/"
SLICES_AT_ONCE = 8


def job_key(id_: int) -> str:
    """What a job's progress and its pin are filed under."""
    return f"{BACKFILL}{id_}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What the engine lends to the jobs of all new views."""

    store: StateStore
    spark: SparkSource
    blocking: Blocking
    """Threads of its own: a long slice must not keep the epochs waiting."""
    stored: Callable[[str], str | None]
    """What the ledger has of a job's progress."""
    last: Callable[[], Epoch]
    """The last epoch that every table has."""
    pin: Callable[[str, Epoch], Awaitable[None]]
    """Keeps an epoch readable under a name, until it is told a later one."""
    wait_committed: Callable[[Epoch], Awaitable[object]]
    hurry: Callable[[], None]
    slice_bytes: int


@dataclass(slots=True, kw_only=True)
class ViewJob:
    """Builds the actor of one new view; the barrier room may build it again after a failure."""

    job: JobId
    view: KeptView
    lent: Lent
    merge: Callable[[Epoch], None]
    failed: Callable[[HeadwaterError], None]
    over: Callable[[], bool]
    """Whether the view is live, or gone; what the ledger had of its progress is then, too."""
    said: Callable[[str], int | None]
    """What a user has set for this view, if anything."""
    order: Order = ()
    """Which tables are read before others, if a user has said so."""
    depends_on: tuple[JobId, ...] = ()
    executor: SnapshotBackfillExecutor | None = field(default=None, init=False)

    @property
    def key(self) -> str:
        """What its progress is filed under in the ledger."""
        return job_key(self.job)

    @property
    def actor_count(self) -> int:
        """One driver; its slices are Spark tasks."""
        return 1

    async def build(self, site: Site) -> None:
        """Choose the epoch of the snapshot, or go on from what the ledger has."""
        stored = self.lent.stored(self.key)
        progress = decoded(stored) if stored else {}
        epoch = min((each.epoch for each in progress.values()), default=self.lent.last())
        await self.lent.pin(self.key, epoch)
        reads = sorted(self.view.reads)
        snapshot = {table: self.lent.store[table].view(epoch) for table in reads}
        groups = {table: _groups(snapshot[table], progress.get(table)) for table in reads}
        reading = reading_of(self.view.layout, {t: snapshot[t].rows for t in reads}, self.order)
        target = ViewTarget(
            self.view,
            self.lent.store,
            self.lent.spark,
            snapshot=snapshot,
            groups=groups,
            reading=reading,
            tag=f"headwater-backfill-{self.job}",
            last=self.lent.last,
        )
        machine = self._machine(epoch, reading, groups, progress)
        self.executor = self._executor(site, machine, target)

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be the actor, until a barrier stops it."""
        executor = self.executor
        assert executor is not None
        work = StagedWork()
        pinned = executor.machine.consumed
        async for message in executor.execute(site.local.subscribe_barrier(actor)):
            if isinstance(message, Filled):
                work = StagedWork(
                    tables=tuple(message.commits), progress={self.key: message.progress}
                )
                continue
            site.local.collect(actor, message, work)
            work = StagedWork()
            if executor.machine.consumed > pinned and executor.settled:
                pinned = executor.machine.consumed
                await self.lent.pin(self.key, pinned)

    def _machine(
        self,
        epoch: Epoch,
        reading: Reading,
        groups: Mapping[TableId, list[Group]],
        progress: Mapping[TableId, TableProgress],
    ) -> SnapshotBackfillMachine:
        limit = RateLimit(rows_per_s=self.said("backfill_rate_limit"))
        limiter = RateLimiter(limit, time.monotonic())
        return SnapshotBackfillMachine(
            epoch=epoch,
            groups=groups,
            steps=reading.steps,
            limiter=limiter,
            pace=Pace(slice_bytes=self.lent.slice_bytes),
            at_once=_AT_ONCE if reading.fresh else 1,
            progress=dict(progress),
        )

    def _executor(
        self, site: Site, machine: SnapshotBackfillMachine, target: ViewTarget
    ) -> SnapshotBackfillExecutor:
        lent = self.lent
        (actor,) = site.actors
        reporter = CreateMviewProgressReporter(
            lambda at, state: site.local.report_create_mview_progress(
                actor, generation=site.generation, epoch=at, state=state
            )
        )
        around = Surroundings(
            job=self.job,
            wait_committed=lent.wait_committed,
            merge=self.merge,
            failed=self.failed,
            over=self.over,
            blocking=lent.blocking,
            hurry=lent.hurry,
            clock=time.monotonic,
        )
        return SnapshotBackfillExecutor(machine, target, around, reporter, self._parallelism)

    def scale(self) -> None:
        """Take over how many slices are to be read at a time."""
        if self.executor is not None:
            self.executor.parallelism = self._parallelism

    @property
    def _parallelism(self) -> int:
        # A slice is as many tasks as Spark has room for; another beside it brings little.
        return min(self.said("backfill_parallelism") or 1, SLICES_AT_ONCE)


def _groups(view: TableView, progress: TableProgress | None) -> list[Group]:
    if progress is not None and progress.finished:
        # The files of its snapshot are of no interest any more, and may be gone.
        return [Group(each.first, each.last, ()) for each in progress.states]
    return groups_of(SnapshotFile(live.file, live.live_rows) for live in view.files)
