"""Arrow columns out of cells, in binary form or as text.

Exact     A value that has no place in the column's type (an infinite date, NaN in a
          decimal, an array of two dimensions, bytes that are no UTF-8) is an error that names
          table and column, or null if the source's options say so. Nothing is rounded.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from headwater.cdc.postgres import kernels
from headwater.cdc.postgres.cells import Cells, Place
from headwater.cdc.postgres.text_values import column_of_texts
from headwater.cdc.postgres.types import Codec, Wire

_WORDS = np.frombuffer(b"-InfinityNaN", dtype=np.uint8)
_SMALL_PRECISION = 12
_WIDTHS = {
    Codec.BOOL: 1,
    Codec.INT2: 2,
    Codec.INT4: 4,
    Codec.INT8: 8,
    Codec.OID: 4,
    Codec.FLOAT4: 4,
    Codec.FLOAT8: 8,
    Codec.DATE: 4,
    Codec.TIME: 8,
    Codec.TIMESTAMP: 8,
    Codec.UUID: 16,
}
_FIXED: dict[Codec, tuple[Any, str]] = {
    Codec.INT2: (kernels.read_int2, "int16"),
    Codec.INT4: (kernels.read_int4, "int32"),
    Codec.INT8: (kernels.read_int8, "int64"),
    Codec.OID: (kernels.read_oid, "int64"),
    Codec.FLOAT4: (kernels.read_int4, "int32"),
    Codec.FLOAT8: (kernels.read_int8, "int64"),
}
_MOST_TEXT = (1 << 31) - 1


def column_of(cells: Cells, wire: Wire, where: Place, *, binary: bool = True) -> pa.Array:  # noqa: PLR0911
    """The cells as an Arrow array of the wire's type; `binary` says in which form they are."""
    if not binary:
        texts = _texts(cells, 0, pa.string(), where)
        return column_of_texts(texts, wire, where)
    valid = np.empty(len(cells), dtype=np.uint8)
    nulls = kernels.valid_cells(cells.lengths, valid)
    _check_width(cells, wire.codec, where)
    match wire.codec:
        case Codec.BOOL:
            return _bools(cells, valid, nulls)
        case Codec.TEXT:
            return _texts(cells, 0, wire.type.arrow, where)
        case Codec.JSONB:
            return _texts(cells, 1, wire.type.arrow, where)
        case Codec.BYTEA:
            return _texts(cells, 0, pa.binary(), where)
        case Codec.UUID | Codec.TIME | Codec.NUMERIC:
            return _spelled(cells, wire.codec, valid, nulls)
        case Codec.DATE | Codec.TIMESTAMP:
            return _moments(cells, wire, valid, where)
        case Codec.DECIMAL:
            return _decimals(cells, wire, valid, where)
        case Codec.ARRAY:
            return _lists(cells, wire, valid, where)
        case _:
            read, name = _FIXED[wire.codec]
            values = np.zeros(len(cells), dtype=name)
            read(cells.data, cells.starts, cells.lengths, values)
            return _array(wire.type.arrow, valid, nulls, pa.py_buffer(values))


def _check_width(cells: Cells, codec: Codec, where: Place) -> None:
    width = _WIDTHS.get(codec)
    if width is None:
        return
    row = kernels.first_of_other_width(cells.lengths, width)
    if row >= 0:
        raise where.refuse(f"{cells.lengths[row]} bytes came where {width} were expected.")


def _array(type_: pa.DataType, valid: Any, nulls: int, *buffers: Any) -> pa.Array:
    return pa.Array.from_buffers(type_, valid.size, [_bitmap(valid, nulls), *buffers], int(nulls))


def _bitmap(valid: Any, nulls: int) -> Any:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None


def _bools(cells: Cells, valid: Any, nulls: int) -> pa.Array:
    values = np.zeros(len(cells), dtype=np.bool_)
    kernels.read_bool(cells.data, cells.starts, cells.lengths, values)
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return _array(pa.bool_(), valid, nulls, bits)


def _texts(cells: Cells, skip: int, type_: pa.DataType, where: Place) -> pa.Array:
    valid = np.empty(len(cells), dtype=np.uint8)
    nulls = kernels.valid_cells(cells.lengths, valid)
    offsets = np.empty(len(cells) + 1, dtype=np.int32)
    if int(np.maximum(cells.lengths, 0).sum(dtype=np.int64)) > _MOST_TEXT:
        raise where.refuse("More than 2 GB of text came at once.")
    out = np.empty(kernels.text_offsets(cells.lengths, skip, offsets), dtype=np.uint8)
    kernels.copy_text(cells.data, cells.starts, offsets, skip, out)
    array = _array(type_, valid, nulls, pa.py_buffer(offsets), pa.py_buffer(out))
    if type_ == pa.string():
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            if not where.bad_as_null:
                raise where.refuse(f"It is not valid UTF-8: {str(error)[:200]}.") from None
            return _readable(array)
    return array


def _readable(array: pa.Array) -> pa.Array:
    """The same texts, null where the bytes are not UTF-8."""

    def text(value: bytes | None) -> str | None:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return None

    return pa.array([text(value) for value in array.view(pa.binary()).to_pylist()], pa.string())


def _spelled(cells: Cells, codec: Codec, valid: Any, nulls: int) -> pa.Array:
    offsets = np.empty(len(cells) + 1, dtype=np.int32)
    place = (cells.data, cells.starts, cells.lengths, offsets)
    if codec is Codec.NUMERIC:
        out = np.empty(kernels.numeric_offsets(*place), dtype=np.uint8)
        kernels.spell_numeric(*place, _WORDS, out)
    elif codec is Codec.UUID:
        out = np.empty(36 * len(cells), dtype=np.uint8)
        kernels.spell_uuid(*place, out)
    else:
        out = np.empty(15 * len(cells), dtype=np.uint8)
        kernels.spell_time(*place, out)
    return _array(pa.string(), valid, nulls, pa.py_buffer(offsets), pa.py_buffer(out))


def _moments(cells: Cells, wire: Wire, valid: Any, where: Place) -> pa.Array:
    days = wire.codec is Codec.DATE
    out = np.zeros(len(cells), dtype="int32" if days else "int64")
    read = kernels.read_date if days else kernels.read_timestamp
    bad = read(cells.data, cells.starts, cells.lengths, out, valid)
    if bad >= 0 and not where.bad_as_null:
        raise where.refuse(f"It is infinite or too far away for {wire.type.postgres}.")
    return _array(wire.type.arrow, valid, int(valid.size - valid.sum()), pa.py_buffer(out))


def _decimals(cells: Cells, wire: Wire, valid: Any, where: Place) -> pa.Array:
    out = np.zeros((len(cells), 2), dtype=np.int64)
    small = (wire.type.precision or 0) <= _SMALL_PRECISION
    read = kernels.read_small_decimal if small else kernels.read_decimal
    bad = read(cells.data, cells.starts, cells.lengths, wire.type.scale, out, valid)
    if bad >= 0 and not where.bad_as_null:
        raise where.refuse(f"It is NaN, infinite or too wide for {wire.type.postgres}.")
    return _array(wire.type.arrow, valid, int(valid.size - valid.sum()), pa.py_buffer(out))


def _lists(cells: Cells, wire: Wire, valid: Any, where: Place) -> pa.Array:
    assert wire.element is not None
    offsets = np.empty(len(cells) + 1, dtype=np.int32)
    count, bad = kernels.array_offsets(cells.data, cells.starts, cells.lengths, offsets)
    if bad >= 0:
        if not where.bad_as_null:
            raise where.refuse("It is an array of more than one dimension.")
        deep = [
            row
            for row in range(len(cells))
            if cells.lengths[row] >= 0 and cells.data[cells.starts[row] + 3] > 1
        ]
        valid[deep] = 0
    starts = np.empty(count, dtype=np.int64)
    lengths = np.empty(count, dtype=np.int32)
    kernels.array_cells(cells.data, cells.starts, cells.lengths, starts, lengths)
    inner = column_of(Cells(cells.data, starts, lengths), wire.element, where)
    return pa.Array.from_buffers(
        wire.type.arrow,
        valid.size,
        [_bitmap(valid, int(valid.size - valid.sum())), pa.py_buffer(offsets)],
        children=[inner],
    )
