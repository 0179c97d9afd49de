"""Fill values that the log did not send because they did not change.

PostgreSQL leaves out large values (TOAST) that an update did not touch. Such a change is
*incomplete*: the value is the one that the row has as it stands. Where that is looked up:

    what the change is           where its missing values are
    an update                    the row of its key: changed earlier in this batch, or stored
    an insert after a delete     the key was changed. The row of the new key, if there is one: it
                                 came by a chunk that holds the change. Else the row that the
                                 delete took away, if that is exact
    no such row                  nowhere yet: the change *waits*

A stored row is *exact* when it is the upstream's at the place where the log is. While a table is
being filled it may be newer, which the log's next changes of its key mend; but they do not mend a
value that was copied from it to another key. So until then only rows of this batch are exact.

A change that waits leaves no trace in the table. Its key's snapshot chunk is still to come: a
chunk that begins later sees the change, and a chunk under way is completed with it. Only a row
whose key was changed may have to be read by its key, because its new key may lie where the
snapshot has already been; those are called *moved*.

Pure: the caller looks the stored rows up and hands them in.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.backfill.cdc.key_match import Numbers, group_ids, match_keys
from headwater.cdc.external_table import TRANSACTION, UNCHANGED
from headwater.cdc.spool import gathered
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.model.slices import in_slices
from headwater.state.key_hash import exact_keys

_SLICE_BYTES = 8 << 20
_KINDS = pa.array([each.value for each in ChangeType])
_INSERT, _DELETE, _PREIMAGE = (
    list(ChangeType).index(each)
    for each in (ChangeType.INSERT, ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
)


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Rows some of whose values are not known, each with the transaction that made it."""

    rows: pa.Table
    """The schema's columns."""
    unsent: Numbers
    """By row and column: whether the value is missing."""
    transactions: Numbers

    @staticmethod
    def none(schema: Schema) -> "PartialRows":
        """No rows."""
        return PartialRows.whole(schema.arrow.empty_table())

    @staticmethod
    def whole(rows: pa.Table) -> "PartialRows":
        """Rows that lack nothing."""
        unsent = np.zeros((rows.num_rows, rows.num_columns), dtype=np.bool_)
        return PartialRows(rows, unsent, np.zeros(rows.num_rows, dtype=np.int64))

    def take(self, places: Numbers) -> "PartialRows":
        """Some of the rows."""
        rows = self.rows.take(pa.array(places))
        return PartialRows(rows, self.unsent[places], self.transactions[places])

    def followed_by(self, other: "PartialRows") -> "PartialRows":
        """These rows, then those."""
        if not self.rows.num_rows or not other.rows.num_rows:
            return self if self.rows.num_rows else other
        return PartialRows(
            pa.concat_tables([self.rows, other.rows]),
            np.concatenate([self.unsent, other.unsent]),
            np.concatenate([self.transactions, other.transactions]),
        )


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch with its missing values found where they can be."""

    changes: pa.Table
    """Whole changes in their order: the schema's columns and `_change_type`, no preimages."""
    waiting: PartialRows
    """Keys whose last change is still incomplete, once each."""
    moved: pa.Table
    """Those of the waiting keys that no snapshot chunk can be counted on to bring."""


def without_preimages(changes: pa.Table) -> pa.Table:
    """A preimage says nothing that its postimage does not."""
    if not (_kinds(changes) == _PREIMAGE).any():
        return changes
    return gathered(
        part.filter(pa.array(_kinds(part) != _PREIMAGE))
        for part in in_slices(changes, _SLICE_BYTES)
    )


def keys_to_look_up(changes: pa.Table, schema: Schema) -> pa.Table:
    """The keys whose stored rows `fill_unchanged` needs, without repetition."""
    unsent = _unsent(changes, schema)
    keys = changes.select(list(schema.key))
    if unsent is None:
        return keys.slice(0, 0)
    wanted: Numbers = np.any(unsent, axis=1)
    moved = wanted & (_kinds(changes) == _INSERT)
    wanted[:-1] |= moved[1:]
    chosen = keys.take(pa.array(np.flatnonzero(wanted)))
    unique = np.unique(match_keys(chosen, chosen, schema))
    return chosen.take(pa.array(unique))


def fill_unchanged(changes: pa.Table, base: PartialRows, schema: Schema, *, exact: bool) -> Filled:
    """Complete a batch from itself and from `base`: rows as they stand, and rows that wait.

    `changes` are without preimages and in their order. A key may be in `base` once. `exact` says
    that the table is backfilled.
    """
    unsent = _unsent(changes, schema)
    own = changes.select([*schema.names, CHANGE_TYPE])
    if unsent is None:
        return Filled(own, PartialRows.none(schema), own.select(list(schema.key)).slice(0, 0))
    kinds = _kinds(changes)
    made = PartialRows(own.select(list(schema.names)), unsent, _transactions(changes))
    everything = base.followed_by(made)
    groups = None
    if not (unsent.any(axis=1) & (kinds == _INSERT)).any():
        groups = group_ids(everything.rows, schema)
    if groups is None:
        sources, moved = _sources_in_order(everything, made, kinds, schema, exact)
    else:
        sources, moved = _sources_at_once(everything, made, kinds, groups), None
    return _assembled(everything, made, own, sources, moved, schema)


def complete(partial: PartialRows, rows: pa.Table) -> pa.Table:
    """Put the values of `rows` where `partial` lacks them, row by row."""
    count = rows.num_rows
    columns = []
    for place, name in enumerate(partial.rows.column_names):
        missing = partial.unsent[:, place]
        both = pa.chunked_array(
            [*partial.rows.column(name).chunks, *rows.column(name).chunks], rows.column(name).type
        )
        source = np.arange(count) + np.where(missing, count, 0)
        columns.append(both.take(pa.array(source)))
    return pa.Table.from_arrays(columns, schema=partial.rows.schema)


def _sources_at_once(
    everything: PartialRows, made: PartialRows, kinds: Numbers, groups: Numbers
) -> Numbers:
    """For each change and column, the row whose value it has; -1 for none."""
    before = everything.rows.num_rows - made.rows.num_rows
    order = np.argsort(groups, kind="stable")
    deleted = np.concatenate([np.zeros(before, np.bool_), kinds == _DELETE])[order]
    counter = np.arange(order.size)
    begins = np.append(True, groups[order][1:] != groups[order][:-1])
    # What stood before a delete is no longer a source.
    begin = np.maximum.accumulate(np.where(deleted, counter + 1, np.where(begins, counter, 0)))
    sources = np.empty((order.size, everything.unsent.shape[1]), dtype=np.int64)
    for column in range(everything.unsent.shape[1]):
        missing = everything.unsent[order, column]
        if not missing.any():
            sources[order, column] = order
            continue
        last = np.maximum.accumulate(np.where(missing, -1, counter))
        found = np.where(last >= begin, order[np.maximum(last, 0)], -1)
        sources[order, column] = np.where(missing, found, order)
    chosen: Numbers = sources[before:]
    return chosen


def _sources_in_order(
    everything: PartialRows, made: PartialRows, kinds: Numbers, schema: Schema, exact: bool
) -> tuple[Numbers, Numbers]:
    """The same one change after the other, as changed keys need; and which rows have moved."""
    before = everything.rows.num_rows - made.rows.num_rows
    keys = list(exact_keys(everything.rows, schema.key_columns))
    unsent, width = everything.unsent, everything.unsent.shape[1]
    stands: dict[tuple[Any, ...], list[int]] = {}
    moved_keys: set[tuple[Any, ...]] = set()
    sources = np.empty((made.rows.num_rows, width), dtype=np.int64)
    moved = np.zeros(made.rows.num_rows, dtype=np.bool_)
    nowhere = [-1] * width
    for row in range(before):
        stands[keys[row]] = [-1 if unsent[row, c] else row for c in range(width)]
    taken: list[int] = nowhere
    for change, kind in enumerate(kinds.tolist()):
        row, key = before + change, keys[before + change]
        own = stands.get(key, nowhere)
        if kind == _DELETE:
            taken = stands.pop(key, nowhere)
            taken = [source if exact or source >= before else -1 for source in taken]
            moved_keys.discard(key)
            sources[change] = row
            continue
        origin = own
        if kind == _INSERT and change and kinds[change - 1] == _DELETE:
            same = made.transactions[change] == made.transactions[change - 1]
            origin = [b if b >= 0 else a for a, b in zip(taken, own, strict=True)] if same else own
        now = [origin[c] if unsent[row, c] else row for c in range(width)]
        stands[key] = now
        sources[change] = now
        if min(now) >= 0:
            moved_keys.discard(key)
        elif kind == _INSERT:
            moved_keys.add(key)
        moved[change] = key in moved_keys
    return sources, moved


def _assembled(  # noqa: PLR0913, PLR0917  the parts of one computation
    everything: PartialRows,
    made: PartialRows,
    own: pa.Table,
    sources: Numbers,
    moved: Numbers | None,
    schema: Schema,
) -> Filled:
    before = everything.rows.num_rows - made.rows.num_rows
    columns = []
    for column, name in enumerate(schema.names):
        source = sources[:, column]
        itself = before + np.arange(source.size)
        if (source == itself).all():
            columns.append(own.column(name))
        else:
            places = np.where(source < 0, itself, source)
            columns.append(everything.rows.column(name).take(pa.array(places)))
    missing = sources < 0
    rows = pa.Table.from_arrays(columns, schema=own.select(list(schema.names)).schema)
    lacking: Numbers = np.any(missing, axis=1)
    changes = rows.append_column(CHANGE_TYPE, own.column(CHANGE_TYPE))
    if not lacking.any():
        return Filled(changes, PartialRows.none(schema), rows.select(list(schema.key)).slice(0, 0))
    last = np.unique(match_keys(rows, rows, schema))
    waits = last[lacking[last]]
    partial = PartialRows(rows, missing, made.transactions).take(waits)
    went = np.zeros(0, np.int64) if moved is None else waits[moved[waits]]
    return Filled(
        changes.filter(pa.array(~lacking)),
        partial,
        rows.select(list(schema.key)).take(pa.array(went, pa.int64())),
    )


def _kinds(changes: pa.Table) -> Numbers:
    codes: Numbers = pc.index_in(changes.column(CHANGE_TYPE), value_set=_KINDS).to_numpy()
    return codes


def _transactions(changes: pa.Table) -> Numbers:
    numbers: Numbers = changes.column(TRANSACTION).to_numpy()
    return numbers


def _unsent(changes: pa.Table, schema: Schema) -> Numbers | None:
    """Which values were not sent, by row and column; None when all were."""
    if UNCHANGED not in changes.column_names or not changes.num_rows:
        return None
    bits = changes.column(UNCHANGED)
    if pa.types.is_integer(bits.type):
        numbers = bits.fill_null(0).to_numpy()
        if not numbers.any():
            return None
        marked = np.zeros((len(numbers), len(schema.columns)), dtype=np.bool_)
        reach = min(len(schema.columns), 63)
        marked[:, :reach] = (numbers[:, None] >> np.arange(reach)) & 1 == 1
        return marked
    return _unsent_in_bytes(bits, len(schema.columns))


def _unsent_in_bytes(bits: pa.ChunkedArray, width: int) -> Numbers | None:
    """The same for tables with more columns than an integer has bits; bit 0 is the lowest."""
    size = (width + 7) // 8
    padded = [(each or b"").ljust(size, b"\0")[:size] for each in bits.to_pylist()]
    packed = np.frombuffer(b"".join(padded), dtype=np.uint8).reshape(len(padded), size)
    if not packed.any():
        return None
    marked: Numbers = np.unpackbits(packed, axis=1, bitorder="little")[:, :width] == 1
    return marked
