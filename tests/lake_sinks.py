"""Sinks into tables and files as the public kit tries them: how each is made, and its rows."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sinks.delta.sink import delta_sink
from headwater.sinks.files.sink import file_sink
from headwater.sinks.iceberg.sink import iceberg_sink
from headwater.sinks.sink import OP, Delivery, Encoding, Sink, SinkKind, SinkSpec, StagedSink

Rows = list[dict[str, Any]]


def deliver(sink: StagedSink, delivery: Delivery, *parts: Rows, schema: pa.Schema) -> list[bytes]:
    """Bring rows in so many parts; returns the receipts."""
    receipts = [
        sink.prepare(delivery, number, [pa.RecordBatch.from_pylist(rows, schema=schema)])
        for number, rows in enumerate(parts)
    ]
    sink.commit(delivery, receipts)
    return receipts


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as the kit counts them."""
    return [tuple(row.values()) for row in rows.to_pylist()]


class DeltaCase:
    """A Delta table per sink."""

    def __init__(self, root: str, kind: SinkKind, options: dict[str, str] | None = None) -> None:
        self.kind = kind
        self._root = root
        self._options = options or {}

    def make(self, spec: SinkSpec) -> Sink:
        location = f"{self._root}/{spec.ident}"
        return delta_sink(replace(spec, options={"location": location, **self._options}))

    def rows(self, spec: SinkSpec) -> Iterable[tuple[Any, ...]]:
        made: Any = self.make(spec)
        table = DeltaTable(f"{self._root}/{spec.ident}", storage_options=made._access)
        return tuples(pa.table(table.scan().read_all()))


class IcebergCase:
    """An Iceberg table per sink, in a catalog on SQLite."""

    def __init__(self, folder: Path, kind: SinkKind) -> None:
        self.kind = kind
        self.options = {
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{folder}/catalog.db",
            "warehouse.path": f"file://{folder}/warehouse",
            "database.name": "lake",
            "create_table_if_not_exists": "true",
        }

    def make(self, spec: SinkSpec) -> Sink:
        return iceberg_sink(replace(spec, options={**self.options, "table.name": spec.ident}))

    def rows(self, spec: SinkSpec) -> Iterable[tuple[Any, ...]]:
        return tuples(self.table(spec).scan().to_arrow())

    def table(self, spec: SinkSpec) -> Any:
        made: Any = self.make(spec)
        return made._table()


class FileCase:
    """A folder per sink, read the way anybody reads one."""

    kind = SinkKind.APPEND_ONLY

    def __init__(
        self,
        root: str,
        encode: str,
        *,
        manifest: bool = False,
        options: dict[str, str] | None = None,
        listed: Callable[[str], dict[str, bytes]] | None = None,
    ) -> None:
        self._root = root
        self._encode = encode
        self._options = {"manifest": str(manifest).lower(), **(options or {})}
        self._listed = listed or _files_of_folder

    def make(self, spec: SinkSpec) -> Sink:
        options = {"path": f"{self._root}/{spec.ident}", **self._options}
        return file_sink(replace(spec, options=options, encoding=Encoding(encode=self._encode)))

    def rows(self, spec: SinkSpec) -> Iterable[tuple[Any, ...]]:
        for content in self._listed(f"{self._root}/{spec.ident}").values():
            yield from tuples(READERS[self._encode](content))


def _files_of_folder(folder: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if not p.name.startswith("_")}


def _read_parquet(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


def _read_json(content: bytes) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in content.decode().split("\n") if line])


def _read_csv(content: bytes) -> pa.Table:
    return pa.csv.read_csv(
        pa.BufferReader(content),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )


READERS: dict[str, Callable[[bytes], pa.Table]] = {
    "parquet": _read_parquet,
    "json": _read_json,
    "csv": _read_csv,
}


STRUCT = DataType(Kind.STRUCT, fields=(("a", DOUBLE), ("b", list_of(VARCHAR))))
EVERYTHING = (
    Column("id", BIGINT), Column("boolean", BOOLEAN), Column("small", SMALLINT),
    Column("int", INTEGER), Column("real", REAL), Column("double", DOUBLE),
    Column("money", decimal(12, 2)), Column("wide", decimal(38, 10)), Column("numeric", NUMERIC),
    Column('te"xt `x` Ü', VARCHAR), Column("bytes", BYTEA), Column("day", DATE),
    Column("time", TIME), Column("at", TIMESTAMP), Column("at_tz", TIMESTAMPTZ),
    Column("json", JSONB), Column("uuid", UUID), Column("list", list_of(INTEGER)),
    Column("struct", STRUCT), Column("lists", list_of(STRUCT)),
)  # fmt: skip
"""A column of every type that has a form of its own in a file."""

_AT = datetime(2026, 1, 31, 1, 2, 3, 456789, UTC)
_FULL = {
    "id": 1, "boolean": True, "small": -(2**15), "int": 2**31 - 1, "real": 1.5,
    "double": 0.1, "money": Decimal("-9999999999.99"), "wide": Decimal("1234567890.0123456789"),
    "numeric": "1e-200", 'te"xt `x` Ü': 'a "b" \\ \n\t\x01 漢字 \u2028', "bytes": b"\x00\xff\n",
    "day": date(1, 1, 1), "time": "23:59:59.999999", "at": _AT.replace(tzinfo=None),
    "at_tz": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "json": '{"k": [1, "\\u0000"]}',
    "uuid": "00000000-0000-0000-0000-000000000001", "list": [1, None, -3],
    "struct": {"a": 2.5, "b": ["x", None]}, "lists": [{"a": None, "b": []}, None],
}  # fmt: skip
_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308)

ODD_ROWS: Rows = [
    _FULL,
    dict.fromkeys(_FULL) | {"id": 2},
    *({**_FULL, "id": 10 + n, "double": value} for n, value in enumerate(_FLOATS)),
    {**_FULL, "id": 20, 'te"xt `x` Ü': "", "bytes": b"", "list": [], "struct": {"a": None}},
]
"""Values that get lost easily."""
for _row in ODD_ROWS:
    if _row["struct"] is not None:
        _row["struct"] = {"b": None, **_row["struct"]}


def everything(kind: SinkKind, **options: str) -> SinkSpec:
    """A sink with a column of every type."""
    return SinkSpec(
        name="every", ident="every_1", columns=EVERYTHING, key=("id",), kind=kind, options=options
    )


def table_of(rows: Rows, columns: Sequence[Column] = EVERYTHING) -> pa.Table:
    """Rows as Arrow has them."""
    schema = pa.schema([pa.field(column.name, column.type.arrow) for column in columns])
    return pa.Table.from_pylist(rows, schema=schema)


def sets(rows: Rows) -> Rows:
    """Rows that a delivery sets."""
    return [{OP: int(RowOp.INSERT), **row} for row in rows]


def deletes(rows: Rows) -> Rows:
    """Rows that a delivery deletes."""
    return [{OP: int(RowOp.DELETE), **row} for row in rows]


def delivery(ident: str, epoch: int, term: int = 1, rows: int = 1) -> Delivery:
    """A delivery of one epoch."""
    return Delivery(
        sink=ident, after=Epoch(epoch - 1), epoch=Epoch(epoch), term=Term(term), rows=rows
    )
