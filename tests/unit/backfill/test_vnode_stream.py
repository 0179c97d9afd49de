"""Reading a snapshot by vnode: every row once, bounded, from any place, by any reader."""

from random import Random

import pytest

from headwater.backfill.snapshot.state import unread
from headwater.backfill.snapshot.vnode_stream import VnodeStream, joined, owned
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.vnode import VnodeBitmap
from upstream_double import MemoryUpstream, finished


def upstream(rows=60):
    found = MemoryUpstream()
    found.write({key: f"v{key}" for key in range(rows)}, Epoch(10))
    found.refresh()
    return found


def begun(table, epoch=10):
    groups = table.groups(epoch)
    return groups, unread([(each.first, each.last) for each in groups], epoch).states


def test_every_row_is_read_once_whatever_limits_fails_and_changes_hands():
    for seed in range(15):
        read_by_many(Random(seed))


def read_by_many(dice):
    table = upstream(dice.randrange(1, 60))
    groups, states = begun(table)
    got = []
    while not all(state.finished for state in states):
        parts = VnodeBitmap.split(dice.randrange(1, 5))
        dealt = dice.sample(range(256), 256)
        if dice.random() < 0.5:
            # Vnodes need not lie side by side.
            third = len(dealt) // 3
            parts = [VnodeBitmap.of(dealt[:third]), VnodeBitmap.of(dealt[third:])]
        streams = [VnodeStream(groups, owned(states, part)) for part in parts]
        for stream in streams:
            for _ in range(dice.randrange(4)):
                most_rows = dice.choice([None, 1, 3])
                slices = stream.next(dice.choice([1, 500, 10_000]), most_rows)
                if dice.random() < 0.3:
                    for each in slices:
                        stream.give_up(each)
                    continue
                for each in slices:
                    rows = table.snapshot(Epoch(10), [each]).column("id").to_pylist()
                    got += rows
                    stream.settle(each, len(rows))
        states = sorted((s for each in streams for s in each.states), key=lambda s: s.first)
        assert sum(state.rows for state in states) == len(got)
    assert sorted(got) == sorted(table.at[Epoch(10)])


def test_few_large_reads_when_nothing_limits():
    table = upstream(100)
    groups, states = begun(table)
    assert len(groups) > 5
    stream = VnodeStream(groups, states)
    slices = stream.next(1 << 40)
    assert table.snapshot(Epoch(10), slices).num_rows == 100
    assert not stream.next(1 << 40)


def test_a_read_is_bounded_in_bytes_and_in_rows():
    table = upstream(100)
    groups, states = begun(table)
    stream = VnodeStream(groups, states)
    assert sum(each.bytes for each in stream.next(1500)) <= 1500
    assert table.snapshot(Epoch(10), VnodeStream(groups, states).next(1 << 40, 7)).num_rows == 7


def test_what_is_under_way_is_not_handed_out_twice():
    table = upstream(100)
    groups, states = begun(table)
    stream = VnodeStream(groups, states)
    first, second = stream.next(600), stream.next(600)
    assert first
    assert second
    assert not {each.first for each in first} & {each.first for each in second}


def test_a_table_without_rows_is_read_at_once():
    table = MemoryUpstream()
    table.refresh()
    groups, states = begun(table, Epoch(1))
    stream = VnodeStream(groups, states)
    (only,) = stream.next(1 << 20)
    stream.settle(only, 0)
    assert stream.finished


def test_states_join_only_where_they_are_neighbours_of_one_epoch():
    states = [
        finished(0, 9, 5, 1),
        finished(10, 19, 5, 2),
        finished(20, 29, 6),
        finished(40, 49, 6),
    ]
    assert joined(states) == (finished(0, 19, 5, 3), *states[2:])


def test_vnodes_that_did_not_share_files_cannot_be_gone_on_with():
    table = upstream(100)
    _, states = begun(table)
    with pytest.raises(BrokenInvariant, match="do not share files"):
        VnodeStream(MemoryUpstream().groups(Epoch(1))[:0], states)
