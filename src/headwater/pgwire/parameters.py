"""Values that clients bind, read from text or binary format and checked against their type.

A value that its type cannot hold is refused when it is bound, as PostgreSQL does, with 22P02,
22P03 or 22003. Dates, times, intervals, jsonb and uuid stay text, since PostgreSQL's input knows
more spellings (`today`, `infinity`) than a Python value could hold; binary ones are spelled out.
"""

import math
import re
import struct
import uuid
from typing import Any

from headwater.model.types import VARCHAR, DataType, Kind
from headwater.pgwire.answers import BINARY
from headwater.pgwire.array_literal import MOST_DIMENSIONS, read_array, write_array
from headwater.pgwire.civil import (
    DAY_US,
    UNIX_TO_POSTGRES_DAYS,
    UNIX_TO_POSTGRES_US,
    spell_date,
    spell_time,
    spell_timestamp,
)
from headwater.pgwire.interval import Interval, spell_interval
from headwater.pgwire.messages import utf8
from headwater.pgwire.numeric import decode_numeric, read_decimal, spell_decimal
from headwater.pgwire.oids import JSON, OID, element_oid, oid_of, type_of
from headwater.pgwire.session import Parameter
from headwater.pgwire.text import spell_float
from headwater.pgwire.violation import WireError, bad_bytes, bad_text

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_FLOAT = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?"
                    r"|inf(?:inity)?|nan)\s*", re.IGNORECASE)  # fmt: skip
_OCTAL = re.compile(r"\\(?:\\|([0-3][0-7]{2}))|[^\\]", re.DOTALL)
_BITS = {Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}
_TRUE = {"t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"}
_FALSE = {"f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"}
_MOST_ELEMENTS = 1 << 24


def read_parameter(
    data: bytes | None, code: int, oid: int, described: DataType | None
) -> Parameter:
    """One bound value. `oid` is what the client said (0: nothing), else the statement decides."""
    type_ = type_of(oid) if oid else described
    if type_ is None and oid and code == BINARY and data is not None:
        raise WireError(
            f"a parameter of the type with oid {oid} cannot be read in binary format",
            "0A000",
            hint="Send it as text.",
        )
    type_ = type_ or VARCHAR
    if data is None:
        return Parameter(type=type_, text=None, value=None)
    if code != BINARY:
        text = plain_text(data)
        return Parameter(type=type_, text=text, value=value_of(text, type_))
    text = binary_text(data, oid or oid_of(type_), type_)
    return Parameter(type=type_, text=text, value=value_of(text, type_))


def plain_text(data: bytes) -> str:
    """Text without a zero character, which PostgreSQL's text cannot hold."""
    text = utf8(data)
    if "\x00" in text:
        raise WireError('invalid byte sequence for encoding "UTF8": 00', "22021")
    return text


def value_of(text: str, type_: DataType) -> object:  # noqa: PLR0911  one per family
    """The Python value of a text in PostgreSQL's input spelling (see `Parameter`)."""
    match type_.kind:
        case Kind.BOOLEAN:
            word = text.strip().lower()
            if word not in _TRUE and word not in _FALSE:
                raise bad_text("boolean", text)
            return word in _TRUE
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return _read_whole(text, type_)
        case Kind.REAL | Kind.DOUBLE:
            if not _FLOAT.fullmatch(text):
                raise bad_text(type_.postgres, text)
            return float(text)
        case Kind.DECIMAL | Kind.NUMERIC:
            return read_decimal(text)
        case Kind.BYTEA:
            return read_bytea(text)
        case Kind.LIST:
            assert type_.element is not None
            return _read_elements(read_array(text), type_.element)
        case _:
            return text


def _read_whole(text: str, type_: DataType) -> int:
    if not _WHOLE.fullmatch(text) or len(text) > 1000:
        raise bad_text(type_.postgres, text)
    number = int(text)
    half = 1 << (_BITS[type_.kind] - 1)
    if not -half <= number < half:
        raise WireError(f'value "{text}" is out of range for type {type_.postgres}', "22003")
    return number


def _read_elements(values: list[Any], element: DataType) -> list[Any]:
    while element.element is not None:
        element = element.element
    return [
        _read_elements(value, element)
        if isinstance(value, list)
        else None
        if value is None
        else value_of(value, element)
        for value in values
    ]


def read_bytea(text: str) -> bytes:
    """Bytes from the hexadecimal or the escape spelling."""
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise bad_text("bytea", text) from None
    parts, at = [], 0
    while at < len(text):
        match = _OCTAL.match(text, at)
        if match is None:
            raise bad_text("bytea", text)
        if match[1]:
            parts.append(bytes([int(match[1], 8)]))
        else:
            parts.append(match[0][-1].encode())
        at = match.end()
    return b"".join(parts)


def binary_text(data: bytes, oid: int, type_: DataType) -> str:  # noqa: PLR0911, PLR0912
    """The text of a value in binary format."""
    match type_.kind:
        case Kind.BOOLEAN:
            return "t" if _number(data, ">b", type_) else "f"
        case Kind.BIGINT if oid == OID:
            return str(_number(data, ">I", type_))
        case Kind.SMALLINT:
            return str(_number(data, ">h", type_))
        case Kind.INTEGER:
            return str(_number(data, ">i", type_))
        case Kind.BIGINT:
            return str(_number(data, ">q", type_))
        case Kind.REAL:
            return _spell_real(data, type_)
        case Kind.DOUBLE:
            return spell_float(repr(_number(data, ">d", type_)))
        case Kind.DECIMAL | Kind.NUMERIC:
            return spell_decimal(decode_numeric(data))
        case Kind.BYTEA:
            return "\\x" + data.hex()
        case Kind.DATE:
            days = _number(data, ">i", type_)
            return _unbounded(days, 32) or spell_date(int(days) + UNIX_TO_POSTGRES_DAYS)
        case Kind.TIME:
            micros = int(_number(data, ">q", type_))
            if not 0 <= micros <= DAY_US:
                raise bad_bytes("time")
            return spell_time(micros)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            micros = int(_number(data, ">q", type_))
            suffix = "+00" if type_.kind is Kind.TIMESTAMPTZ else ""
            return _unbounded(micros, 64) or spell_timestamp(micros + UNIX_TO_POSTGRES_US, suffix)
        case Kind.INTERVAL:
            if len(data) != 16:
                raise bad_bytes("interval")
            micros, days, months = struct.unpack(">qii", data)
            return spell_interval(Interval(months, days, micros))
        case Kind.UUID:
            if len(data) != 16:
                raise bad_bytes("uuid")
            return str(uuid.UUID(bytes=data))
        case Kind.JSONB:
            if oid != JSON and data[:1] != b"\x01":
                raise WireError("unsupported jsonb version number", "22P03")
            return plain_text(data if oid == JSON else data[1:])
        case Kind.LIST:
            return write_array(_binary_array(data, oid))
        case Kind.VARCHAR:
            return plain_text(data)
        case _:
            raise WireError(f"no binary input for type {type_.postgres}", "0A000")


def _number(data: bytes, layout: str, type_: DataType) -> float:
    if len(data) != struct.calcsize(layout):
        raise bad_bytes(type_.postgres)
    [number] = struct.unpack(layout, data)
    return number  # type: ignore[no-any-return]


def _spell_real(data: bytes, type_: DataType) -> str:
    """The shortest text that reads back as the same four bytes."""
    number = _number(data, ">f", type_)
    if not math.isfinite(number):
        return spell_float(repr(number))
    for digits in range(1, 10):
        text = f"{number:.{digits - 1}e}"
        if _is_real(text, data):
            break
    return spell_float(text, 6)


def _is_real(text: str, data: bytes) -> bool:
    try:
        return struct.pack(">f", float(text)) == data
    except OverflowError:
        return False


def _unbounded(number: float, bits: int) -> str:
    half = 1 << (bits - 1)
    if number == half - 1:
        return "infinity"
    return "-infinity" if number == -half else ""


def _binary_array(data: bytes, oid: int) -> list[Any]:
    """The elements of an array as texts in lists."""
    if len(data) < 12:
        raise bad_bytes("array")
    dimensions, _, element = struct.unpack_from(">iiI", data)
    if not 0 <= dimensions <= MOST_DIMENSIONS or len(data) < 12 + 8 * dimensions:
        raise bad_bytes("array")
    wanted = element_oid(oid)
    unknown = type_of(element) is None or element_oid(element)
    if unknown or (wanted and type_of(wanted) != type_of(element)):
        raise WireError(f"an array of the type with oid {element} cannot be read here", "42804")
    shape, count = [], 1
    for place in range(dimensions):
        length, _ = struct.unpack_from(">ii", data, 12 + 8 * place)
        if length < 0:
            raise bad_bytes("array")
        shape.append(length)
        count *= length
    if count * 4 > len(data) or count > _MOST_ELEMENTS:
        raise bad_bytes("array")
    if not dimensions or not count:
        return []
    values = _binary_elements(data, 12 + 8 * dimensions, count, element)
    for length in reversed(shape[1:]):
        values = [values[at : at + length] for at in range(0, len(values), length)]
    return values


def _binary_elements(data: bytes, at: int, count: int, oid: int) -> list[Any]:
    type_ = type_of(oid)
    assert type_ is not None
    values: list[Any] = []
    for _ in range(count):
        if at + 4 > len(data):
            raise bad_bytes("array")
        [size] = struct.unpack_from(">i", data, at)
        at += 4
        if size == -1:
            values.append(None)
            continue
        if size < 0 or at + size > len(data):
            raise bad_bytes("array")
        values.append(binary_text(data[at : at + size], oid, type_))
        at += size
    if at != len(data):
        raise bad_bytes("array")
    return values
