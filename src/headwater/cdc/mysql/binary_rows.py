"""Rows of the binary protocol as Arrow columns.

A row is a packet: 0x00, a bitmap of nulls (its first two bits are not used), then the values of
the others one after another. Numbers have their natural width, dates and times a length of one
byte, everything else a length of one to nine bytes.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from pymysql.constants import FIELD_TYPE

from headwater.cdc.mysql.connection import WireColumn
from headwater.cdc.mysql.decimals import decimals_of_text
from headwater.cdc.mysql.options import ZeroDates
from headwater.cdc.mysql.packets import PacketBuffer
from headwater.cdc.mysql.pieces import (
    Pieces,
    bits,
    bytes_column,
    float_column,
    integer_column,
    integers,
)
from headwater.cdc.mysql.times import field_moments
from headwater.cdc.mysql.types import Family, MySqlColumn
from headwater.cdc.mysql.values import checked_moments
from headwater.errors import SchemaError

_WIDTHS = {
    FIELD_TYPE.TINY: 1,
    FIELD_TYPE.SHORT: 2,
    FIELD_TYPE.YEAR: 2,
    FIELD_TYPE.INT24: 4,
    FIELD_TYPE.LONG: 4,
    FIELD_TYPE.LONGLONG: 8,
    FIELD_TYPE.FLOAT: 4,
    FIELD_TYPE.DOUBLE: 8,
}
_TEMPORAL = frozenset({FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME})
_WITH_LENGTH, _SHORT_LENGTH = 0, -1


@numba.njit(cache=True, nogil=True)
def _walk(data, packets, widths, starts, sizes):  # type: ignore[no-untyped-def]
    columns = widths.size
    bitmap = (columns + 9) // 8
    for row in range(packets.size):
        nulls = packets[row] + 1
        at = nulls + bitmap
        for column in range(columns):
            starts[column, row] = at
            if data[nulls + ((column + 2) >> 3)] >> ((column + 2) & 7) & 1:
                sizes[column, row] = -1
                continue
            size = np.int64(widths[column])
            if size == 0:
                size = np.int64(data[at])
                at += 1
                if size > 250:
                    more = 2 if size == 252 else 3 if size == 253 else 8
                    size = np.int64(0)
                    for place in range(more):
                        size |= np.int64(data[at + place]) << (8 * place)
                    at += more
            elif size < 0:
                size = np.int64(data[at])
                at += 1
            starts[column, row] = at
            sizes[column, row] = size
            at += size


def decode_rows(
    buffer: PacketBuffer,
    wire: Sequence[WireColumn],
    columns: Sequence[MySqlColumn],
    table: str,
    zero_dates: ZeroDates,
) -> pa.Table:
    """The rows in a buffer, with the columns that were asked for."""
    widths = np.array([_width(each) for each in wire], dtype=np.int64)
    starts = np.empty((widths.size, buffer.count), dtype=np.int64)
    sizes = np.empty((widths.size, buffer.count), dtype=np.int64)
    _walk(buffer.data, buffer.starts, widths, starts, sizes)
    arrays = []
    for number, (sent, column) in enumerate(zip(wire, columns, strict=True)):
        pieces = Pieces(buffer.data, starts[number], sizes[number])
        arrays.append(_decode(pieces, sent, column, table, zero_dates))
    names = [column.name for column in columns]
    return pa.Table.from_arrays(arrays, names=names)


def _width(column: WireColumn) -> int:
    if column.type in _TEMPORAL:
        return _SHORT_LENGTH
    return _WIDTHS.get(column.type, _WITH_LENGTH)


def _decode(
    pieces: Pieces, sent: WireColumn, column: MySqlColumn, table: str, zero_dates: ZeroDates
) -> Any:
    type_ = column.type.arrow
    try:
        match column.family:
            case Family.INTEGER:
                _expect(sent, column, table, _width(sent) > 0)
                values = integers(pieces, signed=not sent.unsigned)
                return integer_column(values, type_, pieces.validity())
            case Family.BIT if type_ == pa.int64():
                return integer_column(bits(pieces), type_, pieces.validity())
            case Family.FLOAT:
                wanted = FIELD_TYPE.FLOAT if type_ == pa.float32() else FIELD_TYPE.DOUBLE
                _expect(sent, column, table, sent.type == wanted)
                return float_column(pieces, type_)
            case Family.DECIMAL:
                return decimals_of_text(pieces, type_)
            case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
                _expect(sent, column, table, sent.type in _TEMPORAL)
                moments = field_moments(pieces, time=column.family is Family.TIME)
                return checked_moments(moments, column, table, zero_dates)
            case _:
                _expect(sent, column, table, _width(sent) == _WITH_LENGTH)
                return bytes_column(pieces, type_)
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f'column "{column.name}" of table "{table}" cannot be read', detail=str(error)
        ) from None


def _expect(sent: WireColumn, column: MySqlColumn, table: str, fits: bool) -> None:
    if not fits:
        raise SchemaError(
            f'column "{column.name}" of table "{table}" is no longer {column.spelled} upstream',
            detail=f"The server sends it as type {sent.type}.",
        )
