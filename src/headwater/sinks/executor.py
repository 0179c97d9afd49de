"""Carries out what a sink's machine decides, over a log, the ledger and a target.

All decisions are in `machine.py`; here are the deeds, one at a time. Calls to the target and the
ledger block and run in threads. Waits for rows and commits are broken off when somebody asks for
something; deeds are not.

Promises
    Bounded     Rows of a delivery up to `driver_bytes` are held here; what is larger goes through
                the courier.
    Apart       Nothing here is awaited by an epoch. A target that is away, slow or wrong stalls
                this sink alone, for as long as it takes.
    Stoppable   `stop` ends between two deeds. A task that is cancelled waits for the deed under
                way, since a thread cannot be stopped and must not outlive whom it works for.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headwater.crash_points import crash_point
from headwater.errors import BrokenInvariant, HeadwaterError, UserError
from headwater.ledger.deliveries import StoredDelivery
from headwater.logstore.items import LogReader
from headwater.model.epoch import NO_EPOCH, Epoch, WallClock, epoch_time, system_clock
from headwater.model.rate_limit import RateLimit
from headwater.observe.sink_metrics import SinkMetrics
from headwater.sinks.courier import Courier, LocalCourier
from headwater.sinks.fold import Folding
from headwater.sinks.machine import DeliveryMachine
from headwater.sinks.sink import Receipt, Sink, StagedSink
from headwater.sinks.steps import (
    Abort,
    Announce,
    AwaitCommit,
    Begin,
    Begun,
    Collected,
    Commit,
    Deliver,
    Done,
    Event,
    Failed,
    Instruction,
    Interrupted,
    Mark,
    Prepare,
    Prepared,
    ReadOn,
    RewindTo,
    Seek,
    SinkStatus,
    Store,
    Truncate,
)


class Book(Protocol):
    """What the ledger keeps of deliveries; `ledger.deliveries.DeliveryBook`."""

    def of(self, sink: str) -> StoredDelivery:
        """What is stored of a sink."""
        ...

    def preparing(self, sink: str, *, after: Epoch, epoch: Epoch, rows: int) -> None:
        """Say that parts are about to be written."""
        ...

    def prepared(
        self, sink: str, *, after: Epoch, epoch: Epoch, rows: int, receipts: Sequence[Receipt] = ()
    ) -> None:
        """Fix a delivery."""
        ...

    def committed(self, sink: str, epoch: Epoch, *, shown: bool = True) -> None:
        """Move the mark."""
        ...

    def aborted(self, sink: str) -> None:
        """Nothing is under way."""
        ...

    def rewound(self, sink: str, epoch: Epoch) -> None:
        """Set the mark back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor is given by whoever runs it."""

    book: Book
    wait_committed: Callable[[Epoch], Awaitable[None]]
    """Returns once the ledger has an epoch."""
    courier: Courier | None = None
    """Brings what is too large for the driver; None brings everything in this process."""
    driver_bytes: int = 8 << 20
    blocking: Callable[..., Awaitable[Any]] = asyncio.to_thread
    """Runs a call in a thread; a pool of its own, since targets may hang."""
    clock: Callable[[], float] = time.monotonic
    wall: WallClock = system_clock
    metrics: SinkMetrics | None = None
    checks: bool = False
    """Whether the target checks its columns before the first delivery, and gets what it lacks."""
    opened: bool = False
    """Whether the log is open already."""


class SinkExecutor:
    """One sink at work."""

    def __init__(
        self,
        sink: Sink,
        folding: Folding,
        log: LogReader,
        machine: DeliveryMachine,
        around: Surroundings,
    ) -> None:
        self._sink = sink
        self._checks = around.checks
        self._log = log
        self._machine = machine
        self._around = around
        self._local = self._local_courier(folding)
        self.opened = around.opened
        self._wake = asyncio.Event()
        self._rewound: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._began_at: float | None = None
        self._name = folding.sink
        self._follow_lag()

    async def run(self) -> None:
        """Deliver until stopped; raises `Fenced` when another engine delivers instead."""
        machine, clock = self._machine, self._around.clock
        try:
            while not machine.over:
                doing = machine.next(clock())
                if doing is not None:
                    event = await self._carry_out(doing)
                    machine.happened(event, clock())
                    self._observe(doing, event)
                elif not machine.over:
                    await self._pause()
        finally:
            self._ended.set()
            self._answer(UserError("the sink was stopped before it was rewound"))
        if machine.fenced is not None:
            raise machine.fenced

    # What others ask for

    @property
    def status(self) -> SinkStatus:
        """How it is doing."""
        return self._machine.status()

    def lag_seconds(self) -> float:
        """Age of the newest delivered epoch; 0 before the first."""
        delivered = self._machine.delivered
        if delivered == NO_EPOCH:
            return 0.0
        return max(0.0, (self._around.wall() - epoch_time(delivered)).total_seconds())

    def alter(
        self,
        *,
        sink: Sink | None = None,
        limit: RateLimit | None = None,
        interval: int | None = None,
    ) -> None:
        """Other options, limits or intervals; a sink that is stalled tries again at once."""
        now = self._around.clock()
        self._machine.told(now, limit=limit, interval=interval or 0)
        if sink is not None:
            self._sink = sink
            self._machine.changed(now, staged=isinstance(sink, StagedSink))
        self._wake.set()

    def rename(self, name: str) -> None:
        """Another name, under which its series begin anew."""
        if name == self._name:
            return
        if self._around.metrics is not None:
            self._around.metrics.forget(self._name)
        self._name = name
        self._follow_lag()

    def evolve(self, sink: Sink, folding: Folding, courier: Courier) -> None:
        """More columns from now on; the target checks, and gets, them first."""
        self._checks = True
        self._local = self._local_courier(folding)
        self._around = replace(self._around, courier=courier)
        self.alter(sink=sink)

    async def rewind(self, epoch: Epoch) -> None:
        """Deliver everything after an epoch once more; returns when that is in the ledger.

        Raises `UserError` when the log no longer has it, and changes nothing then.
        """
        if epoch > self._machine.delivered:
            raise UserError(
                f'sink "{self._name}" cannot be rewound to epoch {epoch}',
                detail=f"It has delivered up to epoch {self._machine.delivered} only.",
            )
        if self._rewound is not None or self._ended.is_set():
            raise UserError(f'sink "{self._name}" is being rewound or stopped already')
        self._rewound = asyncio.get_running_loop().create_future()
        self._machine.rewind(epoch)
        self._wake.set()
        await asyncio.shield(self._rewound)

    async def stop(self) -> None:
        """End between two deeds; returns when `run` is over."""
        self._machine.stop()
        self._wake.set()
        await self._ended.wait()

    # Deeds

    async def _carry_out(self, doing: Instruction) -> Event:
        task = asyncio.ensure_future(self._attempt(doing))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            while not task.done():
                await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
                if woken.done():
                    self._wake.clear()
                    woken = asyncio.ensure_future(self._wake.wait())
                if not task.done() and self._machine.waiting and self._machine.asked:
                    task.cancel()
                    await asyncio.wait({task})
            return Interrupted() if task.cancelled() else task.result()
        except asyncio.CancelledError:
            if not self._machine.waiting:
                await asyncio.wait({task})
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise
        finally:
            woken.cancel()

    async def _attempt(self, doing: Instruction) -> Event:
        try:
            return await self._do(doing)
        except Exception as error:
            return Failed(error)

    async def _do(self, doing: Instruction) -> Event:
        ident, book, call = self._machine.sink, self._around.book, self._around.blocking
        match doing:
            case Begin():
                return await self._begin()
            case Seek(again):
                await self._seek(again)
            case ReadOn():
                return Collected(await self._log.next_item())
            case AwaitCommit(epoch):
                await self._around.wait_committed(epoch)
            case Announce(each):
                await call(
                    book.preparing, ident, after=each.after, epoch=each.epoch, rows=each.rows
                )
            case Prepare():
                return await self._prepare(doing)
            case Store(each, receipts):
                await call(
                    book.prepared,
                    ident,
                    after=each.after,
                    epoch=each.epoch,
                    rows=each.rows,
                    receipts=receipts,
                )
                crash_point("sink.after_prepared_mark")
            case Commit() | Deliver():
                await self._show(doing)
            case Mark(epoch, shown):
                await call(book.committed, ident, epoch, shown=shown)
                crash_point("sink.after_committed_mark")
            case Truncate(offset):
                self._log.truncate(offset)
                crash_point("sink.after_truncate")
            case Abort(each, receipts):
                await call(self._staged.abort, each, receipts)
                crash_point("sink.after_abort")
                await call(book.aborted, ident)
            case RewindTo(epoch):
                await self._open()
                await self._log.start_from(epoch)
                await call(book.rewound, ident, epoch)
                crash_point("sink.after_rewind")
        return Done()

    async def _begin(self) -> Begun:
        call = self._around.blocking
        # The ledger first: what it has fixed, a predecessor may still bring to the target until
        # `begin` has fenced it there.
        stored = await call(self._around.book.of, self._machine.sink)
        if self._checks:
            # Before the call: columns that come meanwhile ask for another one.
            self._checks = False
            try:
                await call(self._sink.check)
            except BaseException:
                self._checks = True
                raise
        return Begun(stored, await call(self._sink.begin, self._machine.term))

    def _local_courier(self, folding: Folding) -> LocalCourier:
        around = self._around
        return LocalCourier(
            folding, self._log.load, most_bytes=around.driver_bytes, blocking=around.blocking
        )

    async def _open(self) -> None:
        if not self.opened:
            await self._log.init()
            self.opened = True

    async def _seek(self, again: bool) -> None:
        await self._open()
        if again:
            await self._log.rewind()
        await self._log.start_from()

    async def _prepare(self, doing: Prepare) -> Prepared:
        crash_point("sink.before_prepare")
        courier = self._courier(doing)
        receipts = await courier.prepare(self._sink, doing.delivery, doing.chunks)
        crash_point("sink.after_prepare")
        return Prepared(tuple(receipts))

    async def _show(self, doing: Commit | Deliver) -> None:
        crash_point("sink.before_commit")
        self._began_at = self._around.clock()
        if isinstance(doing, Commit):
            await self._around.blocking(self._staged.commit, doing.delivery, doing.receipts)
        else:
            courier = self._courier(doing)
            await courier.deliver(self._sink, doing.delivery, doing.chunks)
        crash_point("sink.after_commit")

    def _courier(self, doing: Prepare | Deliver) -> Courier:
        large = sum(chunk.nbytes for chunk in doing.chunks) > self._around.driver_bytes
        return self._around.courier if large and self._around.courier else self._local

    @property
    def _staged(self) -> StagedSink:
        if not isinstance(self._sink, StagedSink):
            raise BrokenInvariant(f"{type(self._sink).__name__} has nothing to commit or abort")
        return self._sink

    async def _pause(self) -> None:
        wake = self._machine.wake_at
        wait = None if wake is None else max(0.0, wake - self._around.clock())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), wait)
        self._wake.clear()

    # What is told

    def _follow_lag(self) -> None:
        if self._around.metrics is not None:
            self._around.metrics.follow(self._name, self.lag_seconds)

    def _observe(self, doing: Instruction, event: Event) -> None:
        if isinstance(doing, RewindTo):
            if isinstance(event, Done):
                self._answer(None)
            elif isinstance(event, Failed) and isinstance(event.error, UserError):
                self._answer(event.error)
        metrics = self._around.metrics
        if metrics is None:
            return
        if isinstance(event, Failed):
            metrics.failures.labels(self._name).inc()
        elif isinstance(doing, Commit | Deliver):
            metrics.deliveries.labels(self._name).inc()
            metrics.rows.labels(self._name).inc(doing.delivery.rows)
            took = self._around.clock() - (self._began_at or 0.0)
            metrics.delivery_duration.labels(self._name).observe(took)
        metrics.stalled.labels(self._name).set(float(bool(self._machine.status().attempts)))

    def _answer(self, error: HeadwaterError | None) -> None:
        waiting, self._rewound = self._rewound, None
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
