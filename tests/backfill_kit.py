"""What the tests of the backfill share: a small schema, and chunks and logs drawn by hand."""

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.state import BackfillState, not_begun
from headwater.backfill.cdc.table_backfill import TableBackfill, TableLog
from headwater.cdc.external_table import TRANSACTION, UNCHANGED, SnapshotChunk, Split
from headwater.cdc.offset import PostgresOffset
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR

SCHEMA = Schema(
    (Column("id", BIGINT, nullable=False), Column("a", VARCHAR), Column("big", VARCHAR)), ("id",)
)
SIGNS = {"+": "insert", "-": "delete", "U-": "update_preimage", "U+": "update_postimage"}


class Holds:
    """A chunk that holds these transactions."""

    def __init__(self, *transactions):
        self.transactions = transactions

    def holds(self, transactions):
        return pa.array(np.isin(np.asarray(transactions), self.transactions))

    def serialized(self):
        return str(self.transactions)


def log(*rows, schema=SCHEMA):
    """Changes as (sign, id, a, big, transaction); `...` as big says that it was not sent."""
    signs, ids, names, bigs, transactions = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array(names, pa.string()),
            "big": pa.array([None if big is ... else big for big in bigs], pa.string()),
            CHANGE_TYPE: pa.array([SIGNS[sign] for sign in signs]),
            SEQ: pa.array(range(len(rows)), pa.int64()),
            TRANSACTION: pa.array(transactions, pa.int64()),
            UNCHANGED: pa.array([4 if big is ... else 0 for big in bigs], pa.int64()),
        }
    )


def rows(*values):
    """Rows as (id, a, big)."""
    columns = zip(*values, strict=True) if values else ((), (), ())
    return pa.table([list(column) for column in columns], schema=SCHEMA.arrow)


def chunk(values, seen, *, cursor=None, low=100, high=100):
    """A snapshot chunk of these rows."""
    return SnapshotChunk(
        rows=rows(*values),
        seen=seen,
        low=PostgresOffset(low),
        high=PostgresOffset(high),
        cursor=cursor,
    )


def pairs(table):
    """A table as tuples."""
    return list(zip(*table.to_pydict().values(), strict=True))


class Driven:
    """A table's backfill over one split, and what it has stored."""

    def __init__(self, state=None, *, stored=(), pace=None, **options):
        self.rows = {row[0]: row for row in stored}
        split = Split(number=1, columns=("id",))
        self.backfill = TableBackfill(
            SCHEMA,
            state or BackfillState(splits=not_begun((split,))),
            pace or Pace(),
            offset=PostgresOffset(100),
            lookup=self._lookup,
            at=0.0,
            **options,
        )
        self.place = 100

    def _lookup(self, keys):
        return rows(*(self.rows[key] for key in keys["id"].to_pylist() if key in self.rows))

    def deliver(self, *changes, events=()):
        self.place += 10
        table = log(*changes) if changes else None
        self.backfill.deliver(
            TableLog(offset=PostgresOffset(self.place), changes=table, events=tuple(events))
        )

    def begin(self, at=0.0):
        return self.backfill.next(at)

    def seal(self):
        """End the epoch and store what it gives."""
        output = self.backfill.seal()
        if output.cleared:
            self.rows.clear()
        for row in pairs(output.changes):
            if row[-1] == "delete":
                self.rows.pop(row[0], None)
            else:
                self.rows[row[0]] = row[:-1]
        for part in output.parts:
            for row in pairs(part.table()):
                self.rows[row[0]] = row
        return output
