"""Rows that users write by INSERT, UPDATE and DELETE: a source like any other.

Statements put their changes into a log in memory, and one job feeds them to their tables, cut
once per epoch: what a statement or a transaction wrote is in one epoch, whole. The position in
the log goes into the ledger with the rows, and only then are they forgotten here.

Promises
    In order     Changes take effect in the order in which they were put.
    Bounded      While more than `max_bytes` wait for an epoch, whoever puts more waits.
    Durable      once an epoch has them, which FLUSH waits for; a crash before loses them. A
                 client that must know sets `rw_implicit_flush`, or says FLUSH.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.errors import NotSupported
from headwater.model.ids import SourceName, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DML = SourceName("_hw_dml")
"""What the ledger files the position under; no user's source can have this name."""

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    changes: "Mapping[TableId, pa.Table | DataFrame]"
    facts: Mapping[str, str]

    @property
    def bytes(self) -> int:
        return sum(c.nbytes for c in self.changes.values() if isinstance(c, pa.Table))

    @property
    def bulk(self) -> bool:
        return any(not isinstance(c, pa.Table) for c in self.changes.values())


class DmlSource:
    """The log of written rows; used on the event loop only."""

    def __init__(self, position: Callable[[], str | None], max_bytes: int) -> None:
        self._position = position
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._number: int | None = None
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._moved = asyncio.Event()
        self.writing = asyncio.Lock()
        """Held by a statement that reads rows in order to write them."""

    @property
    def name(self) -> SourceName:
        """What the ledger files the position under."""
        return DML

    def waiting(self, tables: Iterable[TableId]) -> bool:
        """Whether rows of one of these tables wait for an epoch."""
        wanted = set(tables)
        return any(wanted & entry.changes.keys() for entry in self._entries)

    @property
    def last(self) -> int:
        """The number of what was put last."""
        return self._entries[-1].number if self._entries else 0

    def has_upto(self, number: int) -> bool:
        """Whether something up to that number still waits for an epoch."""
        return bool(self._entries) and self._entries[0].number <= number

    async def put(
        self,
        changes: "Mapping[TableId, pa.Table | DataFrame]",
        facts: Mapping[str, str] = _NOTHING,
    ) -> int:
        """Write changes, as one; waits while too many rows wait for an epoch.

        `facts` go into the ledger with them, among the positions. Gives a number for `taken`.
        """
        return await self.put_all([changes], facts)

    async def put_all(
        self,
        writes: "Sequence[Mapping[TableId, pa.Table | DataFrame]]",
        facts: Mapping[str, str] = _NOTHING,
    ) -> int:
        """Write several changes in their order, all of them in one epoch."""
        whole = _together(writes)
        await self._room.wait()
        entry = _Entry(self._next(), whole, facts)
        self._entries.append(entry)
        self._bytes += entry.bytes
        if self._bytes > self._max_bytes:
            self._room.clear()
        return entry.number

    async def taken(self, number: int) -> None:
        """Return once the ledger has all that was put up to a number."""
        while self.has_upto(number):
            await self._moved.wait()

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """What was put after a position, whole statements only."""
        last = int(after or 0)
        found: dict[str, list[pa.Table]] = {}
        facts: dict[str, str] = {}
        size = 0
        for entry in self._entries:
            if entry.number <= int(after or 0):
                continue
            if size and size + entry.bytes > max_bytes:
                return _batch(last, found, facts, more=True)
            if entry.bulk:
                if found:
                    return _batch(last, found, facts, more=True)
                changes = {str(table): rows for table, rows in entry.changes.items()}
                return SourceBatch(
                    position=str(entry.number), changes=changes, more=True, facts=entry.facts
                )
            for table, rows in entry.changes.items():
                found.setdefault(str(table), []).append(rows)
            facts.update(entry.facts)
            size += entry.bytes
            last = entry.number
        return _batch(last, found, facts, more=False)

    async def acknowledge(self, position: str) -> None:
        """The ledger has everything up to a position: forget it."""
        while self._entries and self._entries[0].number <= int(position):
            self._bytes -= self._entries.popleft().bytes
        if self._bytes <= self._max_bytes:
            self._room.set()
        self._moved.set()
        self._moved = asyncio.Event()

    async def close(self) -> None:
        """Nothing is held."""

    def _next(self) -> int:
        if self._number is None:
            self._number = int(self._position() or 0)
        self._number += 1
        return self._number


def _together(
    writes: "Sequence[Mapping[TableId, pa.Table | DataFrame]]",
) -> "dict[TableId, pa.Table | DataFrame]":
    found: dict[TableId, list[pa.Table | DataFrame]] = {}
    for write in writes:
        for table, changes in write.items():
            found.setdefault(table, []).append(changes)
    whole: dict[TableId, pa.Table | DataFrame] = {}
    for table, parts in found.items():
        if len(parts) > 1 and not all(isinstance(part, pa.Table) for part in parts):
            raise NotSupported(
                "a transaction that writes a table twice cannot write that many rows to it",
                hint="Commit after each of the large statements.",
            )
        whole[table] = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    return whole


def _batch(
    last: int, found: "Mapping[str, list[pa.Table]]", facts: Mapping[str, str], *, more: bool
) -> SourceBatch:
    changes = {table: pa.concat_tables(parts) for table, parts in found.items()}
    return SourceBatch(position=str(last), changes=changes, more=more, facts=facts)
