"""Progress of a new view: what may follow what, what is stored, and how a table is sliced."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.backfill.snapshot.slices import SnapshotFile, groups_of, next_slice, read_so_far
from headwater.backfill.snapshot.state import (
    START,
    BackfillState,
    Cursor,
    TableProgress,
    decoded,
    encoded,
    unread,
)
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.table_commit import DataFile
from headwater.model.vnode import VNODE_COUNT

E, LATER = Epoch(10), Epoch(20)


def state(cursor=START, rows=0, epoch=E):
    return BackfillState(first=0, last=255, epoch=epoch, cursor=cursor, rows=rows)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(), state(Cursor(0, 5), 5)),
        (state(Cursor(0, 5), 5), state(Cursor(1), 9)),
        (state(Cursor(1), 9), state(None, 9)),
        (state(None, 9), state(None, 12, LATER)),
    ],
)
def test_progress_goes_on(before, after):
    assert before.follow(after) is after


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (state(Cursor(1), 9), state(Cursor(0, 5), 9), "row"),
        (state(Cursor(1), 9), state(Cursor(1), 9), "row"),
        (state(Cursor(1), 9), state(Cursor(2), 8), "8 rows after 9"),
        (state(None, 9, LATER), state(None, 9, E), "epoch 10 after 20"),
        (state(None, 9), state(None, 9), "finished already"),
        (state(None, 9), state(Cursor(3), 9), "finished already"),
        (state(Cursor(1), 9), state(None, 9, LATER), "is open"),
        (state(None, 9), state(Cursor(0), 9, LATER), "is open"),
    ],
)
def test_progress_never_goes_back(before, after, why):
    with pytest.raises(BrokenInvariant, match=why):
        before.follow(after)


def test_changes_wait_for_the_snapshot():
    with pytest.raises(BrokenInvariant, match="before the snapshot"):
        state(Cursor(1), 9).consumed(LATER, 1)


def test_progress_is_of_all_vnodes_each_once():
    with pytest.raises(BrokenInvariant, match="all vnodes"):
        unread([(0, 9), (11, 255)], E)
    with pytest.raises(BrokenInvariant, match="all vnodes"):
        unread([(0, 9), (10, 254)], E)
    two = unread([(0, 9), (10, 255)], E)
    moved = two.with_state(two.states[1].moved(None, 7))
    assert (moved.finished, moved.rows, moved.epoch) == (False, 7, E)


def files():
    @st.composite
    def made(draw):
        found = []
        for number in range(draw(st.integers(0, 12))):
            low = draw(st.integers(0, VNODE_COUNT - 1))
            high = draw(st.integers(low, min(VNODE_COUNT - 1, low + draw(st.integers(0, 80)))))
            rows = draw(st.integers(1, 50))
            file = DataFile(
                path=f"f{number}", bytes=rows * 10, rows=rows, first_vnode=low, last_vnode=high
            )
            found.append(SnapshotFile(file, draw(st.integers(0, rows))))
        return found

    return made()


@given(files())
def test_groups_are_all_vnodes_and_share_no_file(found):
    groups = groups_of(found)
    TableProgress(unread([(g.first, g.last) for g in groups], E).states)
    assert sorted(f.file.path for g in groups for f in g.files) == sorted(
        f.file.path for f in found
    )
    for group in groups:
        for each in group.files:
            assert group.first <= each.file.first_vnode <= each.file.last_vnode <= group.last
    assert groups_of(reversed(found)) == groups


@given(files(), st.integers(1, 600), st.none() | st.integers(1, 30))
def test_slices_have_every_row_once_in_order_and_keep_to_their_bounds(found, most_bytes, most_rows):
    for group in groups_of(found):
        at = BackfillState(first=group.first, last=group.last, epoch=E)
        seen = []
        while (
            one := next_slice(group, at, most_bytes=most_bytes, most_rows=most_rows)
        ) is not None:
            places = [(p.path, row) for p in one.parts for row in range(p.start, p.stop)]
            before = [
                (p.path, row) for p in read_so_far(group, at) for row in range(p.start, p.stop)
            ]
            assert before == seen
            assert not set(places) & set(before)
            if most_rows is not None:
                assert len(places) <= most_rows
            assert one.bytes <= most_bytes or len(one.parts) == 1
            assert places or not group.files
            seen += places
            at = at.moved(one.after, one.rows)
        assert seen == [(f.file.path, row) for f in group.files for row in range(f.file.rows)]
        assert at.finished


@given(files(), st.lists(st.integers(1, 100), max_size=8))
def test_what_is_stored_comes_back(found, sizes):
    groups = groups_of(found)
    progress = unread([(g.first, g.last) for g in groups], E)
    for size in sizes:
        for group, at in zip(groups, progress.states, strict=True):
            one = next_slice(group, at, most_bytes=1000, most_rows=size)
            if one is not None:
                progress = progress.with_state(at.moved(one.after, one.rows))
    whole = {TableId(7): progress, TableId(8): unread([(0, 255)], LATER)}
    assert decoded(encoded(whole)) == whole


def test_a_thousand_groups_are_stored_small_and_a_newer_form_is_refused():
    many = {TableId(n): unread([(v, v) for v in range(256)], E) for n in range(4)}
    text = encoded(many)
    assert text.startswith("1z")
    assert len(text) < 8_000
    assert decoded(text) == many
    with pytest.raises(DamagedState, match=re.escape("'2j'")):
        decoded("2j{}")
