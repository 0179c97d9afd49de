"""Columns that say of a row when and where it was written, next to what it holds.

    CREATE TABLE t (*) INCLUDE TIMESTAMP AS changed_at INCLUDE TABLE_NAME AS origin FROM ...

    kind             a row that the log brought       a row that the snapshot brought
    TIMESTAMP        when its transaction committed   1970-01-01 00:00:00+00
    DATABASE_NAME    the names of the table           the same
    SCHEMA_NAME      upstream; MySQL has no schemas
    TABLE_NAME

A snapshot does not know when its rows were written, so its rows have the epoch, as RisingWave's
have. That is also true of a row which the log brought while the table was being filled and which
the snapshot then read: what it read holds that change, and says nothing of its time.

The columns are stored like any other. They are put onto chunks where these are read, also in
Spark tasks, and onto changes where the log is handed out; nobody further in knows of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa

from headwater.cdc.external_table import (
    ExternalDatabase,
    ExternalSchema,
    ExternalStorageTable,
    HeldSnapshot,
    Origin,
    SnapshotChunk,
    Split,
    SplitOptions,
)
from headwater.errors import NotSupported
from headwater.model.schema import Column
from headwater.model.types import TIMESTAMPTZ, VARCHAR, DataType

SNAPSHOT_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_BLOCK = 1 << 16


class IncludedKind(StrEnum):
    """What can be included."""

    TIMESTAMP = "timestamp"
    DATABASE_NAME = "database_name"
    SCHEMA_NAME = "schema_name"
    TABLE_NAME = "table_name"

    @property
    def type(self) -> DataType:
        """The type of such a column."""
        return TIMESTAMPTZ if self is IncludedKind.TIMESTAMP else VARCHAR


@dataclass(frozen=True, slots=True)
class IncludedColumn:
    """One such column: its name here, and its value where that is always the same."""

    name: str
    kind: IncludedKind
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Included:
    """The included columns of one table, in order."""

    columns: tuple[IncludedColumn, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def names(self) -> frozenset[str]:
        """Their names here."""
        return frozenset(each.name for each in self.columns)

    @property
    def stored(self) -> tuple[Column, ...]:
        """As columns of a schema."""
        return tuple(Column(each.name, each.kind.type) for each in self.columns)

    @property
    def times(self) -> bool:
        """Whether the log has to say when its transactions committed."""
        return any(each.kind is IncludedKind.TIMESTAMP for each in self.columns)

    def in_snapshot(self, rows: pa.Table) -> pa.Table:
        """Rows that a snapshot brought, with these columns."""
        return self._added(rows, None)

    def in_log(self, changes: pa.Table, committed_at: pa.ChunkedArray | None) -> pa.Table:
        """Changes that the log brought, with these columns."""
        return self._added(changes, committed_at)

    def _added(self, rows: pa.Table, times: pa.ChunkedArray | None) -> pa.Table:
        for each in self.columns:
            type_ = each.kind.type.arrow
            if each.kind is not IncludedKind.TIMESTAMP:
                values = _repeated(each.value, rows.num_rows, type_)
            elif times is None:
                values = _repeated(SNAPSHOT_TIME, rows.num_rows, type_)
            else:
                values = times.cast(type_)
            rows = rows.append_column(pa.field(each.name, type_), values)
        return rows


def _repeated(value: object, count: int, type_: pa.DataType) -> pa.ChunkedArray:
    """A value as often as it takes, in the memory of a few: all chunks share theirs."""
    block = pa.repeat(pa.scalar(value, type_), min(count, _BLOCK))
    whole, rest = divmod(count, _BLOCK)
    return pa.chunked_array([*[block] * whole, block.slice(0, rest)], type_)


def included(said: Iterable[tuple[str, str]], origin: Origin) -> Included:
    """What a statement includes, as kinds and names; an empty name is RisingWave's default."""
    return Included(tuple(_column(kind, name, origin) for kind, name in said))


def _column(said: str, name: str, origin: Origin) -> IncludedColumn:
    name = name or f"_rw_{origin.connector}_{said}"
    if said not in list(IncludedKind):
        known = ", ".join(each.upper() for each in IncludedKind)
        raise NotSupported(
            f"INCLUDE {said.upper()} is not supported for tables of a database",
            hint=f"These can be included: {known}.",
        )
    kind = IncludedKind(said)
    match kind:
        case IncludedKind.TIMESTAMP:
            return IncludedColumn(name, kind)
        case IncludedKind.DATABASE_NAME:
            return IncludedColumn(name, kind, origin.database)
        case IncludedKind.TABLE_NAME:
            return IncludedColumn(name, kind, origin.table)
        case IncludedKind.SCHEMA_NAME:
            if origin.schema is None:
                raise NotSupported(
                    f"INCLUDE SCHEMA_NAME is not supported for {origin.connector}",
                    hint="MySQL and MariaDB have no schemas inside of a database: use "
                    "INCLUDE DATABASE_NAME.",
                )
            return IncludedColumn(name, kind, origin.schema)


class _Readable(ExternalStorageTable, Protocol):
    def read_keys(self, keys: pa.Table) -> SnapshotChunk: ...

    def close(self) -> None: ...


class IncludingTable:
    """An external table whose chunks have the included columns too. Can be pickled."""

    def __init__(self, table: _Readable, columns: Included) -> None:
        self.bare = table
        self.included = columns

    def __repr__(self) -> str:
        return f"IncludingTable({self.bare!r})"

    @property
    def name(self) -> str:
        """Its full name upstream."""
        return self.bare.name

    @property
    def schema(self) -> ExternalSchema:
        """As it is upstream, without them."""
        return self.bare.schema

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        """Ranges that together are the whole table."""
        return self.bare.splits(options)

    def divide(self, split: Split) -> Sequence[Split]:
        """A split that proved too large, as several."""
        return self.bare.divide(split)

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        """The next rows of a split."""
        chunk = self.bare.read_chunk(split, after, max_rows=max_rows, max_bytes=max_bytes)
        return replace(chunk, rows=self.included.in_snapshot(chunk.rows))

    def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows of these keys."""
        chunk = self.bare.read_keys(keys)
        return replace(chunk, rows=self.included.in_snapshot(chunk.rows))

    def close(self) -> None:
        """Let go of connections."""
        self.bare.close()


class _Held:
    """A held snapshot whose table has the included columns too."""

    def __init__(self, held: HeldSnapshot, columns: Included) -> None:
        self._held = held
        bare: Any = held.table
        self.table = IncludingTable(bare, columns)
        self.chunk = held.chunk

    def alive(self) -> bool:
        return self._held.alive()

    def close(self) -> None:
        self._held.close()


def hold(database: ExternalDatabase, table: ExternalStorageTable) -> HeldSnapshot:
    """One snapshot for all chunks of a table without a key, with the columns it includes."""
    if isinstance(table, IncludingTable):
        return _Held(database.hold(table.bare), table.included)
    return database.hold(table)
