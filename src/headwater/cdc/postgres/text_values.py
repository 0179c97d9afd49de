"""Arrow columns out of texts, as the server's output functions write them.

Arrow's own casts read nearly everything; what they refuse (years before the first or after
9999, words such as infinity) is read value by value, with the same answers.
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.cdc.postgres.cells import Place
from headwater.cdc.postgres.types import Codec, Wire

_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_STAMP = re.compile(
    r"(\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?)?( BC)?"
)
_AS_THEY_ARE = frozenset({Codec.TEXT, Codec.NUMERIC, Codec.TIME, Codec.UUID, Codec.JSONB})
_BARE = re.compile(r"[^,{}\"]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MOST_DAYS, _MOST_MICROS = (1 << 31) - 1, (1 << 63) - 1


class _NoPlace(ValueError):
    """A value that the column's type cannot hold."""


def column_of_texts(texts: pa.Array, wire: Wire, where: Place) -> pa.Array:
    """Texts as an array of the wire's type."""
    if wire.codec in _AS_THEY_ARE:
        return texts
    if wire.codec is Codec.BOOL:
        return pc.equal(texts, "t")
    if wire.codec is Codec.ARRAY:
        return _lists(texts, wire, where)
    if wire.codec is not Codec.BYTEA:
        try:
            return pc.cast(texts, wire.type.arrow)
        except pa.ArrowInvalid:
            pass
    read = _READERS[wire.codec]
    values = []
    for text in texts.to_pylist():
        try:
            values.append(None if text is None else read(text, wire))
        except (ValueError, InvalidOperation):
            if not where.bad_as_null:
                shown = text if len(text) <= 60 else text[:60] + "..."
                raise where.refuse(f"{shown} is no {wire.type.postgres} here.") from None
            values.append(None)
    if wire.codec in (Codec.DATE, Codec.TIMESTAMP):
        storage = pa.int32() if wire.codec is Codec.DATE else pa.int64()
        return pa.array(values, storage).view(wire.type.arrow)
    return pa.array(values, wire.type.arrow)


def read_date(text: str) -> int:
    """Days since 1970."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise _NoPlace(text)
    year = int(match[1])
    days = _days(1 - year if match[4] else year, int(match[2]), int(match[3]))
    if abs(days) > _MOST_DAYS:
        raise _NoPlace(text)
    return days


def read_timestamp(text: str) -> int:
    """Microseconds since 1970."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise _NoPlace(text)
    date, hour, minute, second, fraction, sign, zone_hour, zone_minute, era = match.groups()
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign:
        zone = int(zone_hour) * 3600 + int(zone_minute or 0) * 60
        seconds -= zone if sign == "+" else -zone
    days = read_date(date + (era or ""))
    micros = (days * 86_400 + seconds) * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    if not -_MOST_MICROS - 1 <= micros <= _MOST_MICROS:
        raise _NoPlace(text)
    return micros


def read_array(text: str) -> list[str | None]:
    """The elements of an array of one dimension: `{1,NULL,"a b"}`, also with `[0:2]=`."""
    begin = text.find("{")
    if begin < 0 or not text.endswith("}"):
        raise _NoPlace(text)
    elements: list[str | None] = []
    at = begin + 1
    if text[at:] == "}":
        return elements
    while True:
        if text[at] == '"':
            match = _QUOTED.match(text, at)
            if match is None:
                raise _NoPlace(text)
            elements.append(_ESCAPE.sub(r"\1", match[1]))
        else:
            match = _BARE.match(text, at)
            if match is None or text[at] == "{":
                raise _NoPlace(text)
            elements.append(None if match[0] == "NULL" else _ESCAPE.sub(r"\1", match[0]))
        at = match.end()
        if text[at] == "}":
            return elements
        at += 1


def _lists(texts: pa.Array, wire: Wire, where: Place) -> pa.Array:
    assert wire.element is not None
    offsets, missing = [0], []
    elements: list[str | None] = []
    for text in texts.to_pylist():
        inner = None
        try:
            inner = None if text is None else read_array(text)
        except (ValueError, IndexError):
            if not where.bad_as_null:
                raise where.refuse("It is an array of more than one dimension.") from None
        missing.append(inner is None)
        elements += inner or ()
        offsets.append(len(elements))
    values = column_of_texts(pa.array(elements, pa.string()), wire.element, where)
    mask = pa.array(missing) if any(missing) else None
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), values, type=wire.type.arrow, mask=mask
    )


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date; the year is taken to begin in March."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _decimal(text: str, wire: Wire) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise _NoPlace(text)
    with localcontext() as context:
        context.prec = 60
        return number.quantize(Decimal(1).scaleb(-(wire.type.scale or 0)))


def _bytes(text: str, _: Wire) -> bytes:
    if not text.startswith("\\x"):
        raise _NoPlace(text)
    return bytes.fromhex(text[2:])


_READERS: dict[Codec, Callable[[str, Wire], Any]] = {
    Codec.INT2: lambda text, _: int(text),
    Codec.INT4: lambda text, _: int(text),
    Codec.INT8: lambda text, _: int(text),
    Codec.OID: lambda text, _: int(text),
    Codec.FLOAT4: lambda text, _: float(text),
    Codec.FLOAT8: lambda text, _: float(text),
    Codec.DECIMAL: _decimal,
    Codec.BYTEA: _bytes,
    Codec.DATE: lambda text, _: read_date(text),
    Codec.TIMESTAMP: lambda text, _: read_timestamp(text),
}
