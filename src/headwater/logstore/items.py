"""What goes through a log: chunks of rows and the barriers after them, and places in it.

    a log      chunk 0, chunk 1, barrier of epoch 7, chunk 0, barrier of epoch 8, barrier of 9, ...

Rows have `OP` (int8, a `RowOp`), `VNODE` (int16) and the sink's columns, in this order. Inside an
epoch they are numbered from 0, without gaps, over all vnodes: that is their `seq_id`.

Rows that somebody else keeps in files that never change need not be copied: their segment is
*lent*. Its name is not that of a file of the log, and says to the `Lender` which rows they are.
All of them are inserts, and no two lent rows of a log have the same key. Whoever lends keeps them
until the ledger has a text without them.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.model.epoch import Epoch
from headwater.model.reserved import VNODE
from headwater.model.vnode import VnodeBitmap

__all__ = [
    "LENT", "OP", "VNODE", "Lender", "LogBarrier", "LogChunk", "LogItem", "LogReader", "Offset",
    "Segment",
]  # fmt: skip

OP = "_op"
LENT = "lent:"
"""How the name of a lent segment begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of one epoch in one immutable file, sorted by vnode, then seq_id."""

    name: str
    epoch: Epoch
    first_seq: int
    rows: int
    bytes: int
    vnodes: VnodeBitmap
    """Which vnodes it has rows of; a lent one may name more."""

    @property
    def lent(self) -> bool:
        """Whether its rows are not in a file of the log."""
        return self.name.startswith(LENT)


class Lender(Protocol):
    """Reads the rows of lent segments."""

    def __call__(self, segment: Segment) -> pa.Table:
        """All rows of one, `OP`, `VNODE` and columns; always the same, in the same order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Some rows of an epoch: in memory, in a segment, or both."""

    epoch: Epoch
    chunk_id: int
    first_seq: int
    count: int
    nbytes: int
    rows: pa.Table | None = None
    stored: Segment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBarrier:
    """The end of an epoch."""

    epoch: Epoch
    checkpoint: bool
    vnodes: VnodeBitmap | None = None
    """The vnodes that the reader has from now on, where that changes here."""
    stop: bool = False


LogItem = LogChunk | LogBarrier


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A place right after an item. A barrier is after all chunks of its epoch."""

    epoch: Epoch
    chunk_id: float = float("inf")

    @classmethod
    def after(cls, item: LogItem) -> "Offset":
        """The place right after an item."""
        return cls(item.epoch, item.chunk_id) if isinstance(item, LogChunk) else cls(item.epoch)


class LogReader(Protocol):
    """Items in order, from the last truncation on."""

    async def init(self) -> None:
        """Open the log. Called once, before anything else."""
        ...

    async def start_from(self, epoch: Epoch | None = None) -> None:
        """Read on after the last truncation, or after a given epoch."""
        ...

    async def next_item(self) -> LogItem:
        """Wait for the next item. A call that is cancelled anywhere loses nothing."""
        ...

    async def load(self, chunk: LogChunk) -> pa.Table:
        """The rows of a chunk, read back where they are not in memory."""
        ...

    def truncate(self, offset: Offset) -> None:
        """Everything up to here is delivered."""
        ...

    async def rewind(self) -> None:
        """Something went wrong: wait as the backoff says; `start_from` must follow."""
        ...
