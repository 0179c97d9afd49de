"""Fold the changes of one delivery, so that a target gets one final change per key.

A log has every change of every epoch, in order; a target is given only the difference. What it
is given depends on its kind, and on whose key it is:

    the sink's key is     all changes of one key are    so of a key count
    the stream's key      of one row, in their order    the first old row and the last new one
    another               of several rows, in any       what is left once equal rows that came and
                          order inside an epoch         went are struck out against each other

In the second case a row that leaves a key and another that takes it may stand in either order.
Whichever it is, the row that is there in the end wins, and a delete is sent only where none is.

    kind          of a key that had    and has     and has no row
    APPEND_ONLY   every new row        INSERT      an error, or nothing with `ignore_delete`
    UPSERT        no row               INSERT      DELETE, or nothing
                  a row                INSERT      DELETE
    RETRACT       no row               INSERT      nothing
                  a row                UPDATE_*    DELETE

Rows without a key are told apart by all their columns. In a key null equals null, 0 equals -0 and
NaN equals NaN, as in SQL's GROUP BY. Pure, and compiled kernels throughout: rows never become
Python objects, except in columns of lists.

Many inserts whose keys all differ, as of a table that is delivered for the first time, are nothing
to fold: they are handed out in the order of their keys, batch by batch, while they are put in it.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import UserError
from headwater.model.change import RowOp
from headwater.sinks.sink import OP, SinkKind, SinkSpec

BATCH_ROWS = 65_536
"""Rows of a batch that a sink is given; even, so that updates stay whole."""
_MANY = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """How one sink's changes are folded."""

    sink: str
    """As the user wrote it; for messages."""
    kind: SinkKind
    schema: pa.Schema = field(repr=False)
    """What comes out: `OP`, then the sink's columns."""
    key: tuple[str, ...]
    ignore_delete: bool = False
    """Deletes are dropped and updates become inserts, as the user wants it."""
    own_key: bool = False
    """Whether the key is not the stream's, so that several of its rows may share one."""
    order: tuple[str, ...] = ()
    """Columns by which many new rows are sorted: a target's index takes them faster so."""

    @classmethod
    def of(cls, spec: SinkSpec, *, ignore_delete: bool = False, own_key: bool = False) -> "Folding":
        """The folding of a sink that a user has asked for."""
        return cls(
            sink=spec.name,
            kind=spec.kind,
            schema=spec.arrow,
            key=spec.key,
            ignore_delete=ignore_delete,
            own_key=own_key,
        )


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """Folded tables that can be read more than once, where the tables can."""

    folding: Folding
    tables: Iterable[pa.Table]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return folded_batches(self.folding, self.tables)


def folded(folding: Folding, tables: Iterable[pa.Table]) -> Iterable[pa.RecordBatch]:
    """Fold tables one after the other, once, or as often as there are such tables."""
    once = iter(tables) is tables
    return folded_batches(folding, tables) if once else FoldedRows(folding, tables)


def folded_batches(folding: Folding, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Fold tables one after the other; each has all changes of a range of vnodes, in order.

    Only one of them is held at a time.
    """
    for table in tables:
        columns = _widened(folding, table)
        order = _order_of_inserts(folding, table, columns)
        if order is None:
            yield from _batches(fold(folding, table))
        else:
            yield from _inserted(folding, columns, order)


def _order_of_inserts(folding: Folding, rows: pa.Table, columns: pa.Table) -> pa.Array | None:
    """The order in which inserts go out that need no folding; None where they may need it."""
    if not folding.order or rows.num_rows < _MANY:
        return None
    if not (rows.column(OP).to_numpy() == RowOp.INSERT).all():
        return None
    order = pc.sort_indices(columns, [(name, "ascending") for name in folding.order])
    if folding.kind is SinkKind.APPEND_ONLY:
        return order
    # Equal keys stand side by side now, if they are equal for the sort and the fold alike.
    if set(folding.order) != set(folding.key):
        return None
    same = pa.scalar(True)
    for name in folding.key:
        values = columns.column(name)
        if pa.types.is_floating(values.type) or values.null_count:
            return None
        ordered = values.take(order).combine_chunks()
        same = pc.and_(same, pc.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1)))
    return None if pc.any(same).as_py() else order


def _inserted(folding: Folding, columns: pa.Table, order: pa.Array) -> Iterator[pa.RecordBatch]:
    whole = columns.combine_chunks()
    for begin in range(0, len(order), BATCH_ROWS):
        taken = whole.take(order.slice(begin, BATCH_ROWS))
        made = _with_ops(folding, taken, np.full(taken.num_rows, RowOp.INSERT, np.int8))
        yield from made.combine_chunks().to_batches()


def fold(folding: Folding, rows: pa.Table) -> pa.Table:
    """Fold changes that are in their order; raises `UserError` where a target cannot take them."""
    ops = rows.column(OP).to_numpy()
    adds = (ops == RowOp.INSERT) | (ops == RowOp.UPDATE_INSERT)
    columns = _widened(folding, rows)
    if folding.ignore_delete and not adds.all():
        columns, adds = columns.filter(pa.array(adds)), adds[adds]
    if folding.order and len(adds) >= _MANY and adds.all():
        columns = columns.take(
            pc.sort_indices(columns, [(name, "ascending") for name in folding.order])
        )
    if folding.kind is SinkKind.APPEND_ONLY:
        if not adds.all():
            raise _not_append_only(folding)
        return _with_ops(folding, columns, np.full(len(adds), RowOp.INSERT, np.int8))
    if not len(adds):
        return _with_ops(folding, columns, np.zeros(0, np.int8))
    if not folding.key:
        return _fold_bag(folding, columns, adds)
    keys, count = _identities([columns.column(name) for name in folding.key])
    if folding.own_key:
        old, new = _net_rows(columns, adds, keys, count)
    else:
        old, new = _first_and_last(adds, keys, count)
    if folding.kind is SinkKind.UPSERT:
        return _upserts(folding, columns, old, new)
    return _retractions(folding, columns, old, new)


def _widened(folding: Folding, rows: pa.Table) -> pa.Table:
    """The sink's columns; those that it got after a row was logged are null there."""
    arrays = [
        rows.column(each.name)
        if each.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, each.type)])
        for each in list(folding.schema)[1:]
    ]
    return pa.Table.from_arrays(arrays, names=folding.schema.names[1:])


def _first_and_last(adds: Any, keys: Any, count: int) -> tuple[Any, Any]:
    """Of each key the place of the row that is gone, and of the one that is there; -1 for none."""
    places = np.arange(len(keys))
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    # Of repeated indices the last one stays.
    first[keys[::-1]] = places[::-1]
    last[keys] = places
    old = np.where(adds[first], -1, first)
    new = np.where(adds[last], last, -1)
    # A row that came and went is sent as gone to targets that cannot mind.
    return np.where((old < 0) & (new < 0), -2 - last, old), new


def _net_rows(columns: pa.Table, adds: Any, keys: Any, count: int) -> tuple[Any, Any]:
    """The same where rows of one key are told apart by their content."""
    old, new = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    mixed = _mixed(adds, keys, count)
    alone = np.flatnonzero(~mixed[keys])
    there, gone = alone[adds[alone]], alone[~adds[alone]]
    new[keys[there]] = there
    old[keys[gone[::-1]]] = gone[::-1]
    places = np.flatnonzero(mixed[keys])
    if len(places):
        subset = columns.take(pa.array(places))
        content, contents = _identities(list(subset.columns))
        signs = np.where(adds[places], 1, -1)
        left = np.bincount(content, weights=signs, minlength=contents)[content]
        there, gone = places[(left > 0) & (signs > 0)], places[(left < 0) & (signs < 0)]
        new[keys[there]] = there
        old[keys[gone[::-1]]] = gone[::-1]
    return old, new


def _mixed(adds: Any, keys: Any, count: int) -> Any:
    """Which keys have rows that came and rows that went."""
    came, went = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    came[keys[adds]] = True
    went[keys[~adds]] = True
    return came & went


def _upserts(folding: Folding, columns: pa.Table, old: Any, new: Any) -> pa.Table:
    # Places below -1 are those of rows that came and went; a delete of them does no harm.
    left = np.where(old < -1, -2 - old, old)
    deletes = np.sort(left[(new < 0) & (left >= 0)])
    inserts = np.sort(new[new >= 0])
    ops = np.full(len(deletes) + len(inserts), RowOp.INSERT, np.int8)
    ops[: len(deletes)] = RowOp.DELETE
    return _with_ops(folding, _taken(columns, np.concatenate([deletes, inserts])), ops)


def _retractions(folding: Folding, columns: pa.Table, old: Any, new: Any) -> pa.Table:
    was, is_ = old >= 0, new >= 0
    deletes = np.sort(old[was & ~is_])
    inserts = np.sort(new[~was & is_])
    both = np.flatnonzero(was & is_)
    both = both[np.argsort(new[both], kind="stable")]
    pairs = np.empty(2 * len(both), np.int64)
    pairs[0::2], pairs[1::2] = old[both], new[both]
    ops = np.concatenate(
        [
            np.full(len(deletes), RowOp.DELETE, np.int8),
            np.tile(np.array([RowOp.UPDATE_DELETE, RowOp.UPDATE_INSERT], np.int8), len(both)),
            np.full(len(inserts), RowOp.INSERT, np.int8),
        ]
    )
    return _with_ops(folding, _taken(columns, np.concatenate([deletes, pairs, inserts])), ops)


def _fold_bag(folding: Folding, columns: pa.Table, adds: Any) -> pa.Table:
    """Rows without a key: each as often as it came more often than it went."""
    content, contents = _identities(list(columns.columns))
    left = np.bincount(content, weights=np.where(adds, 1, -1), minlength=contents).astype(np.int64)
    sample = np.empty(contents, np.int64)
    sample[content] = np.arange(len(content))
    deletes = np.sort(np.repeat(sample, np.maximum(-left, 0)))
    inserts = np.sort(np.repeat(sample, np.maximum(left, 0)))
    ops = np.full(len(deletes) + len(inserts), RowOp.INSERT, np.int8)
    ops[: len(deletes)] = RowOp.DELETE
    return _with_ops(folding, _taken(columns, np.concatenate([deletes, inserts])), ops)


def _identities(columns: Sequence[pa.ChunkedArray]) -> tuple[Any, int]:
    """A number for each row, the same for equal rows, and how many numbers there are."""
    numbers, count = _numbered(columns[0])
    for column in columns[1:]:
        more, of_more = _numbered(column)
        _, numbers = np.unique(numbers * of_more + more, return_inverse=True)
        count = int(numbers.max()) + 1
    return numbers, count


def _numbered(column: pa.ChunkedArray) -> tuple[Any, int]:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_floating(values.type):
        # One zero and one NaN.
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0))
    if pa.types.is_nested(values.type):
        values = pa.array([None if each is None else repr(each) for each in values.to_pylist()])
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _taken(columns: pa.Table, places: Any) -> pa.Table:
    if len(places) == columns.num_rows and (places == np.arange(len(places))).all():
        return columns
    return columns.take(pa.array(places))


def _with_ops(folding: Folding, columns: pa.Table, ops: Any) -> pa.Table:
    arrays = [pa.chunked_array([pa.array(ops, pa.int8())]), *columns.columns]
    return pa.Table.from_arrays(arrays, names=folding.schema.names).cast(folding.schema)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    deletes = int(pc.sum(pc.equal(table.column(OP), int(RowOp.DELETE))).as_py() or 0)
    # Pairs begin after the deletes; an even distance from there never falls between the two.
    cuts = [0, *range(BATCH_ROWS + deletes % 2, table.num_rows, BATCH_ROWS), table.num_rows]
    for low, high in itertools.pairwise(cuts):
        if low < high:
            whole = table.slice(low, high - low).combine_chunks()
            yield from whole.to_batches()


def _not_append_only(folding: Folding) -> UserError:
    return UserError(
        f'sink "{folding.sink}" is append-only, and rows were updated or deleted',
        detail="Its target takes new rows only.",
        hint="Create it with type = 'upsert' and a primary_key, or set ignore_delete = 'true' to "
        "drop deletes and send updates as new rows.",
    )
