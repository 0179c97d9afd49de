"""How one type and one value are written as text, exactly.

    letter   type         a value             letter      type           a value
    B        boolean      t                   d           date           2024-02-29
    s        smallint     7                   t           time           23:59:59.5
    i        integer      7                   TS          timestamp      2024-02-29T10:00:00.5
    I        bigint       7                   TZ          timestamptz    2024-02-29T10:00:00Z
    f        real         0.1                 V           interval       "1 day"
    F        double       nan -inf -0.0       J           jsonb          "{}"
    D(10,2)  decimal      10.00               U           uuid           6ba7b810-...
    N        numeric      1e400               I[]         list           [1,2,.]
    T        varchar      ann                 {a:I,b:T}   struct         {1,ann}
    X        bytea        0x00ff

A dot is null. Text in double quotes is a JSON string, and is needed for the empty text, for a
text that is a dot, and for one with spaces, quotes or brackets. Dates and timestamps that
Python's calendar cannot name are written as `@` and the days or microseconds since 1970.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model import types
from headwater.model.types import DataType, Kind

_LETTERS: dict[str, DataType] = {
    "B": types.BOOLEAN,
    "s": types.SMALLINT,
    "i": types.INTEGER,
    "I": types.BIGINT,
    "f": types.REAL,
    "F": types.DOUBLE,
    "N": types.NUMERIC,
    "T": types.VARCHAR,
    "X": types.BYTEA,
    "d": types.DATE,
    "t": types.TIME,
    "TS": types.TIMESTAMP,
    "TZ": types.TIMESTAMPTZ,
    "V": types.INTERVAL,
    "J": types.JSONB,
    "U": types.UUID,
}
_BY_TYPE = {type_: letter for letter, type_ in _LETTERS.items()}
_BY_ARROW: dict[pa.DataType, DataType] = {
    type_.arrow: type_ for type_ in reversed(_LETTERS.values())
} | {pa.string(): types.VARCHAR}

_TEXT_KINDS = frozenset(
    {Kind.VARCHAR, Kind.NUMERIC, Kind.TIME, Kind.INTERVAL, Kind.JSONB, Kind.UUID}
)
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEEDS_QUOTES = frozenset('"[]{},')
_NULL = "."


@dataclass(slots=True)
class Scanner:
    """A place in one line of text."""

    text: str
    at: int = 0

    def skip_spaces(self) -> None:
        """Move to the next thing that is not a space."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    @property
    def done(self) -> bool:
        """Whether only spaces are left."""
        self.skip_spaces()
        return self.at == len(self.text)

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> bool:
        """Step over `wanted` if it stands here."""
        if self.text.startswith(wanted, self.at):
            self.at += len(wanted)
            return True
        return False

    def expect(self, wanted: str) -> None:
        """Step over `wanted`, which must stand here."""
        self.skip_spaces()
        if not self.take(wanted):
            raise ValueError(f"expected {wanted!r} at {self.text[self.at :]!r}")

    def word(self, ends: str = "") -> tuple[str, bool]:
        """Read a quoted or bare word; bare ones end at a space or one of `ends`."""
        self.skip_spaces()
        if self.peek() == '"':
            word, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
            return word, True
        begin = self.at
        while self.at < len(self.text):
            character = self.text[self.at]
            if character.isspace() or character in ends:
                break
            self.at += 1
        if begin == self.at:
            raise ValueError("a value is missing")
        return self.text[begin : self.at], False


def read_type(scanner: Scanner) -> DataType:
    """Read a type in letters."""
    scanner.skip_spaces()
    if scanner.take("{"):
        fields = []
        while True:
            name, _ = scanner.word(ends=":")
            scanner.expect(":")
            fields.append((name, read_type(scanner)))
            scanner.skip_spaces()
            if not scanner.take(","):
                break
        scanner.expect("}")
        read = DataType(Kind.STRUCT, fields=tuple(fields))
    elif scanner.take("D("):
        precision, _ = scanner.word(ends=",")
        scanner.expect(",")
        scale, _ = scanner.word(ends=")")
        scanner.expect(")")
        read = types.decimal(int(precision), int(scale))
    else:
        letters, _ = scanner.word(ends="[,}")
        if letters not in _LETTERS:
            known = " ".join([*_LETTERS, "D(p,s)", "X[]", "{name:X}"])
            raise ValueError(f"{letters!r} is no type; types are: {known}")
        read = _LETTERS[letters]
    while scanner.take("[]"):
        read = types.list_of(read)
    return read


def write_type(type_: DataType) -> str:
    """The opposite of `read_type`."""
    match type_.kind:
        case Kind.DECIMAL:
            return f"D({type_.precision},{type_.scale})"
        case Kind.LIST:
            assert type_.element is not None
            return write_type(type_.element) + "[]"
        case Kind.STRUCT:
            inner = (f"{write_word(n, ':')}:{write_type(t)}" for n, t in type_.fields)
            return "{" + ",".join(inner) + "}"
        case _:
            return _BY_TYPE[type_]


def type_of_arrow(arrow: pa.DataType) -> DataType:
    """The type that Arrow stores this way; text is taken for varchar."""
    if pa.types.is_decimal128(arrow):
        return types.decimal(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return types.list_of(type_of_arrow(arrow.value_type))
    if pa.types.is_struct(arrow):
        fields = tuple((field.name, type_of_arrow(field.type)) for field in arrow)
        return DataType(Kind.STRUCT, fields=fields)
    if arrow not in _BY_ARROW:
        raise SchemaError(
            f"Arrow type {arrow} cannot be drawn as text",
            hint="Cast it to one of the types in headwater.model.types.",
        )
    return _BY_ARROW[arrow]


def read_value(scanner: Scanner, type_: DataType, ends: str = "") -> Any:
    """Read one value as something that Arrow takes for this type."""
    scanner.skip_spaces()
    if type_.kind is Kind.LIST and scanner.take("["):
        assert type_.element is not None
        items: list[Any] = []
        scanner.skip_spaces()
        while not scanner.take("]"):
            if items:
                scanner.expect(",")
            items.append(read_value(scanner, type_.element, ",]"))
            scanner.skip_spaces()
        return items
    if type_.kind is Kind.STRUCT and scanner.take("{"):
        values: dict[str, Any] = {}
        for name, field_type in type_.fields:
            if values:
                scanner.expect(",")
            values[name] = read_value(scanner, field_type, ",}")
        scanner.expect("}")
        return values
    word, quoted = scanner.word(ends)
    if word == _NULL and not quoted:
        return None
    return value_of_text(word, type_)


def value_of_text(text: str, type_: DataType) -> Any:
    """What `text` says as a value of a scalar type."""
    if type_.kind in (Kind.LIST, Kind.STRUCT):
        raise ValueError(f"{text!r} is no {type_.kind}")
    try:
        value = text if type_.kind in _TEXT_KINDS else _READERS[type_.kind](text)
        pa.scalar(value, type=type_.arrow)
    except (ValueError, InvalidOperation, OverflowError, pa.ArrowException) as error:
        raise ValueError(f"{text!r} is no {type_.postgres}: {error}") from None
    return value


def write_value(scalar: pa.Scalar, type_: DataType) -> str:
    """The opposite of `read_value`."""
    if not scalar.is_valid:
        return _NULL
    if type_.kind is Kind.LIST:
        assert type_.element is not None
        items = (write_value(item, type_.element) for item in scalar.values)
        return "[" + ",".join(items) + "]"
    if type_.kind is Kind.STRUCT:
        pairs = zip(scalar.values(), type_.fields, strict=True)
        return "{" + ",".join(write_value(v, field_type) for v, (_, field_type) in pairs) + "}"
    return write_word(scalar.as_py()) if type_.kind in _TEXT_KINDS else _WRITERS[type_.kind](scalar)


def write_word(text: str, ends: str = "") -> str:
    """Text as it is, or as a JSON string where it could be misread."""
    if text in ("", _NULL) or not text.isprintable():
        return json.dumps(text)
    if any(c.isspace() or c in _NEEDS_QUOTES or c in ends for c in text):
        return json.dumps(text, ensure_ascii=False)
    return text


def _read_boolean(text: str) -> bool:
    match text:
        case "t" | "true":
            return True
        case "f" | "false":
            return False
        case _:
            raise ValueError("write t or f")


def _read_bytes(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ValueError("write 0x and hexadecimal digits")
    return bytes.fromhex(text[2:])


def _read_date(text: str) -> int:
    if text.startswith("@"):
        return int(text[1:])
    return (date.fromisoformat(text) - _EPOCH_DAY).days


def _read_timestamp(text: str) -> int:
    if text.startswith("@"):
        return int(text[1:])
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("a timestamp without time zone has no offset")
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def _read_timestamptz(text: str) -> int:
    if text.startswith("@"):
        return int(text[1:])
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a timestamp with time zone needs an offset, such as Z")
    return (moment - _EPOCH) // _MICROSECOND


def _write_date(days: int) -> str:
    try:
        return (_EPOCH_DAY + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"@{days}"


def _write_timestamp(micros: int, suffix: str) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"@{micros}"
    return moment.replace(tzinfo=None).isoformat() + suffix


_READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.BOOLEAN: _read_boolean,
    Kind.SMALLINT: int,
    Kind.INTEGER: int,
    Kind.BIGINT: int,
    Kind.REAL: float,
    Kind.DOUBLE: float,
    Kind.DECIMAL: Decimal,
    Kind.BYTEA: _read_bytes,
    Kind.DATE: _read_date,
    Kind.TIMESTAMP: _read_timestamp,
    Kind.TIMESTAMPTZ: _read_timestamptz,
}
_WRITERS: dict[Kind, Callable[[pa.Scalar], str]] = {
    Kind.BOOLEAN: lambda scalar: "t" if scalar.as_py() else "f",
    Kind.SMALLINT: str,
    Kind.INTEGER: str,
    Kind.BIGINT: str,
    Kind.REAL: lambda scalar: str(np.float32(scalar.as_py())),
    Kind.DOUBLE: lambda scalar: repr(scalar.as_py()),
    Kind.DECIMAL: lambda scalar: format(scalar.as_py(), "f"),
    Kind.BYTEA: lambda scalar: "0x" + str(scalar.as_py().hex()),
    Kind.DATE: lambda scalar: _write_date(scalar.value),
    Kind.TIMESTAMP: lambda scalar: _write_timestamp(scalar.value, ""),
    Kind.TIMESTAMPTZ: lambda scalar: _write_timestamp(scalar.value, "Z"),
}
