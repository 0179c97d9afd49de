"""The executor of tables without a key: it holds one snapshot open for all chunks.

Before anything is read a snapshot is opened, and opened again when it does not see enough yet.
When a read fails the snapshot is asked for: a connection that is gone has taken it along, and
the table begins anew; any other failure is a matter of that one read, which is repeated.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headwater.backfill.cdc.executor import ParallelizedCdcBackfillExecutor, Surroundings
from headwater.backfill.cdc.keyless import (
    ROW_COPY,
    ROW_DIGEST,
    Copies,
    KeylessBackfill,
    count_copies,
)
from headwater.backfill.cdc.machine import Instruction, ReadChunk
from headwater.backfill.cdc.split_reader import ReadResult
from headwater.cdc.external_table import HeldSnapshot, SnapshotChunk, Split
from headwater.errors import BrokenInvariant, HeadwaterError

_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0


class HeldReader:
    """Reads chunks of the snapshot that is held. There is one of it per table."""

    def __init__(self, hold: Callable[[], HeldSnapshot], blocking: Callable[..., Any]) -> None:
        self.hold = hold
        self._blocking = blocking
        self._held: HeldSnapshot | None = None

    async def open(self) -> SnapshotChunk:
        """Take a snapshot, in place of the one before; answers what it sees."""
        await self.close()
        self._held = await self._blocking(self.hold)
        return self._held.chunk

    async def lost(self) -> bool:
        """Whether the snapshot is gone."""
        held = self._held
        return held is None or not await self._blocking(held.alive)

    async def close(self) -> None:
        """Let go of the snapshot."""
        held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(HeadwaterError, OSError):
                await self._blocking(held.close)

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """The next rows of a split, as the snapshot has them."""
        held = self._held
        if held is None:
            raise BrokenInvariant("a chunk is to be read, and no snapshot is open")

        def read() -> SnapshotChunk:
            return held.table.read_chunk(
                request.split,
                request.after,
                max_rows=request.max_rows,
                max_bytes=request.max_bytes,
            )

        return ReadResult(await self._blocking(read))

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """There are no keys."""
        raise BrokenInvariant("a table without a key is to be read by key")

    async def divide(self, split: Split) -> Sequence[Split]:
        """Splits stay as they are: places mean something in one snapshot only."""
        return [split]


class KeylessCdcBackfillExecutor(ParallelizedCdcBackfillExecutor):
    """Reads many splits of one snapshot; its state is of version 2."""

    backfill: KeylessBackfill  # type: ignore[assignment]

    def __init__(self, backfill: KeylessBackfill, around: Surroundings, reader: HeldReader) -> None:
        super().__init__(backfill, around)  # type: ignore[arg-type]
        self._held = reader
        self._opening: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    def _begin_reads(self) -> None:
        if self.backfill.waits_for_snapshot:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.ensure_future(self._open())
                self._waits.add(self._opening)
            return
        super()._begin_reads()

    async def _open(self) -> None:
        """Open a snapshot, again and again, until one sees all that it must."""
        wait = _RETRY_S
        while self.backfill.waits_for_snapshot:
            try:
                self.backfill.opening()
                if self.backfill.opened(await self._held.open()):
                    return
            except HeadwaterError as error:
                self._say(str(error))
            await self._around.sleep(wait)
            wait = min(2 * wait, _LONGEST_RETRY_S)

    def _failed(self, instruction: Instruction, error: BaseException, now: float) -> None:
        super()._failed(instruction, error, now)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
            self._waits.add(self._asking)

    async def _ask(self) -> None:
        if await self._held.lost():
            self.backfill.snapshot_lost()

    def _measure(self, output: Any) -> None:
        super()._measure(output)
        if output.backfilled and self._opening is not None:
            # Nobody needs it any more, and an open snapshot keeps the server from tidying up.
            self._waits.add(asyncio.ensure_future(self._held.close()))
            self._opening = None

    async def _end(self) -> None:
        await super()._end()
        await self._held.close()


def stored_copies(lookup: Callable[[pa.Table], pa.Table]) -> Copies:
    """Count copies by looking hidden keys up."""

    def exists(keys: pa.Table) -> Sequence[bool]:
        found = lookup(keys).select([ROW_DIGEST, ROW_COPY]).to_pylist()
        there = {(row[ROW_DIGEST], row[ROW_COPY]) for row in found}
        return [(row[ROW_DIGEST], row[ROW_COPY]) in there for row in keys.to_pylist()]

    return lambda digests: count_copies(exists, digests)
