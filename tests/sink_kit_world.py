"""A sink's whole world in a folder: real ledger, a target in SQLite, a log in memory."""

import asyncio
import atexit
import contextlib
import functools
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa

from headwater.ledger.deliveries import DeliveryBook
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.sinks.executor import SinkExecutor, Surroundings
from headwater.sinks.fold import Folding
from headwater.sinks.machine import DeliveryMachine
from headwater.sinks.sink import SinkKind, StagedSink
from headwater.sinks.trouble import Backoff, Trouble
from headwater.testing.memory_log import MemoryLog
from headwater.testing.sink_rows import new_spec
from ledger_kit import owner
from sink_targets import Case, TableSink

SCHEMA = pa.schema(
    [
        ("_op", pa.int8()),
        ("_vnode", pa.int16()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("quantity", pa.int32()),
    ]
)


def table(*changes):
    """Changes as (op, id, name, quantity)."""
    rows = [(op, key % 256, key, name, quantity) for op, key, name, quantity in changes]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


@functools.cache
def new_ledger():
    """The file of a ledger that is migrated and empty; migrations are slow on a busy disk."""
    path = Path(tempfile.mkdtemp()) / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    atexit.register(shutil.rmtree, path.parent)
    return path


class World:
    def __init__(self, folder, sink=TableSink, kind=SinkKind.UPSERT):
        self.case = Case(sink, folder, kind)
        self.spec = new_spec("world", kind)
        self.sink = self.case.make(self.spec)
        self.sink.check()
        shutil.copy(new_ledger(), folder / "ledger.db")
        self.ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
        self.log = MemoryLog()
        self.committed = Epoch(1 << 50)
        self.waits = []
        self.metrics = None
        self.courier = None
        self.driver_bytes = 8 << 20
        self.executor = None
        self.machine = None

    def write(self, epoch, *changes, **more):
        self.log.write(Epoch(epoch), [table(*changes)] if changes else [], **more)

    def rows(self):
        return Counter(self.case.rows(self.spec))

    def stored(self):
        return DeliveryBook(self.ledger, 0).of(self.spec.ident)

    async def wait_committed(self, epoch):
        while epoch > self.committed:
            self.waits.append(epoch)
            await asyncio.sleep(0.005)

    def new_life(self, limit=None, checks=False, **more):
        """An executor of a new engine."""
        term = self.ledger.take_over(owner(), force=True)
        dice = Random(1)
        self.machine = DeliveryMachine(
            sink=self.spec.ident,
            term=term,
            staged=isinstance(self.sink, StagedSink),
            limiter=RateLimiter(RateLimit(rows_per_s=limit), 0.0),
            trouble=Trouble(dice.random, Backoff(first_s=0.005, longest_s=0.02)),
            **more,
        )
        around = Surroundings(
            book=DeliveryBook(self.ledger, term),
            wait_committed=self.wait_committed,
            metrics=self.metrics,
            courier=self.courier,
            driver_bytes=self.driver_bytes,
            checks=checks,
        )
        self.reader = self.log.reader()
        self.executor = SinkExecutor(
            self.sink, Folding.of(self.spec), self.reader, self.machine, around
        )
        return self.executor

    @contextlib.asynccontextmanager
    async def running(self, **more):
        executor = self.new_life(**more)
        task = asyncio.ensure_future(executor.run())
        try:
            yield executor
            await executor.stop()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition, seconds=60.0):
        """Wait until something holds; checks the machine meanwhile."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.machine.check()
                await asyncio.sleep(0.002)

    async def delivered(self, epoch):
        await self.until(lambda: self.machine.delivered >= epoch and self.machine.waiting)

    def close(self):
        self.ledger.close()
