r"""Columns in text format, spelled exactly as PostgreSQL spells them.

    type            spelling
    boolean         t, f
    real, double    shortest digits that read back the same: 1, 1.5, 1e+20, NaN, Infinity, -0
    decimal         plain digits with the whole scale: 1.50
    bytea           \x and hexadecimal digits
    date            2024-01-01, 0044-03-15 BC
    timestamp       2024-01-01 00:00:00.5
    timestamptz     the same in the session's zone, and its offset: +00, +05:30
    T[]             {1,NULL,"a b"}
    struct          (1,,"a b")
    the others      are stored as the text that is sent

Whole columns are spelled by Arrow; only values for which Arrow's spelling is another (years
beyond 1 to 9999, floats with exponents) are taken one by one.
"""

import datetime
import re
from collections.abc import Callable
from typing import assert_never
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.types import DataType, Kind
from headwater.pgwire.civil import DAY_US, spell_date, spell_offset, spell_timestamp
from headwater.pgwire.numeric import spell_decimal

UTC = "UTC"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999, in days from 1970."""

_ARRAY_QUOTED = r'(?i)^$|^null$|["\\{},\s\v]'
_RECORD_QUOTED = r'^$|["\\(),\s\v]'


def text_of(array: pa.Array, type_: DataType, zone: str = UTC) -> pa.Array:  # noqa: PLR0911, PLR0912
    """Every value of a column as text, null where it is null."""
    array = as_stored(array, type_)
    match type_.kind:
        case Kind.BOOLEAN:
            return pc.if_else(array, "t", "f")
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return array.cast(pa.string())
        case Kind.REAL:
            return _floats(array, 6)
        case Kind.DOUBLE:
            return _floats(array, 15)
        case Kind.DECIMAL:
            return _decimals(array)
        case Kind.BYTEA:
            hexed = ["\\x" + v.hex() if v is not None else None for v in array.to_pylist()]
            return pa.array(hexed, pa.string())
        case Kind.DATE:
            return _dates(array)
        case Kind.TIMESTAMP:
            return _timestamps(array.cast(pa.int64()), None)
        case Kind.TIMESTAMPTZ:
            return _timestamps(array.cast(pa.int64()), zone)
        case Kind.LIST:
            return _lists(array, type_, zone)
        case Kind.STRUCT:
            return _structs(array, type_, zone)
        case Kind.NUMERIC | Kind.VARCHAR | Kind.TIME | Kind.INTERVAL | Kind.JSONB | Kind.UUID:
            return array
        case _:
            assert_never(type_.kind)


def as_stored(array: pa.Array, type_: DataType) -> pa.Array:
    """The column in the type that it is stored in: Spark may hand it over as a relative."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == type_.arrow else array.cast(type_.arrow)


def _respelled(
    texts: pa.Array, odd: "np.ndarray[tuple[int], np.dtype[np.bool_]]", spell: Callable[[int], str]
) -> pa.Array:
    """The texts, with those at the odd places spelled one by one."""
    places = np.flatnonzero(odd)
    if not len(places):
        return texts
    replacements = pa.array([spell(int(place)) for place in places], pa.string())
    return pc.replace_with_mask(texts, pa.array(odd), replacements)


def _floats(array: pa.Array, fixed_digits: int) -> pa.Array:
    """Arrow finds the shortest digits too, but goes over to exponents elsewhere."""
    texts = array.cast(pa.string())
    magnitudes = np.abs(array.fill_null(0).to_numpy(zero_copy_only=False))
    fixed = (magnitudes >= 1e-4) & (magnitudes < 10.0**fixed_digits) | (magnitudes == 0)
    exponents = pc.match_substring(texts, "e").fill_null(False).to_numpy(zero_copy_only=False)
    return _respelled(
        texts, ~fixed | exponents, lambda at: spell_float(texts[at].as_py(), fixed_digits)
    )


def spell_float(text: str, fixed_digits: int = 15) -> str:
    """The same digits laid out as PostgreSQL does; `fixed_digits` is 6 for a real."""
    if text.lstrip("-") in ("nan", "inf"):
        return {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.lstrip("-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign + "0"
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if -4 <= power < fixed_digits:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{digits}"
        head, tail = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
        return f"{sign}{head}.{tail}" if tail else sign + head
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _decimals(array: pa.Array) -> pa.Array:
    """Arrow writes very small numbers with an exponent, PostgreSQL never does."""
    texts = array.cast(pa.string())
    odd = pc.match_substring(texts, "E").fill_null(False)
    return _respelled(
        texts,
        odd.to_numpy(zero_copy_only=False),
        lambda at: spell_decimal(array[at].as_py()),
    )


def _dates(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    odd = (days < _FIRST_DAY) | (days > _LAST_DAY)
    if not odd.any():
        return array.cast(pa.string())
    safe = pc.if_else(pa.array(odd), pa.scalar(0, pa.int32()), array.cast(pa.int32()))
    texts = safe.cast(pa.date32()).cast(pa.string())
    return _respelled(texts, odd, lambda at: spell_date(int(days[at])))


def _timestamps(micros: pa.Array, zone: str | None) -> pa.Array:
    """Timestamps from microseconds since 1970 UTC; without a zone, no offset is shown."""
    values = micros.fill_null(0).to_numpy(zero_copy_only=False)
    odd = (values < (_FIRST_DAY + 2) * DAY_US) | (values > (_LAST_DAY - 2) * DAY_US)
    safe = pc.if_else(pa.array(odd), pa.scalar(0, pa.int64()), micros) if odd.any() else micros
    stamps = safe.cast(pa.timestamp("us"))
    suffix: pa.Array | str = "" if zone is None else "+00"
    if zone is not None and zone != UTC:
        local = pc.local_timestamp(safe.cast(pa.timestamp("us", tz=zone)))
        apart = pc.subtract(local.cast(pa.int64()), safe).dictionary_encode()
        offsets = [spell_offset(us.as_py() // 1_000_000) for us in apart.dictionary]
        suffix = pa.array(offsets, pa.string()).take(apart.indices)
        stamps = local
    texts = pc.ascii_rtrim(pc.ascii_rtrim(stamps.cast(pa.string()), "0"), ".")
    if zone is not None:
        texts = pc.binary_join_element_wise(texts, suffix, "")
    return _respelled(texts, odd, lambda at: _spell_far(int(values[at]), zone))


def _spell_far(micros: int, zone: str | None) -> str:
    """A timestamp in a year for which there are no zone rules but the nearest."""
    if zone is None:
        return spell_timestamp(micros)
    year = 2 if micros < 0 else 9998
    nearest = datetime.datetime(year, 7, 1, tzinfo=datetime.UTC)
    apart = nearest.astimezone(ZoneInfo(zone)).utcoffset() or datetime.timedelta()
    seconds = int(apart.total_seconds())
    return spell_timestamp(micros + seconds * 1_000_000, spell_offset(seconds))


def _lists(array: pa.Array, type_: DataType, zone: str) -> pa.Array:
    assert type_.element is not None
    texts = text_of(array.flatten(), type_.element, zone)
    if type_.element.kind is not Kind.LIST:
        texts = _quoted(texts, _ARRAY_QUOTED, r'(["\\])', r"\\\1")
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), texts.fill_null("NULL"))
    braced = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return _null_where(braced, array)


def _structs(array: pa.Array, type_: DataType, zone: str) -> pa.Array:
    fields = [
        _quoted(text_of(values, field, zone), _RECORD_QUOTED, r'(["\\])', r"\1\1").fill_null("")
        for values, (_, field) in zip(array.flatten(), type_.fields, strict=True)
    ]
    joined = pc.binary_join_element_wise(*fields, ",")
    return _null_where(pc.binary_join_element_wise("(", joined, ")", ""), array)


def _quoted(texts: pa.Array, needed: str, special: str, escaped: str) -> pa.Array:
    """The texts, in double quotes where a reader would take them apart otherwise."""
    needs = pc.match_substring_regex(texts, needed)
    if not pc.any(needs).as_py():
        return texts
    quoted = pc.replace_substring_regex(texts, special, escaped)
    return pc.if_else(needs, pc.binary_join_element_wise('"', quoted, '"', ""), texts)


def _null_where(texts: pa.Array, array: pa.Array) -> pa.Array:
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


_ZONE_OFFSET = re.compile(r"[A-Za-z_+\-0-9/]+")


def known_zone(name: str) -> str:
    """A zone whose rules are known; UTC in place of any other."""
    if name.upper() in ("UTC", "GMT", "ETC/UTC", "Z", "UCT", "ZULU", "ETC/UCT", "ETC/GMT"):
        return UTC
    try:
        if not _ZONE_OFFSET.fullmatch(name):
            return UTC
        ZoneInfo(name)
        pc.local_timestamp(pa.array([0], pa.timestamp("us", tz=name)))
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return UTC
    return name
