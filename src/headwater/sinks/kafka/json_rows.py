"""Rows as JSON, made a column at a time by Arrow's own kernels.

    type                                    in JSON
    boolean                                 true, false
    smallint, integer, bigint               a number
    real, double precision                  the shortest number that reads back as the same;
                                            "NaN", "Infinity" and "-Infinity" as text
    numeric, with or without a precision    text, so that no reader rounds it: "12.50"
    varchar, uuid, interval                 text
    bytea                                   text in base64
    date, time                              text: "2024-02-29", "23:59:59.999999"
    timestamp                               text: "2024-02-29 23:59:59.999999"
    timestamptz                             text: "2024-02-29T23:59:59.999999Z", or as
                                            `timestamptz.handling.mode` says
    jsonb                                   text that holds JSON, or with
                                            `jsonb.handling.mode = dynamic` the JSON itself
    list, struct                            an array, an object

Null is null, and every column is there in every row. A test holds all of it equal to a plain
encoder that works value by value with Python's `json`.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import SchemaError
from headwater.model.schema import Column
from headwater.model.types import DataType, Kind

_NUMBERS = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.BOOLEAN})
_FLOATS = frozenset({Kind.REAL, Kind.DOUBLE})
_TIMES = frozenset({Kind.DATE, Kind.TIMESTAMP})
_EXPONENT_SCALE = 6
"""Arrow writes decimals of a larger scale with an exponent where they are small."""


class TimestamptzMode(StrEnum):
    """How a point in time is written; the words are RisingWave's."""

    UTC_STRING = "utc_string"
    UTC_WITHOUT_SUFFIX = "utc_without_suffix"
    MICRO = "micro"
    MILLI = "milli"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonStyle:
    """What a user may choose about the JSON."""

    timestamptz: TimestamptzMode = TimestamptzMode.UTC_STRING
    jsonb_is_json: bool = False


@dataclass(frozen=True, slots=True)
class _Cells:
    """Texts, and what stands around each that is not null."""

    texts: Any
    before: str = ""
    after: str = ""

    def whole(self) -> Any:
        """With what is around them, and the word null where there is nothing."""
        texts = self.texts
        if self.before or self.after:
            texts = joined(self.before, texts, self.after)
        return texts.fill_null("null") if texts.null_count else texts

    def bare(self) -> Self:
        """The same, without nulls."""
        return self if not self.texts.null_count else type(self)(self.whole())


def joined(*parts: Any) -> Any:
    """Texts and columns of texts, put together row by row; null where one of them is."""
    return pc.binary_join_element_wise(*(_scalar(part) for part in parts), "")


def json_rows(columns: Sequence[Column], arrays: Sequence[Any], style: JsonStyle) -> Any:
    """One JSON object per row, as a column of texts."""
    parts: list[Any] = []
    literal = "{"
    for place, (column, array) in enumerate(zip(columns, arrays, strict=True)):
        cells = _cells(column.name, column.type, array, style).bare()
        comma = "," if place else ""
        parts += [f"{literal}{comma}{json_text(column.name)}:{cells.before}", cells.texts]
        literal = cells.after
    return joined(*parts, f"{literal}}}")


@cache
def json_text(text: str) -> str:
    """A text as JSON has it."""
    return json.dumps(text, ensure_ascii=False)


@cache
def _text_scalar(text: str) -> Any:
    return pa.scalar(text)


def _scalar(part: Any) -> Any:
    return _text_scalar(part) if isinstance(part, str) else part


def _cells(name: str, type_: DataType, array: Any, style: JsonStyle) -> _Cells:
    if type_.kind is Kind.LIST:
        assert type_.element is not None
        return _lists(name, type_.element, array, style)
    if type_.kind is Kind.STRUCT:
        return _structs(type_, array, style)
    return _scalars(name, type_.kind, array, style)


def _scalars(name: str, kind: Kind, array: Any, style: JsonStyle) -> _Cells:
    if kind is Kind.JSONB and style.jsonb_is_json:
        return _Cells(array)
    if kind in _NUMBERS:
        return _Cells(array.cast(pa.string()))
    if kind in _FLOATS:
        return _floats(array)
    if kind is Kind.TIMESTAMPTZ:
        return _points_in_time(name, array, style.timestamptz)
    if kind is Kind.BYTEA:
        texts = _base64(array)
    elif kind is Kind.DECIMAL:
        texts = _decimals(array)
    elif kind in _TIMES:
        texts = _times(name, array)
    else:
        texts = _escaped(array)
    return _Cells(texts, '"', '"')


def _base64(array: Any) -> Any:
    cells = (None if cell is None else base64.b64encode(cell) for cell in array.to_pylist())
    return pa.array(cells, pa.binary()).view(pa.string())


def _floats(array: Any) -> _Cells:
    texts = array.cast(pa.string())
    strange = pc.invert(pc.is_finite(array))
    if not pc.any(strange).as_py():
        return _Cells(texts)
    words = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    words = pc.if_else(pc.is_nan(array), '"NaN"', words)
    return _Cells(pc.if_else(strange, words, texts))


def _decimals(array: Any) -> Any:
    texts = array.cast(pa.string())
    scale = array.type.scale
    if scale <= _EXPONENT_SCALE or not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    _, values = array.buffers()
    whole_numbers = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(array), [None, values], offset=array.offset
    ).cast(pa.string())
    sign = pc.if_else(pc.starts_with(whole_numbers, "-"), "-", "")
    digits = pc.ascii_lpad(pc.ascii_ltrim(whole_numbers, "-"), scale + 1, "0")
    return pc.if_else(
        pc.is_valid(array),
        joined(sign, pc.utf8_slice_codeunits(digits, 0, -scale), ".",
               pc.utf8_slice_codeunits(digits, -scale)),
        pa.scalar(None, pa.string()),
    )  # fmt: skip


def _times(name: str, array: Any) -> Any:
    texts = array.cast(pa.string())
    if pc.any(pc.starts_with(texts, "<")).as_py():
        raise SchemaError(
            f'column "{name}" has a time that is out of the range that can be written as text',
            detail="Years go from -32767 to 32767.",
            hint="Filter such rows out, or use timestamptz.handling.mode = 'micro'.",
        )
    return texts


def _points_in_time(name: str, array: Any, mode: TimestamptzMode) -> _Cells:
    if mode is TimestamptzMode.MICRO:
        return _Cells(array.cast(pa.int64()).cast(pa.string()))
    if mode is TimestamptzMode.MILLI:
        micros = array.cast(pa.int64())
        # A division rounds toward zero, which before 1970 is the later millisecond.
        down = pc.if_else(pc.less(micros, 0), pc.subtract(micros, 999), micros)
        return _Cells(pc.divide(down, 1000).cast(pa.string()))
    texts = _times(name, array.cast(pa.timestamp("us")))
    if mode is TimestamptzMode.UTC_WITHOUT_SUFFIX:
        return _Cells(texts, '"', '"')
    return _Cells(pc.replace_substring(texts, " ", "T", max_replacements=1), '"', 'Z"')


def _lists(name: str, element: DataType, array: Any, style: JsonStyle) -> _Cells:
    # `flatten` leaves out what hides behind null lists, so the offsets are counted again.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = _cells(name, element, array.flatten(), style).whole()
    lists = pa.ListArray.from_arrays(pa.array(offsets), texts)
    inner = pc.binary_join(lists, ",")
    nothing = pa.scalar(None, pa.string())
    return _Cells(pc.if_else(pc.is_valid(array), inner, nothing), "[", "]")


def _structs(type_: DataType, array: Any, style: JsonStyle) -> _Cells:
    columns = [Column(name, field) for name, field in type_.fields]
    rows = json_rows(columns, array.flatten(), style)
    return _Cells(pc.if_else(pc.is_valid(array), rows, pa.scalar(None, pa.string())))


def _escaped(array: Any) -> Any:
    """Texts with quotes, backslashes and control characters as JSON wants them."""
    texts = array if array.type == pa.string() else array.cast(pa.string())
    for byte in _to_escape(texts):
        texts = pc.replace_substring(texts, chr(byte), json.dumps(chr(byte))[1:-1])
    return texts


def _to_escape(texts: Any) -> list[int]:
    """Which characters of these texts need a backslash; the backslash itself comes first."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return []
    places = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    used = np.frombuffer(data, np.uint8)[places[0] : places[-1]]
    found = used[(used < 0x20) | (used == 0x22) | (used == 0x5C)]
    return sorted((int(byte) for byte in np.unique(found)), key=lambda byte: byte != 0x5C)
