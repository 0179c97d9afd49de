"""Data types, and how each is spelled in Spark, Arrow, Delta and PostgreSQL.

    Headwater        PostgreSQL              Spark              Arrow               Delta
    boolean          boolean                 boolean            bool                boolean
    smallint         smallint, int2          smallint           int16               short
    integer          integer, int4           int                int32               integer
    bigint           bigint, int8            bigint             int64               long
    real             real, float4            float              float32             float
    double           double precision        double             float64             double
    decimal(p,s)     numeric(p,s), p <= 38   decimal(p,s)       decimal128(p,s)     decimal(p,s)
    numeric          numeric, wider ones     string             string              string
    varchar          text, varchar, char     string             string              string
    bytea            bytea                   binary             binary              binary
    date             date                    date               date32              date
    time             time                    string             string              string
    timestamp        timestamp               timestamp_ntz      timestamp[us]       timestamp_ntz
    timestamptz      timestamptz             timestamp          timestamp[us,UTC]   timestamp
    interval         interval                string             string              string
    jsonb            jsonb, json             string             string              string
    uuid             uuid                    string             string              string
    T[]              T[]                     array<T>           list<T>             array
    struct<...>      composite               struct<...>        struct<...>         struct

Types without a home in Parquet (numeric, time, interval, jsonb, uuid) are stored as exact text;
the logical type is kept in the catalog. A test holds this table equal to the code.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from headwater.errors import SchemaError

MAX_PRECISION = 38


class Kind(StrEnum):
    """The families of types."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double"
    DECIMAL = "decimal"
    NUMERIC = "numeric"
    VARCHAR = "varchar"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    JSONB = "jsonb"
    UUID = "uuid"
    LIST = "list"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class _Spelling:
    spark: str
    arrow: pa.DataType
    delta: str
    postgres: str


_SCALARS: dict[Kind, _Spelling] = {
    Kind.BOOLEAN: _Spelling("boolean", pa.bool_(), "boolean", "boolean"),
    Kind.SMALLINT: _Spelling("smallint", pa.int16(), "short", "smallint"),
    Kind.INTEGER: _Spelling("int", pa.int32(), "integer", "integer"),
    Kind.BIGINT: _Spelling("bigint", pa.int64(), "long", "bigint"),
    Kind.REAL: _Spelling("float", pa.float32(), "float", "real"),
    Kind.DOUBLE: _Spelling("double", pa.float64(), "double", "double precision"),
    Kind.NUMERIC: _Spelling("string", pa.string(), "string", "numeric"),
    Kind.VARCHAR: _Spelling("string", pa.string(), "string", "varchar"),
    Kind.BYTEA: _Spelling("binary", pa.binary(), "binary", "bytea"),
    Kind.DATE: _Spelling("date", pa.date32(), "date", "date"),
    Kind.TIME: _Spelling("string", pa.string(), "string", "time"),
    Kind.TIMESTAMP: _Spelling("timestamp_ntz", pa.timestamp("us"), "timestamp_ntz", "timestamp"),
    Kind.TIMESTAMPTZ: _Spelling(
        "timestamp", pa.timestamp("us", tz="UTC"), "timestamp", "timestamptz"
    ),
    Kind.INTERVAL: _Spelling("string", pa.string(), "string", "interval"),
    Kind.JSONB: _Spelling("string", pa.string(), "string", "jsonb"),
    Kind.UUID: _Spelling("string", pa.string(), "string", "uuid"),
}

_NOT_KEYS = frozenset({Kind.JSONB, Kind.INTERVAL, Kind.LIST, Kind.STRUCT})


@dataclass(frozen=True, slots=True)
class DataType:
    """One type; precision and scale are a decimal's, element a list's, fields a struct's."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    element: "DataType | None" = None
    fields: "tuple[tuple[str, DataType], ...]" = ()

    def __post_init__(self) -> None:
        if self.kind is Kind.DECIMAL:
            if self.precision is None or self.scale is None:
                raise SchemaError("a decimal needs a precision and a scale")
            if not 1 <= self.precision <= MAX_PRECISION or not 0 <= self.scale <= self.precision:
                raise SchemaError(
                    f"decimal({self.precision},{self.scale}) is out of range",
                    detail=f"Precision is 1 to {MAX_PRECISION}, scale is 0 to the precision.",
                    hint="Use numeric, which keeps any number of digits.",
                )
        if self.kind is Kind.LIST and self.element is None:
            raise SchemaError("a list needs an element type")
        if self.kind is Kind.STRUCT and not self.fields:
            raise SchemaError("a struct needs at least one field")

    @property
    def can_be_key(self) -> bool:
        """Whether equality and hashing of this type are exact everywhere."""
        return self.kind not in _NOT_KEYS

    @property
    def spark(self) -> str:
        """As Spark SQL spells it."""
        match self.kind:
            case Kind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case Kind.LIST:
                assert self.element is not None
                return f"array<{self.element.spark}>"
            case Kind.STRUCT:
                inner = ",".join(f"`{name}`:{type_.spark}" for name, type_ in self.fields)
                return f"struct<{inner}>"
            case _:
                return _SCALARS[self.kind].spark

    @property
    def arrow(self) -> pa.DataType:
        """As Arrow and Parquet hold it."""
        match self.kind:
            case Kind.DECIMAL:
                return pa.decimal128(self.precision or 0, self.scale or 0)
            case Kind.LIST:
                assert self.element is not None
                return pa.list_(self.element.arrow)
            case Kind.STRUCT:
                return pa.struct([pa.field(name, type_.arrow) for name, type_ in self.fields])
            case _:
                return _SCALARS[self.kind].arrow

    @property
    def delta(self) -> Any:
        """As the schema string of a Delta table has it: a name, or a JSON object."""
        match self.kind:
            case Kind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case Kind.LIST:
                assert self.element is not None
                return {"type": "array", "elementType": self.element.delta, "containsNull": True}
            case Kind.STRUCT:
                return {
                    "type": "struct",
                    "fields": [
                        {"name": name, "type": type_.delta, "nullable": True, "metadata": {}}
                        for name, type_ in self.fields
                    ],
                }
            case _:
                return _SCALARS[self.kind].delta

    @property
    def postgres(self) -> str:
        """As PostgreSQL spells it."""
        match self.kind:
            case Kind.DECIMAL:
                return f"numeric({self.precision},{self.scale})"
            case Kind.LIST:
                assert self.element is not None
                return f"{self.element.postgres}[]"
            case Kind.STRUCT:
                inner = ", ".join(f"{name} {type_.postgres}" for name, type_ in self.fields)
                return f"struct<{inner}>"
            case _:
                return _SCALARS[self.kind].postgres


BOOLEAN = DataType(Kind.BOOLEAN)
SMALLINT = DataType(Kind.SMALLINT)
INTEGER = DataType(Kind.INTEGER)
BIGINT = DataType(Kind.BIGINT)
REAL = DataType(Kind.REAL)
DOUBLE = DataType(Kind.DOUBLE)
NUMERIC = DataType(Kind.NUMERIC)
VARCHAR = DataType(Kind.VARCHAR)
BYTEA = DataType(Kind.BYTEA)
DATE = DataType(Kind.DATE)
TIME = DataType(Kind.TIME)
TIMESTAMP = DataType(Kind.TIMESTAMP)
TIMESTAMPTZ = DataType(Kind.TIMESTAMPTZ)
INTERVAL = DataType(Kind.INTERVAL)
JSONB = DataType(Kind.JSONB)
UUID = DataType(Kind.UUID)


def decimal(precision: int, scale: int) -> DataType:
    """A decimal that keeps exactly that many digits."""
    return DataType(Kind.DECIMAL, precision=precision, scale=scale)


def list_of(element: DataType) -> DataType:
    """A list."""
    return DataType(Kind.LIST, element=element)
