"""Brings the rows of a delivery from the log to a sink: in this process, or elsewhere.

    a delivery is      its rows are brought by
    small              the driver, in a thread
    larger             a `Courier`: Spark tasks where there is a cluster, else `LocalCourier`

Rows are read back vnode range by vnode range and folded one range at a time, so that what is held
in memory is a range, never a delivery. A range has all changes of its keys, and nothing else does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BrokenInvariant
from headwater.logstore.items import VNODE, LogChunk
from headwater.model.change import RowOp
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.sinks.fold import Folding, folded
from headwater.sinks.sink import OP, Delivery, Receipt, Sink, StagedSink, TransactionalSink

Load = Callable[[LogChunk], Awaitable[pa.Table]]


class Courier(Protocol):
    """Brings deliveries of one sink, whose folding it knows."""

    async def deliver(self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]) -> None:
        """Bring all rows to a transactional sink. Replay: as the sink's `deliver`."""
        ...

    async def prepare(
        self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]
    ) -> tuple[Receipt, ...]:
        """Bring all rows to a staged sink, in parts. Replay: writes new parts."""
        ...


def deliver_part(
    sink: Sink, delivery: Delivery, folding: Folding, part: int, tables: Iterable[pa.Table]
) -> Receipt | None:
    """What a task does: fold one part's rows, a table per vnode range, and hand them to the sink.

    A transactional sink gets all rows in one part, and gives no receipt.
    Replay: as the sink's own `prepare` and `deliver`.
    """
    rows = folded(folding, tables)
    if isinstance(sink, StagedSink):
        return sink.prepare(delivery, part, rows)
    if not isinstance(sink, TransactionalSink):
        raise BrokenInvariant(f"{type(sink).__name__} can neither deliver nor prepare")
    sink.deliver(delivery, rows)
    return None


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables one after the other; columns that older ones lack are null there."""
    return pa.concat_tables(tables, promote_options="default")


def rows_of_range(tables: Iterable[pa.Table], vnodes: VnodeBitmap) -> pa.Table:
    """The rows of a range of vnodes that follow each other, in the order of the tables."""
    members = list(vnodes)
    if len(members) == VNODE_COUNT:
        return joined(tables)
    kept = []
    for table in tables:
        vnode = table.column(VNODE)
        low = pc.greater_equal(vnode, members[0])
        kept.append(table.filter(pc.and_(low, pc.less_equal(vnode, members[-1]))))
    return joined(kept)


def ranges_for(nbytes: int, most_bytes: int) -> tuple[VnodeBitmap, ...]:
    """As many ranges of vnodes as keep one of them, on average, below a size."""
    parts = -(-nbytes // max(1, most_bytes))
    return VnodeBitmap.split(min(VNODE_COUNT, max(1, parts)))


class LocalCourier:
    """Brings rows in threads of this process; for small deliveries, and where there is no cluster.

    A delivery that is larger than `most_bytes` is read once per range.
    """

    def __init__(
        self,
        folding: Folding,
        load: Load,
        *,
        most_bytes: int = 8 << 20,
        blocking: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._folding = folding
        self._load = load
        self._most_bytes = most_bytes
        self._blocking = blocking

    async def deliver(self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]) -> None:
        """Bring all rows in one thread. Replay: as the sink's `deliver`."""
        ranges = self._ranges(chunks)
        if len(ranges) == 1:
            table = await self._rows(chunks, ranges[0])
            delivery = replace(delivery, inserts_only=_inserts_only(table))
            tables: Iterable[pa.Table] = [table]
        else:
            tables = self._one_by_one(chunks, ranges, asyncio.get_running_loop())
        await self._blocking(deliver_part, sink, delivery, self._folding, 0, tables)

    async def prepare(
        self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]
    ) -> tuple[Receipt, ...]:
        """Bring one part after the other. Replay: writes new parts."""
        receipts = []
        for part, vnodes in enumerate(self._ranges(chunks)):
            table = await self._rows(chunks, vnodes)
            receipts.append(
                await self._blocking(deliver_part, sink, delivery, self._folding, part, [table])
            )
        return tuple(receipts)

    def _ranges(self, chunks: Sequence[LogChunk]) -> tuple[VnodeBitmap, ...]:
        return ranges_for(sum(chunk.nbytes for chunk in chunks), self._most_bytes)

    async def _rows(self, chunks: Sequence[LogChunk], vnodes: VnodeBitmap) -> pa.Table:
        kept = []
        for chunk in chunks:
            if chunk.stored is None or chunk.stored.vnodes & vnodes:
                kept.append(rows_of_range([await self._load(chunk)], vnodes))
        return joined(kept) if kept else self._nothing()

    def _nothing(self) -> pa.Table:
        fields = [*self._folding.schema]
        return pa.schema([fields[0], pa.field(VNODE, pa.int16()), *fields[1:]]).empty_table()

    def _one_by_one(
        self,
        chunks: Sequence[LogChunk],
        ranges: Sequence[VnodeBitmap],
        loop: asyncio.AbstractEventLoop,
    ) -> Iterator[pa.Table]:
        """Read ranges while the sink takes them; runs in the sink's thread."""
        for vnodes in ranges:
            reading = asyncio.run_coroutine_threadsafe(self._rows(chunks, vnodes), loop)
            yield reading.result()


def _inserts_only(table: pa.Table) -> bool:
    return bool(pc.all(pc.equal(table.column(OP), int(RowOp.INSERT))).as_py())
