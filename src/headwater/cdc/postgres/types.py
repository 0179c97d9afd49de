"""Which type a PostgreSQL type is here, and how its values travel.

    PostgreSQL                                       here           travels as
    boolean, integers, floats                        the same       binary
    oid                                              bigint         binary
    numeric(p,s), p <= 38 and 0 <= s <= p            decimal(p,s)   binary
    numeric without or with wider limits             numeric        binary
    text, varchar, char(n), name, enums              varchar        binary
    json, jsonb                                      jsonb          binary
    bytea, uuid, date, time, timestamp, timestamptz  the same       binary
    interval                                         interval       text
    timetz, bit, money, xml, inet, ranges, points,   varchar        text
      tsvector, composites and other built-in types
    types of extensions that are strings (citext)    varchar        text
    other types of extensions                        varchar        text, if the user says so
    arrays of one dimension                          list           as their elements do
    domains                                          as their base  as their base does

"binary" means that COPY and pgoutput send the type's binary form and a kernel reads it.
"text" means that the snapshot asks for what the type's output function writes; a log with such a
column is read in text format as a whole, since pgoutput has one format for everything. Both
spell a value with the same characters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headwater.errors import SchemaError
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    MAX_PRECISION,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    decimal,
    list_of,
)


class Codec(StrEnum):
    """The binary forms that kernels read."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    OID = "oid"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    DECIMAL = "decimal"
    NUMERIC = "numeric"
    TEXT = "text"
    JSONB = "jsonb"
    BYTEA = "bytea"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Wire:
    """How a column's values travel, and what they are here."""

    type: DataType
    codec: Codec
    binary: bool = True
    """Whether its own binary form can be read; else only its text."""
    element: "Wire | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """A row of pg_type, as far as it matters."""

    oid: int
    name: str
    schema: str
    kind: str
    """typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo."""
    category: str
    element: int
    base: int
    base_typmod: int


_PLAIN: dict[int, tuple[DataType, Codec]] = {
    16: (BOOLEAN, Codec.BOOL),
    17: (BYTEA, Codec.BYTEA),
    19: (VARCHAR, Codec.TEXT),
    20: (BIGINT, Codec.INT8),
    21: (SMALLINT, Codec.INT2),
    23: (INTEGER, Codec.INT4),
    25: (VARCHAR, Codec.TEXT),
    26: (BIGINT, Codec.OID),
    114: (JSONB, Codec.TEXT),
    700: (REAL, Codec.FLOAT4),
    701: (DOUBLE, Codec.FLOAT8),
    1042: (VARCHAR, Codec.TEXT),
    1043: (VARCHAR, Codec.TEXT),
    1082: (DATE, Codec.DATE),
    1083: (TIME, Codec.TIME),
    1114: (TIMESTAMP, Codec.TIMESTAMP),
    1184: (TIMESTAMPTZ, Codec.TIMESTAMP),
    2950: (UUID, Codec.UUID),
    3802: (JSONB, Codec.JSONB),
}
_NUMERIC, _INTERVAL = 1700, 1186
_VECTORS = frozenset({22, 30})
"""int2vector and oidvector: arrays inside, blank-separated words outside."""
_SPELLED = Wire(VARCHAR, Codec.TEXT, binary=False)
_TYPES_QUERY = """
    SELECT t.oid::bigint, t.typname::text, n.nspname::text, t.typtype::text, t.typcategory::text,
           t.typelem::bigint, t.typbasetype::bigint, t.typtypmod
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE t.oid = ANY(%s::bigint[]::oid[])"""


class TypeCatalog:
    """The types of one database, fetched as they are needed."""

    def __init__(self, types: Iterable[PgType] = (), *, unknown_as_text: bool = False) -> None:
        self._types = {each.oid: each for each in types}
        self._unknown_as_text = unknown_as_text

    def load(self, connection: Any, oids: Iterable[int]) -> None:
        """Fetch types, and those that they are made of."""
        wanted = {oid for oid in oids if oid} - self._types.keys()
        while wanted:
            rows = connection.execute(_TYPES_QUERY, [sorted(wanted)]).fetchall()
            for row in rows:
                fields = ("oid", "name", "schema", "kind", "category", "element", "base")
                values = dict(zip(fields, row, strict=False))
                self._types[row[0]] = PgType(**values, base_typmod=row[7])
            parts = {part for row in rows for part in (row[5], row[6]) if part}
            wanted = parts - self._types.keys()

    def known(self, oid: int) -> bool:
        """Whether a type was fetched."""
        return oid in self._types

    def wire(self, oid: int, typmod: int, where: str) -> Wire:
        """How values of a type travel; `where` names table and column for the error."""
        if oid in _PLAIN:
            return Wire(*_PLAIN[oid])
        if oid == _NUMERIC:
            return number_wire(typmod)
        if oid == _INTERVAL:
            return Wire(INTERVAL, Codec.TEXT, binary=False)
        if oid not in self._types:
            raise SchemaError(f"the type of {where} is gone", detail=f"Its oid was {oid}.")
        return self._made(self._types[oid], typmod, where)

    def _made(self, type_: PgType, typmod: int, where: str) -> Wire:
        if type_.kind == "d":
            return self.wire(type_.base, type_.base_typmod if typmod < 0 else typmod, where)
        if type_.kind == "e":
            return Wire(VARCHAR, Codec.TEXT)
        if type_.category == "A" and type_.element and type_.oid not in _VECTORS:
            element = self.wire(type_.element, typmod, where)
            return Wire(list_of(element.type), Codec.ARRAY, element.binary, element)
        if type_.kind in "crm" or type_.category == "S" or type_.schema == "pg_catalog":
            return _SPELLED
        if self._unknown_as_text:
            return _SPELLED
        raise SchemaError(
            f'{where} has type "{type_.schema}"."{type_.name}", which Headwater does not know',
            hint='Leave the column out, or set the option "unknown.types" to "text".',
        )


def number_wire(typmod: int) -> Wire:
    """A numeric's: a decimal where one is wide enough, else text with every digit."""
    if typmod >= 4:
        precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
        # Scales are signed, eleven bits wide; below zero they round to tens.
        scale = scale - 0x800 if scale & 0x400 else scale
        if precision <= MAX_PRECISION and 0 <= scale <= precision:
            return Wire(decimal(precision, scale), Codec.DECIMAL)
    return Wire(NUMERIC, Codec.NUMERIC)
