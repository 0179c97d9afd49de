"""A stored relation in one epoch, as the rules read it.

The rows before the epoch, its exact changes, and lookups. `StateRelation` is the one over a state
table: rows are found by any columns through the local cache of its files, in which each set of
columns that is asked for gets its own sorted hashes, built when first needed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headwater.model.schema import Column, Schema
from headwater.state.key_hash import exact_keys, key_hashes
from headwater.state.lookup import same_values
from headwater.state.manifest import LiveFile, TableView
from headwater.state.row_cache import CachedFile, RowCache
from headwater.state.table import StateTable
from headwater.views.changes import split
from headwater.views.desk import Side
from headwater.views.spelling import SIDES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Relation(Protocol):
    """What the rules need to know of a table, a view, or a store in one epoch."""

    @property
    def schema(self) -> Schema:
        """Stored columns and key."""
        ...

    @property
    def rows(self) -> int:
        """How many rows there were before the epoch."""
        ...

    @property
    def changes(self) -> "pa.Table | DataFrame | None":
        """Exact changes of the epoch, None when there are none. A store has none."""
        ...

    @property
    def changed_rows(self) -> int:
        """How many rows `changes` has, at least roughly."""
        ...

    def frame(self, side: Side) -> "DataFrame":
        """All rows before or after the epoch."""
        ...

    def lookup(
        self, keys: pa.Table, most: int, columns: Sequence[str] | None = None
    ) -> pa.Table | None:
        """The rows before the epoch that hold one of the keys in the keys' columns.

        Keys are compared null-safe and may be there twice. Only `columns` are wanted, all if
        none are named; they include the keys'. None when there would be more than `most` rows,
        or no index to find them by; then the caller reads everything.
        """
        ...


class StateRelation:
    """A relation that is a state table, between two epochs it can show."""

    def __init__(  # noqa: PLR0913  one argument per thing it is given
        self,
        table: StateTable,
        cache: RowCache,
        before: TableView,
        *,
        frames: "Callable[[Side], DataFrame]",
        changes: "pa.Table | DataFrame | None" = None,
        changed_rows: int | None = None,
    ) -> None:
        self._storage, self._cache = table.storage, cache
        self._dead_rows = table.dead_rows
        self._before = before
        self._frames = frames
        self.changes = changes
        known = changes.num_rows if isinstance(changes, pa.Table) else before.rows
        self.changed_rows = 0 if changes is None else changed_rows or known

    @property
    def schema(self) -> Schema:
        """The table's."""
        return self._before.schema

    @property
    def rows(self) -> int:
        """Before the epoch."""
        return self._before.rows

    def frame(self, side: Side) -> "DataFrame":
        """All rows before or after the epoch."""
        frame = self._frames(side)
        return frame.select(*[f"`{name.replace('`', '``')}`" for name in self.schema.names])

    def lookup(
        self, keys: pa.Table, most: int, columns: Sequence[str] | None = None
    ) -> pa.Table | None:
        """Rows before the epoch by any columns."""
        by = [self.schema[name] for name in keys.column_names]
        if not all(column.type.can_be_key for column in by):
            return None
        indexed = Schema(self.schema.columns, tuple(keys.column_names))
        if set(indexed.key) == set(self.schema.key):
            indexed = self.schema
        return self._find(keys, indexed, most, columns or self.schema.names)

    def _find(
        self, keys: pa.Table, indexed: Schema, most: int, wanted: Sequence[str]
    ) -> pa.Table | None:
        columns = [self.schema[name] for name in keys.column_names]
        by_key = indexed.key_columns
        hashes = key_hashes(keys, by_key)
        parts: list[pa.Table] = [self.schema.arrow.empty_table().select(list(wanted))]
        count = 0
        for live in self._before.files:
            if not live.live_rows:
                continue
            file = self._cache.open(self._storage, live.file.path, indexed, live.file.bytes)
            owner, position = self._search(file, live, hashes)
            count += owner.size
            if count > most:
                return None
            if owner.size:
                rows = file.take(position, wanted)
                equal = same_values(rows, keys.take(pa.array(owner)), columns)
                # A row is found once for each key it equals: 0.0 and -0.0 are two such keys.
                _, once = np.unique(position[equal], return_index=True)
                parts.append(rows.take(pa.array(np.flatnonzero(equal)[once])))
        return pa.concat_tables(parts).combine_chunks()

    def _search(self, file: CachedFile, live: LiveFile, hashes: Any) -> tuple[Any, Any]:
        """(key, position) pairs of live rows whose hash fits."""
        first = np.searchsorted(file.hashes, hashes, side="left")
        counts = np.searchsorted(file.hashes, hashes, side="right") - first
        owner = np.repeat(np.arange(hashes.size), counts)
        starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        position = file.positions[starts + np.arange(owner.size)].astype(np.int64)
        dead = self._dead_rows.of_file(live)
        if dead is None or not position.size:
            return owner, position
        gone = (BitMap(position.astype(np.uint32)) & dead).to_array()
        if not len(gone):
            return owner, position
        alive = ~np.isin(position, np.array(gone, dtype=np.int64))
        return owner[alive], position[alive]


def among(table: pa.Table, keys: pa.Table, columns: Sequence[Column]) -> Any:
    """For each row of a table, whether its columns hold one of the keys; nulls are equal."""
    if not table.num_rows or not keys.num_rows:
        return np.zeros(table.num_rows, dtype=np.bool_)
    known = key_hashes(keys, columns)
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    asked = key_hashes(table, columns)
    place = np.minimum(np.searchsorted(ordered, asked), ordered.size - 1)
    found = ordered[place] == asked
    at = np.flatnonzero(found)
    same = same_values(table.take(pa.array(at)), keys.take(pa.array(order[place[at]])), columns)
    if not same.all():
        # Different keys share a hash: compare the keys themselves.
        exact = set(exact_keys(keys, columns))
        return np.fromiter((k in exact for k in exact_keys(table, columns)), np.bool_, len(found))
    return found


def with_sides(old: pa.Table, changes: pa.Table, keys: pa.Table, schema: Schema) -> pa.Table:
    """Looked-up rows before the epoch made into rows before and after, told apart by a column."""
    gone, came = split(changes, schema)
    columns = [schema[name] for name in keys.column_names]
    left = among(old, gone, schema.key_columns)
    matching = came.filter(pa.array(among(came, keys, columns)))
    sides = np.concatenate([np.where(left, 1, 3), np.full(matching.num_rows, 2)])
    return _with(pa.concat_tables([old.select(list(schema.names)), matching]), sides)


def on_both_sides(old: pa.Table, schema: Schema) -> pa.Table:
    """Looked-up rows of a relation that did not change."""
    return _with(old.select(list(schema.names)), np.full(old.num_rows, 3))


def _with(rows: pa.Table, sides: Any) -> pa.Table:
    return rows.combine_chunks().append_column(SIDES, pa.array(sides.astype(np.int32)))
