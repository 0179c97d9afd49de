"""An engine whose tables are driven through the real executors.

All executors run on one event loop, which is turned a few times after each step. Nothing on it
waits for real time: reads end when the simulation says so, and so do the executors' waits.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from headwater.backfill.cdc.executor import (
    CdcBackfillExecutor,
    Message,
    ParallelizedCdcBackfillExecutor,
    Surroundings,
)
from headwater.backfill.cdc.machine import DivideSplit, Instruction, ReadChunk, ReadKeys
from headwater.backfill.cdc.split_reader import ReadResult
from headwater.backfill.cdc.state import BackfillState
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.cdc.external_table import SnapshotChunk, Split
from headwater.errors import SourceUnavailable
from headwater.model.barrier import Barrier, BarrierKind
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import JobId
from headwater.testing.cdc_simulator.database import Database
from headwater.testing.cdc_simulator.engine import Engine, Read
from headwater.testing.cdc_simulator.store import Ledger

_TURNS = 12
_MOST_TURNS = 200


class _Job:
    """One executor, its input, its output, and the reads it waits for."""

    def __init__(self, name: str, engine: "ExecutorEngine") -> None:
        self.incoming: asyncio.Queue[TableLog | Barrier] = asyncio.Queue()
        self.outgoing: list[Message] = []
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.sleepers: list[asyncio.Future[None]] = []
        self._name = name
        self._engine = engine
        backfill = engine.tables[name]
        around = Surroundings(
            job=JobId(1),
            table=name,
            reader=self,
            clock=lambda: engine.at,
            sleep=self._sleep,
            blocking=_at_once,
        )
        parallel = backfill.version == 2
        kind = ParallelizedCdcBackfillExecutor if parallel else CdcBackfillExecutor
        self.task = asyncio.ensure_future(self._run(kind(backfill, around)))

    async def _run(self, executor: ParallelizedCdcBackfillExecutor) -> None:
        async for message in executor.execute(self._upstream()):
            self.outgoing.append(message)

    async def _upstream(self) -> AsyncIterator[TableLog | Barrier]:
        while True:
            yield await self.incoming.get()

    async def _sleep(self, seconds: float) -> None:
        self.sleepers.append(asyncio.get_running_loop().create_future())
        await self.sleepers[-1]

    def wake(self) -> None:
        """Time has passed."""
        for sleeper in self.sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        self.sleepers.clear()

    # As a SplitReader

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """Wait until the simulation brings the chunk."""
        return ReadResult(await self._asked(request))

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """Wait until the simulation brings the rows."""
        chunk: SnapshotChunk = await self._asked(ReadKeys(read=-1, count=keys.num_rows), keys)
        return chunk

    async def divide(self, split: Split) -> Sequence[Split]:
        """Wait until the simulation has cut the split."""
        parts: Sequence[Split] = await self._asked(DivideSplit(read=-1, rest=split))
        return parts

    async def _asked(self, instruction: Instruction, keys: pa.Table | None = None) -> Any:
        wanted = self._engine.tables[self._name].wanted
        read = Read(self._name, instruction, keys, columns=wanted)
        answer = asyncio.get_running_loop().create_future()
        self.waiting[id(read)] = answer
        self._engine.reads.append(read)
        return await answer


class ExecutorEngine(Engine):
    """The same steps as `Engine`, with executors in between."""

    def __init__(self, database: Database, ledger: Ledger, random: Random, at: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._jobs: dict[str, _Job] = {}
        self._epoch = 1
        super().__init__(database, ledger, random, at)

    def _join(self, name: str, state: BackfillState, seen: str, version: int = 2) -> None:
        if name in self._jobs:
            job = self._jobs.pop(name)
            job.task.cancel()
            self._run(_ended([job.task]))
        super()._join(name, state, seen, version)
        self._start(name)

    def begin_reads(self) -> None:
        """The executors ask by themselves; time has passed for those that wait."""
        for job in self._jobs.values():
            job.wake()
        self._turn()

    def close(self) -> None:
        """Everything on the loop ends."""
        for job in self._jobs.values():
            job.task.cancel()
        self._run(_ended([job.task for job in self._jobs.values()]))
        self._loop.close()

    def _deliver(self, name: str, log: TableLog) -> None:
        self._jobs[name].incoming.put_nowait(log)
        self._turn()

    def _seal(self, name: str) -> EpochOutput:
        job = self._jobs[name]
        self._epoch += 1
        pair = EpochPair(Epoch(self._epoch - 1), Epoch(self._epoch))
        kinds = [BarrierKind.CHECKPOINT, BarrierKind.SYNC_CHECKPOINT]
        barrier = Barrier(epoch=pair, kind=self._random.choice(kinds))
        job.incoming.put_nowait(barrier)
        for _ in range(_MOST_TURNS):
            self._turn()
            if job.outgoing:
                output, answer = job.outgoing
                job.outgoing.clear()
                assert isinstance(output, EpochOutput)
                assert answer is barrier
                return output
        raise AssertionError(f"the executor of {name} does not answer a barrier")

    def _answer(self, read: Read, answer: SnapshotChunk | list[Split] | None) -> None:
        future = self._jobs[read.table].waiting.pop(id(read), None)
        if future is None or future.done():
            return
        if answer is None:
            future.set_exception(SourceUnavailable("the connection broke"))
        else:
            future.set_result(answer)
        self._turn()

    def _start(self, name: str) -> None:
        async def started() -> None:
            self._jobs[name] = _Job(name, self)

        self._run(started())

    def _turn(self) -> None:
        async def turns() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

        self._run(turns())
        for job in self._jobs.values():
            if job.task.done():
                job.task.result()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)


async def _at_once(call: Any) -> Any:
    return call()


async def _ended(tasks: list[asyncio.Future[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
