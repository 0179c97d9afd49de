"""One value in PostgreSQL's binary form, read in plain Python.

This is what the kernels mean, written to be read and not to be fast. Tests hold both equal on
random bytes; nothing in production calls it.
"""

import struct
import uuid
from decimal import Decimal
from typing import Any

from headwater.cdc.postgres.types import Codec, Wire

NO_PLACE = object()
"""Instead of a value that the column's type cannot hold."""

_FORMATS = {
    Codec.INT2: ">h",
    Codec.INT4: ">i",
    Codec.INT8: ">q",
    Codec.OID: ">I",
    Codec.FLOAT4: ">f",
    Codec.FLOAT8: ">d",
}
_WORDS = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def value_of(data: bytes, wire: Wire) -> Any:  # noqa: PLR0911  one line per form
    """The value; days and microseconds since 1970 for moments, `NO_PLACE` where none fits."""
    match wire.codec:
        case Codec.BOOL:
            return data != b"\0"
        case Codec.TEXT:
            return data.decode()
        case Codec.JSONB:
            return data[1:].decode()
        case Codec.BYTEA:
            return data
        case Codec.UUID:
            return str(uuid.UUID(bytes=data))
        case Codec.NUMERIC:
            return spell_numeric(data)
        case Codec.DECIMAL:
            return _decimal(data, wire)
        case Codec.DATE:
            (days,) = struct.unpack(">i", data)
            since = days + 10_957
            return NO_PLACE if days == -(1 << 31) or since >= 1 << 31 else since
        case Codec.TIMESTAMP:
            (micros,) = struct.unpack(">q", data)
            since = micros + 946_684_800_000_000
            return NO_PLACE if micros == -(1 << 63) or since >= 1 << 63 else since
        case Codec.TIME:
            return _time(*struct.unpack(">q", data))
        case Codec.ARRAY:
            return _list(data, wire)
        case _:
            return struct.unpack(_FORMATS[wire.codec], data)[0]


def spell_numeric(data: bytes) -> str:
    """Every digit of a number."""
    count, weight, sign, shown = struct.unpack_from(">hhHh", data)
    if sign in _WORDS:
        return _WORDS[sign]
    groups = struct.unpack_from(f">{count}h", data, 8)
    digits = "".join(f"{group:04d}" for group in groups)
    point = 4 * (weight + 1)
    whole = digits[: max(point, 0)].ljust(point, "0").lstrip("0") or "0"
    fraction = "0" * -point + digits[max(point, 0) :]
    spelled = whole + (f".{fraction.ljust(shown, '0')[:shown]}" if shown else "")
    return ("-" if sign else "") + spelled


def _decimal(data: bytes, wire: Wire) -> Any:
    spelled = spell_numeric(data)
    if spelled in _WORDS.values():
        return NO_PLACE
    return Decimal(spelled)


def _time(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def _list(data: bytes, wire: Wire) -> Any:
    assert wire.element is not None
    (dimensions,) = struct.unpack_from(">i", data)
    if dimensions == 0:
        return []
    if dimensions > 1:
        return NO_PLACE
    (count,) = struct.unpack_from(">i", data, 12)
    at, values = 20, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        inner = None if length < 0 else value_of(data[at : at + length], wire.element)
        values.append(inner)
        at += max(length, 0)
    return values
