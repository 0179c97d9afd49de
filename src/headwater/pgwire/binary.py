"""Columns in binary format, the bytes that PostgreSQL's own send functions give.

Numbers, dates and timestamps are turned around as whole columns. What is stored as text
(numeric, time, interval, uuid) is read value by value: a stored text that its type cannot read
is an error of the statement, never a wrong value.
"""

import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.types import DataType, Kind
from headwater.pgwire.civil import UNIX_TO_POSTGRES_DAYS, UNIX_TO_POSTGRES_US, read_time
from headwater.pgwire.interval import read_interval
from headwater.pgwire.numeric import encode_numeric, spell_decimal
from headwater.pgwire.oids import innermost, oid_of
from headwater.pgwire.text import as_stored
from headwater.pgwire.violation import WireError, bad_text


def binary_of(array: pa.Array, type_: DataType) -> pa.Array:  # noqa: PLR0911, PLR0912  one per kind
    """Every value of a column in binary format, null where it is null."""
    array = as_stored(array, type_)
    match type_.kind:
        case Kind.BOOLEAN:
            return _fixed(array, array.cast(pa.int8()), "i1")
        case Kind.SMALLINT:
            return _fixed(array, array, ">i2")
        case Kind.INTEGER:
            return _fixed(array, array, ">i4")
        case Kind.BIGINT:
            return _fixed(array, array, ">i8")
        case Kind.REAL:
            return _fixed(array, array, ">f4")
        case Kind.DOUBLE:
            return _fixed(array, array, ">f8")
        case Kind.DATE:
            return _fixed(array, array.cast(pa.int32()), ">i4", UNIX_TO_POSTGRES_DAYS)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _fixed(array, array.cast(pa.int64()), ">i8", UNIX_TO_POSTGRES_US)
        case Kind.VARCHAR | Kind.BYTEA:
            return array.cast(pa.binary())
        case Kind.JSONB:
            version = pa.scalar(b"\x01", pa.binary())
            nothing = pa.scalar(b"", pa.binary())
            return pc.binary_join_element_wise(version, array.cast(pa.binary()), nothing)
        case Kind.DECIMAL:
            return _each(array, lambda number: encode_numeric(spell_decimal(number)))
        case Kind.NUMERIC:
            return _each(array, encode_numeric)
        case Kind.TIME:
            return _each(array, lambda text: struct.pack(">q", read_time(text)))
        case Kind.INTERVAL:
            return _each(array, _encode_interval)
        case Kind.UUID:
            return _each(array, _encode_uuid)
        case Kind.LIST:
            return _lists(array, type_)
        case Kind.STRUCT:
            return _structs(array, type_)
        case _:
            assert_never(type_.kind)


def fixed_width(values: "np.ndarray[Any, Any]") -> pa.Array:
    """The bytes of each number as one binary value."""
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.dtype.itemsize), len(values), [None, pa.py_buffer(values.tobytes())]
    )
    return fixed.cast(pa.binary())


def _fixed(array: pa.Array, numbers: pa.Array, layout: str, epoch: int = 0) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if epoch:
        values = _moved(values, epoch)
    encoded = fixed_width(values.astype(layout))
    if not array.null_count:
        return encoded
    return pc.if_else(array.is_valid(), encoded, pa.scalar(None, pa.binary()))


def _moved(values: "np.ndarray[Any, Any]", epoch: int) -> "np.ndarray[Any, Any]":
    """Counted from another epoch; what would wrap around has no binary form."""
    lowest = np.iinfo(values.dtype).min + epoch
    if len(values) and values.min() < lowest:
        raise WireError("date or timestamp out of range", "22008")
    moved: np.ndarray[Any, Any] = values - values.dtype.type(epoch)
    return moved


def _each(array: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    values = array.to_pylist()
    return pa.array([None if v is None else encode(v) for v in values], pa.binary())


def _encode_interval(text: str) -> bytes:
    months, days, micros = read_interval(text)
    try:
        return struct.pack(">qii", micros, days, months)
    except struct.error:
        raise WireError("interval out of range", "22008") from None


def _encode_uuid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise bad_text("uuid", text) from None


def _sized(values: Iterable[bytes | None]) -> Iterable[bytes]:
    """Each value after its length."""
    for value in values:
        yield b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value


def _lists(array: pa.Array, type_: DataType) -> pa.Array:
    """Arrays: dimensions, whether there are nulls, element type, then each element."""
    element = innermost(type_)
    oid = oid_of(element)
    encoded: list[bytes | None] = []
    leaves = array
    depth = 0
    while isinstance(leaves, pa.ListArray):
        leaves, depth = leaves.flatten(), depth + 1
    values = iter(binary_of(leaves, element).to_pylist())
    for nested in array.to_pylist():
        if nested is None:
            encoded.append(None)
            continue
        shape, count = _shape(nested, depth)
        items = [next(values) for _ in range(count)]
        dimensions = [struct.pack(">ii", length, 1) for length in shape] if count else []
        head = struct.pack(">iiI", len(dimensions), int(None in items), oid)
        encoded.append(b"".join([head, *dimensions, *_sized(items)]))
    return pa.array(encoded, pa.binary())


def _shape(nested: list[Any], depth: int) -> tuple[list[int], int]:
    """Length of each dimension, and how many elements there are."""
    shape = [len(nested)]
    level: list[Any] = nested
    for _ in range(depth - 1):
        lengths = {-1 if inner is None else len(inner) for inner in level}
        if len(lengths) > 1 or -1 in lengths:
            raise WireError(
                "multidimensional arrays must have sub-arrays with matching dimensions",
                "2202E",
                hint="Ask for text format to get a list of lists of different lengths.",
            )
        shape.append(lengths.pop() if lengths else 0)
        level = [item for inner in level for item in inner]
    return shape, len(level)


def _structs(array: pa.Array, type_: DataType) -> pa.Array:
    """Records: how many fields, then type, length and bytes of each."""
    columns = [
        (struct.pack(">I", oid_of(field)), binary_of(values, field).to_pylist())
        for values, (_, field) in zip(array.flatten(), type_.fields, strict=True)
    ]
    count = struct.pack(">i", len(columns))
    encoded = []
    for place, valid in enumerate(array.is_valid().to_pylist()):
        parts = [count]
        for oid, values in columns:
            parts += [oid, *_sized([values[place]])]
        encoded.append(b"".join(parts) if valid else None)
    return pa.array(encoded, pa.binary())
