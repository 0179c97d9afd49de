"""Row events as Arrow columns.

A row event names a table, says which columns are in its images, and holds images one after
another: a bitmap of nulls, then the values in the forms that TABLE_MAP told. An update has two
images per row, before and after. All events of one table are decoded at once, column by column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import pyarrow as pa

from headwater.cdc.mysql.charsets import text_of
from headwater.cdc.mysql.decimals import decimals_of_packed
from headwater.cdc.mysql.events import Events
from headwater.cdc.mysql.json_binary import json_text
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.pieces import (
    Array,
    Pieces,
    bits,
    bytes_column,
    float_column,
    integer_column,
    integers,
)
from headwater.cdc.mysql.table_map import PREFIXED, LogColumn, TableMap
from headwater.cdc.mysql.times import packed_moments
from headwater.cdc.mysql.types import Family, MySqlColumn, family_and_type
from headwater.cdc.mysql.values import checked_moments
from headwater.errors import DamagedState, SchemaError, UserError
from headwater.model.types import DataType

_FINE, _PARTIAL, _OTHER_COUNT, _OVERRUN = 0, 1, 2, 3
_YEAR_ZERO = 1900


@numba.njit(cache=True, nogil=True)
def _rows_begin(data, event, width):  # type: ignore[no-untyped-def]
    """Where the images of a row event begin, and how many bitmaps of columns come before them."""
    kind, at = event[0], event[1] + 8
    if kind >= 30:
        at += np.int64(data[at]) | np.int64(data[at + 1]) << 8
    count = np.int64(data[at])
    at += 1
    if count >= 251:
        count = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        at += 2
    if count != width:
        return at, _OTHER_COUNT
    bitmaps = 2 if kind in (24, 31) else 1
    size = (width + 7) // 8
    for place in range(bitmaps):
        for column in range(width):
            if not data[at + place * size + (column >> 3)] >> (column & 7) & 1:
                return at, _PARTIAL
    return at + bitmaps * size, _FINE


@numba.njit(cache=True, nogil=True)
def _walk(data, events, columns, counts, out):  # type: ignore[no-untyped-def]
    """Note the values of wanted columns. Without room in `sizes` it only counts images."""
    forms, wanted = columns
    starts, sizes = out
    width = forms.size
    bitmap = (width + 7) // 8
    image = 0
    noting = sizes.shape[1] > 0
    for number in range(events.shape[0]):
        at, problem = _rows_begin(data, events[number], width)
        if problem:
            return number, problem
        end, before = events[number, 2], image
        while at < end:
            nulls = at
            at += bitmap
            for column in range(width):
                size = np.int64(-1)
                if not data[nulls + (column >> 3)] >> (column & 7) & 1:
                    size = forms[column]
                    if size >= PREFIXED:
                        prefix = size - PREFIXED
                        size = np.int64(0)
                        for place in range(prefix):
                            size |= np.int64(data[at + place]) << (8 * place)
                        at += prefix
                if noting and wanted[column] >= 0:
                    starts[wanted[column], image] = at
                    sizes[wanted[column], image] = size
                if size > 0:
                    at += size
            image += 1
            if at > end:
                return number, _OVERRUN
        counts[number] = image - before
    return image, _FINE


@dataclass(frozen=True, slots=True)
class Images:
    """The images of some row events of one table."""

    counts: Array
    """How many images each event has."""
    columns: dict[str, pa.Array]


def decode_images(
    events: Events,
    numbers: Array,
    table: TableMap,
    wanted: Sequence[tuple[str, DataType]],
    options: MySqlOptions,
) -> Images:
    """The images of the events with these numbers, of the wanted columns that the table has."""
    places = {name: table.column(name) for name, _ in wanted}
    chosen = {name: place for name, place in places.items() if place is not None}
    slots = np.full(len(table.columns), -1, dtype=np.int64)
    for slot, place in enumerate(chosen.values()):
        slots[place] = slot
    forms = np.array([column.size for column in table.columns], dtype=np.int64)
    rows = np.ascontiguousarray(events.table[numbers])
    counts = np.zeros(len(rows), dtype=np.int64)
    nothing = np.empty((0, 0), dtype=np.int64)
    total, problem = _walk(events.data, rows, (forms, slots), counts, (nothing, nothing))
    _refuse(table, problem)
    starts = np.empty((len(chosen), total), dtype=np.int64)
    sizes = np.empty((len(chosen), total), dtype=np.int64)
    if total:
        _walk(events.data, rows, (forms, slots), counts, (starts, sizes))
    types = dict(wanted)
    columns = {
        name: _decode(
            Pieces(events.data, starts[slot], sizes[slot]),
            table.columns[place], types[name], table.name, options,
        )
        for slot, (name, place) in enumerate(chosen.items())
    }  # fmt: skip
    return Images(counts, columns)


def _refuse(table: TableMap, problem: int) -> None:
    if problem == _PARTIAL:
        raise UserError(
            f'the binlog has rows of "{table.name}" without some of their columns',
            hint="SET GLOBAL binlog_row_image = 'FULL'; then create the table here anew.",
        )
    if problem:
        raise DamagedState(
            f'rows of "{table.name}" in the binlog do not fit what it says of the table',
            detail="More columns than were told." if problem == _OTHER_COUNT else "A row too long.",
        )


def _decode(
    pieces: Pieces, column: LogColumn, wanted: DataType, table: str, options: MySqlOptions
) -> pa.Array:
    family, natural, unsigned = family_and_type(
        table, column.name, column.spelled, options.time_mode
    )
    # Types that look alike in Arrow (text and jsonb) are told apart by the schema, not by the log.
    type_ = wanted if wanted.arrow == natural.arrow else natural
    described = MySqlColumn(
        name=column.name, spelled=column.spelled, family=family, type=type_, unsigned=unsigned
    )
    try:
        return _decoded(pieces, column, described, table, options)
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        raise SchemaError(
            f'column "{column.name}" of table "{table}" cannot be read from the log',
            detail=str(error),
        ) from None


def _decoded(
    pieces: Pieces, column: LogColumn, described: MySqlColumn, table: str, options: MySqlOptions
) -> pa.Array:
    type_ = described.type.arrow
    match described.family:
        case Family.INTEGER:
            values = integers(pieces, signed=not described.unsigned)
            if column.spelled == "year":
                values = np.where(values == 0, 0, values + _YEAR_ZERO)
            array = integer_column(values, type_, pieces.validity())
        case Family.BIT if type_ == pa.int64():
            array = integer_column(bits(pieces), type_, pieces.validity())
        case Family.FLOAT:
            array = float_column(pieces, type_)
        case Family.DECIMAL:
            array = decimals_of_packed(pieces, type_, column.precision, column.scale)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            moments = packed_moments(pieces, column.spelled, column.digits)
            array = checked_moments(moments, described, table, options.zero_dates)
        case Family.ENUM | Family.SET:
            array = _listed(pieces, column, described.family)
        case Family.JSON:
            array = _documents(bytes_column(pieces, pa.binary()))
        case Family.TEXT:
            array = text_of(bytes_column(pieces, pa.binary()), column.charset)
        case _:
            array = _padded(bytes_column(pieces, type_), column.digits)
    return array


def _listed(pieces: Pieces, column: LogColumn, family: Family) -> pa.Array:
    """ENUM and SET: numbers of the log as the texts that they stand for."""
    numbers = integers(pieces, signed=False)
    found, places = np.unique(numbers, return_inverse=True)
    if family is Family.ENUM:
        words = ["", *column.values]
        texts = [words[number] for number in found.tolist()]
    else:
        texts = [
            ",".join(word for bit, word in enumerate(column.values) if number >> bit & 1)
            for number in found.tolist()
        ]
    valid = pieces.sizes >= 0
    return pa.array(texts, pa.string()).take(pa.array(places, mask=~valid))


def _documents(raw: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else json_text(value) for value in raw.to_pylist()], pa.string()
    )


def _padded(raw: pa.Array, width: int) -> pa.Array:
    """A BINARY in its full width; the log leaves zeros at the end away."""
    if not width:
        return raw
    return pa.array(
        [None if value is None else value.ljust(width, b"\0") for value in raw.to_pylist()],
        pa.binary(),
    )
