"""What a follower reads next: stretches of many epochs, bounded, limited, and together."""

import pytest

from headwater.backfill.snapshot.state import BackfillState
from headwater.backfill.snapshot.upstream.stream import (
    Pace,
    Phase,
    ReadChanges,
    ReadSnapshot,
    UpstreamStream,
    aim,
)
from headwater.backfill.snapshot.upstream.table import LoggedEpoch
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.rate_limit import RateLimit, RateLimiter
from upstream_double import MemoryUpstream, finished

PACE = Pace(slice_bytes=1 << 20, stretch_bytes=1000, idle_ms=10_000)


def following(epoch, upto, *, every=10, rows=2, limit=None):
    """A filled table at one epoch; its upstream changed it every so often since."""
    stream = UpstreamStream(
        groups={},
        states=(finished(0, 255, epoch),),
        limiter=RateLimiter(RateLimit(rows_per_s=limit), 0.0),
        pace=PACE,
    )
    log = [LoggedEpoch(Epoch(at), rows, 100 * rows) for at in range(epoch + every, upto + 1, every)]
    stream.saw(Epoch(upto), log)
    return stream


def take(stream, now=0.0):
    step = stream.next(now)
    stream.arrived(step)
    stream.done(step, step.rows)
    return step


def test_a_stretch_is_many_epochs_and_bounded_in_bytes():
    stream = following(100, 1000)
    aim([stream])
    step = take(stream)
    assert (step.after, step.upto, step.rows) == (100, 150, 10)
    assert stream.position == 150


def test_an_epoch_that_is_too_large_is_read_whole():
    stream = following(100, 120, rows=1000)
    aim([stream])
    assert take(stream).upto == 110


def test_what_follows_the_last_change_is_taken_along_and_idleness_is_noted_now_and_then():
    stream = following(100, 115)
    aim([stream])
    assert take(stream).upto == 115
    stream.saw(Epoch(116), [])
    aim([stream])
    assert stream.next(0.0) is None
    later = Epoch(115 + (PACE.idle_ms << 16))
    stream.saw(later, [])
    aim([stream])
    assert take(stream).upto == later


def test_tables_that_are_equally_far_get_one_aim_and_one_that_is_behind_catches_up_first():
    ahead, level, behind = following(140, 190), following(140, 200), following(100, 200)
    aim([ahead, level, behind])
    assert behind.aim == 140
    # The others wait: it is near.
    assert ahead.aim is level.aim is None
    assert take(behind).upto == 140
    aim([ahead, level, behind])
    assert ahead.aim == level.aim == behind.aim <= 190


def test_one_that_comes_late_goes_where_the_others_are_going():
    first, late = following(100, 200, rows=1), following(100, 200, rows=1)
    aim([first])
    aim([first, late])
    assert late.aim == first.aim


def test_a_limit_holds_for_changes_and_takes_a_table_out_of_the_others_way():
    limited, free = following(100, 2000, limit=5), following(100, 2000)
    aim([limited, free])
    assert free.aim == 150
    now = rows = 0
    while now < 8:
        step = limited.next(now)
        if step is None:
            assert limited.wake_at > now
            now = limited.wake_at
            continue
        limited.arrived(step)
        limited.done(step, step.rows)
        rows += step.rows
    assert 5 * 7 <= rows <= 5 * 9


def test_what_was_begun_alone_is_given_up_when_the_limit_is_lifted():
    stream = following(100, 200, limit=5)
    step = stream.next(0.0)
    assert stream.throttled(RateLimit(), 0.0) == [step]
    aim([stream])
    assert isinstance(stream.next(0.0), ReadChanges)


def test_a_limit_of_nothing_and_a_pause_read_nothing():
    stream = following(100, 200, limit=0)
    assert stream.next(0.0) is None
    assert stream.wake_at is None
    stream = following(100, 200)
    stream.paused = True
    aim([stream])
    assert stream.next(0.0) is None


def test_what_fails_is_tried_again_later_each_time():
    stream = following(100, 200)
    aim([stream])
    waits, now = [], 0.0
    for _ in range(4):
        stream.failed(stream.next(now), now)
        assert stream.next(now) is None
        waits.append(stream.wake_at - now)
        now = stream.wake_at
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


def test_slices_are_read_side_by_side_and_the_log_comes_after_the_last():
    table = MemoryUpstream()
    table.write(dict.fromkeys(range(60), "v"), Epoch(10))
    table.refresh()
    groups = table.groups(Epoch(10))
    states = tuple(BackfillState(first=g.first, last=g.last, epoch=Epoch(10)) for g in groups)
    pace = Pace(slice_bytes=500, slices=1000, parallelism=3)
    limiter = RateLimiter(RateLimit(), 0.0)
    stream = UpstreamStream(groups={Epoch(10): groups}, states=states, limiter=limiter, pace=pace)
    first = [stream.next(0.0) for _ in range(3)]
    assert all(isinstance(each, ReadSnapshot) for each in first)
    assert stream.next(0.0) is None
    assert 40 < stream.total <= 62
    while stream.phase is Phase.SNAPSHOT:
        for step in first:
            stream.arrived(step)
            stream.done(step, step.rows)
        first = [step for step in (stream.next(0.0) for _ in range(3)) if step is not None]
    assert stream.states == (finished(0, 255, 10, 60),)


def test_vnodes_that_are_at_different_epochs_meet():
    states = (finished(0, 99, 100), finished(100, 255, 130))
    limiter = RateLimiter(RateLimit(), 0.0)
    stream = UpstreamStream(groups={}, states=states, limiter=limiter, pace=PACE)
    stream.saw(Epoch(140), [LoggedEpoch(Epoch(at), 1, 100) for at in (110, 120, 130, 140)])
    aim([stream])
    step = take(stream)
    assert (step.after, step.upto) == (100, 140)
    assert [(s.first, s.last, s.epoch) for s in stream.states] == [(0, 255, 140)]


def test_an_upstream_that_goes_back_is_told():
    stream = following(100, 200)
    with pytest.raises(BrokenInvariant, match="was at 200"):
        stream.saw(Epoch(150), [])


def test_a_reader_without_vnodes_reads_nothing():
    stream = UpstreamStream(groups={}, states=(), limiter=RateLimiter(RateLimit(), 0.0))
    other = following(100, 200)
    aim([stream, other])
    assert stream.next(0.0) is None
    assert other.aim == 150
