r"""How a column's values are spelled for a database that reads text.

    kind                    PostgreSQL (COPY)               MySQL, MariaDB (LOAD DATA, INSERT)
    boolean                 1, 0                            1, 0
    integers, decimal       digits                          digits
    real, double            shortest exact, NaN, infinity   shortest exact; no others
    date, timestamp         ISO, years before Christ BC     ISO, years 1 to 9999
    timestamptz             the same and +00                the same, in UTC
    bytea                   \x and hex digits                hex digits
    T[]                     array literal                   JSON
    T[][], struct           JSON                            JSON
    all others              their text                      their text

Texts are exact: reading one back gives the value bit by bit. In JSON, numbers with a point that
are not floats stand as strings, since readers of JSON round them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.types import DataType, Kind
from headwater.sinks import text_kernels as kernels

_NESTED = frozenset({Kind.LIST, Kind.STRUCT})
_ONE_WORD_DIGITS = 18
_MOST_INTEGER, _MOST_DATE, _MOST_TIMESTAMP = 21, 18, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a database reads where others differ."""

    first_year: int
    last_year: int
    zone: bytes
    """Behind a timestamptz, which is in UTC."""
    bytes_prefix: bytes
    has_nan: bool
    has_arrays: bool


POSTGRES = Form(
    first_year=-5000,
    last_year=300_000,
    zone=b"+00",
    bytes_prefix=b"\\\\x",
    has_nan=True,
    has_arrays=True,
)
"""Its backslash is escaped already, as COPY wants it."""
MYSQL = Form(
    first_year=1, last_year=9999, zone=b"", bytes_prefix=b"", has_nan=False, has_arrays=False
)


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts."""

    offsets: Any
    data: Any
    valid: Any
    escaped: bool
    """Whether there may be characters that a row's form gives a meaning to."""


class Unfit(Exception):
    """A value that the database has no place for."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row = row
        self.why = why


def as_json(type_: DataType, form: Form) -> bool:
    """Whether values of a type are JSON there: lists without an array type, and structs."""
    if type_.kind is Kind.STRUCT:
        return True
    if type_.kind is not Kind.LIST:
        return False
    assert type_.element is not None
    return not form.has_arrays or type_.element.kind in _NESTED


def spell(column: pa.Array, type_: DataType, form: Form) -> Texts:
    """The texts of a column; raises `Unfit` at the first value without one."""
    match type_.kind:
        case Kind.BOOLEAN | Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            texts = _integers(column)
        case Kind.REAL | Kind.DOUBLE:
            texts = _floats(column, form)
        case Kind.DECIMAL:
            texts = _decimals(column, type_)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            texts = _times(column, type_, form)
        case Kind.BYTEA:
            texts = _hex(column, form)
        case Kind.LIST | Kind.STRUCT:
            spelled = (
                _json(column, type_, form) if as_json(type_, form) else _literals(column, type_)
            )
            texts = _stored(pa.array(spelled, pa.string()), escaped=True)
        case _:
            texts = _stored(column, escaped=True)
    return texts


def valid_of(column: pa.Array) -> Any:
    """One byte per row: whether it is not null."""
    if not column.null_count:
        return np.ones(len(column), np.uint8)
    return pc.cast(column.is_valid(), pa.uint8()).to_numpy()


def _values(column: pa.Array, dtype: Any) -> Any:
    """The numbers of a column of fixed width; what stands under a null means nothing."""
    width = np.dtype(dtype).itemsize
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype)
    return np.frombuffer(data, dtype, len(column), column.offset * width)


def _stored(column: pa.Array, *, escaped: bool) -> Texts:
    """Texts and bytes as they lie in Arrow's buffers."""
    _, offsets, data = column.buffers()
    if len(column) == 0 or offsets is None:
        places = np.zeros(len(column) + 1, np.int32)
    else:
        places = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Texts(places, content, valid_of(column), escaped)


def _room(rows: int, each: int) -> tuple[Any, Any]:
    return np.empty(rows + 1, np.int32), np.empty(rows * each + 1, np.uint8)


def _integers(column: pa.Array) -> Texts:
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    values = _values(column, column.type.to_pandas_dtype()).astype(np.int64)
    valid = valid_of(column)
    offsets, out = _room(len(column), _MOST_INTEGER)
    kernels.spell_integers(values, valid, 0, offsets, out)
    return Texts(offsets, out, valid, False)


def _decimals(column: pa.Array, type_: DataType) -> Texts:
    if (type_.precision or 0) > _ONE_WORD_DIGITS:
        return _stored(pc.cast(column, pa.string()), escaped=False)
    values = np.ascontiguousarray(
        _values(column, np.dtype([("low", np.int64), ("high", np.int64)]))["low"]
    )
    valid = valid_of(column)
    offsets, out = _room(len(column), _MOST_INTEGER + 1)
    kernels.spell_integers(values, valid, type_.scale or 0, offsets, out)
    return Texts(offsets, out, valid, False)


def _floats(column: pa.Array, form: Form) -> Texts:
    if not form.has_nan:
        bad = pc.index(pc.is_finite(column), False).as_py()
        if bad >= 0:
            raise Unfit(bad, f"{column[bad].as_py()} is no number there")
        # A float there is parsed as a double and then rounded: the double's digits survive that.
        column = pc.cast(column, pa.float64())
    return _stored(pc.cast(column, pa.string()), escaped=False)


def _times(column: pa.Array, type_: DataType, form: Form) -> Texts:
    valid, years = valid_of(column), (form.first_year, form.last_year)
    if type_.kind is Kind.DATE:
        offsets, out = _room(len(column), _MOST_DATE)
        bad = kernels.spell_dates(_values(column, np.int32), valid, *years, offsets, out)
    else:
        zone = np.frombuffer(form.zone if type_.kind is Kind.TIMESTAMPTZ else b"", np.uint8)
        offsets, out = _room(len(column), _MOST_TIMESTAMP + zone.size)
        values = _values(column, np.int64)
        bad = kernels.spell_timestamps(values, valid, *years, zone, offsets, out)
    if bad >= 0:
        raise Unfit(bad, f"its year is not from {form.first_year} to {form.last_year}")
    return Texts(offsets, out, valid, False)


def _hex(column: pa.Array, form: Form) -> Texts:
    texts = _stored(column, escaped=False)
    prefix = np.frombuffer(form.bytes_prefix, np.uint8)
    length = int(texts.offsets[-1]) - int(texts.offsets[0])
    offsets = np.empty(len(column) + 1, np.int64)
    out = np.empty(2 * length + prefix.size * len(column) + 1, np.uint8)
    kernels.spell_hex(texts.offsets, texts.data, texts.valid, prefix, offsets, out)
    return Texts(offsets, out, texts.valid, False)


def _shown(column: pa.Array, type_: DataType) -> list[str | None]:
    """The texts of a column of scalars as PostgreSQL spells them."""
    if type_.kind is Kind.BYTEA:
        return [None if each is None else "\\x" + each.hex() for each in column.to_pylist()]
    texts = spell(column, type_, POSTGRES)
    return [
        bytes(texts.data[texts.offsets[row] : texts.offsets[row + 1]]).decode() if there else None
        for row, there in enumerate(texts.valid)
    ]


def _split(column: pa.Array, elements: Sequence[str | None]) -> list[list[str | None] | None]:
    """The elements of each list, out of those of all lists."""
    starts = column.offsets.to_numpy() - column.offsets[0].as_py()
    return [
        list(elements[starts[row] : starts[row + 1]]) if there else None
        for row, there in enumerate(valid_of(column))
    ]


def _elements(column: pa.Array) -> pa.Array:
    first, last = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    return column.values.slice(first, last - first)


def _literals(column: pa.Array, type_: DataType) -> list[str | None]:
    """PostgreSQL's array literals."""
    assert type_.element is not None
    values = _shown(_elements(column), type_.element)
    quoted = [None if each is None else _quoted(each) for each in values]
    return [
        None if each is None else "{" + ",".join(text or "NULL" for text in each) + "}"
        for each in _split(column, quoted)
    ]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(column: pa.Array, type_: DataType, form: Form) -> list[str | None]:
    """JSON texts; null stays a null of the database at the top, and is JSON's inside."""
    if type_.kind is Kind.LIST:
        assert type_.element is not None
        inner = _json(_elements(column), type_.element, form)
        return [
            None if each is None else f"[{','.join(text or 'null' for text in each)}]"
            for each in _split(column, inner)
        ]
    if type_.kind is Kind.STRUCT:
        return _objects(column, type_, form)
    return [None if text is None else _json_of(type_.kind, text) for text in _shown(column, type_)]


def _objects(column: pa.Array, type_: DataType, form: Form) -> list[str | None]:
    fields = [
        (json.dumps(name), _json(field, of, form))
        for field, (name, of) in zip(column.flatten(), type_.fields, strict=True)
    ]
    return [
        "{" + ",".join(f"{name}:{texts[row] or 'null'}" for name, texts in fields) + "}"
        if there
        else None
        for row, there in enumerate(valid_of(column))
    ]


def _json_of(kind: Kind, text: str) -> str:
    match kind:
        case Kind.BOOLEAN:
            return "true" if text == "1" else "false"
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT | Kind.JSONB:
            return text
        case Kind.REAL | Kind.DOUBLE if text.lstrip("-") not in ("nan", "inf"):
            return text
        case _:
            return json.dumps(text)
