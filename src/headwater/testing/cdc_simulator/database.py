"""A model of an external database: transactions, visibility, a log, and what it all comes to.

Three styles of database differ in what a snapshot can say about itself:

    style       a transaction's number    a chunk knows that it holds      a commit is visible
    postgres    its xid, given early      every xid outside its snapshot   later than its record
    mariadb     the place of its commit   what committed up to its place   at once
    mysql       the place of its commit   what committed up to a mark      at once
                                          that was read before it

Rows have a key, a number that is different in every write, a large value that updates often
leave alone, in which case the log does not send it, and columns that come and go. PostgreSQL's
log tells of other columns with the first row after them, or once it is read to its end; the
others' logs have the statement. Keys are locked by whoever writes them until
the transaction is visible or undone, as in the real ones.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from headwater.cdc.external_table import ExternalSchema, Split
from headwater.cdc.offset import PostgresOffset
from headwater.model.change import ChangeType
from headwater.model.types import BIGINT, VARCHAR
from headwater.testing.cdc_simulator.columns import (
    BIG,
    Alteration,
    Columns,
    Row,
    draw_alteration,
    external,
    first_columns,
)

STYLES = ("postgres", "mariadb", "mysql")
TRUNCATED = "truncate"
ALTERED = "alter"
_KEYS = 10

Key = Any
Rows = dict[Key, Row]


@dataclass(frozen=True, slots=True)
class Change:
    """One change in a transaction, as the log will tell it."""

    table: str
    kind: str
    key: Key
    row: Row | None
    unsent: bool
    published: bool
    columns: Columns
    """As they are from then on."""
    said: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Transaction:
    """A transaction that runs, or has committed."""

    xid: int
    changes: list[Change] = field(default_factory=list)
    rows: dict[tuple[str, Key], Row | None] = field(default_factory=dict)
    lsn: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotSeen:
    """By transaction numbers: the first that had not begun, and those that ran."""

    end: int
    running: frozenset[int]

    def holds(self, transactions: pa.Array) -> pa.Array:
        """Whether each was over when the snapshot was taken."""
        return pa.array(
            [each < self.end and each not in self.running for each in transactions.to_pylist()],
            pa.bool_(),
        )

    def serialized(self) -> str:
        """As text."""
        return f"{self.end}:{sorted(self.running)}"


@dataclass(frozen=True, slots=True)
class PlaceSeen:
    """By place: everything that committed up to a mark."""

    mark: int

    def holds(self, transactions: pa.Array) -> pa.Array:
        """Whether each committed up to the mark."""
        return pa.array(transactions.to_numpy(zero_copy_only=False) <= self.mark)

    def serialized(self) -> str:
        """As text."""
        return str(self.mark)


class Table:
    """A table: the order of its keys is its own."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.text = random.random() < 0.4
        self.published = False
        self.rows: Rows = {}
        """What is visible."""
        self.columns = first_columns(VARCHAR if self.text else BIGINT, random)
        self.next_column = 5
        self._random = random

    def row(self, number: int, big: str, before: Row | None = None) -> Row:
        """A row as it is written now: some of its other values are, some stay."""
        values = {} if before is None else dict(before[2])
        for each in self.columns:
            if each.id > BIG and self._random.random() < 0.6:
                values[each.id] = each.written(number)
        return number, big, values

    def key(self, number: int) -> Key:
        """One of the few keys that there are."""
        if not self.text:
            return number - 3
        return chr(ord("a") + number) if number % 2 else chr(ord("A") + number)

    def order(self, key: Key) -> Any:
        """The table's own order, which for text is not that of its bytes."""
        return (key.lower(), key) if self.text else key

    def parse(self, text: str) -> Key:
        """A bound or cursor as a key."""
        return text if self.text else int(text)

    def within(self, split: Split, after: tuple[str, ...] | None) -> Callable[[Key], bool]:
        """Whether a key is in what is left of a split."""
        left = None if split.left is None else self.order(self.parse(split.left[0]))
        right = None if split.right is None else self.order(self.parse(split.right[0]))
        last = None if after is None else self.order(self.parse(after[0]))

        def inside(key: Key) -> bool:
            place = self.order(key)
            return (
                (left is None or place >= left)
                and (right is None or place < right)
                and (last is None or place > last)
            )

        return inside

    def cut(self, split: Split, parts: int, random: Random) -> list[Split]:
        """A split in several, at random keys inside it."""
        inside = self.within(split, None)
        keys = [key for key in map(self.key, range(_KEYS)) if inside(key)]
        chosen = random.sample(keys, min(parts - 1, len(keys)))
        cuts = sorted(chosen, key=self.order)
        if split.left is not None:
            cuts = [key for key in cuts if (str(key),) != split.left]
        bounds = [split.left, *((str(key),) for key in cuts), split.right]
        return [
            Split(number=place + 1, columns=("id",), left=left, right=right, rows=5)
            for place, (left, right) in enumerate(itertools.pairwise(bounds))
        ]


class Database:
    """Tables, running transactions, the log, and the rows after each place in it."""

    def __init__(
        self, style: str, tables: int, random: Random, alters: float | None = None
    ) -> None:
        self.style = style
        self.tables = {f"t{n}": Table(f"t{n}", random) for n in range(tables)}
        for table in self.tables.values():
            # A binary log has every table; a publication has those that were added to it.
            table.published = style != "postgres"
        self.running: list[Transaction] = []
        self.unseen: list[Transaction] = []
        """Committed, and not yet visible."""
        self.log: list[Transaction] = []
        self.lsn = 100
        self.acknowledged = 0
        self._random = random
        self._late = random.choice((0.0, 0.3, 0.7))
        """How often a commit is seen later than its record."""
        self._moves = random.choice((0.1, 0.3, 0.6))
        """How often an update changes the key."""
        self._alters = random.choice((0.0, 0.0, 0.03, 0.15))
        """How often a table is altered or truncated, unless it is said."""
        if alters is not None:
            self._alters = alters
        self._next_xid = 500
        self._next_number = 1
        self._locks: dict[tuple[str, Key], int] = {}
        self._at: dict[int, dict[str, Rows]] = {100: {name: {} for name in self.tables}}
        self._columns_at: dict[str, list[tuple[int, Columns]]] = {
            name: [(0, table.columns)] for name, table in self.tables.items()
        }

    def rows_at(self, lsn: int) -> dict[str, Rows]:
        """The oracle: what each table holds after everything that committed before a place."""
        while lsn not in self._at:
            lsn -= 1
        return self._at[lsn]

    def columns_at(self, table: str, lsn: int) -> Columns:
        """The columns of a table after everything that committed before a place."""
        return [columns for at, columns in self._columns_at[table] if at <= lsn][-1]

    @property
    def last_altered(self) -> int:
        """The last place at which columns changed."""
        return max(each[-1][0] for each in self._columns_at.values())

    def external(self, columns: Columns) -> ExternalSchema:
        """Columns as this database tells of them."""
        return external(columns, numbered=self.style == "postgres")

    def later_numbers(self, table: str, key: Key, lsn: int) -> set[int]:
        """The numbers that a key's row has had after a place."""
        found = set()
        for transaction in self.log:
            if transaction.lsn > lsn:
                for change in transaction.changes:
                    if (change.table, change.key) == (table, key) and change.row is not None:
                        found.add(change.row[0])
        return found

    @property
    def offset(self) -> PostgresOffset:
        """The end of the log."""
        return PostgresOffset(self.lsn)

    def numbers_running(self) -> tuple[int, ...]:
        """The transactions that a snapshot taken now would not see."""
        return tuple(each.xid for each in (*self.running, *self.unseen))

    # Writing

    def step(self) -> None:
        """Something happens: a transaction begins, writes, ends, or comes into sight."""
        dice = self._random.random()
        if self._random.random() < self._alters:
            self._alter(self._random.choice(list(self.tables.values())))
        elif self.unseen and dice < 0.12:
            self.reveal(self._random.choice(self.unseen))
        elif not self.running or (len(self.running) < 4 and dice < 0.45):
            self.running.append(Transaction(self._next_xid))
            self._next_xid += 1
            self._write(self.running[-1])
        elif dice < 0.75:
            self._write(self._random.choice(self.running))
        elif dice < 0.95:
            self.commit(self._random.choice(self.running))
        else:
            self.undo(self._random.choice(self.running))

    def load(self) -> None:
        """Most keys get a row, as in a table that has been used for long."""
        transaction = Transaction(self._next_xid)
        self._next_xid += 1
        self.running.append(transaction)
        for table in self.tables.values():
            for number in range(_KEYS):
                key = table.key(number)
                if self._random.random() < 0.8 and self._lock(transaction, table, key):
                    self._write_key(transaction, table, key)
        self.commit(transaction)

    def _alter(self, table: Table) -> None:
        """Truncate a table, after which no snapshot has its rows, or change its columns."""
        if any(name == table.name for name, _ in self._locks):
            return
        transaction = Transaction(self._next_xid)
        self._next_xid += 1
        self.running.append(transaction)
        if self._random.random() < 0.2:
            transaction.rows = {(table.name, key): None for key in table.rows}
            self._note(transaction, table, TRUNCATED)
        else:
            before = table.columns
            # Only PostgreSQL has both in one transaction.
            writes = 0.3 if self.style == "postgres" else 0.0
            if writes_before := self._random.random() < writes:
                self._write_to(transaction, table)
            made = draw_alteration(table.columns, table.next_column, self._random)
            table.next_column += 1
            table.columns = made.columns
            self._note(transaction, table, ALTERED, made)
            # One transaction with two columns of one name is refused, in a real one too.
            if self._random.random() < writes and not (writes_before and made.reuses(before)):
                self._write_to(transaction, table)
        self.commit(transaction)
        self._columns_at[table.name].append((transaction.lsn, table.columns))
        if transaction in self.unseen:
            self.reveal(transaction)

    def _note(
        self, transaction: Transaction, table: Table, kind: str, made: Alteration | None = None
    ) -> None:
        said = () if made is None else made.said
        change = Change(table.name, kind, None, None, unsent=False, published=table.published,
                        columns=table.columns, said=said)  # fmt: skip
        transaction.changes.append(change)

    def _write_to(self, transaction: Transaction, table: Table) -> None:
        for _ in range(self._random.choice((1, 2, 3))):
            key = table.key(self._random.randrange(_KEYS))
            if self._lock(transaction, table, key):
                self._write_key(transaction, table, key)

    def settle(self) -> None:
        """Every transaction ends and is seen."""
        for transaction in list(self.running):
            (self.commit if self._random.random() < 0.7 else self.undo)(transaction)
        for transaction in list(self.unseen):
            self.reveal(transaction)

    def commit(self, transaction: Transaction) -> None:
        """The record of the commit is in the log; on some days it is seen only later."""
        self.running.remove(transaction)
        self.lsn += self._random.randint(1, 3)
        transaction.lsn = self.lsn
        self.log.append(transaction)
        now = {name: dict(rows) for name, rows in self.rows_at(self.lsn - 1).items()}
        for (table, key), row in transaction.rows.items():
            now[table].pop(key, None)
            if row is not None:
                now[table][key] = row
        self._at[self.lsn] = now
        self.unseen.append(transaction)
        if self.style != "postgres" or self._random.random() >= self._late:
            self.reveal(transaction)

    def reveal(self, transaction: Transaction) -> None:
        """From now on snapshots see it, and others may write its keys."""
        self.unseen.remove(transaction)
        for (table, key), row in transaction.rows.items():
            self.tables[table].rows.pop(key, None)
            if row is not None:
                self.tables[table].rows[key] = row
        self._unlock(transaction)

    def undo(self, transaction: Transaction) -> None:
        """It never was."""
        self.running.remove(transaction)
        self._unlock(transaction)

    def _unlock(self, transaction: Transaction) -> None:
        self._locks = {k: xid for k, xid in self._locks.items() if xid != transaction.xid}

    def _write(self, transaction: Transaction) -> None:
        for _ in range(self._random.choice((1, 1, 2, 3))):
            table = self._random.choice(list(self.tables.values()))
            key = table.key(self._random.randrange(_KEYS))
            if self._lock(transaction, table, key):
                self._write_key(transaction, table, key)

    def _lock(self, transaction: Transaction, table: Table, key: Key) -> bool:
        return self._locks.setdefault((table.name, key), transaction.xid) == transaction.xid

    def _write_key(self, transaction: Transaction, table: Table, key: Key) -> None:
        random = self._random
        row = transaction.rows.get((table.name, key), table.rows.get(key))
        self._next_number += 1
        number = self._next_number
        if row is None:
            self._put(transaction, table, ChangeType.INSERT, key, table.row(number, f"b{number}"))
        elif random.random() < 0.25:
            self._put(transaction, table, ChangeType.DELETE, key, None)
        elif random.random() < self._moves:
            self._change_key(transaction, table, key, row)
        else:
            leaves = random.random() < 0.6
            big = row[1] if leaves else f"b{number}"
            unsent = leaves and self.style == "postgres" and random.random() < 0.8
            self._put(
                transaction,
                table,
                ChangeType.UPDATE_POSTIMAGE,
                key,
                table.row(number, big, row),
                unsent=unsent,
            )

    def _change_key(self, transaction: Transaction, table: Table, key: Key, row: Row) -> None:
        target = table.key(self._random.randrange(_KEYS))
        there = transaction.rows.get((table.name, target), table.rows.get(target))
        if there is not None or target == key or not self._lock(transaction, table, target):
            return
        unsent = self.style == "postgres" and self._random.random() < 0.8
        self._put(transaction, table, ChangeType.DELETE, key, None)
        moved = table.row(self._next_number, row[1], row)
        self._put(transaction, table, ChangeType.INSERT, target, moved, unsent=unsent)

    def _put(  # noqa: PLR0913
        self,
        transaction: Transaction,
        table: Table,
        kind: ChangeType,
        key: Key,
        row: Row | None,
        *,
        unsent: bool = False,
    ) -> None:
        transaction.rows[table.name, key] = row
        transaction.changes.append(
            Change(table.name, kind.value, key, row, unsent, table.published, table.columns)
        )

    def next_xid(self) -> int:
        """The first number that is not given."""
        return self._next_xid
