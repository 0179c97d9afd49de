"""One table of PostgreSQL, read in chunks that each know what they saw.

A chunk is one short transaction: it takes its snapshot, says which one it is, and copies rows
after the cursor, in key order, until it has enough rows or bytes. Rows are compared as a whole
(`(a, b) > ('7', 'x')`), which the key's index answers, in the column's own collation.

Marks
    seen    the transaction's own snapshot, exact
    high    the log's end right after the snapshot was taken: what it saw is before that
    low     an earlier end of the log before which nothing can be missing (`marks.py`), or the
            beginning of time where none is proven. Ask `seen`, which is exact.

A table without a key is read by physical place, under one exported snapshot for all chunks:
rows move when they are updated, so chunks of different moments would miss some.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from headwater.cdc.external_table import ExternalSchema, SnapshotChunk, Split, SplitOptions
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.cells import Place
from headwater.cdc.postgres.connecting import CopyChannel, connect, session, translated
from headwater.cdc.postgres.copy_binary import CopyReader
from headwater.cdc.postgres.keys import spelled_keys, spelled_value
from headwater.cdc.postgres.marks import IDLE, MARK, SNAPSHOT, Mark, Marks
from headwater.cdc.postgres.options import PostgresOptions
from headwater.cdc.postgres.schema import PgTable
from headwater.cdc.postgres.seen import PostgresSeen
from headwater.cdc.postgres.splits import (
    PLACE,
    compared,
    divide_split,
    plan_splits,
    quoted_text,
    range_conditions,
)
from headwater.cdc.postgres.types import Codec, Wire
from headwater.errors import BrokenInvariant, SourceUnavailable
from headwater.model.spelling import sql_quoted
from headwater.model.types import VARCHAR

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_CURSOR = "_hw_cursor_"
_UNBOUNDED = 1 << 62
_SPELLED_HERE = frozenset(
    {
        Codec.BOOL,
        Codec.INT2,
        Codec.INT4,
        Codec.INT8,
        Codec.OID,
        Codec.DECIMAL,
        Codec.NUMERIC,
        Codec.TEXT,
        Codec.BYTEA,
        Codec.UUID,
    }
)
"""Keys of these are spelled here as the server would; others are asked for as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSnapshot:
    """A snapshot that other transactions can take on, while its holder is open."""

    name: str
    seen: PostgresSeen
    low: PostgresOffset
    high: PostgresOffset


@dataclass(frozen=True, slots=True)
class _Copied:
    """What came: the columns, and the texts that were asked for besides."""

    rows: pa.Table
    bytes: int
    complete: bool

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)


class SnapshotHolder:
    """Keeps one exported snapshot alive; closing it, or losing the connection, ends it."""

    def __init__(self, options: PostgresOptions, marks: Marks | None = None) -> None:
        self._connection = connect(options)
        with translated(options):
            mark = self._connection.execute(MARK).fetchone()
            self._connection.execute(_BEGIN)
            row = self._connection.execute(
                f"SELECT pg_export_snapshot(), * FROM ({SNAPSHOT}) m(snapshot, lsn)"
            ).fetchone()
            idle = [each[0] for each in self._connection.execute(IDLE).fetchall()]
        assert mark is not None
        assert row is not None
        self.marks = (marks or Marks()).with_mark(Mark.of(*mark))
        seen, high = PostgresSeen.of(row[1]), PostgresOffset.of(row[2])
        low = self.marks.low(seen, idle)
        self.snapshot = ExportedSnapshot(name=row[0], seen=seen, low=low, high=high)

    def alive(self) -> bool:
        """Whether the snapshot can still be taken on."""
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        """Let go of the snapshot."""
        self._connection.close()


class HeldTable:
    """A table without a key as one snapshot has it."""

    def __init__(self, options: PostgresOptions, table: "PostgresTable") -> None:
        self._holder = SnapshotHolder(options, table.marks)
        # A snapshot proves something of marks made before it: the next one will need this.
        table.marks = self._holder.marks
        self.table = table.at(self._holder.snapshot)

    @property
    def chunk(self) -> SnapshotChunk:
        """What the snapshot saw, without rows."""
        seen = self._holder.snapshot
        columns = [each.column for each in self.table.schema.columns]
        rows = pa.schema([(each.name, each.type.arrow) for each in columns]).empty_table()
        return SnapshotChunk(rows=rows, seen=seen.seen, low=seen.low, high=seen.high, cursor=None)

    def alive(self) -> bool:
        """Whether it can still be read."""
        return self._holder.alive()

    def close(self) -> None:
        """Let go of it, and of the connections that read it."""
        self.table.close()
        self._holder.close()


class PostgresTable:
    """Reads one table. Can be pickled; each copy opens its own connections."""

    def __init__(
        self,
        options: PostgresOptions,
        table: PgTable,
        *,
        snapshot: ExportedSnapshot | None = None,
        marks: Marks | None = None,
    ) -> None:
        self._options = options
        self._table = table
        self._snapshot = snapshot
        self.marks = marks or Marks()
        self._lock = threading.Lock()
        self._idle: list[CopyChannel] = []
        self._row_bytes = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._options, self._table, self._snapshot, self.marks)

    def __repr__(self) -> str:
        return f"PostgresTable({self.name})"

    @property
    def name(self) -> str:
        """Its full name upstream."""
        return self._table.full_name

    @property
    def schema(self) -> ExternalSchema:
        """As it was when the table was opened."""
        return self._table.external

    @property
    def described(self) -> PgTable:
        """What the catalog said when the table was opened."""
        return self._table

    def at(self, snapshot: ExportedSnapshot) -> "PostgresTable":
        """The same table as an exported snapshot sees it; for tables without a key."""
        return PostgresTable(self._options, self._table, snapshot=snapshot)

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        """Ranges that together are the whole table, in key order or by place."""
        with session(self._options) as connection:
            return plan_splits(connection, self._table, options)

    def divide(self, split: Split) -> Sequence[Split]:
        """A split as several; their numbers count from 0 and are for the caller to replace."""
        with session(self._options) as connection:
            return divide_split(connection, self._table, split)

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        """The next rows of a split: at least one if there is one, whatever `max_bytes` says."""
        limit = max(max_rows, 1)
        if self._row_bytes:
            limit = max(1, min(limit, int(max_bytes / self._row_bytes)))
        query = self._query(split, after, limit)
        copied, chunk = self._transaction(self._asked_as_text(split), query, max_bytes)
        if copied.num_rows:
            self._row_bytes = copied.bytes / copied.num_rows
        if not copied.num_rows or (copied.complete and copied.num_rows < limit):
            return chunk
        return replace(chunk, cursor=self._cursor(split, copied.rows))

    def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows that have these keys, in a transaction of their own."""
        copied, chunk = self._transaction((), self._query_by_key(keys), _UNBOUNDED)
        assert copied.complete
        return chunk

    def close(self) -> None:
        """Let go of connections; more may be opened later."""
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()

    def _transaction(
        self, spelled: Sequence[str], query: str, max_bytes: int
    ) -> tuple["_Copied", SnapshotChunk]:
        """One query in a transaction that knows what it saw; `spelled` are its further texts."""
        channel = self._take()
        try:
            self.marks = self.marks.with_mark(Mark.of(*channel.query(MARK)[0]))
            channel.execute(_BEGIN)
            if self._snapshot is not None:
                channel.execute(f"SET TRANSACTION SNAPSHOT {quoted_text(self._snapshot.name)}")
            else:
                # Before the snapshot: to one that is older than an ALTER TABLE that rewrites it,
                # the table is empty.
                channel.execute(f"LOCK TABLE {self._table.sql_from} IN ACCESS SHARE MODE")
            [[seen_text, high_text]] = channel.query(SNAPSHOT)
            seen, high = PostgresSeen.of(seen_text), PostgresOffset.of(high_text)
            low = self._low(channel, seen)
            if self._snapshot is not None:
                low, high = self._snapshot.low, self._snapshot.high
            reader = self._reader(spelled)
            complete = channel.copy(query, lambda piece: self._wanted(reader, piece, max_bytes))
            if complete:
                channel.execute("COMMIT")
            rows = reader.table()
        except BaseException:
            channel.abandon()
            raise
        if complete:
            self._give_back(channel)
        else:
            # The server still sends; a closed connection is the quickest way to stop it.
            channel.abandon()
        if complete and not reader.ended:
            raise SourceUnavailable(f"a COPY of {self.name} ended in the middle")
        own = rows.select([column.name for column in self._table.columns])
        chunk = SnapshotChunk(rows=own, seen=seen, low=low, high=high, cursor=None)
        return _Copied(rows, reader.bytes, complete), chunk

    def _low(self, channel: CopyChannel, seen: PostgresSeen) -> PostgresOffset:
        marks = self.marks
        low = marks.low(seen)
        if low < marks.kept[-1].end:
            low = max(low, marks.low(seen, [row[0] for row in channel.query(IDLE)]))
        return low

    @staticmethod
    def _wanted(reader: CopyReader, piece: bytes, max_bytes: int) -> bool:
        reader.feed(piece)
        return reader.bytes < max_bytes or not reader.has_rows()

    def _reader(self, spelled: Sequence[str]) -> CopyReader:
        columns = [(column.name, column.wire) for column in self._table.columns]
        columns += [(_CURSOR + name, Wire(VARCHAR, Codec.TEXT)) for name in spelled]
        as_null = self._options.unrepresentable_as_null
        places = [Place(self.name, name, as_null) for name, _ in columns]
        return CopyReader(columns, places)

    def _query(self, split: Split, after: tuple[str, ...] | None, limit: int) -> str:
        chosen = [_selected(column.name, column.wire) for column in self._table.columns]
        chosen += [f"{_named(name)}::text" for name in self._asked_as_text(split)]
        order = PLACE if split.columns == PLACE else self._table.key
        conditions = range_conditions(self._table, split)
        if after is not None:
            conditions.append(compared(self._table, order, ">", after))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        # Qualified, since a bare name in ORDER BY means the output, which may be the key's text.
        names = ", ".join(f"src.{_named(name)}" for name in order)
        return (
            f"SELECT {', '.join(chosen)} FROM {self._table.sql_from} AS src{where}"
            f" ORDER BY {names} LIMIT {limit}"
        )

    def _query_by_key(self, keys: pa.Table) -> str:
        chosen = [_selected(column.name, column.wire) for column in self._table.columns]
        names = ", ".join(_named(name) for name in self._table.key)
        types = [self._table.column(name).upstream_type for name in self._table.key]
        rows = ", ".join(
            "("
            + ", ".join(
                f"{quoted_text(text)}::{type_}" for text, type_ in zip(row, types, strict=True)
            )
            + ")"
            for row in spelled_keys(keys.select(list(self._table.key)))
        )
        where = f"({names}) IN ({rows})" if rows else "false"
        return f"SELECT {', '.join(chosen)} FROM {self._table.sql_from} WHERE {where}"

    def _asked_as_text(self, split: Split) -> list[str]:
        """Columns of the cursor that the server has to spell."""
        if split.columns == PLACE:
            return list(PLACE)
        return [
            name
            for name in self._table.key
            if self._table.column(name).wire.codec not in _SPELLED_HERE
        ]

    def _cursor(self, split: Split, copied: pa.Table) -> tuple[str, ...]:
        asked = set(self._asked_as_text(split))
        last = copied.slice(copied.num_rows - 1)
        order = PLACE if split.columns == PLACE else self._table.key
        cursor = []
        for name in order:
            value = last.column(_CURSOR + name if name in asked else name)[0].as_py()
            if value is None:
                raise BrokenInvariant(f'key column "{name}" of {self.name} is null')
            cursor.append(spelled_value(value))
        return tuple(cursor)

    def _take(self) -> CopyChannel:
        with self._lock:
            while self._idle:
                channel = self._idle.pop()
                if not channel.broken:
                    return channel
                channel.abandon()
        return CopyChannel(self._options)

    def _give_back(self, channel: CopyChannel) -> None:
        with self._lock:
            self._idle.append(channel)


def _rebuilt(
    options: PostgresOptions, table: PgTable, snapshot: ExportedSnapshot | None, marks: Marks
) -> PostgresTable:
    return PostgresTable(options, table, snapshot=snapshot, marks=marks)


def _named(name: str) -> str:
    return name if name == PLACE[0] else sql_quoted(name)


def _selected(name: str, wire: Wire) -> str:
    """A column in the form that its wire says.

    A cast to text is not what the log has: `inet '10.0.0.1'::text` has a mask, and an xml its
    encoding. `format` writes what the type's output function writes, as the log does; a value
    is null only if it is distinct from nothing, also where a composite has only nulls inside.
    """
    column = sql_quoted(name)
    if wire.binary:
        return column
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END"
