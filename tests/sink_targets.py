"""Two small real targets for tests: a table in SQLite, and files that a manifest names.

Both keep every promise of a sink. Subclasses in the tests break one each.
"""

import contextlib
import json
import secrets
import sqlite3
from pathlib import Path

from headwater.errors import Fenced, SinkUnavailable
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.sinks.sink import OP, SinkKind


class _Database:
    """What both have: a SQLite file with a row per sink."""

    def __init__(self, spec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder

    @contextlib.contextmanager
    def transaction(self):
        if (self.folder / "away").exists():
            raise SinkUnavailable("the target is away")
        connection = sqlite3.connect(self.folder / "target.db", timeout=20, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    def check(self) -> None:
        with self.transaction() as on:
            on.execute("CREATE TABLE IF NOT EXISTS progress (sink PRIMARY KEY, term, epoch)")
            on.execute(
                f"CREATE TABLE IF NOT EXISTS {self.spec.ident} (id INT, name TEXT, quantity INT)"
            )

    def begin(self, term: Term) -> Epoch:
        with self.transaction() as on:
            on.execute("INSERT OR IGNORE INTO progress VALUES (?, ?, 0)", (self.spec.ident, term))
            self.require(on, term)
            on.execute("UPDATE progress SET term = ? WHERE sink = ?", (term, self.spec.ident))
            return self.epoch(on)

    def drop(self) -> None:
        with self.transaction() as on:
            on.execute("DELETE FROM progress WHERE sink = ?", (self.spec.ident,))

    def epoch(self, on) -> Epoch:
        query = "SELECT epoch FROM progress WHERE sink = ?"
        return Epoch(on.execute(query, (self.spec.ident,)).fetchone()[0])

    def require(self, on, term: Term) -> None:
        query = "SELECT term FROM progress WHERE sink = ?"
        found = on.execute(query, (self.spec.ident,)).fetchone()
        if found is None or found[0] > term:
            raise Fenced(f"term {found} is at this target, this is {term}")

    def write(self, on, delivery, rows) -> None:
        for op, *row in rows:
            if op in (RowOp.DELETE, RowOp.UPDATE_DELETE) or self.spec.kind is SinkKind.UPSERT:
                on.execute(f"DELETE FROM {self.spec.ident} WHERE id = ?", (row[0],))
            if op in (RowOp.INSERT, RowOp.UPDATE_INSERT):
                on.execute(f"INSERT INTO {self.spec.ident} VALUES (?, ?, ?)", row)

    def mark(self, on, delivery) -> None:
        ident = self.spec.ident
        on.execute("UPDATE progress SET epoch = ? WHERE sink = ?", (delivery.epoch, ident))


class TableSink(_Database):
    """Rows and epoch in one transaction."""

    def deliver(self, delivery, rows) -> None:
        with self.transaction() as on:
            self.require(on, delivery.term)
            if self.epoch(on) >= delivery.epoch:
                return
            for batch in rows:
                self.write(on, delivery, values_of(batch))
            self.mark(on, delivery)


class FileSink(_Database):
    """Rows in files beside the table, which one transaction takes in."""

    def prepare(self, delivery, part: int, rows) -> bytes:
        if (self.folder / "away").exists():
            raise SinkUnavailable("the target is away")
        name = f"{delivery.commit_id}-{delivery.term}-{part}-{secrets.token_hex(4)}.json"
        values = [list(row) for batch in rows for row in values_of(batch)]
        (self.folder / name).write_text(json.dumps(values))
        return name.encode()

    def commit(self, delivery, receipts) -> None:
        with self.transaction() as on:
            self.require(on, delivery.term)
            if self.epoch(on) >= delivery.epoch:
                return
            for receipt in receipts:
                rows = json.loads((self.folder / receipt.decode()).read_text())
                self.write(on, delivery, sorted(rows, key=lambda row: row[0] != RowOp.DELETE))
            self.mark(on, delivery)

    def abort(self, delivery, receipts) -> None:
        for path in self.folder.glob(f"{delivery.commit_id}-*.json"):
            if int(path.name.split("-")[1]) <= delivery.term:
                path.unlink(missing_ok=True)


def values_of(batch):
    assert batch.schema.names[0] == OP
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


class Case:
    """A kit's case over one of the two."""

    large_rows = 600

    def __init__(self, sink, folder: Path, kind: SinkKind) -> None:
        self.kind = kind
        self._sink = sink
        self._folder = folder

    def make(self, spec):
        return self._sink(spec, self._folder)

    def rows(self, spec):
        with contextlib.closing(sqlite3.connect(self._folder / "target.db")) as connection:
            return connection.execute(f"SELECT * FROM {spec.ident}").fetchall()

    def stop_target(self) -> None:
        (self._folder / "away").touch()

    def start_target(self) -> None:
        (self._folder / "away").unlink()
