"""Who reads chunks for an executor: Spark tasks for large tables, threads for small ones."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from headwater.backfill.cdc.machine import ReadChunk
from headwater.backfill.cdc.merging import ChunkRows
from headwater.cdc.external_table import ExternalStorageTable, SnapshotChunk, Split

T = TypeVar("T")

Blocking = Callable[[Callable[[], T]], Awaitable[T]]
"""Runs a call that blocks somewhere else than on the event loop."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a read has brought."""

    chunk: SnapshotChunk
    rows: ChunkRows | None = None
    """The rows, where a task has written them to a file; `chunk.rows` is then empty."""


class SplitReader(Protocol):
    """Reads the chunks of one table. Several calls may be under way at a time.

    Every method raises a `RetryableError` when it is worth trying again by itself, and another
    `HeadwaterError` when a person has to do something. A call may be cancelled, or made again
    with the same arguments, at any time; nothing that it did may be seen by anyone.
    """

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """The next rows of a split, in a transaction that begins after the call."""
        ...

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows that have these keys, in a transaction that begins after the call."""
        ...

    async def divide(self, split: Split) -> Sequence[Split]:
        """Part of a table in several splits; a single one when it cannot be divided."""
        ...


class KeyedTable(ExternalStorageTable, Protocol):
    """An external table whose rows can also be read by key."""

    def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows of these keys, in a transaction of their own. Blocks."""
        ...

    def close(self) -> None:
        """Let go of connections; more may be opened later."""
        ...


class ThreadSplitReader:
    """Reads chunks in threads of the driver, for tables that are not worth a Spark job."""

    def __init__(self, table: KeyedTable, blocking: Callable[..., Awaitable[object]]) -> None:
        self._table = table
        self._blocking = blocking

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """The next rows of a split."""

        def read() -> SnapshotChunk:
            return self._table.read_chunk(
                request.split,
                request.after,
                max_rows=request.max_rows,
                max_bytes=request.max_bytes,
            )

        chunk = await self._blocking(read)
        assert isinstance(chunk, SnapshotChunk)
        return ReadResult(chunk)

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows that have these keys."""
        chunk = await self._blocking(lambda: self._table.read_keys(keys))
        assert isinstance(chunk, SnapshotChunk)
        return chunk

    async def divide(self, split: Split) -> Sequence[Split]:
        """Part of a table in several splits."""
        parts = await self._blocking(lambda: self._table.divide(split))
        assert isinstance(parts, Sequence)
        return parts
