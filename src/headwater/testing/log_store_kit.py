"""Tools for tests of a sink's log: rows, a log that can crash, and what a reader saw.

    rig = LogStoreRig(buffer_bytes=1)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    await writer.write_chunk(log_rows([(RowOp.INSERT, 7, "ann")]))
    await rig.checkpoint()                   # the text is in the rig's ledger, and confirmed
    seen = await read_items(reader, 2)
    (reader,), writer = await rig.open()     # after a crash: a new engine, the last text

The rig's ledger is one text. A row has the columns `id` and `name`; its vnode is `id` modulo 256.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import BrokenInvariant
from headwater.logstore.items import (
    OP,
    VNODE,
    Lender,
    LogBarrier,
    LogChunk,
    LogItem,
    LogReader,
    Offset,
)
from headwater.logstore.kv_log_store import KvLogStoreFactory, LogStoreOptions
from headwater.logstore.open_log import Blocking
from headwater.logstore.reader import KvLogStoreReader
from headwater.logstore.serde import Layout
from headwater.logstore.storage import LogStorage
from headwater.logstore.writer import KvLogStoreWriter
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import BIGINT, VARCHAR
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage

_R = TypeVar("_R")

COLUMNS = (Column("id", BIGINT), Column("name", VARCHAR))

Row = tuple[RowOp, int, str]
"""What happens, the id, the name."""


async def at_once(call: Callable[..., _R], *args: Any, **kwargs: Any) -> _R:
    """Run a blocking call here and now, after others had a turn; fits as a log's `blocking`."""
    await asyncio.sleep(0)
    return call(*args, **kwargs)


def vnodes_of_ids(rows: pa.Table) -> npt.NDArray[np.int16]:
    """The vnodes of the kit's rows."""
    vnodes: npt.NDArray[np.int16] = (rows["id"].to_numpy() % VNODE_COUNT).astype(np.int16)
    return vnodes


def log_rows(rows: Iterable[Row], *, with_vnodes: bool = True) -> pa.Table:
    """Rows as a log takes them."""
    listed = list(rows)
    table = pa.table(
        {
            OP: pa.array([int(op) for op, _, _ in listed], pa.int8()),
            "id": pa.array([number for _, number, _ in listed], pa.int64()),
            "name": pa.array([name for _, _, name in listed], pa.string()),
        }
    )
    if with_vnodes:
        table = table.add_column(1, VNODE, pa.array(vnodes_of_ids(table), pa.int16()))
    return table


def as_rows(table: pa.Table) -> list[Row]:
    """What `log_rows` was given, in the order of the table; its vnodes are checked."""
    if table.column_names != [OP, VNODE, "id", "name"]:
        raise AssertionError(f"a log gave columns {table.column_names}")
    columns = (table[OP].to_pylist(), table["id"].to_pylist(), table["name"].to_pylist())
    rows = [(RowOp(op), number, name) for op, number, name in zip(*columns, strict=True)]
    vnodes = table[VNODE].to_pylist()
    if vnodes != [number % VNODE_COUNT for _, number, _ in rows]:
        raise AssertionError(f"a log gave vnodes {vnodes} for rows {rows}")
    if vnodes != sorted(vnodes):
        raise AssertionError(f"a log's chunk is not sorted by vnode: {vnodes}")
    return rows


@dataclass(frozen=True, slots=True)
class Seen:
    """An item that a reader gave, with its rows; a barrier has none."""

    place: Offset
    rows: tuple[Row, ...] = ()
    barrier: LogBarrier | None = None


async def read_item(reader: LogReader) -> Seen:
    """The next item and its rows."""
    return await with_rows(reader, await reader.next_item())


async def with_rows(reader: LogReader, item: LogItem) -> Seen:
    """An item that a reader gave, and its rows."""
    if isinstance(item, LogChunk):
        return Seen(Offset.after(item), tuple(as_rows(await reader.load(item))))
    return Seen(Offset.after(item), barrier=item)


async def read_items(reader: LogReader, count: int) -> list[Seen]:
    """The next items and their rows."""
    return [await read_item(reader) for _ in range(count)]


async def read_through(reader: LogReader, epoch: Epoch) -> list[Seen]:
    """All items up to and with the barrier of an epoch."""
    seen: list[Seen] = []
    while not seen or seen[-1].place < Offset(epoch):
        seen.append(await read_item(reader))
    return seen


async def nothing_to_read(reader: LogReader) -> bool:
    """Whether a reader waits, however often others have a turn."""
    task = asyncio.ensure_future(reader.next_item())
    for _ in range(50):
        await asyncio.sleep(0)
    waits = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return waits


class LogStoreRig:
    """A log with a ledger of one text, that can be opened again as after a crash."""

    def __init__(  # noqa: PLR0913  one argument per property of the log
        self,
        *,
        buffer_bytes: int = 1 << 20,
        chunk_bytes: int = 1 << 16,
        layout: Layout = Layout.V2,
        storage: LogStorage | None = None,
        blocking: Blocking = at_once,
        options: LogStoreOptions | None = None,
        lender: Lender | None = None,
    ) -> None:
        self.files = MemoryFiles(immutable=True)
        self.lender = lender
        self.storage: LogStorage = MemoryStorage(self.files) if storage is None else storage
        self.options = options or LogStoreOptions(
            buffer_bytes=buffer_bytes, chunk_bytes=chunk_bytes, layout=layout
        )
        self.blocking = blocking
        self.ledger: str | None = None
        self.term = Term(0)
        self.epoch = NO_EPOCH
        self._factory: KvLogStoreFactory | None = None
        self._writer: KvLogStoreWriter | None = None

    @property
    def factory(self) -> KvLogStoreFactory:
        """What the log was opened with last."""
        if self._factory is None:
            raise BrokenInvariant("the rig's log is not open")
        return self._factory

    def next_epoch(self) -> Epoch:
        """An epoch that was not there before."""
        self.epoch = Epoch(self.epoch + 1)
        return self.epoch

    async def open(
        self,
        *,
        shards: Sequence[VnodeBitmap] = (VnodeBitmap.full(),),
        delivered: Epoch = NO_EPOCH,
        options: LogStoreOptions | None = None,
    ) -> tuple[tuple[KvLogStoreReader, ...], KvLogStoreWriter]:
        """Open the log from the ledger's last text, as another engine; readers are started."""
        self.term = Term(self.term + 1)
        self._factory = KvLogStoreFactory(
            self.storage,
            "kit",
            COLUMNS,
            blocking=self.blocking,
            term=self.term,
            vnode_of=vnodes_of_ids,
            lender=self.lender,
            options=options or self.options,
        )
        readers, writer = await self._factory.open_shared(
            self.ledger, shards=shards, delivered=delivered
        )
        for reader in readers:
            await reader.init()
            await reader.start_from()
        self._writer = writer
        return readers, writer

    async def barrier(self) -> Epoch:
        """End the epoch without a checkpoint; gives the epoch that has ended."""
        writer, ended = self._writing()
        await writer.flush_current_epoch(self.next_epoch(), checkpoint=False)
        return ended

    async def checkpoint(self, vnodes: Sequence[VnodeBitmap] | None = None) -> Epoch:
        """End the epoch with a checkpoint that the ledger has; gives the epoch that has ended."""
        writer, ended = self._writing()
        text = await writer.flush_current_epoch(self.next_epoch(), checkpoint=True, vnodes=vnodes)
        self.ledger = text
        writer.confirm(ended)
        return ended

    def _writing(self) -> tuple[KvLogStoreWriter, Epoch]:
        if self._writer is None or self._writer.epoch is None:
            raise BrokenInvariant("the rig's log is not being written to")
        return self._writer, self._writer.epoch
