r"""Rows as text, in the forms that databases read in bulk.

    COPY, LOAD DATA   cells end in a tab, rows in a newline; null is \N; backslash, tab, newline
                      and carriage return have a backslash before them
    INSERT            (literal,literal,NULL), and so on; texts in quotes, bytes as x'..'

A batch goes through in blocks of rows that fit a processor's cache, so memory is bounded whatever
the size of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.model.types import DataType, Kind
from headwater.sinks import text_kernels as kernels
from headwater.sinks.spelling import Form, Texts, Unfit, spell

BLOCK_ROWS = 8192


def _table(escapes: dict[bytes, bytes]) -> Any:
    table = np.zeros(256, np.uint8)
    for byte, letter in escapes.items():
        table[byte[0]] = letter[0]
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What stands around cells and rows."""

    start: bytes = b""
    between: bytes = b"\t"
    end: bytes = b"\n"
    quote: bytes = b""
    bytes_mark: bytes = b""
    null: bytes = b"\\N"
    escapes: Any = None


BULK = Layout(escapes=_table({b"\\": b"\\", b"\t": b"t", b"\n": b"n", b"\r": b"r"}))
LITERALS = Layout(
    start=b"(",
    between=b",",
    end=b"),",
    quote=b"'",
    bytes_mark=b"x",
    null=b"NULL",
    escapes=_table({b"\\": b"\\", b"'": b"'", b"\0": b"0"}),
)


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows as text."""

    text: bytes
    first: int
    """The first row's place in its batch."""
    rows: int


class UnfitCell(Exception):
    """A value that has no spelling: which column, which row of its batch, and why."""

    def __init__(self, column: int, row: int, why: str) -> None:
        super().__init__(column, row, why)
        self.column = column
        self.row = row
        self.why = why


class RowWriter:
    """Writes batches of some columns as text."""

    def __init__(
        self,
        types: Sequence[DataType],
        form: Form,
        layout: Layout = BULK,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._types = tuple(types)
        self._form = form
        self._layout = layout
        self._block_rows = block_rows

    def blocks(self, columns: Sequence[pa.Array]) -> Iterator[Block]:
        """The rows of a batch, given by its columns."""
        rows = len(columns[0])
        for first in range(0, rows, self._block_rows):
            count = min(self._block_rows, rows - first)
            yield Block(self._block([c.slice(first, count) for c in columns], first), first, count)

    def _block(self, columns: Sequence[pa.Array], first: int) -> bytes:
        rows, last = len(columns[0]), len(columns) - 1
        cells = [self._cells(place, column, first) for place, column in enumerate(columns)]
        sizes = np.zeros(rows, np.int64)
        around = [self._around(place, last) for place in range(len(columns))]
        for texts, (before, after, null, end) in zip(cells, around, strict=True):
            fixed, absent = before.size + after.size + end.size, null.size + end.size
            if texts.escaped:
                kernels.row_sizes(texts.offsets, texts.data, texts.valid, self._layout.escapes,
                                  fixed, absent, sizes)  # fmt: skip
            else:
                kernels.plain_row_sizes(texts.offsets, texts.valid, fixed, absent, sizes)
        ends = np.cumsum(sizes)
        cursors = ends - sizes
        out = np.empty(int(ends[-1]), np.uint8)
        for texts, (before, after, null, end) in zip(cells, around, strict=True):
            given = (texts.offsets, texts.data, texts.valid)
            if texts.escaped:
                kernels.weave(*given, self._layout.escapes, before, after, null, end, cursors, out)
            else:
                kernels.weave_plain(*given, before, after, null, end, cursors, out)
        return out.tobytes()

    def _cells(self, place: int, column: pa.Array, first: int) -> Texts:
        try:
            return spell(column, self._types[place], self._form)
        except Unfit as unfit:
            raise UnfitCell(place, first + unfit.row, unfit.why) from None

    def _around(self, place: int, last: int) -> tuple[Any, Any, Any, Any]:
        """Before a value, after it, instead of it, and behind the cell."""
        layout = self._layout
        start = layout.start if place == 0 else b""
        mark = layout.bytes_mark if self._types[place].kind is Kind.BYTEA else b""
        parts = (
            start + mark + layout.quote,
            layout.quote,
            start + layout.null,
            layout.end if place == last else layout.between,
        )
        before, after, null, end = (np.frombuffer(part, np.uint8) for part in parts)
        return before, after, null, end
