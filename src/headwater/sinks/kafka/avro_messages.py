"""Messages as Avro: keys, rows and envelopes by schemas that a registry holds.

Subjects are named after the topic: `orders-key` and `orders-value`.
"""

from typing import Any

import pyarrow as pa

from headwater.model.epoch import epoch_millis
from headwater.model.schema import Column
from headwater.sinks.kafka.avro import (
    RegisteredSchema,
    envelope_schema,
    record_schema,
    records,
    registered,
)
from headwater.sinks.kafka.messages import Envelopes, RowColumns
from headwater.sinks.kafka.registry import SchemaRegistry


class AvroEncoder:
    """An `Encoder` that registers its schemas when it is opened."""

    def __init__(
        self,
        *,
        columns: RowColumns,
        topic: str,
        debezium: bool,
        registry: SchemaRegistry,
    ) -> None:
        self._columns, self._topic, self._registry = columns, topic, registry
        key, value = columns.key, columns.all
        self._key_schema = record_schema("Key", key, nullable=False) if key else None
        self._value_schema = envelope_schema(value) if debezium else record_schema("Value", value)
        self._opened: tuple[RegisteredSchema | None, RegisteredSchema] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What the registry gave is asked for again where the sink has travelled to.
        return self.__dict__ | {"_opened": None}

    def open(self) -> None:
        """Register both schemas. Replay: they are there already."""
        if self._opened is None:
            key = self._key_schema and registered(
                self._registry, f"{self._topic}-key", self._key_schema
            )
            value = registered(self._registry, f"{self._topic}-value", self._value_schema)
            self._opened = key, value

    def keys(self, rows: pa.RecordBatch) -> Any:
        """The key's columns as a record."""
        schema, _ = self._schemas()
        assert schema is not None
        return pa.array(schema.encoded(_records(rows, self._columns.key)), pa.binary())

    def values(self, rows: pa.RecordBatch) -> Any:
        """All columns as a record."""
        _, schema = self._schemas()
        return pa.array(schema.encoded(_records(rows, self._columns.all)), pa.binary())

    def envelopes(self, parts: Envelopes) -> Any:
        """Debezium's envelope as a record."""
        _, schema = self._schemas()
        rows = _records(parts.rows, self._columns.all)
        millis = epoch_millis(parts.delivery.epoch)
        source = {
            "connector": "headwater",
            "name": self._columns.sink,
            "ts_ms": millis,
            "epoch": str(parts.delivery.epoch),
        }
        made = (
            {
                "before": None if before is None else rows[before],
                "after": None if after is None else rows[after],
                "op": op,
                "ts_ms": millis,
                "source": source,
            }
            for before, after, op in zip(
                parts.before.to_pylist(),
                parts.after.to_pylist(),
                parts.ops.to_pylist(),
                strict=True,
            )
        )
        return pa.array(schema.encoded(made), pa.binary())

    def _schemas(self) -> tuple[RegisteredSchema | None, RegisteredSchema]:
        self.open()
        assert self._opened is not None
        return self._opened


def _records(rows: pa.RecordBatch, columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    return records(columns, [rows.column(column.name) for column in columns])
