"""Values that lie in a buffer, made into Arrow columns by kernels.

A column's values are named by where they begin and how long they are; a null has length -1. The
kernels here serve both wires, the binary protocol of snapshots and the row images of the
binlog, for the forms that both share: little-endian integers and floats, bytes, and bits. Forms
of their own are in `times.py` and `decimals.py`.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]
LARGEST_COLUMN = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Pieces:
    """The values of one column."""

    data: Array
    starts: Array
    sizes: Array

    def __len__(self) -> int:
        return int(self.sizes.size)

    def value(self, row: int) -> bytes | None:
        """One of them, for slow paths and messages."""
        size = int(self.sizes[row])
        if size < 0:
            return None
        start = int(self.starts[row])
        return self.data[start : start + size].tobytes()

    def validity(self, also: Array | None = None) -> pa.Buffer | None:
        """The bitmap of what is not null, or None when all is; `also` takes more away."""
        valid = self.sizes >= 0
        if also is not None:
            valid &= also
        if valid.all():
            return None
        return pa.py_buffer(np.packbits(valid, bitorder="little"))


@numba.njit(cache=True, nogil=True)
def _little_endian(data, starts, sizes, signed, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        size = sizes[row]
        value = np.uint64(0)
        if size > 0:
            start = starts[row]
            for place in range(size):
                value |= np.uint64(data[start + place]) << np.uint64(8 * place)
            if signed and size < 8 and data[start + size - 1] & 0x80:
                value |= ~np.uint64(0) << np.uint64(8 * size)
        out[row] = np.int64(value)


@numba.njit(cache=True, nogil=True)
def _big_endian(data, starts, sizes, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        value = np.uint64(0)
        for place in range(max(sizes[row], 0)):
            value = value << np.uint64(8) | np.uint64(data[starts[row] + place])
        out[row] = np.int64(value)


@numba.njit(cache=True, nogil=True)
def _gather(data, starts, sizes, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        start, at = starts[row], offsets[row]
        for place in range(offsets[row + 1] - at):
            out[at + place] = data[start + place]


def integers(pieces: Pieces, *, signed: bool) -> Array:
    """Little-endian integers as int64 (of an unsigned one of 8 bytes: its bits); nulls are 0."""
    out = np.empty(len(pieces), dtype=np.int64)
    _little_endian(pieces.data, pieces.starts, pieces.sizes, signed, out)
    return out


def bits(pieces: Pieces) -> Array:
    """Big-endian bit strings as int64."""
    out = np.empty(len(pieces), dtype=np.int64)
    _big_endian(pieces.data, pieces.starts, pieces.sizes, out)
    return out


def integer_column(values: Array, type_: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """An Arrow column of int64 values; as a decimal they are taken as unsigned."""
    if pa.types.is_decimal(type_):
        wide = np.zeros((values.size, 2), dtype=np.int64)
        wide[:, 0] = values
        return fixed_column(wide, type_, validity)
    return fixed_column(values.astype(type_.to_pandas_dtype(), copy=False), type_, validity)


def fixed_column(values: Array, type_: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """An Arrow column over numbers that are in its layout already."""
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(values)])


def float_column(pieces: Pieces, type_: pa.DataType) -> pa.Array:
    """FLOAT and DOUBLE, bit by bit."""
    values = integers(pieces, signed=False)
    if type_ == pa.float32():
        return fixed_column(values.astype(np.uint32).view(np.float32), type_, pieces.validity())
    return fixed_column(values.view(np.float64), type_, pieces.validity())


def bytes_column(pieces: Pieces, type_: pa.DataType) -> pa.Array:
    """Text or binary, copied together."""
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum(np.maximum(pieces.sizes, 0), out=offsets[1:])
    if offsets[-1] > LARGEST_COLUMN:
        raise OverflowError(f"a column of {offsets[-1]} bytes is too large for one chunk")
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    _gather(pieces.data, pieces.starts, pieces.sizes, offsets, out)
    return pa.Array.from_buffers(
        type_,
        len(pieces),
        [pieces.validity(), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)],
    )
