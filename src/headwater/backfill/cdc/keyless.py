"""Backfill a table without a key: its rows are a multiset, counted rather than named.

A row that has no key cannot be told from its equal, so a change cannot be applied twice and a
chunk cannot be merged key by key. Instead one snapshot serves all splits, and

    a change that the snapshot holds        is skipped
    any other insert                        adds one copy of its row
    any other delete (needs whole rows)     takes one copy away; if the copy is still to come with
                                            a chunk, it is owed, and stored as such

Stored rows get a hidden key: a digest of the row, and the number of the copy. An update is a
delete and an insert. Digests have 128 bits, so that two rows never share one.

Columns that are not the row's own (*included*: when and where it was written) are not in the
digest. Copies of a row may differ in them: those that came last are those that go first.

The snapshot lives in a connection. When that is lost before the table is backfilled, for example
in a crash, the rows stored so far are cleared and the table begins again in a new *generation*;
no other snapshot would have its rows in the same places. Log changes until the next snapshot is
being opened need no care: it must see them all. Those that come while it opens wait for it.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.key_match import Numbers
from headwater.backfill.cdc.machine import Arrived, BackfillMachine, Instruction, Verdict
from headwater.backfill.cdc.merging import ChunkRows, TransactionsToSee
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.state import (
    BackfillState,
    encode,
    follows,
    keys_as_bytes,
    keys_from_bytes,
    not_begun,
)
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.cdc.external_table import TRANSACTION, LogEventKind, Seen, SnapshotChunk, Split
from headwater.cdc.offset import CdcOffset
from headwater.errors import DamagedState, UserError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, HIDDEN_PREFIX, SEQ
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR

ROW_DIGEST = f"{HIDDEN_PREFIX}row"
ROW_COPY = f"{HIDDEN_PREFIX}copy"
_MOST_OWED = 1_000_000
_MOST_TO_SEE = 10_000

Copies = Callable[[Sequence[str]], Sequence[int]]
"""How many copies of each row are stored, the epochs sealed so far included."""


def keyless_schema(columns: Sequence[Column]) -> Schema:
    """The schema under which such a table is stored."""
    hidden = (Column(ROW_DIGEST, VARCHAR, nullable=False), Column(ROW_COPY, BIGINT, nullable=False))
    return Schema((*columns, *hidden), (ROW_DIGEST, ROW_COPY))


def row_digests(rows: pa.Table, columns: Sequence[str]) -> list[str]:
    """A digest per row, equal for equal rows."""
    values = [rows.column(name).to_pylist() for name in columns]
    return [
        hashlib.blake2b(repr(row).encode(), digest_size=16).hexdigest()
        for row in zip(*values, strict=True)
    ]


def count_copies(exists: Callable[[pa.Table], Sequence[bool]], digests: Sequence[str]) -> list[int]:
    """Count by looking up whether copy 0, 1, 3, 7, ... is there, and then in between.

    `exists` says of hidden keys whether a row is stored under each.
    """
    low, high = [0] * len(digests), [1] * len(digests)
    # Copies are numbered without gaps: copy n - 1 is there exactly when there are n or more.
    growing = list(range(len(digests)))
    while growing:
        found = exists(_hidden_keys([digests[i] for i in growing], [high[i] - 1 for i in growing]))
        growing = [i for i, there in zip(growing, found, strict=True) if there]
        for i in growing:
            low[i], high[i] = high[i], high[i] * 2
    open_ = [i for i in range(len(digests)) if high[i] - low[i] > 1]
    while open_:
        middle = [(low[i] + high[i]) // 2 for i in open_]
        keys = _hidden_keys([digests[i] for i in open_], [m - 1 for m in middle])
        for i, m, there in zip(open_, middle, exists(keys), strict=True):
            if there:
                low[i] = m
            else:
                high[i] = m
        open_ = [i for i in open_ if high[i] - low[i] > 1]
    return low


def _hidden_keys(digests: list[str], copies: list[int]) -> pa.Table:
    return pa.table(
        {ROW_DIGEST: pa.array(digests, pa.string()), ROW_COPY: pa.array(copies, pa.int64())}
    )


@dataclass(frozen=True, slots=True)
class _Net:
    """What the epoch does to the number of copies, with one example of each row."""

    delta: "Counter[str]"
    example: dict[str, tuple[pa.Table, int]]
    added: dict[str, list[tuple[pa.Table, int]]]
    """Every row that came, where equal rows may differ in included columns."""

    def newest(self, digest: str, there: int, after: int) -> list[tuple[pa.Table, int]]:
        """Rows that came for the last ones of the `after` copies, which are another than before."""
        added = self.added.get(digest, [])
        gone = len(added) - self.delta[digest]
        return added[len(added) - (after - min(after, max(0, there - gone))) :]


class KeylessBackfill:
    """One such table's backfill, driven like `TableBackfill`."""

    version = 2

    def __init__(  # noqa: PLR0913  one argument per thing that the caller knows
        self,
        schema: Schema,
        state: BackfillState,
        splits: Sequence[Split],
        pace: Pace,
        *,
        offset: CdcOffset,
        copies: Copies,
        at: float,
        included: Collection[str] = (),
    ) -> None:
        self.schema = schema
        self.applied = offset
        self._names = [name for name in schema.names if name not in (ROW_DIGEST, ROW_COPY)]
        self._included = frozenset(included)
        self._own = [name for name in self._names if name not in self._included]
        self._copies = copies
        self._cleared = False
        self._pace = replace(pace, divide_after_rows=sys.maxsize)
        self._owed = _owed(state)
        self._stored = state
        if not state.backfill_finished and state.snapshot:
            state = self._begin_again(state, splits)
        self.state = state
        self._splits, self._at, self._next_read = tuple(splits), at, 1
        self.machine = self._machine(state)
        self._to_see = TransactionsToSee(state.to_see, floor=state.floor, most=_MOST_TO_SEE)
        self._seen: Seen | None = None
        self._begun: tuple[Numbers, CdcOffset | None] | None = None
        self._meanwhile: list[pa.Table] = []
        self._added: list[pa.Table] = []
        self._changes: list[pa.Table] = []

    def _machine(self, state: BackfillState) -> BackfillMachine:
        # Reads of a machine before this one may still come: their numbers are not used again.
        machine = BackfillMachine(
            state, self._pace, key=(), at=self._at, first_read=self._next_read
        )
        machine.paused = not state.backfill_finished
        return machine

    def _begin_again(self, state: BackfillState, splits: Sequence[Split]) -> BackfillState:
        self._cleared, self._owed = True, Counter()
        return BackfillState(
            splits=not_begun(tuple(splits)),
            to_see=state.to_see,
            floor=state.floor,
            generation=state.generation + 1,
        )

    # The one snapshot

    @property
    def waits_for_snapshot(self) -> bool:
        """Whether a snapshot must be opened before anything can be read."""
        return self._seen is None and not self.state.backfill_finished

    def opening(self) -> None:
        """A snapshot is being opened: the log up to here must be in it, what follows may be."""
        self._begun = (self._to_see.ids, self._to_see.floor)
        self._meanwhile.clear()

    def opened(self, chunk: SnapshotChunk) -> bool:
        """A snapshot is open, as an empty chunk of it shows; whether it sees enough."""
        begun, self._begun = self._begun, None
        meanwhile, self._meanwhile = self._meanwhile, []
        if begun is None or not self._to_see.seen_by(chunk, *begun):
            return False
        self._seen = chunk.seen
        for changes in meanwhile:
            self._take(changes)
        self.state = replace(self.state, snapshot=chunk.seen.serialized())
        self.machine.paused = False
        return True

    # The log

    def snapshot_lost(self) -> None:
        """The connection that held it is gone: begin again, with another one."""
        if not self.state.backfill_finished and self._seen is not None:
            self._cleared = True
            self._changes.clear()
            self._forget_snapshot()

    def _forget_snapshot(self) -> None:
        self._added.clear()
        self._seen = self._begun = None
        self.state = self._begin_again(self.state, self._splits)
        self._next_read = self.machine.next_read
        self.machine = self._machine(self.state)

    def deliver(self, log: TableLog) -> None:
        """The log has come to `log.offset`. What was applied before is not applied again."""
        if reaches(self.applied, log.offset):
            return
        self.applied = log.offset
        changes = log.changes
        for event in log.events:
            if event.kind is LogEventKind.TRUNCATE:
                changes = self._truncated(changes, event.seq)
        if changes is None or not changes.num_rows:
            return
        if not self.state.backfill_finished:
            # Should the snapshot be lost, the next one must see what was applied beside this one.
            numbers = np.unique(changes.column(TRANSACTION).to_numpy())
            self._to_see.delivered(numbers, log.offset)
        if not self.waits_for_snapshot:
            self._take(changes)
        elif self._begun is not None:
            self._meanwhile.append(changes)

    def _take(self, changes: pa.Table) -> None:
        if self._seen is not None:
            held = np.asarray(self._seen.holds(changes.column(TRANSACTION).combine_chunks()))
            changes = changes.filter(pa.array(~held))
        self._changes.append(changes)

    def _truncated(self, changes: pa.Table | None, seq: int) -> pa.Table | None:
        """All rows are gone; a snapshot may be from before or after that, so it is let go."""
        self._cleared = True
        self._changes.clear()
        if not self.state.backfill_finished:
            self._forget_snapshot()
        if changes is None:
            return None
        return changes.filter(pa.compute.greater_equal(changes[SEQ], seq))

    # Reading

    def next(self, at: float) -> list[Instruction]:
        """What to read now; nothing before a snapshot is open."""
        return self.machine.next(at)

    def arrived(
        self, read: int, chunk: SnapshotChunk, at: float, rows: ChunkRows | None = None
    ) -> Verdict:
        """A read has brought a chunk of the one snapshot; its rows are in memory."""
        assert rows is None
        same = self._seen is not None and chunk.seen.serialized() == self._seen.serialized()
        size = chunk.rows.nbytes
        summary = Arrived(
            rows=chunk.rows.num_rows,
            bytes=size,
            held=size,
            cursor=chunk.cursor,
            high=chunk.high,
            sees=same,
        )
        verdict = self.machine.arrived(read, summary, at)
        if verdict is Verdict.ACCEPT:
            self._added.append(chunk.rows)
        return verdict

    def divided(self, read: int, parts: Sequence[Split]) -> None:
        """Splits of such a table are not divided."""
        self.machine.divided(read, parts)

    def failed(self, read: int, at: float) -> None:
        """A read has brought nothing; it will be repeated."""
        self.machine.failed(read, at)

    # The end of an epoch

    def seal(self) -> EpochOutput:
        """Everything that this epoch does. Replay: a crash before the commit forgets it whole."""
        changes = self._recount(self._net())
        if not self.machine.finished:
            self._advance()
        follows(self._stored, self.state)
        self._stored = self.state
        output = EpochOutput(
            offset=self.applied,
            changes=changes,
            parts=(),
            state=encode(self.state),
            cleared=self._cleared,
            backfilled=self.state.backfill_finished,
        )
        self._cleared = False
        return output

    def _advance(self) -> None:
        splits = self.machine.sealed(self.applied)
        self.state = replace(
            self.state,
            splits=splits,
            to_see=tuple(self._to_see.ids.tolist()),
            floor=self._to_see.floor,
            pending=_owed_bytes(self._owed),
        )
        if self.machine.backfilled and self._seen is not None:
            if self._owed:
                raise _not_there(self._owed)
            self.machine.finish()
            self.state = self.state.finished()
            self._seen = None

    def _net(self) -> _Net:
        net = _Net(Counter(), {}, {})
        for rows in self._added:
            self._count(net, rows, [1] * rows.num_rows)
        for changes in self._changes:
            signs = [
                1 if ChangeType(kind).adds else -1 for kind in changes[CHANGE_TYPE].to_pylist()
            ]
            self._count(net, changes, signs)
        self._added.clear()
        self._changes.clear()
        for digest in [digest for digest in self._owed if digest in net.delta]:
            net.delta[digest] -= self._owed.pop(digest)
        return net

    def _count(self, net: _Net, rows: pa.Table, signs: list[int]) -> None:
        for place, digest in enumerate(row_digests(rows, self._own)):
            net.delta[digest] += signs[place]
            net.example.setdefault(digest, (rows, place))
            if self._included and signs[place] > 0:
                net.added.setdefault(digest, []).append((rows, place))

    def _recount(self, net: _Net) -> pa.Table:
        """The changes that bring the stored copies to their new numbers."""
        digests = [digest for digest, delta in net.delta.items() if delta or digest in net.added]
        before = [0] * len(digests) if self._cleared else self._copies(digests)
        pieces, hidden, kinds = [], [], []
        for digest, there in zip(digests, before, strict=True):
            after = there + net.delta[digest]
            if after < 0:
                if self.machine.finished or len(self._owed) >= _MOST_OWED:
                    raise _not_there(Counter({digest: -after}))
                self._owed[digest] = -after
                after = 0
            rows = [net.example[digest]] * abs(after - there)
            numbers = range(min(there, after), max(there, after))
            if self._included:
                newest = net.newest(digest, there, after)
                rows = newest + rows[: max(0, there - after)]
                numbers = range(after - len(newest), max(there, after))
            pieces += [table.select(self._names).slice(place, 1) for table, place in rows]
            hidden += [(digest, number) for number in numbers]
            kinds += [
                (ChangeType.INSERT if number < after else ChangeType.DELETE).value
                for number in numbers
            ]
        return self._as_changes(pieces, hidden, kinds)

    def _as_changes(
        self, pieces: list[pa.Table], hidden: list[tuple[str, int]], kinds: list[str]
    ) -> pa.Table:
        fields = pa.schema([*self.schema.arrow, pa.field(CHANGE_TYPE, pa.string())])
        if not pieces:
            return fields.empty_table()
        rows = pa.concat_tables(pieces)
        for name, place in ((ROW_DIGEST, 0), (ROW_COPY, 1)):
            kind = self.schema[name].type.arrow
            rows = rows.append_column(name, pa.array([each[place] for each in hidden], kind))
        return rows.append_column(CHANGE_TYPE, pa.array(kinds)).select(fields.names)


def _owed(state: BackfillState) -> "Counter[str]":
    stored = keys_from_bytes(state.pending)
    if stored is None:
        return Counter()
    pairs = zip(stored["row"].to_pylist(), stored["copies"].to_pylist(), strict=True)
    return Counter(dict(pairs))


def _owed_bytes(owed: "Counter[str]") -> bytes:
    return keys_as_bytes(pa.table({"row": list(owed), "copies": list(owed.values())}))


def _not_there(owed: "Counter[str]") -> UserError | DamagedState:
    count = sum(owed.values())
    if len(owed) >= _MOST_OWED:
        return UserError(
            "a table without a key has too many deletes while it is being filled",
            hint="Fill it at a calmer time, or give it a primary key.",
        )
    return DamagedState(
        f"{count} rows of a table without a key are to be deleted, and are not here",
        hint="The table must have REPLICA IDENTITY FULL since before it was added. "
        "Drop it here and create it again.",
    )
