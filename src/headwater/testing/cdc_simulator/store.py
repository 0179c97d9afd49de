"""The model of what is stored: tables by epoch, and the ledger that says which epoch is true.

Rows are stored with the columns that they were written with. A column that is dropped leaves the
schema and not the rows, as in files, until these are written anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headwater.backfill.cdc.table_backfill import EpochOutput
from headwater.cdc.offset import CdcOffset
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.testing.cdc_simulator.database import Key

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One table: its columns, its rows by key, and names that rows hold other values under."""

    schema: Schema
    rows: Mapping[Key, Values] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()

    def row(self, key: Key) -> Values:
        """A row in the columns that the table has now."""
        return {name: self.rows[key].get(name) for name in self.schema.names}

    def lookup(self, keys: pa.Table) -> pa.Table:
        """The stored rows of some keys."""
        found = [self.row(key) for key in keys.column("id").to_pylist() if key in self.rows]
        return pa.Table.from_pylist(found, self.schema.arrow)

    def after(self, output: EpochOutput) -> "StoredTable":
        """The table once an epoch's output is on top."""
        if output.schema is not None:
            if output.changes.num_rows or output.parts or output.cleared:
                raise AssertionError("columns change in an epoch that has changes of rows")
            return self._evolved(output.schema, output.renamed)
        rows = {} if output.cleared else dict(self.rows)
        for kind, row in _changes(output.changes):
            if kind == ChangeType.DELETE:
                rows.pop(row["id"], None)
            else:
                rows[row["id"]] = row
        for part in output.parts:
            # As files: a value that its column cannot hold is an error, not another value.
            fitting = part.table().select(list(self.schema.names)).cast(self.schema.arrow)
            rows |= {row["id"]: row for row in fitting.to_pylist()}
        return replace(self, rows=rows)

    def _evolved(self, schema: Schema, renamed: Mapping[str, str] | None) -> "StoredTable":
        if renamed is None:
            gone = frozenset(self.schema.names) - frozenset(schema.names)
            return StoredTable(schema, self.rows, self.retired | gone)
        rows = {
            key: {new: row.get(old) for old, new in renamed.items()}
            for key, row in self.rows.items()
        }
        return StoredTable(schema, rows)


@dataclass(frozen=True, slots=True)
class Record:
    """One commit: the log's place, each table, its backfill, and what it was seen to be."""

    offset: CdcOffset
    tables: Mapping[str, StoredTable] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)


class Ledger:
    """Outlives every engine."""

    def __init__(self, offset: CdcOffset) -> None:
        self.last = Record(offset)
        self.commits = 0

    def append(self, record: Record) -> None:
        """The only commit. Replay: the simulation calls it once per epoch."""
        self.last = record
        self.commits += 1


def _changes(changes: pa.Table) -> Iterator[tuple[str, Values]]:
    for row in changes.to_pylist():
        yield row.pop(CHANGE_TYPE), row
