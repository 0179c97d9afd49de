"""Type names of PostgreSQL and RisingWave, as Headwater's types.

    smallint int2 | integer int int4 | bigint int8 | real float4 | double [precision] float8
    numeric decimal dec, with (p,s) up to 38 digits exactly, without as text of any size
    boolean bool | varchar character char text string bpchar name, with (n)
    bytea | date | time | timestamp [with|without time zone] timestamptz | interval
    jsonb json | uuid | T[] | struct<a T, ...>

`numeric(p,s)` beyond 38 digits becomes `numeric`, which keeps every digit.
"""

import re

from sqlglot.tokenizer_core import Token, TokenType

from headwater.errors import NotSupported, ParseError
from headwater.model import types
from headwater.model.types import DataType
from headwater.sql.token_reader import TokenReader

_SIMPLE: dict[str, DataType] = {
    **dict.fromkeys(("smallint", "int2"), types.SMALLINT),
    **dict.fromkeys(("integer", "int", "int4"), types.INTEGER),
    **dict.fromkeys(("bigint", "int8"), types.BIGINT),
    **dict.fromkeys(("real", "float4"), types.REAL),
    **dict.fromkeys(("double", "float8", "float"), types.DOUBLE),
    **dict.fromkeys(("boolean", "bool"), types.BOOLEAN),
    **dict.fromkeys(("text", "string", "name"), types.VARCHAR),
    "bytea": types.BYTEA,
    "date": types.DATE,
    "timestamptz": types.TIMESTAMPTZ,
    "interval": types.INTERVAL,
    "jsonb": types.JSONB,
    "json": types.JSONB,
    "uuid": types.UUID,
}
_CHARACTERS = {"varchar", "character", "char", "bpchar", "nchar"}
_NUMBERS = {"numeric", "decimal", "dec"}
_KNOWN_ELSEWHERE = re.compile(
    r"serial|bigserial|smallserial|money|xml|inet|cidr|macaddr8?|point|line|box|path|polygon|circle|"
    r"bit|varbit|tsvector|tsquery|oid|reg\w+|rw_int256|int256|map|\w*range|vector|hstore|citext"
)


_INSTEAD = {
    **dict.fromkeys(("serial", "bigserial", "smallserial"), "Give the values of the key yourself."),
    **dict.fromkeys(("rw_int256", "int256"), "Use numeric, which keeps any number of digits."),
    "map": "Use jsonb, or an array of struct<key ..., value ...>.",
    "hstore": "Use jsonb.",
    "money": "Use numeric.",
}
"""What to use for types that are not there."""


class WrittenType:
    """A type as written: the type, and the length of varchar(n)."""

    __slots__ = ("length", "type")

    def __init__(self, type_: DataType, length: int | None = None) -> None:
        self.type = type_
        self.length = length


def read_type(reader: TokenReader) -> WrittenType:
    """The type that begins here; the reader stands behind it afterwards."""
    token = reader.peek()
    written = _read_element(reader)
    while reader.take("[") or reader.take("ARRAY"):
        if reader.before("[") or reader.at_number():
            reader.number()
        if reader.before("]"):
            reader.take("]")
        written = WrittenType(types.list_of(written.type))
    if written.type.kind is types.Kind.LIST and token is None:
        raise reader.error(ParseError, "a type is missing here")
    return written


def _read_element(reader: TokenReader) -> WrittenType:
    token = reader.peek()
    name = reader.word("a type").lower()
    if name in _CHARACTERS:
        if name == "character":
            reader.take("VARYING")
        return WrittenType(types.VARCHAR, _arguments(reader, most=1)[0])
    if name in _NUMBERS:
        return WrittenType(_number(reader, token))
    if name == "struct":
        return WrittenType(_struct(reader))
    if name in ("timestamp", "time"):
        return WrittenType(_clock(reader, name, token))
    if name == "timestamptz":
        _microseconds(reader, token)
    if name == "double":
        reader.take("PRECISION")
    if name == "float" and (bits := _arguments(reader, most=1)[0]) is not None:
        return WrittenType(types.REAL if bits <= 24 else types.DOUBLE)
    if name in _SIMPLE:
        return WrittenType(_SIMPLE[name])
    offset = token.start if token else None
    if _KNOWN_ELSEWHERE.fullmatch(name):
        raise reader.error_at(
            NotSupported, f"type {name} is not supported", offset, hint=_INSTEAD.get(name, "")
        )
    raise reader.error_at(ParseError, f'type "{name}" does not exist', offset, sqlstate="42704")


def _arguments(reader: TokenReader, *, most: int) -> tuple[int | None, int | None]:
    if not reader.take("("):
        return None, None
    first = reader.number()
    second = reader.number() if most > 1 and reader.take(",") else None
    reader.expect(")")
    return first, second


def _number(reader: TokenReader, token: Token | None) -> DataType:
    precision, scale = _arguments(reader, most=2)
    if precision is None:
        return types.NUMERIC
    scale = scale or 0
    if precision < 1 or scale < 0:
        raise reader.error_at(
            ParseError,
            f"numeric({precision},{scale}) is out of range",
            token.start if token else None,
            sqlstate="22023",
        )
    if precision > types.MAX_PRECISION or scale > precision:
        return types.NUMERIC
    return types.decimal(precision, scale)


def _microseconds(reader: TokenReader, token: Token | None) -> None:
    digits, _ = _arguments(reader, most=1)
    if digits is not None and digits != 6:
        raise reader.error_at(
            NotSupported,
            f"a precision of {digits} digits of a second is not supported",
            token.start if token else None,
            hint="Leave it out: microseconds are kept.",
        )


def _clock(reader: TokenReader, name: str, token: Token | None) -> DataType:
    _microseconds(reader, token)
    zoned = False
    if reader.take("WITH"):
        zoned = True
        reader.expect("TIME")
        reader.expect("ZONE")
    elif reader.before("WITHOUT"):
        reader.expect("WITHOUT")
        reader.expect("TIME")
        reader.expect("ZONE")
    if name == "timestamp":
        return types.TIMESTAMPTZ if zoned else types.TIMESTAMP
    if zoned:
        raise reader.error_at(
            NotSupported,
            "type time with time zone is not supported",
            token.start if token else None,
        )
    return types.TIME


def _struct(reader: TokenReader) -> DataType:
    reader.expect("<")
    fields = []
    while True:
        field = reader.name("a field name")
        fields.append((field, read_type(reader).type))
        if not reader.take(","):
            break
    reader.close_angle()
    return DataType(types.Kind.STRUCT, fields=tuple(fields))


def type_token(token: Token) -> bool:
    """Whether a token can begin a type name."""
    return token.token_type is not TokenType.STRING and token.text.isidentifier()
