"""Sinks into tables of the same workspace: rows and the sink's progress in one epoch.

    CREATE SINK s INTO t FROM v

What an epoch owes such a sink is put into the log of what users write, under the same lock as
their statements, and the epoch that takes it also takes the number of the delivery, filed among
the positions. Whoever tries a delivery again asks there first.

    a table that has     gets
    a key                upserts and deletes by its key
    no key               inserts, each under a number of its own
"""

import asyncio
import itertools
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.catalog import Catalog
from headwater.catalog.relation import ObjectDef, TableDef
from headwater.errors import BrokenInvariant, SinkUnavailable, UserError
from headwater.logstore.items import LogChunk
from headwater.model.change import ChangeType, RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId, Term
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.vnode import VNODE_COUNT
from headwater.runtime.blocking import Blocking
from headwater.runtime.dml import DmlSource
from headwater.runtime.fitting import as_changes, fitted
from headwater.runtime.row_ids import ROW_ID, has_row_ids, take
from headwater.runtime.sinks.definition import spec_of
from headwater.runtime.sinks.log_files import LogFiles, Share
from headwater.runtime.view_world import SparkSource
from headwater.sinks.fold import Folding, fold
from headwater.sinks.sink import OP, Batches, Delivery, Receipt, Sink, SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def into_key(ident: str) -> str:
    """What the ledger files the progress of such a sink under."""
    return f"into/{ident}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTargets:
    """Makes the targets of one engine."""

    catalog: Catalog
    source: DmlSource
    position: Callable[[str], str | None]
    """What the ledger has under a name."""
    blocking: Blocking
    term: Term
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    under_way: dict[str, tuple[Epoch, int]] = field(default_factory=dict)
    """By sink, what was put last: the delivery's epoch, and its number for `DmlSource.taken`."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """There are no more epochs."""

    def target(self, sink: ObjectDef) -> "IntoTable":
        """The table that a sink writes."""
        assert sink.into is not None
        return IntoTable(self, sink.into, spec_of(sink))

    def reached(self, ident: str) -> Epoch:
        """The newest epoch whose rows are in the table."""
        return Epoch(int(self.position(into_key(ident)) or NO_EPOCH))

    def awaited(self, ident: str) -> Epoch:
        """The newest epoch whose rows are in the table, or wait for its next epoch."""
        return max(self.reached(ident), self.under_way.get(ident, (NO_EPOCH, 0))[0])


class IntoTable:
    """Satisfies `TransactionalSink`; the ledger's transaction is the target's."""

    def __init__(self, around: TableTargets, table: TableId, spec: SinkSpec) -> None:
        self._around = around
        self._ident = spec.ident
        self._table = table
        self._name = spec.name
        self._schema = spec.arrow

    def check(self) -> None:
        """All is known from the catalog. Replay: nothing happens."""

    def begin(self, term: Term) -> Epoch:
        """Which epoch the table has; the ledger fences older engines. Replay: the same answer."""
        return self._around.reached(self._ident)

    def drop(self) -> None:
        """Its progress goes with the catalog's entry. Replay: nothing happens."""

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """Write all rows in one epoch, and wait for it. Replay: what the table has stays."""
        batches = list(rows)
        # Some changes come to no rows at all.
        whole = pa.Table.from_batches(batches, None if batches else self._schema)
        bringing = self.bring(delivery, lambda making: self._around.blocking(making.changes, whole))
        asyncio.run_coroutine_threadsafe(bringing, self._around.loop).result()

    async def bring(
        self,
        delivery: Delivery,
        make: "Callable[[Making], Awaitable[pa.Table | DataFrame]]",
    ) -> None:
        """Have the changes of a delivery written once, and return when they are visible."""
        around, ident = self._around, self._ident
        epoch, number = around.under_way.get(ident, (NO_EPOCH, 0))
        if around.reached(ident) >= delivery.epoch:
            return
        if epoch < delivery.epoch:
            async with around.source.writing:
                table = await self._definition()
                made = await make(Making(table, around.term))
                facts = {into_key(ident): str(delivery.epoch)}
                number = await around.source.put({table.id: made}, facts)
                around.under_way[ident] = delivery.epoch, number
        await self._taken(number)

    async def _taken(self, number: int) -> None:
        """Wait for the epoch, unless there will be no more of them."""
        taken = asyncio.ensure_future(self._around.source.taken(number))
        ended = asyncio.ensure_future(self._around.ended.wait())
        try:
            await asyncio.wait({taken, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not taken.done():
                raise SinkUnavailable("the engine has ended; the next one delivers it")
        finally:
            taken.cancel()
            ended.cancel()

    async def _definition(self) -> TableDef:
        snapshot = await self._around.blocking(self._around.catalog.snapshot)
        found = snapshot.by_id(self._table)
        if not isinstance(found, TableDef):
            raise UserError(f'the table that sink "{self._name}" writes is gone')
        return found


@dataclass(frozen=True, slots=True)
class Making:
    """Makes changes of a table from delivered rows. Travels to Spark tasks."""

    table: TableDef
    term: Term

    @property
    def numbers(self) -> bool:
        """Whether new rows get a number for a key."""
        return has_row_ids(self.table)

    def changes(self, rows: pa.Table, first: int | None = None) -> pa.Table:
        """Deletes by key, then whole rows; `first` is the number of the first new row."""
        table = self.table
        there = pc.equal(rows.column(OP), int(RowOp.INSERT))
        own = [name for name in rows.column_names if name != OP]
        new = fitted(table, rows.filter(there).select(own))
        if self.numbers:
            first = take(self.term, new.num_rows) if first is None else first
            ids = np.arange(first, first + new.num_rows, dtype=np.int64)
            return as_changes(new.append_column(ROW_ID, pa.array(ids)), ChangeType.INSERT, table)
        gone = rows.filter(pc.invert(there)).select(list(table.schema.key))
        return pa.concat_tables(
            [as_changes(gone, ChangeType.DELETE, table), as_changes(new, ChangeType.INSERT, table)]
        )


class TableCourier:
    """Satisfies the sinks room's `Courier`: Spark tasks read the log, the table's stage writes."""

    def __init__(
        self, folding: Folding, log: LogFiles, spark: SparkSource, blocking: Blocking
    ) -> None:
        self._folding = folding
        self._log = log
        self._spark = spark
        self._blocking = blocking

    async def deliver(self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]) -> None:
        """Have one epoch take the rows as a DataFrame. Replay: as `IntoTable.deliver`."""
        assert isinstance(sink, IntoTable)
        shares = await self._blocking(self._log.shares, chunks, VNODE_COUNT)

        def make(making: Making) -> "Awaitable[DataFrame]":
            first = take(making.term, len(shares) * delivery.rows) if making.numbers else 0
            parts = [
                _Part(making, share, self._folding, start)
                for share, start in zip(shares, itertools.count(first, delivery.rows))
            ]
            return self._blocking(_frame, self._spark, making.table, parts)

        await sink.bring(delivery, make)

    async def prepare(
        self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]
    ) -> tuple[Receipt, ...]:
        """A table is not staged."""
        raise BrokenInvariant("a sink into a table has nothing to prepare")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one task reads; travels to it."""

    making: Making
    share: Share
    folding: Folding
    first: int
    """The number of its first row, where rows are numbered; the same when it runs again."""

    def changes(self) -> Iterator[pa.RecordBatch]:
        first = self.first
        for rows in self.share:
            made = self.making.changes(fold(self.folding, rows), first)
            first += made.num_rows
            # A key is in one part only, and has one change there.
            order = pa.array(np.zeros(made.num_rows, np.int64))
            yield from made.append_column(SEQ, order).to_batches(max_chunksize=1 << 16)


def _frame(spark: SparkSource, table: TableDef, parts: Sequence[_Part]) -> "DataFrame":
    schema = table.schema
    types = ", ".join(
        f"c{place} {column.type.spark}" for place, column in enumerate(schema.columns)
    )

    def bring(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for cell in batch.column(0):
                for made in pickle.loads(cell.as_py()).changes():
                    yield made.rename_columns([f"c{i}" for i in range(len(schema.columns) + 2)])

    listed = pa.table({"part": pa.array([pickle.dumps(part) for part in parts], pa.binary())})
    count = len(schema.columns)
    wanted = f"{types}, c{count} string, c{count + 1} bigint"
    frame = spark().createDataFrame(listed).repartition(len(parts)).mapInArrow(bring, wanted)
    return frame.toDF(*schema.names, CHANGE_TYPE, SEQ)
