"""A sink's log in memory, with every promise of `LogReader` and nothing behind it.

What is written is there at once and stays over lives; a reader is one life. `fail_next` makes the
next reads fail, as storage does.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headwater.errors import BrokenInvariant, HeadwaterError, HistoryGone
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset
from headwater.model.epoch import NO_EPOCH, Epoch


@dataclass(slots=True)
class MemoryLog:
    """Everything that was written, and how far it was told to forget."""

    items: list[LogItem] = field(default_factory=list)
    truncated: Offset = field(default_factory=lambda: Offset(NO_EPOCH))
    fail_next: list[HeadwaterError] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0

    def write(
        self,
        epoch: Epoch,
        tables: Sequence[pa.Table] = (),
        *,
        checkpoint: bool = True,
        nbytes: int | None = None,
    ) -> None:
        """One epoch; `nbytes` is what its chunks pretend to have each."""
        seq = 0
        for number, table in enumerate(tables):
            self.items.append(
                LogChunk(
                    epoch=epoch,
                    chunk_id=number,
                    first_seq=seq,
                    count=table.num_rows,
                    nbytes=table.nbytes if nbytes is None else nbytes,
                    rows=table,
                )
            )
            seq += table.num_rows
        self.items.append(LogBarrier(epoch=epoch, checkpoint=checkpoint))
        self.news.set()

    def reader(self) -> "MemoryLogReader":
        """A new life."""
        return MemoryLogReader(self)


class MemoryLogReader:
    """One life's view. Satisfies `LogReader`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._opened = False
        self._at: Offset | None = None
        self.rewinds = 0

    async def init(self) -> None:
        """Open it."""
        if self._opened:
            raise BrokenInvariant("a log is opened twice")
        self._opened = True

    async def start_from(self, epoch: Epoch | None = None) -> None:
        """Read on after the last truncation, or after a given epoch."""
        if epoch is not None and Offset(epoch) < self._log.truncated:
            raise HistoryGone(f"the log no longer has what follows epoch {epoch}")
        self._at = self._log.truncated if epoch is None else Offset(epoch)

    async def next_item(self) -> LogItem:
        """Wait for the next item."""
        while True:
            if self._at is None:
                raise BrokenInvariant("a log is read before `start_from`")
            if self._log.fail_next:
                raise self._log.fail_next.pop()
            for item in self._log.items:
                if Offset.after(item) > self._at:
                    self._at = Offset.after(item)
                    self._log.reads += 1
                    return item
            self._log.news.clear()
            await self._log.news.wait()

    async def load(self, chunk: LogChunk) -> pa.Table:
        """The rows of a chunk."""
        assert chunk.rows is not None
        return chunk.rows

    def truncate(self, offset: Offset) -> None:
        """Everything up to here is delivered."""
        if self._at is None or offset > self._at:
            raise BrokenInvariant(f"truncated to {offset}, read up to {self._at}")
        self._log.truncated = max(self._log.truncated, offset)

    async def rewind(self) -> None:
        """Forget the place; `start_from` must follow."""
        self._at = None
        self.rewinds += 1
