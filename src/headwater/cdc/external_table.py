"""The contract of an external database: schemas, snapshot chunks by split, and one change log.

    ExternalDatabase        one per source: connects, validates, gives tables and the log
    ExternalStorageTable    one per table: its schema, its splits, its rows by split
    ChangeLog               one per source: all changes of all its tables, in commit order

What a chunk saw
    A chunk is read while others write, and the log is read at another speed. `Seen` says of each
    transaction in the log whether the chunk's rows already hold it. It may say "no" of one that
    they do hold (the log has the whole row, so applying it again does no harm), never "yes" of one
    that they do not.

Promises that every database keeps
    Exact          Values arrive in the type that the schema declares, exactly, or raise an error
                   that names table and column.
    Lock-free      No lock stronger than SHARE UPDATE EXCLUSIVE, and no transaction longer than
                   one chunk.
    Own order      Splits and cursors follow the database's own order of keys.
    Repeatable     Reading the log after the same offset gives the same changes, until that offset
                   was acknowledged.
    Silent         No password reaches an error, an event or a repr.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from headwater.cdc.offset import CdcOffset
from headwater.cdc.survey import LogSurvey
from headwater.model.schema import Column, Schema

TRANSACTION = "_hw_transaction"
"""In changes: what `Seen` asks about, a bigint: PostgreSQL's xid, or the place of the commit."""
UNCHANGED = "_hw_unchanged"
"""In changes: bits of the columns whose value was not sent because it did not change (TOAST)."""
COMMIT_END = "_hw_commit_end"
"""In changes, where a log has it and is asked for it: the end of the commit, as a number."""
COMMITTED_AT = "_hw_committed_at"
"""In changes, where it is asked for: when the transaction committed upstream, a timestamptz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalColumn:
    """A column upstream, and the type that it has here."""

    column: Column
    upstream_type: str
    """As the database spells it."""
    default: str | None = None
    number: int | None = None
    """What the database knows the column by whatever its name is, if it has such a thing."""
    filled: bool = False
    """Whether rows that were there before the column may have a value that no change tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSchema:
    """What a table looks like upstream at one moment."""

    columns: tuple[ExternalColumn, ...]
    key: tuple[str, ...]
    """Empty for a table without a key, whose rows are a multiset."""

    @property
    def schema(self) -> Schema:
        """The same for a state table."""
        return Schema(tuple(each.column for each in self.columns), self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A range of a table, by the first key columns or by physical place.

    Bounds are spelled as the database itself wrote them as text, so that it can read them back in
    any type and collation. None is open. Left is included, right is not.
    """

    number: int
    columns: tuple[str, ...]
    left: tuple[str, ...] | None = None
    right: tuple[str, ...] | None = None
    rows: int | None = None
    """About how many, if known."""


class Seen(Protocol):
    """Which transactions a chunk's rows hold."""

    def holds(self, transactions: pa.Array) -> pa.Array:
        """For each transaction of the log, whether the chunk saw it."""
        ...

    def serialized(self) -> str:
        """As text, for the ledger."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk:
    """Some rows of a split, in key order."""

    rows: pa.Table
    seen: Seen
    low: CdcOffset
    """Everything that committed before it is held."""
    high: CdcOffset
    """Nothing that commits after it is held."""
    cursor: tuple[str, ...] | None
    """Where the next chunk begins (the last key, exclusive); None when the split is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the rows of a table come from, in the words of the source."""

    connector: str
    database: str
    schema: str | None
    """None where databases have no schemas."""
    table: str


class LogEventKind(StrEnum):
    """What a log says besides rows."""

    SCHEMA = "schema"
    TRUNCATE = "truncate"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """Something that happened to a table between two of its changes."""

    kind: LogEventKind
    table: str
    seq: int
    """It happened before the change of this `_seq`."""
    schema: ExternalSchema | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new names of columns, where the log itself says that they were renamed.

    The new name is empty where it says that a column was dropped.
    """
    newest: bool = False
    """Whether the catalog says so, after everything that the log has said up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """Whole transactions in commit order.

    `changes` has, by upstream name: the table's columns, `_change_type` (`insert`, `delete`, and
    `update_preimage` right before `update_postimage`, both with at least the key; an update that
    changes the key is a `delete` and an `insert`), `_seq` (one order over all tables of the
    batch), `TRANSACTION`, `UNCHANGED` where the database has such a thing, and `COMMITTED_AT`
    where it was asked for.
    """

    offset: CdcOffset
    changes: Mapping[str, pa.Table] = field(default_factory=dict)
    events: tuple[LogEvent, ...] = ()
    more: bool = False
    committed_at: float | None = None
    """When the last transaction committed upstream, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """How a table is divided."""

    rows_per_split: int = 500_000
    bytes_per_split: int = 64 << 20
    even: bool = True
    """By statistics where there are some, instead of by counting."""
    column: int = 0
    """Which key column to divide by."""


class ExternalStorageTable(Protocol):
    """One table of an external database. Its readers can be pickled into Spark tasks."""

    @property
    def name(self) -> str:
        """Its full name upstream."""
        ...

    @property
    def schema(self) -> ExternalSchema:
        """As it was when the table was opened."""
        ...

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        """Ranges that together are the whole table, in key order."""
        ...

    def divide(self, split: Split) -> Sequence[Split]:
        """A split that proved too large, as several."""
        ...

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        """The next rows of a split, in a transaction of their own. Blocks; runs in Spark tasks."""
        ...


class HeldSnapshot(Protocol):
    """One snapshot of a table without a key, for all its chunks. Its methods block."""

    @property
    def table(self) -> ExternalStorageTable:
        """The table as the snapshot has it."""
        ...

    @property
    def chunk(self) -> SnapshotChunk:
        """What it saw, without rows."""
        ...

    def alive(self) -> bool:
        """Whether it can still be read."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class ChangeLog(Protocol):
    """The change log of a source. Its methods block and are called in a thread."""

    def current(self) -> CdcOffset:
        """The end of the log now."""
        ...

    def read(self, after: CdcOffset, *, max_bytes: int) -> LogBatch:
        """Whole transactions that follow; none, at once, when there are none yet.

        Raises `SourceUnavailable` for now, and `UserError` when the position is lost.
        """
        ...

    def acknowledge(self, offset: CdcOffset) -> None:
        """Everything before `offset` is safe here. May come again, also with an older one."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class ExternalDatabase(Protocol):
    """A source: made from its options, which it has checked by name."""

    def validate(self) -> None:
        """Whether everything is in place; each lack by name, with what mends it."""
        ...

    def identity(self) -> object:
        """Which server answers. Its `str` is kept with the source, and given to `expect`."""
        ...

    def expect(self, identity: str) -> None:
        """From now on the log is read from that server only; another one raises `UserError`."""
        ...

    def prepare(self, tables: Sequence[str], *, begun: bool = False) -> CdcOffset:
        """Make what we need upstream (slot, publication); may be called again. Gives the start.

        `begun` says that a position is stored already: a slot that is gone is then not made
        again, since it would begin after changes that nobody has read.
        """
        ...

    def running(self) -> tuple[int, ...]:
        """Transactions that the log may lack changes of: those that began before `prepare`.

        A chunk of a new table must see them. None where the log has every table anyway.
        """
        ...

    def open_table(self, name: str, columns: Sequence[str] | None = None) -> ExternalStorageTable:
        """A table, or a subset of its columns."""
        ...

    def hold(self, table: ExternalStorageTable) -> HeldSnapshot:
        """One snapshot for all chunks of a table without a key, until it is closed."""
        ...

    def origin(self, name: str) -> Origin:
        """What a table's names are at the source; the source is not asked."""
        ...

    def open_log(self, tables: Mapping[str, ExternalSchema], *, commits: bool = False) -> ChangeLog:
        """The log, of these tables; with `commits`, changes say when they were committed."""
        ...

    def survey(self, after: CdcOffset | None) -> LogSurvey:
        """How the log stands at the server, seen from `after`; on a connection of its own."""
        ...

    def unpublish(self, tables: Sequence[str], *, followed: Sequence[str]) -> None:
        """What was made for these goes, if it is ours; not of those that others still follow."""
        ...

    def release(self) -> None:
        """Let the server forget all log that it keeps for us. The position is lost with it."""
        ...

    def drop(self) -> None:
        """Remove what is ours upstream. May be called again, also when nothing is left."""
        ...
