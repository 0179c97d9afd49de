"""The executor of snapshot backfill: fills a new view, or a sink's log, beside the live tables.

    in     `Barrier`, one after the other
    out    for a checkpoint that stores something a `Filled`, right before its `Barrier`; other
           barriers as they are

Between barriers it has the view's target read a slice of the snapshot, or a sweep of many slices
at once, or catch up with a stretch of the change log. A barrier never waits for that: it takes
along what is ready, and the progress that belongs to it. What fails is tried again after a wait
that grows, and concerns nobody else.

    mutation         effect
    Pause, Resume    nothing is begun in between, and a sweep ends early
    Throttle         the rate limit of this job, from now on; 0 pauses. A sweep ends early
    Stop             the stream ends after this barrier
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.backfill.snapshot.machine import (
    CatchUp,
    Instruction,
    LogEpoch,
    Merge,
    Phase,
    Read,
    SnapshotBackfillMachine,
)
from headwater.backfill.snapshot.state import encoded
from headwater.backfill.snapshot.target import Prepared, Target
from headwater.barrier.progress import (
    ALMOST_DONE,
    ConsumingUpstreamTableOrSource,
    CreateMviewProgressReporter,
)
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError, RetryableError
from headwater.model.barrier import Barrier, Pause, Resume, Stop, Throttle
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_millis
from headwater.model.ids import JobId, TableId
from headwater.model.rate_limit import RateLimit
from headwater.model.record import StagedWork

_MOST_IN_TURN = 16
_MOST_SWEPT = 512
"""Slices of a sweep, which are planned in one go."""
_MOST_WAITING = 1024
"""Slices of sweeps that are read, or being read, and that no epoch has."""
_WORTH_AN_EPOCH_S = 0.25
"""What took so long to read does not wait for its epoch until the next one is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor is given besides its view."""

    job: JobId
    wait_committed: Callable[[Epoch], Awaitable[object]]
    merge: Callable[[Epoch], None]
    """Asked to let the view join the others, with the changes after an epoch."""
    failed: Callable[[HeadwaterError], None] = lambda error: None
    """Hears an error that trying again does not mend."""
    over: Callable[[], bool] = lambda: False
    """Whether nothing may be begun any more."""
    blocking: Callable[..., Awaitable[Any]] = asyncio.to_thread
    staging: Callable[..., Awaitable[Any]] = asyncio.to_thread
    """The same for what a barrier waits for, which slices must not hold up."""
    hurry: Callable[[], None] = lambda: None
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What a checkpoint stores of the view, and how far it then is."""

    work: StagedWork
    progress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a view is, for people."""

    phase: Phase
    rows: int
    total: int
    percent: float
    """Of the snapshot; less than 100 as long as it is not read."""
    rows_per_second: float = 0.0
    """This and `remaining` are known to those who follow its reports."""
    remaining: timedelta | None = None
    lag: timedelta | None = None
    """How old the state is that the view has come to; None in the snapshot."""
    trouble: str = ""

    def __str__(self) -> str:
        if self.phase is Phase.SNAPSHOT:
            text = f"{self.percent:.1f}% ({self.rows:,} of {self.total:,} rows"
            text += f", {self.rows_per_second:,.0f} rows/s"
            if self.remaining is not None:
                text += f", {round(self.remaining.total_seconds())} s left"
            text += ")"
        else:
            behind = 0.0 if self.lag is None else self.lag.total_seconds()
            text = f"100.0% of the snapshot, following changes, {behind:.1f} s behind"
        return f"{text} {self.trouble}".rstrip()


Message = Filled | Barrier


@dataclass(slots=True, eq=False)
class _Begun:
    doing: Instruction
    work: asyncio.Future[Prepared]
    at: float
    prepared: Prepared | None = None
    swept: bool = False


class SnapshotBackfillExecutor:
    """Fills one view; one life of its job."""

    def __init__(
        self,
        machine: SnapshotBackfillMachine,
        target: Target,
        around: Surroundings,
        reporter: CreateMviewProgressReporter | None = None,
        parallelism: int = 1,
    ) -> None:
        self.machine = machine
        self._target = target
        self._around = around
        self._reporter = reporter
        self.parallelism = parallelism
        self._epoch: Epoch | None = None
        self._begun: list[_Begun] = []
        """In the order in which they were begun, which is the order in which epochs get them."""
        self._sweep: asyncio.Future[None] | None = None
        self._halted = False
        """Whether the sweep that runs was told to end before its time."""
        self._merging: Merge | None = None
        self._commit: asyncio.Future[Any] | None = None
        self._hurried = False
        self._over = False
        self._trouble = ""
        self.total = sum(_total(machine, table) for table in machine.groups)
        """About how many rows the snapshot has."""

    async def execute(self, upstream: AsyncIterator[Barrier]) -> AsyncIterator[Message]:
        """Run until a barrier stops this job."""
        incoming: asyncio.Future[Barrier] | None = None
        try:
            while True:
                incoming = incoming or asyncio.ensure_future(_next(upstream))
                self._begin()
                running = [each.work for each in self._begun if each.prepared is None]
                waits: set[asyncio.Future[Any]] = {incoming, *running}
                waits |= {each for each in (self._commit, self._sweep) if each is not None}
                await asyncio.wait(
                    waits, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
                )
                self._look()
                if not incoming.done():
                    continue
                barrier, incoming = incoming.result(), None
                self._mutate(barrier)
                if barrier.kind.durable and self._ready() and self._target.exists:
                    yield await self._stage(barrier.epoch.prev)
                self._report(barrier.epoch.prev)
                self._epoch = barrier.epoch.curr
                self._hurried = False
                yield barrier
                if isinstance(barrier.mutation, Stop) and self._around.job in barrier.mutation.jobs:
                    return
        finally:
            await self._leave(incoming)

    @property
    def settled(self) -> bool:
        """Whether the ledger has all that was read."""
        return not self._begun and self._commit is None

    def merge_failed(self) -> None:
        """The view could not join the others now; it is tried again later."""
        if self._merging is not None:
            self.machine.failed(self._merging, self._around.clock())
            self._merging = None

    @property
    def progress(self) -> Progress:
        """How far it is."""
        snapshot = self.machine.phase is Phase.SNAPSHOT
        lag = None
        if not snapshot and self._epoch is not None:
            millis = epoch_millis(self._epoch) - epoch_millis(self.machine.consumed)
            lag = timedelta(milliseconds=max(0, millis))
        total = max(self.total, self._rows)
        read = min(ALMOST_DONE, 100 * self._rows / total) if total else 0.0
        return Progress(
            phase=self.machine.phase,
            rows=self._rows,
            total=total,
            percent=read if snapshot else 100.0,
            lag=lag,
            trouble=self._trouble,
        )

    # Inside

    @property
    def _rows(self) -> int:
        stored = sum(each.rows for each in self.machine.progress.values())
        return stored + sum(each.prepared.rows for each in self._begun if each.prepared is not None)

    def _ready(self) -> "list[_Begun]":
        """What the next epoch can have: a slice only together with those before it."""
        return list(itertools.takewhile(lambda each: each.prepared is not None, self._begun))

    def _begin(self) -> None:
        """Begin what comes next, as much as may run side by side."""
        # Whoever is not asked now has nothing to wake up for: an old time would never pass.
        self.machine.wake_at = None
        while self._epoch is not None and not self._over and not self._around.over():
            if self._merging is not None or not self._may_begin() or not self._begin_one():
                return

    def _begin_one(self) -> bool:
        assert self._epoch is not None
        log: Sequence[LogEpoch] = ()
        if self.machine.phase is Phase.LOG:
            try:
                log = self._target.log(self.machine.consumed)
            except HeadwaterError as error:
                # Changes that are needed are not kept any more.
                self._give_up(error)
                return False
        self.machine.sweeping = self._target.sweeps
        doing = self.machine.next(self._around.clock(), log)
        match doing:
            case None:
                # Nothing can begin before an epoch has what is ready.
                if self.machine.wake_at is None and self._all_ready():
                    self._hurry()
                return False
            case Merge(after=after):
                self._merging = doing
                crash_point("snapshot.before_merge")
                self._around.merge(after)
                return False
            case Read(allowed=None) if self._target.sweeps:
                self._begin_sweep(doing)
                return False
            case Read():
                before = self.machine.before(doing)
                call = self._around.blocking(self._target.read, doing, before, self._epoch)
            case CatchUp():
                call = self._around.blocking(self._target.catch_up, doing, self._epoch)
        self._begun.append(_Begun(doing, asyncio.ensure_future(call), self._around.clock()))
        return True

    def _begin_sweep(self, first: Read) -> None:
        """Begin as many slices as there are, up to a number, in one job."""
        assert self._epoch is not None
        reads = [first]
        before = self.machine.before(first)
        most = min(_MOST_SWEPT, 2 * self.machine.pace.sweep_slices)
        while len(reads) < most:
            more = self.machine.next(self._around.clock())
            if more is None:
                break
            assert isinstance(more, Read)
            reads.append(more)
        loop = asyncio.get_running_loop()
        begun = [_Begun(r, loop.create_future(), self._around.clock(), swept=True) for r in reads]
        self._begun += begun

        def ready(found: Sequence[tuple[int, Prepared]]) -> None:
            loop.call_soon_threadsafe(_answer, begun, found)

        def over() -> bool:
            return self._halted

        self._halted = False
        call = self._around.blocking(self._target.sweep, reads, before, self._epoch, ready, over)
        self._sweep = asyncio.ensure_future(self._swept(call, begun))

    async def _swept(self, call: Awaitable[None], begun: "Sequence[_Begun]") -> None:
        """Wait for a sweep; what it leaves unread has failed with it, or is begun again."""
        error: BaseException | None = None
        try:
            await call
            if not self._halted:
                error = RetryableError("a sweep has left slices unread")
        except Exception as raised:
            error = raised
        for each in begun:
            if each.work.done():
                continue
            if error is None:
                each.work.set_result(Prepared({}, 0, again=True))
            else:
                each.work.set_exception(error)
                # Some of them nobody waits for any more.
                each.work.exception()

    def halt(self) -> None:
        """Something was set that the slices of a sweep have to heed: the rest is begun anew."""
        self._halted = True

    def _may_begin(self) -> bool:
        if self._sweep is not None:
            return False
        if self.machine.phase is Phase.SNAPSHOT and self._target.fresh:
            running = sum(1 for each in self._begun if each.prepared is None)
            # What slices that are read in turn bring is in memory.
            most = _MOST_IN_TURN if self._target.in_turn else _MOST_WAITING
            if len(self._begun) >= most:
                self._hurry()
                return False
            alone = self._target.in_turn or self._target.sweeps
            return running < (1 if alone else self.parallelism)
        # The rules read the stores as the ledger has them.
        if self._all_ready():
            self._hurry()
        return self.settled

    def _all_ready(self) -> bool:
        return bool(self._begun) and all(each.prepared is not None for each in self._begun)

    def _hurry(self) -> None:
        if not self._hurried:
            self._hurried = True
            self._around.hurry()

    def _pause(self) -> float | None:
        wake = self.machine.wake_at
        return None if wake is None else max(0.0, wake - self._around.clock())

    def _look(self) -> None:
        """See what has ended."""
        if self._commit is not None and self._commit.done():
            self._commit.exception()
            self._commit = None
        if self._sweep is not None and self._sweep.done():
            self._sweep = None
        for each in list(self._begun):
            if each.prepared is None and each.work.done():
                self._ended(each)

    def _ended(self, begun: "_Begun") -> None:
        if begun not in self._begun:
            # It went together with one before it, which failed.
            begun.work.exception()
            return
        try:
            prepared = begun.work.result()
        except RetryableError as error:
            self._trouble = f"(is tried again: {error.message})"
            self._let_go(begun)
            self.machine.failed(begun.doing, self._around.clock())
        except HeadwaterError as error:
            self._begun.remove(begun)
            self._give_up(error)
        else:
            self._trouble = ""
            if prepared.in_one or prepared.again:
                assert isinstance(begun.doing, Read)
                self._let_go(begun)
                if prepared.in_one:
                    self.machine.in_one(begun.doing)
                else:
                    self.machine.withdraw(begun.doing)
                return
            begun.prepared = prepared
            if isinstance(begun.doing, Read) and not begun.swept:
                seconds = self._around.clock() - begun.at
                self.machine.took(begun.doing, seconds)
                if begun is self._begun[0] and seconds >= _WORTH_AN_EPOCH_S:
                    # A crash takes it along until an epoch has it.
                    self._hurry()

    def _give_up(self, error: HeadwaterError) -> None:
        """Begin nothing any more: trying again does not mend it."""
        self._over = True
        self._trouble = f"(failed: {error.message})"
        self._around.failed(error)

    def _let_go(self, begun: "_Begun") -> None:
        """What was begun after something that failed is begun again as well."""
        place = self._begun.index(begun)
        for later in self._begun[place + 1 :]:
            later.work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        del self._begun[place:]

    async def _stage(self, epoch: Epoch) -> Filled:
        ready = self._ready()
        prepared = [each.prepared for each in ready if each.prepared is not None]
        work = await self._around.staging(self._target.stage, epoch, prepared)
        for each, brought in zip(ready, prepared, strict=True):
            self._begun.remove(each)
            self.machine.done(each.doing, brought.rows)
        if self._commit is not None:
            self._commit.cancel()
        self._commit = asyncio.ensure_future(self._committed(epoch))
        crash_point("snapshot.after_stage")
        return Filled(work=work, progress=encoded(self.machine.progress))

    async def _committed(self, epoch: Epoch) -> None:
        await self._around.wait_committed(epoch)

    def _mutate(self, barrier: Barrier) -> None:
        match barrier.mutation:
            case Pause():
                self.machine.paused = True
                self.halt()
            case Resume():
                self.machine.paused = False
            case Throttle(limits=limits) if self._around.job in limits:
                limit = RateLimit(rows_per_s=limits[self._around.job])
                self.machine.throttled(limit, self._around.clock())
                self.halt()
            case _:
                pass

    def _report(self, epoch: Epoch) -> None:
        if self._reporter is None or epoch == NO_EPOCH:
            return
        rows = sum(each.rows for each in self.machine.progress.values())
        if self.machine.phase is Phase.SNAPSHOT:
            self._reporter.update(epoch, consumed=self.machine.epoch, rows=rows)
        elif self.machine.phase is Phase.LOG:
            if isinstance(self._reporter.state, ConsumingUpstreamTableOrSource):
                self._reporter.finish(epoch, rows=rows)
            self._reporter.update_log_store(epoch, lag=self.progress.lag or timedelta(0))

    async def _leave(self, incoming: "asyncio.Future[Barrier] | None") -> None:
        running = [each.work for each in self._begun if not each.work.done()]
        if running or self._sweep is not None:
            self._target.interrupt()
        for each in (incoming, self._commit, self._sweep, *running):
            if each is not None and not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError, HeadwaterError):
                    await each


def _answer(begun: Sequence[_Begun], found: Sequence[tuple[int, Prepared]]) -> None:
    """Slices of a sweep are read. No barrier comes between them: they are heard of in one go."""
    for place, prepared in found:
        if not begun[place].work.done():
            begun[place].work.set_result(prepared)


def _total(machine: SnapshotBackfillMachine, table: TableId) -> int:
    """About how many rows a table has; of one that is read nothing but their number is known."""
    if machine.progress[table].finished:
        return machine.progress[table].rows
    return sum(each.live_rows for group in machine.groups[table] for each in group.files)


async def _next(upstream: AsyncIterator[Barrier]) -> Barrier:
    return await anext(upstream)
