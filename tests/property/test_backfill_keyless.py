"""A table without a key: whatever happens while it is filled, it ends as the same multiset."""

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from backfill_kit import Holds
from headwater.backfill.cdc.keyless import (
    ROW_COPY,
    ROW_DIGEST,
    KeylessBackfill,
    count_copies,
    keyless_schema,
)
from headwater.backfill.cdc.machine import Verdict
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.state import BackfillState, decode, not_begun
from headwater.backfill.cdc.table_backfill import TableLog
from headwater.cdc.external_table import TRANSACTION, LogEvent, LogEventKind, SnapshotChunk, Split
from headwater.cdc.offset import PostgresOffset
from headwater.errors import DamagedState
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Column
from headwater.model.types import BIGINT, VARCHAR

COLUMNS = (Column("a", BIGINT), Column("b", VARCHAR))
SCHEMA = keyless_schema(COLUMNS)
SPLITS = tuple(Split(number=n, columns=("ctid",)) for n in (1, 2, 3))
ROWS = [(n, text) for n in (1, None) for text in ("x", "y", None)]


class Stored:
    """What a table holds, by hidden key, and the copies that are counted in it."""

    def __init__(self, rows=()):
        self.rows = dict(rows)

    def exists(self, keys):
        return [pair in self.rows for pair in zip(*keys.to_pydict().values(), strict=True)]

    def copies(self, digests):
        return count_copies(self.exists, digests)

    def apply(self, output):
        if output.cleared:
            self.rows.clear()
        for row in output.changes.to_pylist():
            key = (row[ROW_DIGEST], row[ROW_COPY])
            if row[CHANGE_TYPE] == "delete":
                assert key in self.rows, "a copy is deleted that is not there"
                del self.rows[key]
            else:
                assert key not in self.rows, "a copy is written over another"
                self.rows[key] = (row["a"], row["b"])

    def multiset(self):
        return Counter(self.rows.values())


class Upstream:
    """A multiset with transactions: some are in the log before a snapshot sees them."""

    def __init__(self, random):
        self.random = random
        self.log = []
        self.rows = Counter()
        self.place = 100
        self.visible = 0

    def write(self):
        changes = []
        for _ in range(self.random.randint(1, 3)):
            if self.rows and self.random.random() < 0.5:
                row = self.random.choice(sorted(self.rows.elements(), key=repr))
                self.rows -= Counter([row])
                changes.append(("delete", row))
                if self.random.random() < 0.5:
                    changes.append(("insert", self._add()))
            else:
                changes.append(("insert", self._add()))
        self.place += 1
        self.log.append((self.place, changes))

    def _add(self):
        row = self.random.choice(ROWS)
        self.rows[row] += 1
        return row

    def batch(self, after, count):
        chosen = [each for each in self.log if each[0] > after][:count]
        told = [(place, *change) for place, changes in chosen for change in changes]
        offset = PostgresOffset(chosen[-1][0] if chosen else self.place)
        if not told:
            return TableLog(offset=offset)
        table = pa.table(
            {
                "a": pa.array([row[0] for _, _, row in told], pa.int64()),
                "b": pa.array([row[1] for _, _, row in told], pa.string()),
                CHANGE_TYPE: [kind for _, kind, _ in told],
                SEQ: pa.array(range(len(told)), pa.int64()),
                TRANSACTION: pa.array([place for place, _, _ in told], pa.int64()),
            }
        )
        return TableLog(offset=offset, changes=table)

    def at(self, place):
        rows = Counter()
        for number, changes in self.log:
            if number <= place:
                for kind, row in changes:
                    rows[row] += 1 if kind == "insert" else -1
        return +rows

    def snapshot(self, blind):
        """The rows now, without the last so many transactions, in three parts."""
        # What one snapshot has seen, the later ones see.
        self.visible = max(self.visible, len(self.log) - blind)
        seen = [place for place, _ in self.log][: self.visible]
        rows = sorted(self.at(seen[-1] if seen else 0).elements(), key=repr)
        self.random.shuffle(rows)
        return Holds(*seen), [rows[n::3] for n in range(3)], PostgresOffset(self.place)


def table_of(rows):
    return pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "b": pa.array([row[1] for row in rows], pa.string()),
        }
    )


class Life:
    """An engine's life, from what is committed."""

    def __init__(self, upstream, committed):
        self.upstream = upstream
        self.place, state, rows = committed
        self.stored = Stored(rows)
        self.backfill = KeylessBackfill(
            SCHEMA,
            decode(state) if state else self._fresh(),
            SPLITS,
            Pace(chunk_rows=2, parallelism=2),
            offset=PostgresOffset(self.place),
            copies=self.stored.copies,
            at=0.0,
        )
        self.parts = None
        self.reads = []
        self.calm = False

    def _fresh(self):
        """What was in the log before the table joined must be seen as well."""
        before = tuple(place for place, _ in self.upstream.log if place <= self.place)
        return BackfillState(splits=not_begun(SPLITS), to_see=before)

    def step(self, random):
        match random.randrange(5):
            case 0:
                self.deliver(random)
            case 1 if self.backfill.waits_for_snapshot:
                self.open(random)
            case 2:
                self.reads += [(each, self.parts) for each in self.backfill.next(0.0)]
            case 3 if self.reads:
                request, parts = self.reads.pop(random.randrange(len(self.reads)))
                self.read(request, parts)
            case 4 if not self.calm and random.random() < 0.1:
                self.backfill.snapshot_lost()

    def deliver(self, random):
        batch = self.upstream.batch(self.place, random.randint(1, 3))
        self.backfill.deliver(batch)
        self.place = max(self.place, batch.offset.lsn)

    def open(self, random):
        """The source is written and its log is read also while a snapshot is being opened."""
        self.backfill.opening()
        self.stir(random)
        seen, parts, high = self.upstream.snapshot(random.choice((0, 0, 1, 2)))
        self.stir(random)
        empty = SnapshotChunk(rows=table_of([]), seen=seen, low=high, high=high, cursor=None)
        if self.backfill.opened(empty):
            self.parts = (seen, parts, high)

    def stir(self, random):
        for _ in range(0 if self.calm else random.randrange(3)):
            random.choice((self.upstream.write, lambda: self.deliver(random)))()

    def read(self, request, snapshot):
        seen, parts, high = snapshot
        rows = parts[request.split.number - 1]
        begin = 0 if request.after is None else int(request.after[0])
        some = rows[begin : begin + request.max_rows]
        end = begin + len(some)
        cursor = (str(end),) if end < len(rows) else None
        chunk = SnapshotChunk(rows=table_of(some), seen=seen, low=high, high=high, cursor=cursor)
        # Of a snapshot that is gone, nothing is taken any more.
        expected = Verdict.ACCEPT if snapshot is self.parts else Verdict.IGNORE
        if self.backfill.waits_for_snapshot:
            expected = Verdict.IGNORE
        assert self.backfill.arrived(request.read, chunk, 0.0) is expected

    def seal(self):
        output = self.backfill.seal()
        self.stored.apply(output)
        return (self.place, output.state, dict(self.stored.rows)), output.backfilled


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_it_ends_as_the_same_multiset(first):
    for seed in range(first, first + 50):
        run(seed)


def run(seed):
    random = Random(seed)
    upstream = Upstream(random)
    for _ in range(random.randint(0, 10)):
        upstream.write()
    committed = (upstream.place, None, {})
    life = Life(upstream, committed)
    for number in range(700):
        if number < 200 and random.random() < 0.3:
            upstream.write()
        life.calm = number >= 200
        life.step(random)
        if random.random() < 0.2:
            committed, done = life.seal()
            if done:
                there = Counter(committed[2].values())
                assert there == upstream.at(committed[0]), f"seed {seed}"
        if number < 200 and random.random() < 0.02:
            life = Life(upstream, committed)
    assert done, f"seed {seed} is not filled"
    assert committed[0] == upstream.place


def test_a_truncate_in_the_middle_begins_again():
    upstream = Upstream(Random(1))
    for _ in range(5):
        upstream.write()
    life = Life(upstream, (upstream.place, None, {}))
    seen, parts, high = upstream.snapshot(0)
    empty = SnapshotChunk(rows=table_of([]), seen=seen, low=high, high=high, cursor=None)
    life.backfill.opening()
    assert life.backfill.opened(empty)
    life.parts = (seen, parts, high)
    life.read(life.backfill.next(0.0)[0], life.parts)
    life.seal()
    event = LogEvent(kind=LogEventKind.TRUNCATE, table="t", seq=0)
    life.backfill.deliver(TableLog(offset=PostgresOffset(upstream.place + 1), events=(event,)))
    assert life.backfill.waits_for_snapshot
    _, _ = life.seal()
    assert life.stored.rows == {}
    assert life.backfill.state.generation == 2


def test_a_delete_of_a_row_that_is_not_here_is_told():
    upstream = Upstream(Random(1))
    life = Life(upstream, (100, None, {}))
    seen, _, high = upstream.snapshot(0)
    empty = SnapshotChunk(rows=table_of([]), seen=seen, low=high, high=high, cursor=None)
    life.backfill.opening()
    life.backfill.opened(empty)
    for _ in range(3):
        for read in life.backfill.next(0.0):
            life.backfill.arrived(read.read, empty, 0.0)
    _, done = life.seal()
    assert done
    upstream.log.append((101, [("delete", (1, "x"))]))
    life.backfill.deliver(upstream.batch(100, 1))
    with pytest.raises(DamagedState, match="are not here") as told:
        life.seal()
    assert "REPLICA IDENTITY FULL" in told.value.hint


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9, 1000])
def test_copies_are_counted_with_few_lookups(count):
    asked = []

    def exists(keys):
        asked.append(keys.num_rows)
        return [copy < count for copy in keys[ROW_COPY].to_pylist()]

    assert count_copies(exists, ["d", "e"]) == [count, count]
    assert len(asked) <= 22
