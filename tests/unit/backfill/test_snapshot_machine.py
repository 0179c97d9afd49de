"""What a new view reads next: a random walk that keeps the books, and the rules one by one."""

from random import Random

import pytest

from headwater.backfill.snapshot.machine import (
    CatchUp,
    LogEpoch,
    Merge,
    Pace,
    Phase,
    Read,
    SnapshotBackfillMachine,
    Step,
)
from headwater.backfill.snapshot.slices import SnapshotFile, groups_of
from headwater.backfill.snapshot.state import decoded, encoded
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.table_commit import DataFile

A, B = TableId(1), TableId(2)
E = Epoch(100)
FREE = RateLimit()


def table(name, *spans, rows=10):
    return groups_of(
        SnapshotFile(
            DataFile(
                path=f"{name}{number}", bytes=rows * 10, rows=rows, first_vnode=low, last_vnode=high
            ),
            rows,
        )
        for number, (low, high) in enumerate(spans)
    )


FOUR = (Step((A,), 4),)


def machine(steps=FOUR, limit=FREE, tables=None, progress=None, **more):
    tables = tables or {A: table("a", (0, 99), (0, 99), (100, 255), (100, 255))}
    pace = more.pop("pace", Pace(slice_bytes=1, merge_rows=0))
    return SnapshotBackfillMachine(
        E, tables, steps, RateLimiter(limit, 0.0), pace, progress=progress or {}, **more
    )


def logged(*rows, after=E):
    return [LogEpoch(Epoch(after + 1 + n), {A: each}) for n, each in enumerate(rows)]


def test_without_a_limit_a_step_of_one_slice_is_read_at_once():
    both = {A: table("a", (0, 255)), B: table("b", (0, 99), (100, 255))}
    made = machine([Step((A, B))], tables=both)
    read = made.next(0.0)
    assert [(of, [p.path for p in each.parts]) for of, each in read.slices] == [
        (A, ["a0"]), (B, ["b0"]), (B, ["b1"]),
    ]  # fmt: skip
    assert made.next(0.0) is None
    assert made.done(read) == [read]
    assert made.phase is Phase.LOG


def test_steps_wait_for_each_other():
    both = {A: table("a", (0, 255)), B: table("b", (0, 255))}
    made = machine([Step((B,)), Step((A,))], tables=both, at_once=9)
    first = made.next(0.0)
    assert first.slices[0][0] == B
    assert made.next(0.0) is None
    made.done(first)
    assert made.next(0.0).slices[0][0] == A


def test_slices_under_way_are_settled_in_their_order():
    made = machine(at_once=3)
    reads = [made.next(0.0) for _ in range(3)]
    assert [r.slices[0][1].parts[0].path for r in reads] == ["a0", "a1", "a2"]
    assert made.next(0.0) is None
    assert made.done(reads[2]) == []
    assert made.done(reads[1]) == []
    assert made.progress[A].rows == 0
    assert made.done(reads[0]) == reads
    assert made.progress[A].rows == 30


def test_a_failed_slice_takes_those_behind_it_along_and_waits_longer_each_time():
    made = machine(at_once=3)
    reads = [made.next(0.0) for _ in range(3)]
    made.failed(reads[1], 0.0)
    assert [made.under_way(read) for read in reads] == [True, False, False]
    assert made.next(0.4) is None
    assert made.wake_at == 0.5
    again = made.next(0.5)
    assert again.slices[0][1].parts == reads[1].slices[0][1].parts
    made.failed(again, 0.5)
    assert made.next(1.4) is None
    made.done(reads[0])
    assert made.next(1.5) is not None


def test_a_rate_limit_holds_in_both_phases_and_can_be_lifted():
    made = machine(limit=RateLimit(rows_per_s=4), pace=Pace(merge_rows=0, slice_bytes=1))
    read = made.next(0.0)
    assert read.rows == 4
    made.done(read)
    assert made.next(0.0) is None
    assert made.wake_at == pytest.approx(0.25)
    assert made.next(0.5).rows == 2
    made.throttled(RateLimit(rows_per_s=0), 0.5)
    assert made.next(99.0) is None
    made.throttled(FREE, 99.0)


def test_pause_hold_and_limits_of_nothing_stop_everything():
    for way in ("paused", "held"):
        made = machine()
        setattr(made, way, True)
        assert made.next(0.0) is None
        setattr(made, way, False)
        assert made.next(0.0) is not None


def finished(**more):
    made = machine([Step((A,))], **more)
    made.done(made.next(0.0))
    return made


def test_the_log_is_followed_in_rounds_up_to_the_gate():
    made = finished(pace=Pace(merge_rows=5, catch_up_rows=100))
    round_ = made.next(0.0, logged(60, 60))
    assert isinstance(round_, CatchUp)
    assert (round_.after, round_.upto) == (E, E + 1)
    assert made.next(0.0, logged(60, 60)) is None
    made.done(round_)
    assert made.consumed == E + 1
    second = made.next(0.0, logged(60, 60, 3))
    assert (second.after, second.upto) == (E + 1, E + 3)
    made.done(second)
    merge = made.next(0.0, logged(60, 60, 3, 4))
    assert isinstance(merge, Merge)
    assert merge.after == E + 3
    made.failed(merge, 0.0)
    assert made.phase is Phase.LOG
    made.done(made.next(9.0, logged(60, 60, 3, 4)))
    assert made.phase is Phase.LIVE


def test_a_lag_that_does_not_shrink_opens_the_gate():
    made = finished(pace=Pace(merge_rows=5))
    log = []
    for number in range(1, 20):
        log = logged(*[50] * number)
        found = made.next(0.0, log)
        if isinstance(found, Merge):
            break
        made.done(found)
    assert isinstance(found, Merge)
    assert number == 7


def test_an_epoch_larger_than_the_limit_is_taken_whole_and_owed():
    made = finished(pace=Pace(merge_rows=0))
    made.throttled(RateLimit(rows_per_s=10), 0.0)
    assert made.next(0.0, logged(35)) is None
    taken = made.next(1.0, logged(35))
    assert taken.rows == {A: 35}
    made.done(taken)
    more = logged(35, 1)
    assert made.next(2.0, more) is None
    assert made.next(3.6, more) is not None


def test_changes_that_could_not_be_taken_are_given_back_once():
    made = finished(pace=Pace(merge_rows=0))
    made.throttled(RateLimit(rows_per_s=10), 0.0)
    taken = made.next(1.0, logged(4))
    made.failed(taken, 1.0)
    # Ten were saved up, none is used: not one more than that may be read at once.
    assert made.limiter.take(100, 100, 1.0) == (10, 100)


def test_stored_progress_of_other_files_is_refused():
    other = machine(tables={A: table("a", (0, 255))})
    with pytest.raises(BrokenInvariant, match="was read by vnodes"):
        machine(progress=dict(other.progress))


class Walk:
    """A view that is created while its tables go on changing, and crashes now and then."""

    def __init__(self, seed):
        self.random = random = Random(f"snapshot machine {seed}")
        self.tables = {id_: self.some_files(id_) for id_ in (A, B)}
        self.steps = random.choice([[Step((A, B))], [Step((A,)), Step((B,), 5)], [Step((B, A), 3)]])
        self.limit = random.choice([FREE, RateLimit(rows_per_s=7), RateLimit(bytes_per_s=150)])
        self.pace = Pace(slice_bytes=random.choice([1, 50]), merge_rows=3, catch_up_rows=20)
        self.now, self.log, self.read, self.upto = 0.0, [], [], E
        self.begin({})

    def some_files(self, id_):
        spans = []
        for _ in range(self.random.randrange(5)):
            low = self.random.randrange(256)
            spans.append((low, self.random.randrange(low, 256)))
        return table(f"t{id_}-", *spans, rows=self.random.randrange(1, 20))

    def begin(self, progress):
        self.machine = SnapshotBackfillMachine(
            E, self.tables, self.steps, RateLimiter(self.limit, self.now), self.pace,
            at_once=self.random.choice([1, 3]), progress=progress,
        )  # fmt: skip
        self.flying = []

    def step(self):
        self.now += self.random.random()
        if self.random.random() < 0.3 and len(self.log) < 30:
            after = self.log[-1].epoch if self.log else E
            self.log += logged(self.random.randrange(12), after=after)
        if self.random.random() < 0.05:
            # A crash: what is settled is stored, and nothing else is left.
            self.begin(decoded(encoded(self.machine.progress)))
        self.machine.paused = self.random.random() < 0.1
        if (found := self.machine.next(self.now, self.log)) is not None:
            self.flying.append(found)
        gone = [f for f in self.flying if isinstance(f, Read) and not self.machine.under_way(f)]
        self.flying = [f for f in self.flying if f not in gone]
        if self.flying and self.random.random() < 0.7:
            one = self.flying.pop(self.random.randrange(len(self.flying)))
            if self.random.random() < 0.2:
                self.machine.failed(one, self.now)
            else:
                self.finish(one)

    def finish(self, one):
        if isinstance(one, CatchUp | Merge):
            assert one.after == self.upto
        if isinstance(one, CatchUp):
            assert one.upto > self.upto
            self.upto = one.upto
        for settled in self.machine.done(one):
            for _, each in settled.slices:
                self.read += [(p.path, n) for p in each.parts for n in range(p.start, p.stop)]

    def everything(self):
        groups = [group for groups in self.tables.values() for group in groups]
        files = [each.file for group in groups for each in group.files]
        return [(file.path, n) for file in files for n in range(file.rows)]


@pytest.mark.parametrize("seed", range(300))
def test_a_walk_reads_every_row_once_and_every_epoch_in_order(seed):
    walk = Walk(seed)
    while walk.machine.phase is not Phase.LIVE:
        walk.step()
        assert walk.now < 10_000, "it never ends"
    assert sorted(walk.read) == sorted(walk.everything())
    assert walk.machine.consumed == walk.upto


def test_what_is_read_in_one_after_all_keeps_the_order_of_its_tables():
    """Also when a limit comes in between: the first of them is read first."""
    both = {A: table("a", (0, 255)), B: table("b", (0, 255))}
    made = machine([Step((B, A), 4)], tables=both)
    read = made.next(0.0)
    assert isinstance(read, Read)
    made.in_one(read)
    made.throttled(RateLimit(rows_per_s=5), 0.0)
    limited = made.next(1.0)
    assert isinstance(limited, Read)
    assert [of for of, _ in limited.slices] == [B]


def test_slices_that_take_no_time_stay_below_the_largest():
    made = machine(
        [Step((A,), 1 << 20)],
        tables={A: table("a", *[(0, 255)] * 60)},
        pace=Pace(slice_bytes=200, largest_bytes=1000, merge_rows=0),
    )
    sizes = []
    while made.phase is Phase.SNAPSHOT:
        read = made.next(0.0)
        sizes.append(len(read.slices[0][1].parts))
        made.took(read, 1e-9)
        made.done(read)
    assert sizes == [2, 8, 10, 10, 10, 10, 10]
