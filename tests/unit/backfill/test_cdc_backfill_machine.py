"""The decisions of a backfill: what is read, how much, when again, and when it is done."""

import pytest

from headwater.backfill.cdc.machine import (
    Arrived,
    BackfillMachine,
    DivideSplit,
    ReadChunk,
    ReadKeys,
    Verdict,
)
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.state import BackfillState, SplitProgress, not_begun
from headwater.backfill.meter import Meter
from headwater.cdc.external_table import Split
from headwater.cdc.offset import PostgresOffset
from headwater.errors import BrokenInvariant, ConfigError
from headwater.model.rate_limit import RateLimit, RateLimiter


def split(number, left=None, right=None):
    return Split(number=number, columns=("id",), left=left, right=right)


def made(count=3, **pace):
    state = BackfillState(splits=not_begun(tuple(split(n) for n in range(1, count + 1))))
    return BackfillMachine(state, Pace(**pace), key=("id",), at=0.0)


def brought(rows=10, cursor=None, *, high=50, sees=True, held=0):
    return Arrived(
        rows=rows, bytes=rows * 10, held=held, cursor=cursor, high=PostgresOffset(high), sees=sees
    )


def test_so_many_splits_are_read_at_a_time():
    machine = made(5, parallelism=2)
    first = machine.next(0.0)
    assert [each.split.number for each in first] == [1, 2]
    assert machine.next(0.0) == []
    machine.arrived(first[0].read, brought(), 0.0)
    assert [each.split.number for each in machine.next(0.0)] == [3]
    machine.scaled(4)
    assert [each.split.number for each in machine.next(0.0)] == [4, 5]
    machine.check()


def test_a_split_that_was_begun_comes_first():
    machine = made(3, parallelism=1)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(cursor=("7",)), 0.0)
    [read] = machine.next(0.0)
    assert (read.split.number, read.after) == (1, ("7",))


def test_cursors_move_when_the_epoch_ends_and_not_before():
    machine = made(1)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(cursor=("7",)), 0.0)
    assert machine.splits[0].cursor is None
    [progress] = machine.sealed(PostgresOffset(10))
    assert (progress.cursor, progress.rows, progress.read) == (("7",), 10, False)


def test_a_split_is_done_when_the_log_has_come_to_its_high_mark():
    machine = made(1)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(cursor=("7",), high=90), 0.0)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(high=80), 0.0)
    [progress] = machine.sealed(PostgresOffset(89))
    assert progress.read
    assert progress.cursor == ("7",), "the last one that there was"
    assert not progress.done
    assert not machine.backfilled
    [progress] = machine.sealed(PostgresOffset(90))
    assert progress.done
    assert machine.backfilled


def test_it_knows_before_the_epoch_ends_that_it_is_the_last():
    machine = made(2)
    first, second = machine.next(0.0)
    machine.arrived(first.read, brought(high=90), 0.0)
    assert not machine.ends_with(PostgresOffset(99)), "one is being read"
    machine.arrived(second.read, brought(cursor=("7",), high=80), 0.0)
    assert not machine.ends_with(PostgresOffset(99)), "there is more of it"
    [second] = machine.next(0.0)
    machine.arrived(second.read, brought(high=95), 0.0)
    assert not machine.ends_with(PostgresOffset(94))
    assert machine.ends_with(PostgresOffset(95))
    machine.pending = 1
    assert not machine.ends_with(PostgresOffset(95))
    machine.pending = 0
    machine.sealed(PostgresOffset(95))
    assert machine.backfilled


def test_an_idle_upstream_needs_no_change_to_finish():
    machine = made(1)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(rows=0, high=10), 0.0)
    machine.sealed(PostgresOffset(10))
    assert machine.backfilled


def test_a_failed_read_waits_longer_each_time():
    machine = made(1, first_retry_s=1.0, longest_retry_s=4.0)
    at, waits = 0.0, []
    for _ in range(4):
        [read] = machine.next(at)
        machine.failed(read.read, at)
        assert machine.next(at) == []
        waits.append(machine.wake_at - at)
        at = machine.wake_at
    assert waits == [1.0, 2.0, 4.0, 4.0]
    [read] = machine.next(at)
    machine.arrived(read.read, brought(cursor=("1",)), at)
    [read] = machine.next(at)
    machine.failed(read.read, at)
    machine.next(at)
    assert machine.wake_at == at + 1.0, "a success starts over"


def test_a_failing_split_does_not_stop_the_others():
    machine = made(2, parallelism=1, first_retry_s=100.0)
    [read] = machine.next(0.0)
    machine.failed(read.read, 0.0)
    [other] = machine.next(0.0)
    assert other.split.number == 2


def test_a_chunk_that_does_not_see_enough_is_read_again_from_the_same_place():
    machine = made(1)
    [read] = machine.next(0.0)
    assert machine.arrived(read.read, brought(cursor=("7",), sees=False), 0.0) is Verdict.AGAIN
    [again] = machine.next(1.0)
    assert again.after is None


def test_nobody_waits_for_a_discarded_read():
    machine = made(1)
    [read] = machine.next(0.0)
    machine.discard()
    assert machine.arrived(read.read, brought(), 0.0) is Verdict.IGNORE
    assert machine.splits[0].rows == 0
    [again] = machine.next(0.0)
    assert again.read != read.read


def test_pause_and_resume():
    machine = made(1)
    machine.paused = True
    assert machine.next(0.0) == []
    machine.paused = False
    assert len(machine.next(0.0)) == 1


def test_memory_for_chunks_is_bounded():
    machine = made(3, parallelism=1, held_bytes=100)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(held=100), 0.0)
    assert machine.next(0.0) == []
    machine.sealed(PostgresOffset(50))
    assert len(machine.next(0.0)) == 1


def test_a_rate_limit_is_shared_by_all_readers_and_felt_within_a_second():
    machine = made(4, parallelism=4, limit=RateLimit(rows_per_s=100))
    [first] = machine.next(0.0)
    assert first.max_rows == 100
    machine.arrived(first.read, brought(rows=100, cursor=("1",)), 0.0)
    assert machine.next(0.0) == []
    assert 0 < machine.wake_at <= 1.0
    total = 100
    for tick in range(1, 101):
        at = tick / 10
        for each in machine.next(at):
            total += each.max_rows
            machine.arrived(each.read, brought(rows=each.max_rows, cursor=(str(tick),)), at)
    assert 1000 <= total <= 1110
    machine.throttled(RateLimit(rows_per_s=0), 10.0)
    assert machine.next(100.0) == []
    assert machine.wake_at is None
    machine.throttled(RateLimit(), 100.0)
    assert sum(isinstance(each, ReadChunk) for each in machine.next(100.0)) == 4


def test_bytes_are_limited_and_a_wide_row_is_owed():
    limiter = RateLimiter(RateLimit(bytes_per_s=1000), 0.0)
    allowed = limiter.take(10, 10_000, 0.0)
    assert allowed == (10, 1000)
    limiter.give_back(allowed, (1, 3000))
    assert limiter.take(10, 10_000, 2.0) is None
    assert limiter.ready_at(10, 10_000) == pytest.approx(2.1)
    assert limiter.take(10, 10_000, 2.1) == (10, 100)


def test_what_a_read_did_not_bring_is_given_back():
    limiter = RateLimiter(RateLimit(rows_per_s=10), 0.0)
    allowed = limiter.take(10, 10, 0.0)
    limiter.give_back(allowed, (0, 0))
    assert limiter.take(10, 10, 0.0) == (10, 10)


def test_what_was_not_read_for_long_is_not_saved_up():
    limiter = RateLimiter(RateLimit(rows_per_s=10), 0.0)
    assert limiter.take(1000, 1000, 3600.0) == (10, 1000)


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="cannot be -1"):
        RateLimit(rows_per_s=-1)


def large_split(**pace):
    """A split of which 10 rows are written and more is being read, and idle readers."""
    machine = made(1, parallelism=2, divide_after_rows=10, **pace)
    [read] = machine.next(0.0)
    machine.arrived(read.read, brought(cursor=("7",)), 0.0)
    return machine


def test_a_split_that_proves_too_large_is_divided_when_readers_are_idle():
    machine = large_split()
    [reading] = machine.next(0.0)
    assert isinstance(reading, ReadChunk), "what was accepted is not written yet"
    machine.sealed(PostgresOffset(10))
    [divide] = machine.next(0.0)
    assert isinstance(divide, DivideSplit)
    assert divide.rest.left == ("7",)
    assert machine.arrived(reading.read, brought(), 0.0) is Verdict.IGNORE
    machine.divided(divide.read, [split(1, ("7",), ("50",)), split(2, ("50",), None)])
    machine.check()
    kept, first, second = machine.splits
    assert (kept.split.right, kept.read, kept.rows) == (("7",), True, 10)
    assert (first.split.number, first.split.left, first.split.right) == (2, ("7",), ("50",))
    assert (second.split.number, second.split.left) == (3, ("50",))
    assert [each.split.number for each in machine.next(0.0)] == [2, 3]


def test_a_split_that_cannot_be_divided_is_read_on():
    machine = large_split()
    machine.sealed(PostgresOffset(10))
    [divide] = machine.next(0.0)
    assert machine.next(0.0) == [], "it is asked for once"
    machine.divided(divide.read, [split(1)])
    [read] = machine.next(0.0)
    assert isinstance(read, ReadChunk)
    assert read.after == ("7",)


def test_a_split_by_another_column_than_the_first_of_the_key_is_not_divided_in_the_middle():
    state = BackfillState(splits=(SplitProgress(split=split(1), cursor=("7",), rows=99),))
    pace = Pace(parallelism=2, divide_after_rows=10)
    machine = BackfillMachine(state, pace, key=("other", "id"), at=0.0)
    assert [type(each) for each in machine.next(0.0)] == [ReadChunk]


def test_pending_keys_are_read_and_hold_up_the_end():
    machine = made(1, keys_at_once=2)
    machine.pending = 3
    keys, read = machine.next(0.0)
    assert isinstance(keys, ReadKeys)
    assert keys.count == 2
    machine.arrived(read.read, brought(high=10), 0.0)
    machine.sealed(PostgresOffset(10))
    assert not machine.backfilled
    machine.arrived(keys.read, brought(high=12), 0.0)
    machine.pending = 0
    machine.sealed(PostgresOffset(11))
    assert not machine.backfilled, "the rows may be newer than the log"
    machine.sealed(PostgresOffset(12))
    assert machine.backfilled


def test_a_paused_table_looks_at_one_row_when_too_much_is_unseen():
    machine = made(1, probe_after=5)
    machine.paused = True
    machine.unseen = 6
    [probe] = machine.next(0.0)
    assert probe.probe
    assert probe.max_rows == 1
    assert machine.arrived(probe.read, brought(cursor=("1",)), 0.0) is Verdict.IGNORE
    assert machine.splits[0].cursor is None
    machine.unseen = 0
    assert machine.next(0.0) == []


def test_a_finished_machine_reads_nothing():
    machine = made(1)
    machine.finish()
    assert machine.next(0.0) == []


def test_an_impossible_state_is_told():
    machine = made(1)
    machine._splits[1] = SplitProgress(split=split(1), done=True)
    with pytest.raises(BrokenInvariant, match="done, and not read"):
        machine.check()


def test_the_rate_is_smoothed_and_gives_the_time_that_is_left():
    meter = Meter(0, 0.0)
    assert meter.remaining(100) is None
    meter.observe(100, 1.0)
    assert meter.rows_per_second == pytest.approx(100)
    meter.observe(100, 2.0)
    assert 40 < meter.rows_per_second < 60
    for second in range(3, 200):
        meter.observe(100 + 10 * (second - 2), float(second))
    assert meter.rows_per_second == pytest.approx(10, rel=0.01)
    assert meter.remaining(2080).total_seconds() == pytest.approx(1.0, abs=0.1)
    assert meter.remaining(None) is None
