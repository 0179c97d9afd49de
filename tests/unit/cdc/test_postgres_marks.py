"""What a mark in the log proves about a snapshot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.marks import NOTHING_KNOWN, Mark, Marks, all_running
from headwater.cdc.postgres.seen import PostgresSeen


def mark(end: int, next_id: int) -> Mark:
    return Mark(PostgresOffset(end), next_id % (1 << 32))


@pytest.mark.parametrize(
    ("snapshot", "next_id", "proven"),
    [
        ("100:100:", 100, True),
        ("100:105:", 103, True),
        ("100:105:104", 104, True),
        ("100:105:103", 104, False),
        ("100:100:", 101, False),
        ("100:105:", 106, False),
    ],
)
def test_nothing_below_a_mark_may_run(snapshot, next_id, proven):
    low = Marks((mark(7, next_id),)).low(PostgresSeen.of(snapshot))
    assert low == (PostgresOffset(7) if proven else NOTHING_KNOWN)


def test_the_furthest_proven_mark_counts_and_idle_ones_do_not_matter():
    marks = Marks().with_mark(mark(1, 90)).with_mark(mark(2, 104)).with_mark(mark(3, 106))
    seen = PostgresSeen.of("100:105:103")
    assert marks.low(seen) == PostgresOffset(1)
    assert marks.low(seen, [103]) == PostgresOffset(2)
    assert marks.low(seen, [103, 105]) == PostgresOffset(3)
    assert marks.low(seen, [105]) == PostgresOffset(1)


def test_marks_are_few_and_the_oldest_stays():
    marks = Marks()
    for number in range(100):
        marks = marks.with_mark(mark(number, number + 10))
    assert len(marks.kept) <= 16
    assert marks.kept[0].end == PostgresOffset(0)
    assert marks.kept[-1].end == PostgresOffset(99)


def test_ids_that_were_given_out_and_are_in_no_list_run():
    assert all_running(PostgresSeen.of("750:750:"), 750 - 3) == ()
    assert all_running(PostgresSeen.of("750:750:"), 751 - 3) == (750,)
    assert all_running(PostgresSeen.of("740:750:740,744"), 752 - 3) == (740, 744, 750, 751)
    base = (7 << 32) - 1
    assert all_running(PostgresSeen.of(f"{base}:{base}:"), 2 - 3) == (base, base + 1, base + 2)


@given(st.integers(10, 1 << 40), st.data())
def test_a_claim_is_never_wrong(base, data):
    """Transactions in any state: what committed before a proven place is held by the snapshot."""
    count = data.draw(st.integers(1, 8))
    ids = list(range(base, base + count))
    # Each has a commit record at some place, or none yet; and is shown as ended, or not.
    commits = data.draw(st.lists(st.none() | st.integers(1, 50), min_size=count, max_size=count))
    ended = {
        each
        for each, commit in zip(ids, commits, strict=True)
        if commit is not None and data.draw(st.booleans())
    }
    xmax = max(ended, default=base - 1) + 1
    running = tuple(each for each in ids if each < xmax and each not in ended)
    seen = PostgresSeen(min(running, default=xmax), xmax, running)
    end = data.draw(st.integers(1, 60))
    # An id is given out before its commit record is written.
    least = 1 + max(
        (each for each, commit in zip(ids, commits, strict=True) if commit and commit < end),
        default=base - 1,
    )
    low = Marks((mark(end, data.draw(st.integers(least, base + count))),)).low(seen)
    for each, commit in zip(ids, commits, strict=True):
        if commit is not None and commit < low.lsn:
            assert each in ended
