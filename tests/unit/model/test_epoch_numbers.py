"""Epochs grow whatever the clock does, and say when they began."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headwater.model.epoch import (
    NO_EPOCH,
    Epoch,
    EpochPair,
    epoch_at,
    epoch_millis,
    epoch_time,
    next_epoch,
    system_clock,
)

NOON = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)


def test_layout_is_milliseconds_and_a_counter():
    zero = datetime(2021, 4, 1, tzinfo=UTC)
    assert epoch_at(zero) == NO_EPOCH == 0
    assert epoch_at(zero + timedelta(milliseconds=1)) == 1 << 16
    assert epoch_at(zero + timedelta(microseconds=999)) == 0
    assert epoch_at(datetime(9999, 12, 31, tzinfo=UTC)) < 1 << 64


def test_an_epoch_gives_back_its_time():
    epoch = epoch_at(NOON)
    assert epoch_time(epoch) == NOON
    assert epoch_time(Epoch(epoch + 65_535)) == NOON, "the counter is not time"
    assert epoch_millis(epoch) == int(NOON.timestamp() * 1000)


def test_the_zone_of_the_clock_does_not_matter():
    assert epoch_at(NOON.astimezone(timezone(timedelta(hours=-7)))) == epoch_at(NOON)


@pytest.mark.parametrize(
    "moves",
    [
        pytest.param([0, 0, 0, 0], id="stands still"),
        pytest.param([0, -3_600_000, -1, 5], id="jumps back an hour"),
        pytest.param([0, 1, 1, 1000], id="goes on"),
        pytest.param([5, -5, 5, -5], id="swings"),
    ],
)
def test_epochs_strictly_increase_when_the_clock(moves):
    now, last, seen = NOON, NO_EPOCH, []
    for move in moves:
        now += timedelta(milliseconds=move)
        last = next_epoch(last, now)
        seen.append(last)
    assert seen == sorted(set(seen))


def test_behind_the_clock_the_epoch_is_the_clock_and_else_the_last_plus_one():
    last = epoch_at(NOON)
    assert next_epoch(last, NOON + timedelta(milliseconds=1)) == last + (1 << 16)
    assert next_epoch(last, NOON) == last + 1
    assert next_epoch(last, NOON - timedelta(days=400)) == last + 1
    assert next_epoch(NO_EPOCH, datetime(1999, 1, 1, tzinfo=UTC)) == 1


def test_more_epochs_than_the_counter_holds_still_increase():
    last = Epoch(epoch_at(NOON) + 65_535)
    following = next_epoch(last, NOON)
    assert following == last + 1
    assert epoch_time(following) == NOON + timedelta(milliseconds=1)


@pytest.mark.parametrize(("prev", "curr"), [(5, 5), (6, 5)])
def test_a_pair_must_grow(prev, curr):
    with pytest.raises(ValueError, match="must grow"):
        EpochPair(Epoch(prev), Epoch(curr))


def test_pairs_form_a_chain():
    first, second = EpochPair(Epoch(1), Epoch(2)), EpochPair(Epoch(2), Epoch(9))
    assert second.follows(first)
    assert not first.follows(second)
    assert not EpochPair(Epoch(3), Epoch(9)).follows(first)
    assert first < second


def test_the_system_clock_knows_its_zone():
    assert system_clock().utcoffset() == timedelta(0)
