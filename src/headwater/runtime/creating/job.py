"""The job that fills a new view, or a sink: an actor between barriers and its executor."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from headwater.backfill.snapshot.executor import (
    Filled,
    Progress,
    SnapshotBackfillExecutor,
    Surroundings,
)
from headwater.backfill.snapshot.machine import Pace, Phase, SnapshotBackfillMachine
from headwater.backfill.snapshot.order import Order
from headwater.backfill.snapshot.slices import Group, SnapshotFile, groups_of
from headwater.backfill.snapshot.state import TableProgress, decoded
from headwater.backfill.snapshot.target import Target
from headwater.barrier.participant import LocalOutputs, Site
from headwater.barrier.progress import CreateMviewProgressReporter, JobProgress
from headwater.errors import HeadwaterError, HistoryGone
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.record import StagedWork
from headwater.runtime.blocking import Blocking
from headwater.runtime.creating.steps import Reading, reading_of
from headwater.runtime.creating.sweep import held_in_memory
from headwater.runtime.creating.target import ViewTarget
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_world import KeptView, SparkSource
from headwater.state.manifest import TableView
from headwater.state.parquet_file import row_group_starts
from headwater.state.receipts import found_before
from headwater.state.store import StateStore
from headwater.views.layout import MAIN
from headwater.views.on_arrow.slices import SliceQuery, slice_query
from headwater.views.spark_desk import constant

_AT_ONCE = 1 << 16
"""Slices that need nothing of each other are bounded by the executor, which reads one at a time."""


_SLICES_OF_A_CORE = 4
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
    staging: Blocking
    """For what a barrier waits for, which no slice may hold up."""
    stored: Callable[[str], str | None]
    """What the ledger has of a job's progress."""
    last: Callable[[], Epoch]
    """The last epoch that every table has."""
    pin: Callable[[str, Epoch], Awaitable[None]]
    """Keeps an epoch readable under a name, until it is told a later one."""
    pinned: Callable[[str], Awaitable[Epoch | None]]
    """The epoch that is kept under a name."""
    wait_committed: Callable[[Epoch], Awaitable[object]]
    hurry: Callable[[], None]
    slice_bytes: int
    clock: Callable[[], float] = time.monotonic


@dataclass(kw_only=True)
class FillingJob:
    """Builds the actor that fills something from tables; it may be built again after a failure."""

    job: JobId
    lent: Lent
    merge: Callable[[Epoch], None]
    failed: Callable[[HeadwaterError], None]
    over: Callable[[], bool]
    """Whether it is live, or gone; what the ledger had of its progress is then, too."""
    said: Callable[[str], int | None]
    """What a user has set for it, if anything."""
    depends_on: tuple[JobId, ...] = ()
    executor: SnapshotBackfillExecutor | None = field(default=None, init=False)
    counted: JobProgress = field(init=False)
    """What its reports come to; the ledger has its progress by vnode, and needs no other."""

    def __post_init__(self) -> None:
        self.counted = JobProgress(self.job, has_log_phase=True, stored=False)

    @property
    def key(self) -> str:
        """What its progress is filed under in the ledger."""
        return job_key(self.job)

    @property
    def actor_count(self) -> int:
        """One driver; its slices are Spark tasks."""
        return 1

    @property
    def tag(self) -> str:
        """What its Spark jobs are found by."""
        return f"headwater-backfill-{self.job}"

    @property
    def reads(self) -> frozenset[TableId]:
        """The tables that it is filled from."""
        raise NotImplementedError

    def reading(self, snapshot: Mapping[TableId, TableView]) -> Reading:
        """How they are read, as they are at the epoch of the snapshot; may block."""
        raise NotImplementedError

    def target(
        self,
        snapshot: Mapping[TableId, TableView],
        groups: Mapping[TableId, list[Group]],
        reading: Reading,
    ) -> Target:
        """What is filled."""
        raise NotImplementedError

    @property
    def pace(self) -> Pace:
        """What bounds its slices."""
        tasks = self.lent.store.surroundings.parallelism
        usual = Pace(slice_bytes=self.lent.slice_bytes)
        return replace(usual, sweep_slices=max(usual.sweep_slices, _SLICES_OF_A_CORE * tasks))

    @property
    def progress(self) -> Progress | None:
        """How far it is, for people: what its reports have come to, which never falls."""
        if self.executor is None:
            return None
        now, known, counted = self.lent.clock(), self.executor.progress, self.counted
        if known.phase is not Phase.SNAPSHOT:
            return known
        return replace(
            known,
            rows=counted.rows,
            total=max(self.executor.total, counted.rows),
            percent=counted.percentage,
            rows_per_second=counted.rows_per_second(now),
            remaining=counted.remaining(now),
        )

    async def build(self, site: Site) -> None:
        """Choose the epoch of the snapshot, or go on from what the ledger has."""
        try:
            await self._build(site)
        except HistoryGone as error:
            # Trying again does not bring it back: the view goes, and says why.
            self.failed(error)
            raise

    async def _build(self, site: Site) -> None:
        stored = self.lent.stored(self.key)
        progress = decoded(stored) if stored else {}
        epoch = await self._pinned(progress)
        reads = sorted(self.reads)
        snapshot = {table: self.lent.store[table].view(epoch) for table in reads}
        followed = progress if all(each.finished for each in progress.values()) else {}
        reading = await self.lent.staging(self.reading, snapshot)
        seams = {} if followed else await self.lent.staging(self._seams, snapshot, reading)
        groups = {table: _groups(table, snapshot[table], followed, seams) for table in reads}
        target = self.target(snapshot, groups, reading)
        machine = self._machine(epoch, reading, groups, progress)
        self.executor = self._executor(site, machine, target)
        self.counted.estimate(self.executor.total)
        self.counted.resume(sum(each.rows for each in progress.values()))

    def _seams(
        self, snapshot: Mapping[TableId, TableView], reading: Reading
    ) -> dict[str, tuple[int, ...]]:
        """Where files that a sweep reads are parted: at row groups, if a disk at hand has them."""
        if reading.query is None:
            return {}
        table = reading.query.sliced
        root = self.lent.store[table].storage.local_root
        if root is None:
            return {}
        files = [live.file for live in snapshot[table].files]
        large = [file.path for file in files if file.bytes > self.lent.slice_bytes // 4]
        return {path: _seams_of(root / path) for path in large}

    async def _pinned(self, progress: Mapping[TableId, TableProgress]) -> Epoch:
        """The epoch to go on from, which is kept from now on."""
        begun = None if progress else await self._begun_at()
        while True:
            epoch = min((each.epoch for each in progress.values()), default=self.lent.last())
            epoch = begun or epoch
            try:
                await self.lent.pin(self.key, epoch)
            except HistoryGone:
                if progress or (begun is None and epoch == self.lent.last()):
                    raise
                # It was let go in this moment. Nothing is stored yet, so a later one will do.
                begun = None
                continue
            return epoch

    async def _begun_at(self) -> Epoch | None:
        """The epoch of a snapshot of which slices are read already, though none is stored."""
        return None

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be the actor, until a barrier stops it."""
        executor = self.executor
        assert executor is not None
        work = StagedWork()
        pinned = executor.machine.consumed
        async for message in executor.execute(site.local.subscribe_barrier(actor)):
            if isinstance(message, Filled):
                work = replace(message.work, progress={self.key: message.progress})
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
        limiter = RateLimiter(limit, self.lent.clock())
        return SnapshotBackfillMachine(
            epoch=epoch,
            groups=groups,
            steps=reading.steps,
            limiter=limiter,
            pace=self.pace,
            at_once=_AT_ONCE if reading.fresh or reading.merges else 1,
            progress=dict(progress),
        )

    def _executor(
        self, site: Site, machine: SnapshotBackfillMachine, target: Target
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
            staging=lent.staging,
            hurry=lent.hurry,
            clock=lent.clock,
        )
        return SnapshotBackfillExecutor(machine, target, around, reporter, self._parallelism)

    def scale(self) -> None:
        """Take over how many slices are to be read at a time."""
        if self.executor is not None:
            self.executor.parallelism = self._parallelism
            self.executor.halt()

    @property
    def _parallelism(self) -> int:
        # A slice is as many tasks as Spark has room for; another beside it brings little.
        return min(self.said("backfill_parallelism") or 1, SLICES_AT_ONCE)


@dataclass(kw_only=True)
class ViewJob(FillingJob):
    """The same for one new view."""

    view: KeptView
    order: Order = ()
    """Which tables are read before others, if a user has said so."""

    @property
    def reads(self) -> frozenset[TableId]:
        """The tables that its query reads."""
        return self.view.reads

    def reading(self, snapshot: Mapping[TableId, TableView]) -> Reading:
        """As its query allows; under a limit in slices that are too small for jobs of their own."""
        rows = {table: view.rows for table, view in snapshot.items()}
        found = reading_of(self.view.layout, rows, self.order)
        limited = self.said("backfill_rate_limit") is not None
        merges = found.merges and not limited
        query = self._slice_query(found, snapshot, merges) if found.fresh or merges else None
        return replace(found, merges=merges, query=query)

    def _slice_query(
        self, reading: Reading, snapshot: Mapping[TableId, TableView], merges: bool
    ) -> SliceQuery | None:
        if not reading.steps:
            return None
        schemas = {table: view.schema for table, view in snapshot.items()}
        sliced = reading.steps[-1].tables[-1]
        query = slice_query(self.view.layout, sliced, schemas, states=merges, ask=self._constant)
        return query if query is not None and held_in_memory(query, snapshot) else None

    def _constant(self, text: str) -> pa.Scalar | None:
        try:
            return constant(self.lent.spark(), text)
        except Exception as error:
            why = explained(error)
            if isinstance(why, SparkGone):
                self.lent.spark.lost()
            raise why from error

    async def _begun_at(self) -> Epoch | None:
        store = self.view.stores[MAIN]
        left = await self.lent.staging(found_before, store.storage)
        return await self.lent.pinned(self.key) if left else None

    def target(
        self,
        snapshot: Mapping[TableId, TableView],
        groups: Mapping[TableId, list[Group]],
        reading: Reading,
    ) -> Target:
        """Its stores."""
        return ViewTarget(
            self.view,
            self.lent.store,
            self.lent.spark,
            snapshot=snapshot,
            groups=groups,
            reading=reading,
            tag=self.tag,
            last=self.lent.last,
            tasks=lambda: self.said("backfill_parallelism"),
        )


def _seams_of(path: Path) -> tuple[int, ...]:
    try:
        return row_group_starts(path)
    except (OSError, pa.ArrowException):
        # Whoever reads it has words for what is wrong with it.
        return ()


def _groups(
    table: TableId,
    view: TableView,
    followed: Mapping[TableId, TableProgress],
    seams: Mapping[str, tuple[int, ...]],
) -> list[Group]:
    if table in followed:
        # The files of the snapshot are of no interest any more, and may be gone. Before that,
        # those of a table that is read are: slices of the others meet its rows.
        return [Group(each.first, each.last, ()) for each in followed[table].states]
    return groups_of(
        SnapshotFile(live.file, live.live_rows, seams.get(live.file.path, ()))
        for live in view.files
    )
