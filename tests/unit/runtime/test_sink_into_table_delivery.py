"""A delivery into a table of the same workspace: put once, however often it is tried."""

import asyncio

import pyarrow as pa
import pytest

from headwater.catalog.relation import TableDef, TableKind
from headwater.errors import SinkUnavailable
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId, Term
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.runtime.dml import DmlSource
from headwater.runtime.sinks.into_table import IntoTable, TableTargets, into_key
from headwater.sinks.sink import OP, Delivery, SinkKind, SinkSpec

TABLE = TableDef(
    id=TableId(7),
    name="t",
    schema=Schema((Column("id", BIGINT), Column("v", BIGINT)), ("id",)),
    folder="t-7",
    kind=TableKind.TABLE,
)


SPEC = SinkSpec(
    name="s",
    ident="hw_1",
    columns=TABLE.schema.columns,
    key=("id",),
    kind=SinkKind.UPSERT,
    options={},
)


class Catalog:
    def snapshot(self):
        return self

    def by_id(self, id_):
        return TABLE if id_ == TABLE.id else None


class World:
    """A log of what users write, and a ledger that takes from it when it is told to."""

    def __init__(self):
        self.positions = {}
        self.source = DmlSource(lambda: self.positions.get("dml"), 1 << 20)
        self.targets = TableTargets(
            catalog=Catalog(),
            source=self.source,
            position=self.positions.get,
            blocking=asyncio.to_thread,
            term=Term(1),
        )
        self.sink = IntoTable(self.targets, TABLE.id, SPEC)
        self.written = []

    async def epoch(self):
        batch = await self.source.read(self.positions.get("dml"), max_bytes=1 << 20)
        self.written += [row for rows in batch.changes.values() for row in rows.to_pylist()]
        self.positions.update({**batch.facts, "dml": batch.position})
        await self.source.acknowledge(batch.position)

    def deliver(self, epoch, rows):
        if not rows:
            return self._delivered(epoch, [])
        ops, ids, values = zip(*rows, strict=True)
        batch = pa.record_batch(
            [pa.array([int(op) for op in ops], pa.int8()), pa.array(ids), pa.array(values)],
            names=[OP, "id", "v"],
        )
        return self._delivered(epoch, [batch])

    def _delivered(self, epoch, batches):
        rows = sum(batch.num_rows for batch in batches)
        delivery = Delivery(
            sink="hw_1", after=NO_EPOCH, epoch=Epoch(epoch), term=Term(1), rows=rows
        )
        return asyncio.ensure_future(asyncio.to_thread(self.sink.deliver, delivery, batches))


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_rows_and_their_epoch_are_taken_together():
    world = World()
    task = world.deliver(5, [(RowOp.DELETE, 1, None), (RowOp.INSERT, 2, 20)])
    await until(lambda: world.source.last)
    assert not task.done()
    await world.epoch()
    await task
    assert world.positions[into_key("hw_1")] == "5"
    assert [(row["id"], row["_change_type"]) for row in world.written] == [
        (1, "delete"),
        (2, "insert"),
    ]
    assert world.sink.begin(Term(1)) == 5


async def test_what_is_tried_again_is_put_once():
    world = World()
    rows = [(RowOp.INSERT, 1, 10)]
    first = world.deliver(5, rows)
    await until(lambda: world.source.last)
    # Whoever is altered meanwhile has another object for the same table.
    world.sink = IntoTable(world.targets, TABLE.id, SPEC)
    second = world.deliver(5, rows)
    await asyncio.sleep(0.05)
    await world.epoch()
    await asyncio.gather(first, second)
    await world.deliver(5, rows)
    assert len(world.written) == 1


async def test_an_engine_that_ends_lets_go_of_who_waits():
    world = World()
    task = world.deliver(5, [(RowOp.INSERT, 1, 10)])
    await until(lambda: world.source.last)
    world.targets.ended.set()
    with pytest.raises(SinkUnavailable):
        await asyncio.wait_for(task, 60)


async def test_changes_that_come_to_nothing_are_delivered_too():
    world = World()
    task = world.deliver(5, [])
    await until(lambda: world.targets.awaited("hw_1") == 5)
    await world.epoch()
    await asyncio.wait_for(task, 60)
    assert world.written == []
    assert world.positions[into_key("hw_1")] == "5"
