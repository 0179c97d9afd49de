"""Rows that a log is lent: named in its text, read from their lender, and never deleted by it."""

from dataclasses import replace

import pytest

from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import LENT, VNODE, Offset, Segment
from headwater.logstore.serde import only_inserts, read_segment
from headwater.logstore.state import INLINE
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.vnode import VnodeBitmap
from headwater.testing.log_store_kit import (
    LogStoreRig,
    as_rows,
    log_rows,
    read_items,
    read_through,
)
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage

FULL = VnodeBitmap.full()


def inserts(*ids: int) -> list:
    return [(RowOp.INSERT, number, f"row {number}") for number in ids]


class Library:
    """A lender of ten rows under each number; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, segment: Segment):
        self.asked += 1
        number = int(segment.name.removeprefix(LENT))
        return log_rows(inserts(*range(10 * number, 10 * number + 10)))


def lent(number: int, epoch: int = 1) -> Segment:
    return Segment(
        name=f"{LENT}{number}", epoch=Epoch(epoch), first_seq=0, rows=10, bytes=500, vnodes=FULL
    )


def rows_of(seen: list) -> list:
    return [row for item in seen for row in item.rows]


async def test_lent_rows_are_read_between_rows_of_the_log():
    rig = LogStoreRig(lender=Library())
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    await writer.write_chunk(log_rows(inserts(900)))
    await writer.add_segments([lent(1), lent(2)])
    await writer.write_chunk(log_rows(inserts(901)))
    end = await rig.checkpoint()
    seen = await read_through(reader, end)
    assert rows_of(seen) == inserts(900, *range(10, 30), 901)
    # A life that comes later finds them by the text alone.
    (again,), _ = await rig.open()
    assert rows_of(await read_through(again, end)) == rows_of(seen)


async def test_nothing_of_the_lender_is_deleted():
    rig = LogStoreRig(lender=Library())
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    many = 3 * INLINE
    await writer.add_segments([lent(number) for number in range(many)])
    end = await rig.checkpoint()
    assert any(name.startswith("index-") for name in rig.files.content)
    seen = await read_through(reader, end)
    assert sorted(rows_of(seen)) == inserts(*range(10 * many))
    deleted = []
    real = rig.storage.delete
    rig.storage.delete = lambda path: (deleted.append(path), real(path))  # type: ignore[method-assign]
    reader.truncate(Offset(end))
    await rig.checkpoint()
    await rig.factory.log.collect()
    writer.discard()
    await rig.factory.log.collect()
    assert deleted
    assert not [path for path in deleted if path.startswith(LENT)]
    assert rig.files.content == {}


async def test_lent_rows_of_an_epoch_that_was_dropped_are_named_again():
    rig = LogStoreRig(lender=Library())
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    await writer.add_segments([lent(1)])
    writer.discard()
    await rig.factory.log.collect()
    await writer.init(rig.next_epoch())
    await writer.add_segments([lent(1, 2)])
    end = await rig.checkpoint()
    assert rows_of(await read_through(reader, end)) == inserts(*range(10, 20))


async def test_readers_that_share_a_log_share_lent_rows_by_vnode():
    rig = LogStoreRig(lender=Library())
    low, high = VnodeBitmap.split(2)
    (left, right), writer = await rig.open(shards=(low, high))
    await writer.init(rig.next_epoch())
    await writer.add_segments([lent(12), lent(13)])
    await rig.checkpoint()
    found = [rows_of(await read_items(each, 2)) for each in (left, right)]
    assert found == [inserts(*range(120, 128)), inserts(*range(128, 140))]


def test_reading_needs_the_lender_and_all_that_was_counted():
    storage = MemoryStorage(MemoryFiles())
    with pytest.raises(BrokenInvariant, match="without their lender"):
        read_segment(storage, lent(1))
    with pytest.raises(DamagedState, match="not those that were counted"):
        read_segment(storage, replace(lent(1), rows=11), lender=Library())
    assert only_inserts(storage, lent(1))


def test_lent_rows_come_by_vnode():
    def shuffled(segment: Segment):
        return Library()(segment).take([5, 0, 9, 1, 2, 3, 4, 6, 7, 8])

    rows = read_segment(MemoryStorage(MemoryFiles()), lent(1), lender=shuffled)
    assert as_rows(rows) == inserts(*range(10, 20))
    some = read_segment(
        MemoryStorage(MemoryFiles()), lent(1), VnodeBitmap.of([12, 17]), lender=shuffled
    )
    assert some[VNODE].to_pylist() == [12, 17]
