"""Rows as JSON, made column by column: no Python object per value where it can be helped.

    type                                  in JSON
    boolean, smallint, integer, bigint    boolean, number
    real, double                          number; "NaN", "Infinity" and "-Infinity" as text
    decimal, numeric                      text with all digits, since readers make numbers double
    varchar, uuid, time, interval, jsonb  text
    bytea                                 text in base64
    date                                  "2026-01-31"
    timestamp                             "2026-01-31T23:59:59.123456"
    timestamptz                           "2026-01-31T23:59:59.123456Z"
    T[], struct                           array, object
    null                                  null

`plain_text` is the same without quotes and escapes, for formats that have their own.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.schema import Column
from headwater.model.types import DataType, Kind

_NUMBERS = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
_FLOATS = frozenset({Kind.REAL, Kind.DOUBLE})
_NESTED = frozenset({Kind.LIST, Kind.STRUCT})
_CLEAN = frozenset({Kind.DECIMAL, Kind.BYTEA, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
"""Kinds whose text never has a character that JSON escapes."""

_ODD_FLOATS = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_objects(rows: pa.Table | pa.RecordBatch, columns: Sequence[Column]) -> pa.Array:
    """One JSON object per row, as text."""
    pieces: list[Any] = []
    for place, column in enumerate(columns):
        lead = ("{" if place == 0 else ",") + json.dumps(column.name, ensure_ascii=False) + ":"
        pieces += [lead, _single(_json_values(_single(rows.column(column.name)), column.type))]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    return _single(joined)


def plain_text(values: pa.Array | pa.ChunkedArray, type_: DataType) -> pa.Array:
    """The values as text without quotes; null stays null."""
    values = _single(values)
    match type_.kind:
        case Kind.REAL | Kind.DOUBLE:
            return _float_text(values)
        case Kind.BYTEA:
            return _each(values, lambda value: base64.b64encode(value).decode())
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return pc.replace_substring(values.cast(pa.string()), " ", "T", max_replacements=1)
        case Kind.LIST | Kind.STRUCT:
            return _nested_text(values, type_)
        case _:
            return values.cast(pa.string())


def _json_values(values: pa.Array, type_: DataType) -> pa.Array:
    text = plain_text(values, type_)
    if type_.kind is Kind.BOOLEAN or type_.kind in _NUMBERS or type_.kind in _NESTED:
        quoted = text
    elif type_.kind in _FLOATS:
        odd = pc.is_in(text, pa.array(list(_ODD_FLOATS.values())))
        quoted = pc.if_else(odd, _in_quotes(text), text)
    elif type_.kind in _CLEAN:
        quoted = _in_quotes(text)
    else:
        quoted = _escaped(text)
    return pc.fill_null(quoted, "null")


def _escaped(text: pa.Array) -> pa.Array:
    # The rare character costs a Python call per value; the rest stays in Arrow.
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py():
        return _each(text, lambda value: json.dumps(value, ensure_ascii=False))
    text = pc.replace_substring(text, "\\", "\\\\")
    return _in_quotes(pc.replace_substring(text, '"', '\\"'))


def _in_quotes(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _float_text(values: pa.Array) -> pa.Array:
    text = values.cast(pa.string())
    # A reader would take "-0" for the integer, which has no sign.
    text = pc.if_else(pc.equal(text, "-0"), "-0.0", text)
    if pc.all(pc.is_finite(values), skip_nulls=True).as_py():
        return text
    for spelled, meant in _ODD_FLOATS.items():
        text = pc.if_else(pc.equal(text, spelled), meant, text)
    return text


def _nested_text(values: pa.Array, type_: DataType) -> pa.Array:
    """Values inside lists and structs become text by the same rules, one column at a time."""
    if type_.kind is Kind.LIST:
        assert type_.element is not None
        inner = _json_values(_single(values.flatten()), type_.element)
        lengths = pc.list_value_length(values)
        items = iter(inner.to_pylist())
        texts = [
            None if count is None else "[" + ",".join(next(items) for _ in range(count)) + "]"
            for count in lengths.to_pylist()
        ]
        return pa.array(texts, pa.string())
    fields = [
        (json.dumps(name, ensure_ascii=False), _json_values(_single(child), inner))
        for (name, inner), child in zip(type_.fields, values.flatten(), strict=True)
    ]
    pieces: list[Any] = []
    for place, (name, texts_of) in enumerate(fields):
        pieces += [("{" if place == 0 else ",") + name + ":", texts_of]
    whole = _single(pc.binary_join_element_wise(*pieces, "}", ""))
    return pc.if_else(values.is_valid(), whole, pa.scalar(None, pa.string()))


def _each(values: pa.Array, spell: Any) -> pa.Array:
    return pa.array(
        [None if value is None else spell(value) for value in values.to_pylist()], pa.string()
    )


def _single(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
