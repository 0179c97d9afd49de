"""COPY's binary stream as Arrow batches.

    signature, flags, extension    19 bytes and more, once
    row                            int16 columns, then per column int32 length and its bytes
    trailer                        int16 -1

Pieces of any size come in. They are joined into blocks that fit a processor's cache, split into
cells and turned into columns; what is left of a row waits for the next piece. Memory is bounded
by the rows kept so far plus one block, or one row where a row is larger.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.cdc.postgres import kernels
from headwater.cdc.postgres.cells import Cells, Place
from headwater.cdc.postgres.columns import column_of
from headwater.cdc.postgres.types import Wire
from headwater.errors import BrokenInvariant

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_BLOCK_BYTES = 1 << 20
_HEADER_BYTES = len(SIGNATURE) + 8


class CopyReader:
    """Takes pieces of a stream, gives batches of whole rows."""

    def __init__(self, columns: Sequence[tuple[str, Wire]], places: Sequence[Place]) -> None:
        self._columns = tuple(columns)
        self._places = tuple(places)
        self._schema = pa.schema([pa.field(name, wire.type.arrow) for name, wire in columns])
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._enough = _BLOCK_BYTES
        self._begun = False
        self._batches: list[pa.RecordBatch] = []
        self._cells = _cell_arrays(len(columns), 1)
        self.ended = False
        """Whether the trailer came."""
        self.bytes = 0

    def feed(self, piece: bytes) -> None:
        """Take a piece of the stream."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        self.bytes += len(piece)
        if self._waiting >= self._enough:
            self._decode()

    def has_rows(self) -> bool:
        """Whether a whole row came."""
        if not self._batches:
            self._decode()
        return bool(self._batches)

    def table(self) -> pa.Table:
        """All whole rows that came."""
        self._decode()
        return pa.Table.from_batches(self._batches, self._schema)

    def _decode(self) -> None:
        block = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        data = np.frombuffer(block, dtype=np.uint8)
        at = 0
        if not self._begun:
            if data.size < _HEADER_BYTES:
                return
            at = header_end(block)
            self._begun = True
        while not self.ended:
            rows, at, end = self._split(data, at)
            if end < 0:
                raise BrokenInvariant("a COPY stream has rows of another width")
            self.ended = end == 1
            if rows == 0:
                break
        self._pieces = [block[at:]]
        self._waiting = len(block) - at
        # A row larger than a block: look again only when twice as much is there, so that a row of
        # any size is joined a few times and not once per megabyte.
        self._enough = max(_BLOCK_BYTES, 2 * self._waiting)

    def _split(self, data: Any, at: int) -> tuple[int, int, int]:
        width = len(self._columns)
        capacity = min(max((data.size - at) // (2 + 4 * width), 1), 1 << 16)
        if self._cells[0].shape[1] < capacity:
            self._cells = _cell_arrays(width, capacity)
        starts, lengths = self._cells
        rows, at, end = kernels.split_rows(data, at, starts, lengths)
        if rows:
            arrays = [
                column_of(
                    Cells(data, starts[place, :rows], lengths[place, :rows]),
                    wire,
                    where,
                    binary=wire.binary,
                )
                for place, ((_, wire), where) in enumerate(
                    zip(self._columns, self._places, strict=True)
                )
            ]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return int(rows), int(at), int(end)


def header_end(block: bytes) -> int:
    """Where the first row begins."""
    if not block.startswith(SIGNATURE):
        raise BrokenInvariant("a COPY stream does not begin with its signature")
    return _HEADER_BYTES + int.from_bytes(block[_HEADER_BYTES - 4 : _HEADER_BYTES], "big")


def _cell_arrays(width: int, capacity: int) -> tuple[Any, Any]:
    return np.empty((width, capacity), np.int64), np.empty((width, capacity), np.int32)
