"""The real job of a new view over the model's tables, and how it is heard."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from headwater.backfill.snapshot.machine import Pace, Step
from headwater.backfill.snapshot.order import in_order
from headwater.backfill.snapshot.slices import Group
from headwater.barrier.local import CreateMviewProgressReported
from headwater.barrier.participant import Site
from headwater.barrier.progress import BackfillState
from headwater.barrier.progress_board import ProgressBoard
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, TableId
from headwater.model.record import StagedWork
from headwater.runtime.creating.job import FillingJob
from headwater.runtime.creating.steps import Reading
from headwater.state.manifest import TableView
from headwater.testing.snapshot_simulator.target import ModelTarget
from headwater.testing.snapshot_simulator.world import Making, World

_SEAM_ROWS = 3


@dataclass(kw_only=True)
class ModelJob(FillingJob):
    """The real job over the model's tables."""

    world: World
    making: Making
    slices: int
    gone: bool = False
    """Whether it has joined, or is about to go."""
    filled: ModelTarget = field(init=False)

    @property
    def reads(self) -> frozenset[TableId]:
        """The tables of its view."""
        return frozenset(self.making.plan.tables)

    @property
    def pace(self) -> Pace:
        """What bounds its slices."""
        return Pace(slice_bytes=self.lent.slice_bytes)

    def reading(self, snapshot: Mapping[TableId, TableView]) -> Reading:
        """By the order that was set, or the largest table in slices."""
        plan = self.making.plan
        if plan.order:
            steps = tuple(Step((each,)) for each in in_order(sorted(plan.tables), plan.order))
            return Reading(steps, fresh=False)
        return Reading((Step(plan.tables, self.slices),), plan.fresh)

    async def _begun_at(self) -> Epoch | None:
        return await self.lent.pinned(self.key) if self.making.receipts else None

    def _seams(
        self, snapshot: Mapping[TableId, TableView], reading: Reading
    ) -> dict[str, tuple[int, ...]]:
        """Every few rows."""
        files = [live.file for view in snapshot.values() for live in view.files]
        return {file.path: tuple(range(0, file.rows, _SEAM_ROWS)) for file in files}

    def target(
        self,
        snapshot: Mapping[TableId, TableView],
        groups: Mapping[TableId, list[Group]],
        reading: Reading,
    ) -> ModelTarget:
        """Its rows."""
        (epoch,) = {view.epoch for view in snapshot.values()}
        self.filled = ModelTarget(self.world, self.making, epoch)
        return self.filled


@dataclass(slots=True)
class _Stored:
    """A table of the model where the real job wants a table of the store."""

    world: World
    table: TableId

    def view(self, epoch: Epoch) -> TableView:
        return self.world.upstream.view(self.table, epoch)


@dataclass(slots=True)
class Store:
    """Finds tables of the model for the real job."""

    world: World

    def __getitem__(self, table: TableId) -> _Stored:
        return _Stored(self.world, table)


@dataclass(slots=True, eq=False)
class Running:
    """A job and its actor."""

    job: ModelJob
    actor: ActorId
    generation: int
    site: Site = field(init=False)
    barriers: "asyncio.Queue[Barrier]" = field(default_factory=asyncio.Queue)
    sent: Barrier | None = None
    collected: Barrier | None = None
    work: StagedWork = field(default_factory=StagedWork)
    task: "asyncio.Task[None] | None" = None
    shown: float = 0.0


@dataclass(slots=True)
class Local:
    """How a job is heard, in the place of the real barrier manager."""

    running: Running
    board: ProgressBoard
    in_flight: Callable[[], Epoch | None]

    async def subscribe_barrier(self, actor: ActorId) -> AsyncIterator[Barrier]:
        """What the scenario sends."""
        while True:
            yield await self.running.barriers.get()

    def collect(self, actor: ActorId, barrier: Barrier, work: StagedWork) -> None:
        """A barrier is answered."""
        self.running.collected, self.running.work = barrier, work

    def report_create_mview_progress(
        self, actor: ActorId, *, generation: int, epoch: Epoch, state: BackfillState
    ) -> None:
        """Counts only while its epoch is under way."""
        report = CreateMviewProgressReported(
            actor=actor, generation=generation, epoch=epoch, state=state
        )
        self.board.take_job_report(
            self.running.job.job,
            report,
            in_flight=epoch == self.in_flight(),
            at=asyncio.get_running_loop().time(),
        )
