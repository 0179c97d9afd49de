"""Whole columns of texts to stored values, for COPY: by Arrow where it reads as PostgreSQL does.

Arrow reads the common spellings of numbers, dates and timestamps a column at a time. Where it
refuses one, or its answer needs a second look (an infinity may be an overflow), the column's
values are read one by one, by the same reader that reads literals, which also says what is
wrong and where.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import HeadwaterError
from headwater.model.types import DataType, Kind
from headwater.session.writes.text_input import FALSE, TRUE, read

_WORDS = pa.array([*sorted(TRUE), *sorted(FALSE)])
_TRUTH = pa.array([*[True] * len(TRUE), *[False] * len(FALSE)])
_PLAIN_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_PLAIN_NUMERIC = r"^(0|-?[1-9][0-9]*)(\.[0-9]+)?$"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
"""Arrow knows a year 0000, which PostgreSQL does not."""
_STAMP = rf"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?"
_PLAIN_STAMP = f"{_STAMP}$"
_ZONED_STAMP = f"{_STAMP}[+-](0[0-9]|1[0-5])(:?[0-9]{{2}})?$"
_PLAIN_DATE = f"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}$"


class BadValue(Exception):
    """A text that its column cannot read, and its place in the column."""

    def __init__(self, place: int, text: str, error: HeadwaterError) -> None:
        super().__init__(error.message)
        self.place, self.text, self.error = place, text, error


def read_column(texts: pa.Array, type_: DataType, zone: str) -> pa.Array:
    """The stored values of a column of texts; `BadValue` for one that cannot be read."""
    quick = _QUICK.get(type_.kind)
    if quick is not None:
        try:
            found = quick(texts, type_, zone)
        except pa.ArrowInvalid:
            found = None
        if found is not None:
            return found
    return _one_by_one(texts, type_, zone)


def _one_by_one(texts: pa.Array, type_: DataType, zone: str) -> pa.Array:
    values: list[object] = []
    for place, text in enumerate(texts.to_pylist()):
        try:
            values.append(None if text is None else read(text, type_, zone))
        except HeadwaterError as error:
            raise BadValue(place, text, error) from error
    return pa.array(values, type_.arrow)


def _text(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    return None if _any(pc.match_substring(texts, "\x00")) else texts


def _cast(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    return texts.cast(type_.arrow)


def _float(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    """Infinity may be an overflow, and zero an underflow: these are read one by one."""
    values = texts.cast(type_.arrow)
    doubtful = pc.or_(pc.is_inf(values), pc.equal(values, 0.0))
    seen = texts.filter(pc.fill_null(doubtful, False))
    for text in pc.unique(seen).to_pylist():
        try:
            read(text, type_, zone)
        except HeadwaterError:
            return None
    return values


def _boolean(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    places = pc.index_in(pc.utf8_lower(pc.ascii_trim_whitespace(texts)), value_set=_WORDS)
    return None if places.null_count > texts.null_count else _TRUTH.take(places)


def _date(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    return texts.cast(type_.arrow) if _all(texts, _PLAIN_DATE) else None


def _stamp(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    return texts.cast(type_.arrow) if _all(texts, _PLAIN_STAMP) else None


def _zoned_stamp(texts: pa.Array, type_: DataType, zone: str) -> pa.Array | None:
    if zone == "UTC" and _all(texts, _PLAIN_STAMP):
        return texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(type_.arrow)
    return texts.cast(type_.arrow) if _all(texts, _ZONED_STAMP) else None


def _matching(pattern: str) -> "Callable[[pa.Array, DataType, str], pa.Array | None]":
    """Texts that are stored as they are, if all of them have the stored spelling."""
    return lambda texts, type_, zone: texts if _all(texts, pattern) else None


def _all(texts: pa.Array, pattern: str) -> bool:
    return not _any(pc.invert(pc.match_substring_regex(texts, pattern)))


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


_QUICK: "dict[Kind, Callable[[pa.Array, DataType, str], pa.Array | None]]" = {
    Kind.VARCHAR: _text,
    Kind.SMALLINT: _cast,
    Kind.INTEGER: _cast,
    Kind.BIGINT: _cast,
    Kind.DECIMAL: _cast,
    Kind.REAL: _float,
    Kind.DOUBLE: _float,
    Kind.BOOLEAN: _boolean,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _stamp,
    Kind.TIMESTAMPTZ: _zoned_stamp,
    Kind.UUID: _matching(_PLAIN_UUID),
    Kind.NUMERIC: _matching(_PLAIN_NUMERIC),
}
