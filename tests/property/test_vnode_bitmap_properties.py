"""A vnode bitmap behaves as the set of its vnodes does."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.model.vnode import VNODE_COUNT, VnodeBitmap

vnodes = st.sets(st.integers(0, VNODE_COUNT - 1))


@given(vnodes, vnodes)
def test_bitmap_algebra_is_set_algebra(left, right):
    a, b = VnodeBitmap.of(left), VnodeBitmap.of(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert len(a) == len(left)
    assert list(a) == sorted(left)
    assert (a == b) == (left == right)
    assert all((vnode in a) == (vnode in left) for vnode in range(VNODE_COUNT))


@given(st.integers(1, VNODE_COUNT))
def test_a_split_divides_all_vnodes_evenly_and_in_order(parts):
    split = VnodeBitmap.split(parts)
    assert len(split) == parts
    assert [vnode for part in split for vnode in part] == list(range(VNODE_COUNT))
    sizes = {len(part) for part in split}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.integers(1, VNODE_COUNT), st.integers(1, VNODE_COUNT))
def test_rescaling_moves_every_vnode_exactly_once(before, after):
    old, new = VnodeBitmap.split(before), VnodeBitmap.split(after)
    moves = [a & b for a in old for b in new if (a & b).bits]
    assert sum(len(move) for move in moves) == VNODE_COUNT
    union = VnodeBitmap.empty()
    for move in moves:
        union |= move
    assert union == VnodeBitmap.full()
