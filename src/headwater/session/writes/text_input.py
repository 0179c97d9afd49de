"""Text to stored values: what PostgreSQL's input functions do, for every type that is stored.

    type                         stored as
    boolean                      bool
    smallint, integer, bigint    int
    real, double                 float
    decimal(p,s)                 Decimal of that scale, rounded half away from zero
    numeric                      its digits as text, never an exponent
    varchar                      str
    bytea                        bytes
    date                         days from 1970
    timestamp, timestamptz       microseconds from 1970, of the clock or of UTC
    time, interval, jsonb, uuid  text, as PostgreSQL would spell it
    T[]                          list

These are the values that Arrow makes a column of the stored type from. A text that the type
cannot read is an error with PostgreSQL's code: 22P02, 22003, 22007 or 22008.
"""

import re
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from headwater.errors import NotSupported
from headwater.model.types import DataType, Kind
from headwater.pgwire.array_literal import read_array
from headwater.pgwire.civil import spell_time
from headwater.pgwire.interval import Interval, spell_interval
from headwater.pgwire.interval import read_interval as read_standard_interval
from headwater.pgwire.numeric import read_decimal, spell_decimal
from headwater.pgwire.parameters import read_bytea
from headwater.pgwire.violation import WireError, bad_text
from headwater.session.writes.moments import read_moment, read_time
from headwater.sql.expression.interval_text import read_interval
from headwater.sql.expression.literals import normal_json

BITS = {Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}
TRUE = frozenset({"t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"})
FALSE = frozenset({"f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"})

_BLANK = " \t\n\r\v\f"
_INTEGER = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[oO]((?:_?[0-7])+)|0[bB]((?:_?[01])+)|([0-9](?:_?[0-9])*))"
)
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE
)
_NUMERIC = re.compile(
    r"([+-]?)((?:[0-9](?:_?[0-9])*)?\.?(?:[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9](?:_?[0-9])*)?)"
)
_UUID = re.compile(r"[0-9a-f]{4}(?:-?[0-9a-f]{4}){7}", re.IGNORECASE)
_MOST_INTEGER_TEXT = 200
_EXACT = Context(prec=200_000)


def read(text: str, type_: DataType, zone: str = "UTC") -> object:  # noqa: PLR0911, PLR0912
    """The stored value of a text; `zone` is that of timestamps that name none."""
    match type_.kind:
        case Kind.VARCHAR:
            return _plain(text)
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return _integer(text, type_)
        case Kind.BOOLEAN:
            return _boolean(text)
        case Kind.REAL | Kind.DOUBLE:
            return _float(text, type_)
        case Kind.DECIMAL:
            return as_decimal(_number(text), type_)
        case Kind.NUMERIC:
            return numeric_text(_number(text))
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return read_moment(text, type_, zone)
        case Kind.TIME:
            return spell_time(read_time(text, type_))
        case Kind.INTERVAL:
            return spell_interval(interval_parts(text))
        case Kind.BYTEA:
            return read_bytea(text)
        case Kind.UUID:
            return _uuid(text)
        case Kind.JSONB:
            return _json(text)
        case Kind.LIST:
            assert type_.element is not None
            return _elements(read_array(text), type_.element, text, zone)
        case _:
            raise NotSupported(f"a value of type {type_.postgres} cannot be read from text")


def as_integer(number: int, type_: DataType) -> int:
    """A number that the integer type holds, or 22003."""
    half = 1 << (BITS[type_.kind] - 1)
    if not -half <= number < half:
        raise WireError(f"{type_.postgres} out of range", "22003")
    return number


def as_decimal(number: Decimal, type_: DataType) -> Decimal:
    """A number in the scale of a decimal, rounded half away from zero, or 22003."""
    precision, scale = type_.precision or 0, type_.scale or 0
    if number.is_nan():
        raise NotSupported(
            f"NaN cannot be stored as {type_.postgres}", hint="Use numeric without a precision."
        )
    rounded = number
    if number.is_finite():
        rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if not rounded.is_finite() or (rounded and rounded.adjusted() >= precision - scale):
        raise WireError(
            "numeric field overflow",
            "22003",
            detail=f"A field with precision {precision}, scale {scale} must round to an absolute "
            f"value less than {'1' if precision == scale else f'10^{precision - scale}'}.",
        )
    return rounded if rounded else abs(rounded)


def as_float(number: float, type_: DataType, shown: str) -> float:
    """A number that the floating point type holds, or 22003 where it would become infinite."""
    if type_.kind is Kind.DOUBLE:
        return number
    with np.errstate(all="ignore"):
        narrow = float(np.float32(number))
    if (narrow in (float("inf"), float("-inf")) and narrow != number) or (narrow == 0 != number):
        raise _float_range(shown, type_)
    return narrow


def numeric_text(number: Decimal) -> str:
    """The stored spelling of a numeric."""
    return spell_decimal(number if number or number.is_nan() else abs(number))


def interval_parts(text: str, unit: str | None = None) -> Interval:
    """Months, days and microseconds of an interval, in words or as ISO 8601 writes them."""
    try:
        return Interval(*read_interval(text.strip().removeprefix("@"), unit))
    except ValueError:
        pass
    try:
        return read_standard_interval(text)
    except WireError:
        raise WireError(f'invalid input syntax for type interval: "{text}"', "22007") from None


def _plain(text: str) -> str:
    if "\x00" in text:
        raise WireError('invalid byte sequence for encoding "UTF8": 0x00', "22021")
    return text


def _boolean(text: str) -> bool:
    word = text.strip(_BLANK).lower()
    if word not in TRUE and word not in FALSE:
        raise bad_text("boolean", text)
    return word in TRUE


def _integer(text: str, type_: DataType) -> int:
    found = _INTEGER.fullmatch(text.strip(_BLANK))
    if found is None:
        raise bad_text(type_.postgres, text)
    sign, *spellings = found.groups()
    half = 1 << (BITS[type_.kind] - 1)
    for digits, radix in zip(spellings, (16, 8, 2, 10), strict=True):
        if digits is not None and len(digits) <= _MOST_INTEGER_TEXT:
            number = int(digits.replace("_", ""), radix) * (-1 if sign == "-" else 1)
            if -half <= number < half:
                return number
    raise WireError(f'value "{text}" is out of range for type {type_.postgres}', "22003")


def _number(text: str) -> Decimal:
    word = text.strip(_BLANK)
    found = _NUMERIC.fullmatch(word)
    if found is not None and found[2][:1] not in ("", "e", "E") and found[2] != ".":
        return read_decimal(word.replace("_", ""))
    if _INTEGER.fullmatch(word):
        return Decimal(int(word.replace("_", ""), 0))
    if word.lower().lstrip("+-") in ("inf", "infinity"):
        return read_decimal(word)
    if word.lower() == "nan":
        return Decimal("NaN")
    raise bad_text("numeric", text)


def _float(text: str, type_: DataType) -> float:
    word = text.strip(_BLANK)
    if not _FLOAT.fullmatch(word):
        raise bad_text(type_.postgres, text)
    # One rounding only: a real that is read as a double first may end one digit off.
    with np.errstate(all="ignore"):
        number = float(word) if type_.kind is Kind.DOUBLE else _real(word)
    named = word.lower().lstrip("+-")[:1] in ("i", "n")
    lost = number == 0 and re.search("[1-9]", word.lower().partition("e")[0]) is not None
    if not named and (number in (float("inf"), float("-inf")) or lost):
        raise _float_range(text, type_)
    return number


def _real(word: str) -> float:
    number = np.float32(word)
    exact = Decimal(word)
    if not exact.is_finite() or not np.isfinite(number):
        return float(number)
    # The neighbours are compared exactly, whatever the parser did.
    candidates = (
        np.nextafter(number, np.float32("-inf")),
        number,
        np.nextafter(number, np.float32("inf")),
    )
    return min(
        (float(each) for each in candidates if np.isfinite(each)),
        key=lambda each: (abs(Decimal(each) - exact), int(np.float32(each).view(np.int32)) & 1),
    )


def _float_range(text: str, type_: DataType) -> WireError:
    return WireError(f'"{text}" is out of range for type {type_.postgres}', "22003")


def _uuid(text: str) -> str:
    inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if not _UUID.fullmatch(inner):
        raise bad_text("uuid", text)
    digits = inner.replace("-", "").lower()
    places = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return "-".join(digits[first:last] for first, last in places)


def _json(text: str) -> str:
    try:
        spelled = normal_json(text)
        spelled.encode()
    except (ValueError, RecursionError):
        raise bad_text("json", text) from None
    if "\\u0000" in spelled:
        raise WireError(
            "unsupported Unicode escape sequence",
            "22P05",
            detail="\\u0000 cannot be converted to text.",
        )
    return spelled


def _elements(values: list[object], element: DataType, text: str, zone: str) -> list[object]:
    found: list[object] = []
    for value in values:
        if isinstance(value, list) is not (element.kind is Kind.LIST) and value is not None:
            raise WireError(
                f'malformed array literal: "{text[:100]}"',
                "22P02",
                detail="It has more or fewer dimensions than the column.",
            )
        if isinstance(value, list):
            assert element.element is not None
            found.append(_elements(value, element.element, text, zone))
        else:
            found.append(None if value is None else read(str(value), element, zone))
    return found
