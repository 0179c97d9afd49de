"""Vnodes are crc32 mod 256, and bitmaps are sets of them."""

import pickle
import zlib

import pytest

from headwater.model.vnode import KEY_SEPARATOR, VNODE_COUNT, VnodeBitmap, vnode_of


@pytest.mark.parametrize(
    ("key", "vnode"),
    # The check value of CRC-32 is 0xCBF43926 for the digits 1 to 9.
    [(b"123456789", 0x26), (b"", 0), (b"1" + KEY_SEPARATOR + b"a", zlib.crc32(b"1\x1fa") & 255)],
)
def test_the_slot_of_a_key(key, vnode):
    assert vnode_of(key) == vnode


def test_keys_reach_every_slot():
    assert {vnode_of(str(number).encode()) for number in range(10_000)} == set(range(VNODE_COUNT))


def test_full_and_empty():
    assert len(VnodeBitmap.full()) == VNODE_COUNT
    assert list(VnodeBitmap.full()) == list(range(VNODE_COUNT))
    assert len(VnodeBitmap.empty()) == 0
    assert not list(VnodeBitmap.empty())
    assert 0 not in VnodeBitmap.empty()
    assert 255 in VnodeBitmap.full()


def test_no_vnode_is_outside_the_slots():
    assert VNODE_COUNT not in VnodeBitmap.full()


@pytest.mark.parametrize("vnode", [-1, VNODE_COUNT])
def test_a_vnode_out_of_range_is_refused(vnode):
    with pytest.raises(ValueError, match=str(vnode)):
        VnodeBitmap.of([vnode])


@pytest.mark.parametrize("parts", [0, -1, VNODE_COUNT + 1])
def test_a_parallelism_out_of_range_is_refused(parts):
    with pytest.raises(ValueError, match=f"not {parts}"):
        VnodeBitmap.split(parts)


def test_a_split_in_three():
    sizes = [len(part) for part in VnodeBitmap.split(3)]
    assert sizes == [85, 85, 86]
    assert VnodeBitmap.split(1) == (VnodeBitmap.full(),)


def test_bitmaps_travel():
    bitmap = VnodeBitmap.of([0, 7, 255])
    assert pickle.loads(pickle.dumps(bitmap)) == bitmap
