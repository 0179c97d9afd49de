"""Whole batches as row messages, built by Arrow without a loop over the rows.

A row message is its type, its length, the number of columns, and for each column a length and
the bytes. Each of these parts is a column of its own; joined row by row, they are the bytes that
go to the client. A batch is cut into slices first, so that neither the memory for a slice nor
the time until other connections get their turn grows with the batch.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pgwire.answers import BINARY
from headwater.pgwire.binary import binary_of, fixed_width
from headwater.pgwire.session import ResultColumn
from headwater.pgwire.text import UTC, text_of
from headwater.pgwire.violation import WireError

SLICE_ROWS = 4096
SLICE_BYTES = 1 << 20

_NOTHING = pa.scalar(b"", pa.binary())


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of few rows and few bytes; at least one row each."""
    waiting = [batch.slice(start, SLICE_ROWS) for start in range(0, batch.num_rows, SLICE_ROWS)]
    waiting.reverse()
    while waiting:
        piece = waiting.pop()
        if piece.num_rows > 1 and piece.nbytes > SLICE_BYTES:
            half = piece.num_rows // 2
            waiting += [piece.slice(half), piece.slice(0, half)]
        else:
            yield piece


def cells(
    batch: pa.RecordBatch,
    columns: Sequence[ResultColumn],
    formats: Sequence[int],
    zone: str = UTC,
) -> list[pa.Array]:
    """The columns of a batch, each value in the bytes that its format wants."""
    if batch.num_columns != len(columns):
        raise WireError(
            f"a result promised {len(columns)} columns and has {batch.num_columns}", "XX000"
        )
    encoded = []
    for array, column, code in zip(batch.columns, columns, formats, strict=True):
        if code == BINARY:
            encoded.append(binary_of(array, column.type))
        else:
            encoded.append(text_of(array, column.type, zone).cast(pa.binary()))
    return encoded


def data_rows(encoded: Sequence[pa.Array], rows: int) -> memoryview:
    """A row message for each row."""
    return sized_rows(encoded, rows, b"D")


def sized_rows(encoded: Sequence[pa.Array], rows: int, kind: bytes) -> memoryview:
    """For each row, a message with the number of columns and each column after its length."""
    lengths = [pc.binary_length(column).fill_null(-1).to_numpy() for column in encoded]
    total = np.full(rows, 4 + 2 + 4 * len(encoded), dtype=np.int64)
    for length in lengths:
        total += np.maximum(length, 0)
    if rows and int(total.max()) >= 1 << 30:
        raise WireError(
            "a row is longer than one gigabyte",
            "54000",
            hint="Select fewer or shorter columns.",
        )
    head = np.empty(rows, dtype=[("kind", "S1"), ("length", ">i4"), ("columns", ">u2")])
    head["kind"], head["length"], head["columns"] = kind, total, len(encoded)
    parts = [fixed_width(head)]
    for length, column in zip(lengths, encoded, strict=True):
        parts += [fixed_width(length.astype(">i4")), column]
    return joined(parts)


def line_messages(lines: pa.Array) -> memoryview:
    """A CopyData message for each line."""
    head = np.empty(len(lines), dtype=[("kind", "S1"), ("length", ">i4")])
    head["kind"], head["length"] = b"d", pc.binary_length(lines).to_numpy() + 4
    return joined([fixed_width(head), lines])


def joined(parts: Sequence[pa.Array]) -> memoryview:
    """The bytes of all parts, row by row; a null part is nothing."""
    whole = pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=""
    )
    return content(whole)


def content(array: pa.Array) -> memoryview:
    """The bytes of all values of a binary column, one after the other, without a copy."""
    if not len(array):
        return memoryview(b"")
    _, offsets, data = array.buffers()
    if data is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int32)
    start, end = ends[array.offset], ends[array.offset + len(array)]
    return memoryview(data)[int(start) : int(end)]
