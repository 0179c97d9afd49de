"""A result on its way to the client: rows slice by slice, no faster than it reads them."""

import asyncio
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headwater.pgwire.channel import Channel
from headwater.pgwire.rows import cells, data_rows, slices
from headwater.pgwire.session import CopyOut, Rows


class RowStream:
    """The rows of a result that were not sent yet."""

    def __init__(self, result: Rows | CopyOut, formats: Sequence[int], zone: str) -> None:
        self.result = result
        self.formats = formats
        self._zone = zone
        self._pieces: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self.exhausted = False

    async def send(self, channel: Channel, limit: int = 0) -> int:
        """Send rows, at most `limit` where it is not 0; gives how many were sent.

        A stream that had no more is `exhausted` afterwards; one that was stopped by its limit
        is not, even if no row should follow.
        """
        sent = 0
        while not limit or sent < limit:
            piece = await self.next_piece()
            if piece is None:
                break
            if limit and piece.num_rows > limit - sent:
                self._rest = piece.slice(limit - sent)
                piece = piece.slice(0, limit - sent)
            encoded = cells(piece, self.result.columns, self.formats, self._zone)
            channel.write(data_rows(encoded, piece.num_rows))
            sent += piece.num_rows
            await channel.drain()
            # Drain returns at once while the client keeps up; others must get their turn too.
            await asyncio.sleep(0)
        return sent

    async def next_piece(self) -> pa.RecordBatch | None:
        """The next few rows, or None at the end."""
        if self._rest is not None:
            piece, self._rest = self._rest, None
            return piece
        while not self.exhausted:
            piece = next(self._pieces, None)
            if piece is not None:
                return piece
            try:
                batch = await anext(self.result.batches)
            except StopAsyncIteration:
                self.exhausted = True
                break
            self._pieces = slices(batch)
        return None

    async def close(self) -> None:
        """Read no more."""
        self.exhausted = True
        self._pieces, self._rest = iter(()), None
        aclose = getattr(self.result.batches, "aclose", None)
        if aclose is not None:
            await aclose()
