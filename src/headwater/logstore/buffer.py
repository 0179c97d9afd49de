"""The last items of a log in memory, bounded by bytes.

    consumed, not truncated | unconsumed          one row of items, divided by a reader's place

Rows take a place in memory when there is room at the moment they are written; those that find none
are written to storage at once, and what is queued is a descriptor that says where. Rows leave when
every reader has truncated them, so a slow target fills the buffer and then costs storage only.
Descriptors are bounded too: when there are too many, later items are not queued at all until all
of these are truncated, and a reader that comes so far finds them in the log's index.

Promises
    Bounded      `max_bytes` for rows that gather, rows that wait and descriptors together; one
                 chunk may be larger than what is left for gathering, and is then written at once.
    A stretch    What is here has no gaps. A place before it, or behind it and not yet at the
                 log's end, is told from one where the next item is yet to come.
    Committed    Only what the ledger has is here: the writer appends when it was told so.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.errors import BrokenInvariant
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset

_DESCRIPTOR_BYTES = 512
"""About what an item without rows takes."""
_FEWEST_ITEMS = 16
"""So many items are kept in any case, or nothing would ever be read from memory."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What follows a place is there, and not in memory: ask the log's index."""


BEHIND = Behind()


class LogStoreBuffer:
    """A stretch of items, shared by the writer and all readers of a log."""

    def __init__(self, max_bytes: int, start: Offset) -> None:
        if max_bytes < 1:
            raise ValueError(f"a buffer of {max_bytes} bytes holds nothing")
        self.gather_bytes = max_bytes // 4
        """How much the writer may gather before it makes a chunk of it."""
        self._most_items = max(_FEWEST_ITEMS, max_bytes // 8 // _DESCRIPTOR_BYTES)
        self._most_rows = max_bytes - max_bytes // 4 - max_bytes // 8
        self._items: list[LogItem] = []
        self._places: list[Offset] = []
        self._gone = 0
        self._held = 0
        self._start = self._end = start
        self._overflowed = False
        self._changed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """How many bytes of rows are in memory, or promised room."""
        return self._held

    def __len__(self) -> int:
        return len(self._items) - self._gone

    def admit(self, nbytes: int) -> bool:
        """Take room for rows, if there is; `release` gives it back where no item gets it."""
        if self._overflowed or self._held + nbytes > self._most_rows:
            return False
        self._held += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Give room back."""
        self._held -= nbytes
        if self._held < 0:
            raise BrokenInvariant("a buffer gave back more bytes than it had")

    def append(self, items: Iterable[LogItem]) -> None:
        """Items that the ledger has, after those that are here; rows have been admitted."""
        for item in items:
            place = Offset.after(item)
            if place <= self._end:
                raise BrokenInvariant(f"{place} comes after {self._end} in its log")
            if self._overflowed and not len(self):
                self._overflowed, self._start = False, self._end
            if self._overflowed or len(self) == self._most_items:
                self._overflowed = True
                self._let_go(item)
            else:
                self._items.append(item)
                self._places.append(place)
            self._end = place
        self.wake()

    def after(self, place: Offset) -> LogItem | Behind | None:
        """The item behind a place; None when it is yet to come."""
        if place < self._start:
            return BEHIND
        at = bisect_right(self._places, place, lo=self._gone)
        if at < len(self._items):
            return self._items[at]
        return BEHIND if place < self._end else None

    def truncate(self, place: Offset) -> None:
        """Forget what every reader has delivered."""
        while len(self) and self._places[self._gone] <= place:
            self._drop_oldest()
        self._tidy()

    def wake(self) -> None:
        """Tell those who wait that something is new."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self) -> None:
        """Wait until something is new. A look and this call belong together, without await."""
        await self._changed.wait()

    def _drop_oldest(self) -> None:
        self._start = self._places[self._gone]
        self._let_go(self._items[self._gone])
        # Rows must not stay alive in the part of the list that is yet to be cut off.
        self._items[self._gone] = LogBarrier(epoch=self._start.epoch, checkpoint=False)
        self._gone += 1

    def _let_go(self, item: LogItem) -> None:
        if isinstance(item, LogChunk) and item.rows is not None:
            self.release(item.rows.nbytes)

    def _tidy(self) -> None:
        if self._gone > len(self._items) // 2:
            del self._items[: self._gone], self._places[: self._gone]
            self._gone = 0
