"""The executors as streams: barriers, mutations, failures, progress and metrics."""

import asyncio
import contextlib
import dataclasses
import itertools

import pytest
from prometheus_client import CollectorRegistry

from backfill_kit import SCHEMA, Driven, Holds, chunk, log, pairs, rows
from headwater.backfill.cdc.executor import (
    CdcBackfillExecutor,
    ParallelizedCdcBackfillExecutor,
    Surroundings,
)
from headwater.backfill.cdc.merging import ArrowRows
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.split_reader import ReadResult, ThreadSplitReader
from headwater.backfill.cdc.state import BackfillState, decode, not_begun
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.barrier.cdc_progress import SplitSet
from headwater.barrier.progress import CreateMviewProgressReporter, Done
from headwater.cdc.external_table import Split
from headwater.cdc.offset import PostgresOffset
from headwater.errors import BrokenInvariant, SourceUnavailable, UserError
from headwater.model.barrier import Barrier, BarrierKind, Pause, Resume, Stop, Throttle
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import JobId

JOB = JobId(7)
TABLE = [(n, f"a{n}", f"b{n}") for n in range(1, 7)]


class Reader:
    """Reads `TABLE` in chunks of what is asked for; may be told to fail or to wait."""

    def __init__(self):
        self.requests = []
        self.errors = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def read_chunk(self, request):
        self.requests.append(request)
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        left = 0 if request.split.left is None else int(request.split.left[0])
        right = 99 if request.split.right is None else int(request.split.right[0])
        last = 0 if request.after is None else int(request.after[0])
        inside = [row for row in TABLE if left <= row[0] < right and row[0] > last]
        some = inside[: request.max_rows]
        cursor = (str(some[-1][0]),) if len(some) < len(inside) else None
        return ReadResult(chunk(some, Holds(*range(100)), cursor=cursor))

    async def read_keys(self, keys):
        return chunk([TABLE[key - 1] for key in keys["id"].to_pylist()], Holds(*range(100)))

    async def divide(self, split):
        return [split]


class Run:
    """An executor between a queue of messages and a list of answers."""

    def __init__(self, kind=ParallelizedCdcBackfillExecutor, *, splits=2, pace=None, **options):
        version = kind.version
        bounds = [None, ("4",), None] if splits == 2 else [None, None]
        state = BackfillState(
            splits=not_begun(
                tuple(
                    Split(number=n + 1, columns=("id",), left=bounds[n], right=bounds[n + 1])
                    for n in range(splits)
                )
            )
        )
        self.table = Driven(state, pace=pace or Pace(chunk_rows=2), version=version)
        self.reader = Reader()
        self.metrics = CdcBackfillMetrics(CollectorRegistry())
        self.trouble = []
        around = Surroundings(
            job=JOB,
            table="t",
            reader=self.reader,
            metrics=self.metrics,
            troubled=self.trouble.append,
        )
        self.executor = kind(self.table.backfill, around, **options)
        self.incoming = asyncio.Queue()
        self.answers = asyncio.Queue()
        self.epoch = 1
        self.place = 100
        self.task = None

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._consume())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def _consume(self):
        async for message in self.executor.execute(self._upstream()):
            self.answers.put_nowait(message)

    async def _upstream(self):
        while (message := await self.incoming.get()) is not None:
            yield message

    def deliver(self, *changes):
        self.place += 10
        table = log(*changes) if changes else None
        self.incoming.put_nowait(TableLog(offset=PostgresOffset(self.place), changes=table))

    async def barrier(self, kind=BarrierKind.CHECKPOINT, mutation=None):
        """Send a barrier; what comes before it, or None."""
        self.epoch += 1
        pair = EpochPair(Epoch(self.epoch - 1), Epoch(self.epoch))
        sent = Barrier(epoch=pair, kind=kind, mutation=mutation)
        self.incoming.put_nowait(sent)
        first = await asyncio.wait_for(self.answers.get(), 60)
        if first is sent:
            return None
        assert isinstance(first, EpochOutput)
        assert await asyncio.wait_for(self.answers.get(), 60) is sent
        return first

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    async def to_the_end(self):
        """Checkpoints until the table is backfilled; all rows that were given out."""
        given = {}
        for _ in range(100):
            await asyncio.sleep(0.01)
            output = await self.barrier()
            for row in pairs(output.changes):
                given[row[0]] = row[:-1]
            for part in output.parts:
                given |= {row[0]: row for row in pairs(part.table())}
            if output.backfilled:
                return given
        raise AssertionError("not backfilled")


async def test_the_parallelized_executor_reads_every_split_and_finishes():
    async with Run() as run:
        assert await run.to_the_end() == {row[0]: row for row in TABLE}
        assert {each.split.number for each in run.reader.requests[:2]} == {1, 2}
        assert run.executor.progress.splits_done == 2
        state = decode((await run.barrier()).state)
        assert state.backfill_finished
        assert state.rows == len(TABLE)


async def test_the_single_executor_reads_in_key_order_and_stores_version_1():
    async with Run(CdcBackfillExecutor, splits=1) as run:
        await run.to_the_end()
        assert [each.after for each in run.reader.requests] == [None, ("2",), ("4",)]
        assert (await run.barrier()).state.startswith("1")


async def test_the_single_executor_never_has_two_readers():
    async with Run(CdcBackfillExecutor, splits=1) as run:
        run.executor.set_parallelism(5)
        run.reader.gate.clear()
        await run.until(lambda: run.reader.requests)
        await asyncio.sleep(0.02)
        assert len(run.reader.requests) == 1
        run.reader.gate.set()
        await run.to_the_end()


def test_an_executor_takes_only_states_of_its_version():
    with pytest.raises(BrokenInvariant, match="stores version 1"):
        CdcBackfillExecutor(Driven().backfill, Surroundings(job=JOB, table="t", reader=Reader()))


@pytest.mark.parametrize("kind", list(BarrierKind))
async def test_every_kind_of_barrier(kind):
    async with Run() as run:
        run.deliver(("+", 9, "x", "y", 1))
        output = await run.barrier(kind)
        if not kind.durable:
            assert output is None
            output = await run.barrier()
        assert (9, "x", "y", "insert") in pairs(output.changes)
        assert output.offset == PostgresOffset(110)
        assert decode(output.state) == run.table.backfill.state


async def test_a_barrier_does_not_wait_for_a_read():
    async with Run() as run:
        run.reader.gate.clear()
        run.deliver(("+", 9, "x", "y", 1))
        output = await run.barrier()
        assert pairs(output.changes) == [(9, "x", "y", "insert")]
        assert output.parts == ()
        run.reader.gate.set()
        assert set(await run.to_the_end()) == {1, 2, 3, 4, 5, 6}


async def test_pause_and_resume():
    async with Run() as run:
        await run.barrier(mutation=Pause())
        await asyncio.sleep(0.02)
        seen = len(run.reader.requests)
        for _ in range(3):
            run.deliver(("+", 9, "x", "y", 1))
            assert (await run.barrier()).changes.num_rows == 1
        assert len(run.reader.requests) == seen
        await run.barrier(mutation=Resume())
        await run.to_the_end()


async def test_throttle_of_this_job_and_of_another():
    async with Run(pace=Pace(chunk_rows=1)) as run:
        run.reader.gate.clear()
        await run.barrier(mutation=Throttle(limits={JOB: 0}))
        run.reader.gate.set()
        await asyncio.sleep(0.02)
        stopped = len(run.reader.requests)
        await run.barrier(mutation=Throttle(limits={JobId(8): None}))
        await asyncio.sleep(0.05)
        assert len(run.reader.requests) == stopped
        await run.barrier(mutation=Throttle(limits={JOB: 20}))
        began = asyncio.get_running_loop().time()
        await run.to_the_end()
        assert asyncio.get_running_loop().time() - began > 0.1
        await run.barrier(mutation=Throttle(limits={JOB: None}))


async def test_a_stop_of_this_job_ends_the_stream_after_its_barrier():
    async with Run() as run:
        await run.barrier(mutation=Stop(jobs=(JobId(8),)))
        await run.barrier(mutation=Stop(jobs=(JOB,)))
        await asyncio.wait_for(run.task, 60)


async def test_the_stream_ends_with_its_upstream():
    async with Run() as run:
        run.incoming.put_nowait(None)
        await asyncio.wait_for(run.task, 60)


@pytest.mark.parametrize("error", [SourceUnavailable("away"), UserError("no right"), OSError("x")])
async def test_a_failed_read_is_repeated_and_told(error):
    async with Run() as run:
        run.reader.errors += [error, error]
        assert len(await run.to_the_end()) == 6
        assert run.trouble[0] == str(error)
        assert run.trouble[-1] == ""
        count = run.metrics.read_failures.labels("t")._value.get()
        assert count == 2


async def test_a_bug_in_a_read_reaches_the_engine():
    async with Run() as run:
        run.reader.errors.append(ZeroDivisionError())
        run.deliver()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(run.task, 60)
        run.task = asyncio.ensure_future(asyncio.sleep(0))


async def test_cancelling_ends_the_reads():
    async with Run() as run:
        run.reader.gate.clear()
        await run.until(lambda: run.reader.requests)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_progress_is_reported_by_split():
    told = []
    async with Run(report=lambda epoch, state: told.append((epoch, state))) as run:
        await run.to_the_end()
    assert told[0][0] == Epoch(1)
    assert told[-1][1].completed == SplitSet.of([(1, 2)])
    for (_, before), (_, after) in itertools.pairwise(told):
        assert before.backfilled <= after.backfilled
        assert before.completed <= after.completed
        assert after.completed <= after.backfilled


async def test_the_single_executor_reports_rows():
    told = []
    reporter = CreateMviewProgressReporter(lambda epoch, state: told.append(state))
    async with Run(CdcBackfillExecutor, splits=1, reporter=reporter) as run:
        await run.to_the_end()
    assert isinstance(told[-1], Done)
    assert told[-1].rows == len(TABLE)


async def test_metrics():
    async with Run() as run:
        run.deliver(("+", 9, "x", "y", 1))
        await run.to_the_end()
        metrics = run.metrics
        assert metrics.snapshot_rows.labels("t")._value.get() == len(TABLE)
        assert metrics.upstream_rows.labels("t")._value.get() == 1
        assert metrics.splits_total.labels("t")._value.get() == 2
        assert metrics.splits_remaining.labels("t")._value.get() == 0
        assert metrics.snapshotting.labels("t")._value.get() == 0
        metrics.forget("t")
        assert metrics.snapshot_rows.labels("t")._value.get() == 0


class File:
    """A chunk's rows outside of memory."""

    def __init__(self, values):
        self._rows = ArrowRows(rows(*values), SCHEMA.key)
        self.rows = len(values)
        self.nbytes = 0
        self.size = 600

    def keys(self):
        return self._rows.keys()

    def take(self, places):
        return self._rows.take(places)


async def test_rows_that_a_task_has_written_stay_where_they_are():
    async with Run(splits=1) as run:
        file = File(TABLE)
        empty = chunk([], Holds(*range(100)))

        async def written(request):
            run.reader.requests.append(request)
            return ReadResult(empty, file)

        run.reader.read_chunk = written
        run.deliver(("-", 3, None, None, 200))
        await run.until(lambda: run.table.backfill._accepted)
        output = await run.barrier()
        [part] = output.parts
        assert part.chunk is file
        assert decode(output.state).rows == len(TABLE)
        assert decode(output.state).bytes == 600


async def test_chunks_in_threads():
    class Table:
        def read_chunk(self, split, after, *, max_rows, max_bytes):
            return chunk([(max_rows, after, split.number)][:0], Holds(), cursor=after)

        def read_keys(self, keys):
            return chunk([], Holds())

        def divide(self, split):
            return [split, dataclasses.replace(split, number=2)]

    async def blocking(call):
        return await asyncio.to_thread(call)

    from headwater.backfill.cdc.machine import ReadChunk

    reader = ThreadSplitReader(Table(), blocking)
    only = Split(number=1, columns=("id",))
    request = ReadChunk(read=1, split=only, after=("5",), max_rows=3, max_bytes=9)
    assert (await reader.read_chunk(request)).chunk.cursor == ("5",)
    assert (await reader.read_keys(rows())).rows.num_rows == 0
    assert len(await reader.divide(only)) == 2
