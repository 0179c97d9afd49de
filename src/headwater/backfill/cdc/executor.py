"""The executors of CDC backfill: asynchronous streams from log and barriers to epochs.

    in     `TableLog`, one after the other, and `Barrier`
    out    for every checkpoint an `EpochOutput`, right before its `Barrier`; other barriers as
           they are

Between messages they read chunks through a `SplitReader`. Reading never holds back a message: a
barrier is answered with what is here. A read that fails is repeated after a wait that grows, and
concerns nobody else; what cannot be repeated by itself is told to `troubled` and tried again
rarely, so that it goes on by itself once a person has mended it.

    mutation              effect
    Pause, Resume         no chunk is begun in between; the log is applied all the same
    Throttle              the rate limit of this job, from now on; 0 pauses
    Stop                  the stream ends after this barrier
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headwater.backfill.cdc.machine import DivideSplit, Instruction, ReadChunk, ReadKeys, Verdict
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.backfill.cdc.split_reader import ReadResult, SplitReader
from headwater.backfill.cdc.state import BackfillState
from headwater.backfill.cdc.table_backfill import EpochOutput, TableBackfill, TableLog
from headwater.backfill.meter import Meter
from headwater.barrier.cdc_progress import CdcTableBackfillState, SplitSet
from headwater.barrier.progress import CreateMviewProgressReporter
from headwater.cdc.external_table import Split
from headwater.crash_points import crash_point
from headwater.errors import BrokenInvariant, HeadwaterError
from headwater.model.barrier import Barrier, BarrierKind, Pause, Resume, Stop, Throttle
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import JobId
from headwater.model.rate_limit import RateLimit

Upstream = AsyncIterator[TableLog | Barrier]
Message = EpochOutput | Barrier

_NO_TROUBLE = ""


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor is given besides its table."""

    job: JobId
    table: str
    reader: SplitReader
    metrics: CdcBackfillMetrics | None = None
    troubled: Callable[[str], None] = lambda text: None
    """Hears what is wrong with the reads of this table, and an empty text when they go again."""
    clock: Callable[[], float] = _loop_time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    blocking: Callable[[Callable[[], Any]], Awaitable[Any]] = _in_thread
    hurry: Callable[[], None] = lambda: None
    """Asks for the next barrier: what it would store is worth more than the rest of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a table is, for people."""

    splits: int
    splits_done: int
    rows: int
    about_rows: int | None
    rows_per_second: float
    remaining: timedelta | None
    trouble: str


class ParallelizedCdcBackfillExecutor:
    """Reads many splits at once; its state is of version 2."""

    version = 2

    def __init__(
        self,
        backfill: TableBackfill,
        around: Surroundings,
        *,
        report: Callable[[Epoch, CdcTableBackfillState], None] = lambda epoch, state: None,
    ) -> None:
        if backfill.version != self.version:
            raise BrokenInvariant(
                f"{type(self).__name__} stores version {self.version}, "
                f"and was given a backfill of version {backfill.version}"
            )
        self.backfill = backfill
        self._around = around
        self._report = report
        self._reading: dict[asyncio.Future[Any], Instruction] = {}
        self._waits: set[asyncio.Future[Any]] = set()
        """Further work whose end may make something possible."""
        self._meter: Meter | None = None
        self._trouble = _NO_TROUBLE
        self._hurried = False

    async def execute(self, upstream: Upstream) -> AsyncIterator[Message]:
        """Run until the upstream ends, or a barrier stops this job."""
        incoming: asyncio.Future[Any] | None = None
        timer: asyncio.Future[Any] | None = None
        self._meter = Meter(self.backfill.state.rows, self._around.clock())
        try:
            while True:
                self._begin_reads()
                incoming = incoming or asyncio.ensure_future(_next(upstream))
                timer = self._timer(timer)
                waits = {incoming, *self._reading, *self._waits} | ({timer} if timer else set())
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                self._take_what_is_read()
                for ended in [each for each in self._waits if each.done()]:
                    self._waits.remove(ended)
                    ended.result()
                if not incoming.done():
                    self._hurry()
                    continue
                message, incoming = incoming.result(), None
                if message is None:
                    return
                if isinstance(message, TableLog):
                    self._deliver(message)
                    self._hurry()
                    continue
                async for answer in self._answer(message):
                    yield answer
                if isinstance(message.mutation, Stop) and self._around.job in message.mutation.jobs:
                    return
        finally:
            tasks = (incoming, timer, *self._reading, *self._waits)
            await _end([task for task in tasks if task is not None])
            await self._end()

    async def _end(self) -> None:
        """Let go of what is held."""

    @property
    def progress(self) -> Progress:
        """How far it is."""
        state = self.backfill.state
        about = [each.split.rows for each in state.splits]
        total = None if None in about else sum(each or 0 for each in about)
        meter = self._meter
        return Progress(
            splits=len(state.splits) + state.done_splits,
            splits_done=sum(each.done for each in state.splits) + state.done_splits,
            rows=state.rows,
            about_rows=total,
            rows_per_second=meter.rows_per_second if meter else 0.0,
            remaining=meter.remaining(total) if meter else None,
            trouble=self._trouble,
        )

    def set_parallelism(self, readers: int) -> None:
        """So many splits at a time from now on; reads under way go on."""
        self.backfill.machine.scaled(readers)

    def _deliver(self, log: TableLog) -> None:
        if log.changes is not None and self._around.metrics is not None:
            self._around.metrics.upstream_rows.labels(self._around.table).inc(log.changes.num_rows)
        self.backfill.deliver(log)

    def _hurry(self) -> None:
        """Everything is here: the user need not wait for the interval to see it, once."""
        backfill = self.backfill
        if not self._hurried and backfill.machine.ends_with(backfill.applied):
            self._hurried = True
            self._around.hurry()

    # Barriers

    async def _answer(self, barrier: Barrier) -> AsyncIterator[Message]:
        self._mutate(barrier)
        match barrier.kind:
            case BarrierKind.CHECKPOINT | BarrierKind.SYNC_CHECKPOINT:
                output: EpochOutput = await self._around.blocking(self.backfill.seal)
                self._measure(output)
                self._tell(barrier.epoch.prev)
                yield output
            case BarrierKind.INITIAL | BarrierKind.BARRIER:
                # Nothing is durable here: what was delivered goes into the next checkpoint.
                pass
        yield barrier

    def _mutate(self, barrier: Barrier) -> None:
        machine = self.backfill.machine
        match barrier.mutation:
            case Pause():
                machine.paused = True
            case Resume():
                machine.paused = False
            case Throttle(limits=limits) if self._around.job in limits:
                limit = RateLimit(
                    rows_per_s=limits[self._around.job], bytes_per_s=machine.limit.bytes_per_s
                )
                machine.throttled(limit, self._around.clock())
            case _:
                pass

    def _tell(self, epoch: Epoch) -> None:
        """Progress, in the epoch that made it."""
        self._report(epoch, split_report(self.backfill.state))

    def _measure(self, output: EpochOutput) -> None:
        state = self.backfill.state
        assert self._meter is not None
        self._meter.observe(state.rows, self._around.clock())
        metrics = self._around.metrics
        if metrics is None:
            return
        name = self._around.table
        metrics.dropped_rows.labels(name).inc(sum(len(part.dropped) for part in output.parts))
        progress = self.progress
        metrics.splits_total.labels(name).set(progress.splits)
        metrics.splits_remaining.labels(name).set(progress.splits - progress.splits_done)
        metrics.rows_per_second.labels(name).set(progress.rows_per_second)
        metrics.snapshotting.labels(name).set(int(not state.backfill_finished))
        metrics.pending_keys.labels(name).set(self.backfill.machine.pending)

    # Reads

    def _begin_reads(self) -> None:
        for each in self.backfill.next(self._around.clock()):
            keys = self.backfill.keys_of(each) if isinstance(each, ReadKeys) else None
            self._reading[asyncio.ensure_future(self._read(each, keys))] = each

    async def _read(self, instruction: Instruction, keys: pa.Table | None) -> Any:
        reader = self._around.reader
        match instruction:
            case ReadChunk():
                return await reader.read_chunk(instruction)
            case ReadKeys():
                return ReadResult(await reader.read_keys(keys))
            case DivideSplit(rest=rest):
                return await reader.divide(rest)

    def _timer(self, timer: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
        """Something that ends when the machine wants to be asked again."""
        if timer is not None:
            timer.cancel()
        wake_at = self.backfill.machine.wake_at
        if wake_at is None:
            return None
        wait = max(wake_at - self._around.clock(), 0.0)
        return asyncio.ensure_future(self._around.sleep(wait))

    def _take_what_is_read(self) -> None:
        for task in [task for task in self._reading if task.done()]:
            self._take(self._reading.pop(task), task)

    def _take(self, instruction: Instruction, task: asyncio.Future[Any]) -> None:
        now = self._around.clock()
        error = task.exception()
        if error is not None:
            self._failed(instruction, error, now)
            return
        self._say(_NO_TROUBLE)
        result = task.result()
        if isinstance(instruction, DivideSplit):
            parts: list[Split] = list(result)
            self.backfill.divided(instruction.read, parts)
            return
        verdict = self.backfill.arrived(instruction.read, result.chunk, now, result.rows)
        crash_point("cdc.after_chunk")
        self._count(verdict, result)

    def _failed(self, instruction: Instruction, error: BaseException, now: float) -> None:
        # Of our own bugs the engine must hear; everything else is a matter of this table.
        ours = isinstance(error, BrokenInvariant)
        if ours or not isinstance(error, HeadwaterError | OSError | TimeoutError):
            raise error
        self.backfill.failed(instruction.read, now)
        self._say(str(error))
        if self._around.metrics is not None:
            self._around.metrics.read_failures.labels(self._around.table).inc()

    def _count(self, verdict: Verdict, result: ReadResult) -> None:
        if self._around.metrics is None:
            return
        name, metrics = self._around.table, self._around.metrics
        if verdict is Verdict.ACCEPT:
            rows = result.chunk.rows.num_rows if result.rows is None else result.rows.rows
            metrics.snapshot_rows.labels(name).inc(rows)
        elif verdict is Verdict.AGAIN:
            metrics.read_again.labels(name).inc()

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._around.troubled(trouble)


class CdcBackfillExecutor(ParallelizedCdcBackfillExecutor):
    """Reads one split, the whole table, in key order; its state is of version 1."""

    version = 1

    def __init__(
        self,
        backfill: TableBackfill,
        around: Surroundings,
        *,
        reporter: CreateMviewProgressReporter | None = None,
    ) -> None:
        super().__init__(backfill, around)
        self.backfill.machine.scaled(1)
        self._reporter = reporter

    def set_parallelism(self, readers: int) -> None:
        """There is one reader, whatever is asked for."""

    def _tell(self, epoch: Epoch) -> None:
        if self._reporter is None:
            return
        state = self.backfill.state
        if state.backfill_finished:
            self._reporter.finish(epoch, rows=state.rows, bytes_=state.bytes)
        else:
            self._reporter.update(epoch, consumed=NO_EPOCH, rows=state.rows, bytes_=state.bytes)


def split_report(state: BackfillState) -> CdcTableBackfillState:
    """The splits that are read, and those that are done."""
    if state.backfill_finished:
        everything = SplitSet.of([(1, state.done_splits)] if state.done_splits else [])
        return CdcTableBackfillState(backfilled=everything, completed=everything)
    read = [each.split.number for each in state.splits if each.read]
    done = [each.split.number for each in state.splits if each.done]
    return CdcTableBackfillState(
        backfilled=SplitSet.of((number, number) for number in read),
        completed=SplitSet.of((number, number) for number in done),
    )


async def _next(upstream: Upstream) -> TableLog | Barrier | None:
    return await anext(upstream, None)


async def _end(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
