"""Whether a Delta table can hold what a sink delivers, column by column."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from headwater.errors import SchemaError
from headwater.model.schema import Column

_PLAIN_FEATURES = frozenset(
    {
        "appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz",
        "v2Checkpoint", "vacuumProtocolCheck",
    }
)  # fmt: skip
"""Features under which a file that was written without the table's help is a good one."""


def check_columns(table: DeltaTable, columns: Sequence[Column], sink: str) -> None:
    """Refuse a table whose columns do not fit, and name the first one."""
    there = {field["name"]: field for field in _fields(table)}
    for column in columns:
        field = there.pop(column.name, None)
        if field is None:
            raise SchemaError(
                f'the target of sink "{sink}" has no column "{column.name}"',
                detail=f"{table.table_uri} has: {', '.join(f['name'] for f in _fields(table))}.",
                hint="Add the column to the table, or leave it out of the sink's query.",
            )
        if _shape(field["type"]) != _shape(column.type.delta):
            raise SchemaError(
                f'column "{column.name}" of sink "{sink}" does not fit its target',
                detail=f"The sink has {column.type.postgres} (Delta: {_told(column.type.delta)}), "
                f"the table has {_told(field['type'])}.",
                hint="Cast the column in the sink's query, or change the table.",
            )
    for name, field in there.items():
        if not field["nullable"]:
            raise SchemaError(
                f'sink "{sink}" has no column "{name}", which its target needs',
                detail=f"{table.table_uri} does not take nulls there.",
                hint="Select the column in the sink's query, or let the table take nulls.",
            )


def add_columns(table: DeltaTable, columns: Sequence[Column]) -> None:
    """Give a table the columns that it lacks, in a version of their own. Replay: it has them."""
    there = {field["name"] for field in _fields(table)}
    missing = [
        Field(column.name, Schema.from_arrow(_alone(column)).fields[0].type)
        for column in columns
        if column.name not in there
    ]
    if missing:
        table.alter.add_columns(missing)
        table.update_incremental()


def _alone(column: Column) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type.arrow)])


def takes_files(table: DeltaTable) -> bool:
    """Whether files can be added as they are: no partitions, no rules that rows must pass."""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    ruled = any(name.startswith("delta.constraints.") for name in metadata.configuration)
    mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
    return (
        not metadata.partition_columns
        and not ruled
        and not mapped
        and features <= _PLAIN_FEATURES
        and all(field["nullable"] and not field.get("metadata") for field in _fields(table))
    )


def _fields(table: DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def _shape(type_: Any) -> Any:
    """A type without what does not matter: which inner values may be null, and comments."""
    if not isinstance(type_, dict):
        return type_
    match type_["type"]:
        case "array":
            return ("array", _shape(type_["elementType"]))
        case "struct":
            return (
                "struct",
                *((field["name"], _shape(field["type"])) for field in type_["fields"]),
            )
        case other:
            return other


def _told(type_: Any) -> str:
    return type_ if isinstance(type_, str) else json.dumps(_shape(type_))
