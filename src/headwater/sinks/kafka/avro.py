"""Rows as Avro, in the schema registry's wire format.

    type                                 in Avro
    boolean                              boolean
    smallint, integer                    int
    bigint                               long
    real, double precision               float, double
    numeric(p,s)                         bytes, decimal
    date                                 int, date
    timestamp                            long, local-timestamp-micros
    timestamptz                          long, timestamp-micros
    uuid                                 string, uuid
    bytea                                bytes
    numeric, varchar, time, interval,    string
    jsonb
    list, struct                         array, record

Every field may be null, except those of a key. A name that Avro does not allow is refused.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model.schema import Column
from headwater.model.types import DataType, Kind
from headwater.sinks.kafka.registry import SchemaRegistry, wire_header

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAMESPACE = "headwater"
_PLAIN: dict[Kind, Any] = {
    Kind.BOOLEAN: "boolean",
    Kind.SMALLINT: "int",
    Kind.INTEGER: "int",
    Kind.BIGINT: "long",
    Kind.REAL: "float",
    Kind.DOUBLE: "double",
    Kind.BYTEA: "bytes",
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
    Kind.TIMESTAMPTZ: {"type": "long", "logicalType": "timestamp-micros"},
    Kind.UUID: {"type": "string", "logicalType": "uuid"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema with the bytes that go before everything written by it."""

    parsed: Any
    header: bytes

    def encoded(self, records: Iterable[Any]) -> list[bytes]:
        """One message per record."""
        messages = []
        for record in records:
            out = io.BytesIO(self.header)
            out.seek(0, io.SEEK_END)
            fastavro.schemaless_writer(out, self.parsed, record)
            messages.append(out.getvalue())
        return messages


def registered(registry: SchemaRegistry, subject: str, schema: Any) -> RegisteredSchema:
    """Register a schema, and make it ready for writing. Replay: the same one again."""
    return RegisteredSchema(
        parsed=fastavro.parse_schema(schema), header=wire_header(registry.register(subject, schema))
    )


def record_schema(name: str, columns: Sequence[Column], *, nullable: bool = True) -> Any:
    """The schema of a row."""
    return {
        "type": "record",
        "name": name,
        "namespace": NAMESPACE,
        "fields": [_field(name, column.name, column.type, nullable) for column in columns],
    }


def envelope_schema(columns: Sequence[Column]) -> Any:
    """The schema of a Debezium envelope."""
    source = [("connector", "string"), ("name", "string"), ("ts_ms", "long"), ("epoch", "string")]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": NAMESPACE,
        "fields": [
            {"name": "before", "type": ["null", record_schema("Value", columns)], "default": None},
            {"name": "after", "type": ["null", f"{NAMESPACE}.Value"], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": name, "type": type_} for name, type_ in source],
                },
            },
        ],
    }


def records(columns: Sequence[Column], arrays: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows as what the writer takes: times as the numbers that Avro has for them."""
    lists = [
        array.cast(_stored(column.type)).to_pylist()
        for column, array in zip(columns, arrays, strict=True)
    ]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def _field(record: str, name: str, type_: DataType, nullable: bool) -> Any:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f'column "{name}" cannot go to Avro by this name',
            detail="Avro allows letters of ASCII, digits and underscores.",
            hint=f'Give it another one: CREATE SINK ... AS SELECT "{name}" AS ...',
        )
    schema = _schema(f"{record}_{name}", type_)
    if not nullable:
        return {"name": name, "type": schema}
    return {"name": name, "type": ["null", schema], "default": None}


def _schema(path: str, type_: DataType) -> Any:
    match type_.kind:
        case Kind.DECIMAL:
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": type_.precision,
                "scale": type_.scale,
            }
        case Kind.LIST:
            assert type_.element is not None
            return {"type": "array", "items": ["null", _schema(path, type_.element)]}
        case Kind.STRUCT:
            columns = [Column(name, field) for name, field in type_.fields]
            return record_schema(path, columns)
        case kind:
            return _PLAIN.get(kind, "string")


def _stored(type_: DataType) -> pa.DataType:
    match type_.kind:
        case Kind.DATE:
            return pa.int32()
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return pa.int64()
        case Kind.LIST:
            assert type_.element is not None
            return pa.list_(_stored(type_.element))
        case Kind.STRUCT:
            return pa.struct([pa.field(name, _stored(field)) for name, field in type_.fields])
        case _:
            return type_.arrow
