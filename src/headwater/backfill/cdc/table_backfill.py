"""One table's backfill: log changes and snapshot chunks in, epochs out.

    deliver     the log has more: changes of this table, or only a later place
    next        what to read now; `arrived`, `failed` and `divided` bring the answers
    seal        the epoch ends: everything delivered and accepted, and the state to store with it

Changes are kept until the epoch ends and go into the table with it, whether or not their keys
have been read by a chunk. Chunks are judged when the epoch ends, against every change delivered
by then. What `seal` gives and the log's place go into one record of the ledger, so a crash
takes all of an epoch or nothing: a new `TableBackfill` made from the record carries on.

It does no I/O but to look stored rows up, and has no clock; it is driven by the executors, and
by the simulator.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.column_values import column_values
from headwater.backfill.cdc.filling import (
    Filled,
    PartialRows,
    fill_unchanged,
    keys_to_look_up,
    without_preimages,
)
from headwater.backfill.cdc.key_match import Numbers, match_keys
from headwater.backfill.cdc.machine import (
    Arrived,
    BackfillMachine,
    Instruction,
    ReadKeys,
    Verdict,
)
from headwater.backfill.cdc.merging import (
    ArrowRows,
    ChunkRows,
    RememberedChanges,
    SnapshotPart,
    TransactionsToSee,
    merge_chunk,
)
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.row_shape import (
    conformed,
    exact_types,
    has_columns,
    no_changes,
    selected,
    with_missing,
)
from headwater.backfill.cdc.state import (
    NEWEST,
    BackfillState,
    encode,
    follows,
    keys_as_bytes,
    keys_from_bytes,
)
from headwater.cdc.external_table import (
    TRANSACTION,
    LogEvent,
    LogEventKind,
    SnapshotChunk,
    Split,
)
from headwater.cdc.offset import CdcOffset
from headwater.cdc.schema_change import SchemaChange
from headwater.errors import BrokenInvariant
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Schema

_MOST_TO_SEE = 1 << 20
_MOST_BY_KEY = 1000
"""A table without splits has no chunks to confirm what is visible."""

Lookup = Callable[[pa.Table], pa.Table]
"""Gives the rows that are stored, the epochs sealed so far included, of some keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """One table's part of a `LogBatch`."""

    offset: CdcOffset
    changes: pa.Table | None = None
    events: tuple[LogEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutput:
    """What an epoch does to a table, in this order: clear, changes, parts."""

    offset: CdcOffset
    changes: pa.Table
    """Whole changes in order: the schema's columns and `_change_type`."""
    parts: tuple[SnapshotPart, ...]
    state: str
    cleared: bool = False
    schema: Schema | None = None
    """The schema from this epoch on, where it has changed."""
    renamed: Mapping[str, str] | None = None
    """Columns that stay, by their names before and now, where files must be written anew."""
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class _Begun:
    """What was true when a read began."""

    instruction: Instruction
    delivery: int
    to_see: Numbers
    floor: CdcOffset | None
    keys: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class _Accepted:
    begun: _Begun
    chunk: SnapshotChunk
    rows: ChunkRows


class TableBackfill:
    """One table's backfill, from the state that the ledger has."""

    def __init__(  # noqa: PLR0913  one argument per thing that the caller knows
        self,
        schema: Schema,
        state: BackfillState,
        pace: Pace,
        *,
        offset: CdcOffset,
        lookup: Lookup,
        at: float,
        version: int = NEWEST,
        by_key: bool = False,
    ) -> None:
        if version == 1:
            # That version has room for one split.
            pace = replace(pace, parallelism=1, divide_after_rows=sys.maxsize)
        self.schema = schema
        self.applied = offset
        """The log up to here is applied, or will be with this epoch."""
        self.state = state
        self.machine = BackfillMachine(state, pace, key=schema.key, at=at)
        self._pace = pace
        self._lookup = lookup
        self.version = version
        self._by_key = by_key
        """Of a table without a snapshot: rows that are not here are read by key."""
        most = _MOST_BY_KEY if by_key else _MOST_TO_SEE
        self._to_see = TransactionsToSee(state.to_see, floor=state.floor, most=most)
        self._remembered = RememberedChanges(schema, max_bytes=pace.remembered_bytes)
        self._nothing = no_changes(schema)
        self._waiting = self._nothing.waiting
        self._waits_since = np.empty(0, dtype=np.int64)
        pending = keys_from_bytes(state.pending)
        keys = self._nothing.moved
        self._pending = keys if pending is None else pending.cast(keys.schema)
        self._begun: dict[int, _Begun] = {}
        self._accepted: list[_Accepted] = []
        self._held: list[pa.Table] = []
        self._delivery = 0
        self._cleared = False
        self._new_schema: Schema | None = None
        self._renamed: Mapping[str, str] | None = None
        if by_key:
            # It is filled from the start, and yet rows of it may have to be read.
            self.machine.finished = False
        self._tell_machine()

    # The log

    def deliver(self, log: TableLog) -> None:
        """The log has come to `log.offset`. What was applied before is not applied again."""
        if reaches(self.applied, log.offset):
            return
        self._delivery += 1
        self.applied = log.offset
        changes = log.changes
        for event in log.events:
            if event.kind is LogEventKind.TRUNCATE:
                changes = self._truncated(event, changes)
        if changes is None or not changes.num_rows:
            return
        changes = without_preimages(changes)
        self._held.append(changes)
        if self.machine.finished:
            return
        self._to_see.delivered(np.unique(changes.column(TRANSACTION).to_numpy()), log.offset)
        if self._begun or self._accepted:
            self._remembered.remember(changes, self._delivery)
            if self._remembered.full:
                self._let_go()
        self._tell_machine()

    def _truncated(self, event: LogEvent, changes: pa.Table | None) -> pa.Table | None:
        """What the log said before is void, and chunks under way may have old rows."""
        self._let_go()
        self._held.clear()
        self._cleared = True
        self._waiting, self._pending = self._nothing.waiting, self._nothing.moved
        self._waits_since = np.empty(0, dtype=np.int64)
        if changes is None:
            return None
        return changes.filter(pa.compute.greater_equal(changes[SEQ], event.seq))

    def evolve(self, change: SchemaChange, upto: CdcOffset) -> None:
        """The epoch that ends now brings other columns, and no changes; nothing comes after it.

        `upto` is the end of the batch that tells of the change. New columns whose values of older
        rows are to be read are read by whoever carries on from the state that `seal` gives.
        """
        if self._held:
            raise BrokenInvariant("columns change in an epoch that has changes of rows")
        self._take_schema(change.schema)
        self._renamed = dict(change.kept) if change.rewrites else None
        names = dict(change.kept)
        kept = [names.get(name, name) for name in self.state.fill]
        fresh = (*change.fill, *self._read_ahead(change))
        columns = tuple(dict.fromkeys(n for n in (*kept, *fresh) if n in change.schema.names))
        state = replace(self.state, fill=columns, fill_from=upto if fresh else self.state.fill_from)
        if state.filling:
            # What was filled may be the wrong columns now: all of it once more.
            state = replace(state.finished(), fill=columns, fill_from=state.fill_from)
            self.machine.finish()
        self.state = state

    def _read_ahead(self, change: SchemaChange) -> tuple[str, ...]:
        """Renamed columns whose values are doubtful, because chunks are read by names.

        A chunk that was taken after the change may have found another column under the old name,
        which was added since. What the log has not come past may be such a chunk.
        """
        if self._whole or self._by_key:
            return ()
        highs = [*(each.high for each in self.state.splits), self.state.keys_high]
        if all(high is None or reaches(self.applied, high) for high in highs):
            return ()
        return tuple(now for _, now in change.renamed)

    def _take_schema(self, schema: Schema) -> None:
        """Chunks under way have the old columns: they are read again."""
        self.schema = self._new_schema = schema
        self._let_go()
        self._remembered = RememberedChanges(self.schema, max_bytes=self._pace.remembered_bytes)
        self._nothing = no_changes(self.schema)
        self._waiting = self._nothing.waiting
        self._waits_since = np.empty(0, dtype=np.int64)

    # Reading

    def next(self, at: float) -> list[Instruction]:
        """What to read now."""
        instructions = self.machine.next(at)
        self._begun = {n: begun for n, begun in self._begun.items() if n in self.machine.reads}
        for each in instructions:
            keys = self._pending.slice(0, each.count) if isinstance(each, ReadKeys) else None
            self._begun[each.read] = _Begun(
                each, self._delivery, self._to_see.ids, self._to_see.floor, keys
            )
        return instructions

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that a chunk brings."""
        return (*self.schema.key, *self.state.fill) if self.state.filling else self.schema.names

    def keys_of(self, instruction: ReadKeys) -> pa.Table:
        """The keys that a read is about."""
        keys = self._begun[instruction.read].keys
        assert keys is not None
        return keys

    def arrived(
        self, read: int, chunk: SnapshotChunk, at: float, rows: ChunkRows | None = None
    ) -> Verdict:
        """A read has brought a chunk; `rows` where they are not in memory."""
        begun = self._begun.pop(read, None)
        if begun is None:
            return self.machine.arrived(read, Arrived.ignored(chunk.high), at)
        sees = self._to_see.seen_by(chunk, begun.to_see, begun.floor)
        if rows is None:
            # A reader that does not know of a change yet, or knows of a later one, is asked again.
            sees = sees and has_columns(chunk.rows, self.wanted, self.schema)
            own = selected(chunk.rows, self.wanted, self.schema) if sees else chunk.rows
            rows = ArrowRows(own, self.schema.key)
        summary = Arrived(
            rows=rows.rows,
            bytes=rows.size,
            held=rows.nbytes,
            cursor=chunk.cursor,
            high=chunk.high,
            sees=sees,
        )
        verdict = self.machine.arrived(read, summary, at)
        if verdict is Verdict.ACCEPT:
            self._accepted.append(_Accepted(begun, chunk, rows))
        self._tell_machine()
        return verdict

    def failed(self, read: int, at: float) -> None:
        """A read has brought nothing; it will be repeated."""
        self._begun.pop(read, None)
        self.machine.failed(read, at)

    def divided(self, read: int, parts: Sequence[Split]) -> None:
        """A split is cut."""
        self._begun.pop(read, None)
        self.machine.divided(read, parts)

    # The end of an epoch

    def seal(self) -> EpochOutput:
        """Everything that this epoch does. Replay: a crash before the commit forgets it whole."""
        filled = self._fill()
        self._take_in(filled)
        parts, completed = self._merge_columns(filled) if self.state.filling else self._merge()
        self._forget()
        changes = pa.concat_tables([filled.changes, *completed])
        before, self.state = self.state, self._next_state()
        follows(before, self.state)
        output = EpochOutput(
            offset=self.applied,
            changes=changes,
            parts=tuple(parts),
            state=encode(self.state, version=self.version),
            cleared=self._cleared,
            schema=self._new_schema,
            renamed=self._renamed,
            backfilled=self.state.backfill_finished,
        )
        self._held.clear()
        self._cleared, self._new_schema, self._renamed = False, None, None
        return output

    def _fill(self) -> Filled:
        if not self._held:
            return self._nothing
        changes = self._changes()
        keys = keys_to_look_up(changes, self.schema)
        base = self._nothing.waiting
        if keys.num_rows and not self._cleared:
            stored = self._lookup(keys)
            base = PartialRows.whole(conformed(stored, self.schema))
        if self._waiting.rows.num_rows:
            again = match_keys(self._waiting.rows, changes, self.schema) >= 0
            base = base.followed_by(self._waiting.take(np.flatnonzero(again)))
            self._keep_waiting(~again)
        exact = self._whole and not self._by_key
        return fill_unchanged(changes, base, self.schema, exact=exact)

    def _changes(self) -> pa.Table:
        whole = self._held[0]
        if len(self._held) > 1:
            whole = pa.concat_tables(self._held, promote_options="permissive")
        return exact_types(with_missing(whole, self.schema), self.schema)

    def _take_in(self, filled: Filled) -> None:
        """Sort what is incomplete into rows that wait for their chunk and rows to be read."""
        if self._pending.num_rows:
            settled = match_keys(self._pending, filled.changes, self.schema) >= 0
            self._pending = self._pending.filter(pa.array(~settled))
        waiting = filled.waiting
        if not waiting.rows.num_rows:
            return
        if self._whole:
            raise BrokenInvariant(
                "a change of a backfilled table lacks values, and its row is not here",
                story=[str(waiting.rows.slice(0, 5).to_pylist())],
            )
        moved = filled.moved
        if self._by_key:
            moved = waiting.rows.select(list(self.schema.key))
        fresh = match_keys(moved, self._pending, self.schema) < 0
        self._pending = pa.concat_tables([self._pending, moved.filter(pa.array(fresh))])
        # A chunk may hold an older row of a key that was taken anew: only reading it is safe.
        ordinary = np.flatnonzero(match_keys(waiting.rows, self._pending, self.schema) < 0)
        self._waiting = self._waiting.followed_by(waiting.take(ordinary))
        since = np.full(ordinary.size, self._delivery, dtype=np.int64)
        self._waits_since = np.concatenate([self._waits_since, since])

    def _merge(self) -> tuple[list[SnapshotPart], list[pa.Table]]:
        parts, completed = [], []
        for each in self._accepted:
            seen = each.chunk.seen
            merged = merge_chunk(each.rows, seen, self._remembered, self._waiting, self.schema)
            if merged.part.rows:
                parts.append(merged.part)
            if merged.completed.num_rows:
                kinds = pa.array([ChangeType.INSERT.value] * merged.completed.num_rows)
                completed.append(merged.completed.append_column(CHANGE_TYPE, kinds))
            left = np.ones(self._waiting.rows.num_rows, dtype=np.bool_)
            left[merged.brought] = False
            self._keep_waiting(left)
            self._settle(each)
        self._accepted.clear()
        return parts, completed

    @property
    def _whole(self) -> bool:
        """Whether every row is here, though perhaps not every value of it."""
        return self.machine.finished or self.state.filling

    def _merge_columns(self, filled: Filled) -> tuple[list[SnapshotPart], list[pa.Table]]:
        """Values of new columns go into the rows as they stand."""
        found = []
        for each in self._accepted:
            rows = each.rows.take(np.arange(each.rows.rows))
            newer = self._remembered.newer_than(each.chunk.seen)
            found.append(column_values(rows, newer, filled.changes, self._stored, self.schema))
        self._accepted.clear()
        return [], [rows for rows in found if rows.num_rows]

    def _stored(self, keys: pa.Table) -> pa.Table:
        return conformed(self._lookup(keys), self.schema)

    def _settle(self, each: _Accepted) -> None:
        """Keys that were to be read are, unless they have changed again since."""
        if not self._pending.num_rows:
            return
        covered = each.rows.keys() if each.begun.keys is None else each.begun.keys
        newer = self._remembered.newer_than(each.chunk.seen)
        settled = match_keys(self._pending, covered, self.schema) >= 0
        settled &= match_keys(self._pending, newer, self.schema) < 0
        self._pending = self._pending.filter(pa.array(~settled))

    def _forget(self) -> None:
        """Keep only what chunks under way may still need."""
        oldest = min((each.delivery for each in self._begun.values()), default=self._delivery)
        self._remembered.forget_before(oldest + 1)
        self._keep_waiting(self._waits_since > oldest)

    def _next_state(self) -> BackfillState:
        self._tell_machine()
        if self.machine.finished:
            return self.state
        splits = self.machine.sealed(self.applied)
        state = BackfillState(
            splits=splits,
            to_see=tuple(self._to_see.ids.tolist()),
            floor=self._to_see.floor,
            pending=keys_as_bytes(self._pending),
            keys_high=self.machine.keys_high,
            backfill_finished=self._by_key,
            done_splits=self.state.done_splits,
            done_rows=self.state.done_rows,
            done_bytes=self.state.done_bytes,
            fill=self.state.fill,
            fill_from=self.state.fill_from,
            filling=self.state.filling,
        )
        if self._by_key:
            return state
        if self.machine.backfilled:
            self.machine.finish()
            self._begun.clear()
            return state.finished()
        return state

    def _keep_waiting(self, keeps: Numbers) -> None:
        if not keeps.all():
            self._waiting = self._waiting.take(np.flatnonzero(keeps))
            self._waits_since = self._waits_since[keeps]

    def _let_go(self) -> None:
        """Forget what was read and not yet stored; it is read again."""
        self.machine.discard()
        self._begun.clear()
        self._accepted.clear()
        self._remembered.forget_before(self._delivery + 1)

    def _tell_machine(self) -> None:
        self.machine.pending = self._pending.num_rows
        self.machine.unseen = len(self._to_see)
