"""The model of what is stored: tables by epoch, and the ledger that says which epoch is true."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headwater.backfill.cdc.table_backfill import EpochOutput
from headwater.cdc.offset import CdcOffset
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.testing.cdc_simulator.database import Key, Row, Rows, Table


@dataclass(frozen=True, slots=True)
class Record:
    """One commit: the log's place, each table's rows and its backfill."""

    offset: CdcOffset
    rows: Mapping[str, Rows]
    states: Mapping[str, str]
    schemas: Mapping[str, Schema]


class Ledger:
    """Outlives every engine."""

    def __init__(self, offset: CdcOffset) -> None:
        self.last = Record(offset, {}, {}, {})
        self.commits = 0

    def append(self, record: Record) -> None:
        """The only commit. Replay: the simulation calls it once per epoch."""
        self.last = record
        self.commits += 1


@dataclass(slots=True)
class Store:
    """One engine's tables: what is committed, and what it has staged on top."""

    rows: dict[str, Rows] = field(default_factory=dict)

    @staticmethod
    def of(record: Record) -> "Store":
        """The tables as the ledger has them."""
        return Store({name: dict(rows) for name, rows in record.rows.items()})

    def lookup(self, table: Table, keys: pa.Table) -> pa.Table:
        """The stored rows of some keys."""
        stored = self.rows.get(table.name, {})
        found = [(key, *stored[key]) for key in keys.column("id").to_pylist() if key in stored]
        columns = zip(*found, strict=True) if found else ((), (), (), ())
        return pa.table([list(column) for column in columns], schema=table.wide.arrow)

    def stage(self, table: Table, output: EpochOutput) -> None:
        """Put an epoch's output on top. Replay: staged rows die with the engine."""
        rows = {} if output.cleared else dict(self.rows.get(table.name, {}))
        for kind, key, row in _changes(output.changes):
            if kind == ChangeType.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row
        for part in output.parts:
            for key, row in _rows(part.table()):
                rows[key] = row
        self.rows[table.name] = rows


def _changes(changes: pa.Table) -> list[tuple[str, Key, Row]]:
    kinds = changes.column(CHANGE_TYPE).to_pylist()
    return [(kind, *row) for kind, row in zip(kinds, _rows(changes), strict=True)]


def _rows(table: pa.Table) -> list[tuple[Key, Row]]:
    ids, numbers, bigs = (table.column(name).to_pylist() for name in ("id", "a", "big"))
    wide = "c" in table.column_names
    added = table.column("c").to_pylist() if wide else [None] * table.num_rows
    return list(zip(ids, zip(numbers, bigs, added, strict=True), strict=True))
