"""The reading end: history and memory alike, truncation, rewinding, cancelling, sharing vnodes."""

import asyncio
from datetime import timedelta

import pytest

from headwater.errors import BrokenInvariant, DamagedState, HistoryGone
from headwater.logstore.backoff import (
    REWIND_BACKOFF_FACTOR,
    REWIND_BASE_DELAY,
    REWIND_MAX_DELAY,
    RewindBackoff,
)
from headwater.logstore.items import LogChunk, Offset
from headwater.logstore.kv_log_store import LogStoreOptions
from headwater.logstore.reader import KvLogStoreReader
from headwater.logstore.state import read_index
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.testing.log_store_kit import (
    LogStoreRig,
    at_once,
    log_rows,
    nothing_to_read,
    read_item,
    read_items,
    read_through,
)

TINY, SOME, HUGE = 1, 3000, 1 << 30
LOW, HIGH = VnodeBitmap.split(2)
EMPTY, FULL = VnodeBitmap.empty(), VnodeBitmap.full()


def inserts(*ids: int) -> list:
    return [(RowOp.INSERT, number, f"row {number}") for number in ids]


def of_vnodes(vnodes: VnodeBitmap, rows: list) -> set:
    return {row for row in rows if row[1] % VNODE_COUNT in vnodes}


def rows_of(seen: list) -> list:
    return [row for item in seen for row in item.rows]


async def filled(epochs: int, *, chunks: int = 3, shards=(FULL,), **options) -> tuple:
    """A log with so many epochs, of so many chunks with two rows each; nothing is read."""
    rig = LogStoreRig(**options)
    readers, writer = await rig.open(shards=shards)
    await writer.init(rig.next_epoch())
    for _ in range(epochs):
        await fill(rig, writer, chunks)
    return rig, readers, writer


async def fill(rig: LogStoreRig, writer, chunks: int = 3) -> Epoch:
    for chunk in range(chunks):
        number = writer.epoch * 1000 + chunk * 2
        await writer.write_chunk(log_rows(inserts(number, number + 1)))
    return await rig.checkpoint()


@pytest.mark.parametrize("buffer_bytes", [TINY, SOME, HUGE])
async def test_items_are_the_same_from_memory_storage_and_history(buffer_bytes):
    rig, (live,), _ = await filled(60, buffer_bytes=buffer_bytes, chunk_bytes=1)
    seen = await read_through(live, Epoch(60))
    expected = inserts(*(e * 1000 + n for e in range(1, 61) for n in range(6)))
    assert rows_of(seen) == expected
    assert [item.place for item in seen] == [
        Offset(Epoch(e), c) for e in range(1, 61) for c in (*range(6), float("inf"))
    ]
    (later,), _ = await rig.open()
    assert await read_through(later, Epoch(60)) == seen


@pytest.mark.parametrize("buffer_bytes", [TINY, SOME, HUGE])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_rewind_is_exact_to_the_chunk_also_in_history(buffer_bytes, restarted):
    rig, (reader,), _ = await filled(40, buffer_bytes=buffer_bytes, chunk_bytes=1)
    if restarted:
        (reader,), _ = await rig.open()
    whole = await read_through(reader, Epoch(40))
    for count in (1, 4, 7, 8, 100, 278):
        reader.truncate(whole[count - 1].place)
        for _ in range(2):
            await reader.start_from()
            assert await read_through(reader, Epoch(40)) == whole[count:]
    await reader.start_from(Epoch(40))
    assert await nothing_to_read(reader)


async def test_a_rewind_to_an_epoch_gives_what_follows_it():
    _, (reader,), _ = await filled(10)
    whole = await read_through(reader, Epoch(10))
    for epoch in (Epoch(3), Epoch(9), Epoch(0)):
        await reader.start_from(epoch)
        expected = [item for item in whole if item.place.epoch > epoch]
        assert await read_through(reader, Epoch(10)) == expected
    reader.truncate(Offset(Epoch(5)))
    with pytest.raises(HistoryGone, match="no longer has what follows epoch 4"):
        await reader.start_from(Epoch(4))
    with pytest.raises(BrokenInvariant):
        await reader.start_from(Epoch(11))


async def test_truncation_only_grows_and_never_beyond_what_was_read():
    _, (reader,), _ = await filled(2, chunk_bytes=1)
    seen = await read_items(reader, 3)
    with pytest.raises(BrokenInvariant, match="beyond what was read"):
        reader.truncate(Offset(Epoch(1), 3))
    reader.truncate(seen[1].place)
    reader.truncate(seen[1].place)
    with pytest.raises(BrokenInvariant, match="cannot go back"):
        reader.truncate(seen[0].place)
    await reader.start_from()
    with pytest.raises(BrokenInvariant, match="beyond what was read"):
        reader.truncate(seen[2].place)


async def test_a_truncated_chunk_does_not_come_again_after_a_restart():
    rig, (reader,), writer = await filled(1, chunk_bytes=1)
    seen = await read_through(reader, Epoch(1))
    reader.truncate(seen[3].place)
    end = await fill(rig, writer, 1)
    (again,), _ = await rig.open()
    found = await read_through(again, end)
    assert found[:3] == seen[4:]
    assert rows_of(found) == inserts(1004, 1005, 2000, 2001)


async def test_what_is_marked_as_delivered_does_not_come_again():
    rig, _, _ = await filled(5)
    (reader,), _ = await rig.open(delivered=Epoch(3))
    assert rows_of(await read_through(reader, Epoch(5))) == inserts(
        *(e * 1000 + n for e in (4, 5) for n in range(6))
    )
    assert reader.truncated == Offset(Epoch(3))
    assert sorted(name.split("-")[2] for name in rig.files.content) == [f"{4:016x}", f"{5:016x}"]


async def test_barriers_without_rows_in_a_row_are_one_in_history():
    rig, (live,), writer = await filled(1)
    for _ in range(5):
        await rig.checkpoint()
    end = await fill(rig, writer)
    seen = await read_through(live, end)
    assert [item.place.epoch for item in seen if item.barrier] == [1, 2, 3, 4, 5, 6, 7]
    (later,), _ = await rig.open()
    found = await read_through(later, end)
    assert [item.place.epoch for item in found if item.barrier] == [1, 6, 7]
    await later.start_from(Epoch(4))
    assert (await read_item(later)).place == Offset(Epoch(6))


async def test_waiting_costs_nothing_and_ends_with_the_commit():
    rig, (reader,), writer = await filled(0)
    task = asyncio.ensure_future(read_item(reader))
    for _ in range(20):
        await asyncio.sleep(0)
    rounds = 0

    def counted(*args):
        nonlocal rounds
        rounds += 1

    rig.factory.log.buffer.after = counted
    for _ in range(20):
        await asyncio.sleep(0)
    assert rounds == 0
    del rig.factory.log.buffer.after
    await fill(rig, writer)
    assert rows_of([await task]) == inserts(*range(1000, 1006))


class Slow:
    """Blocking calls that end when the test says so."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()

    async def __call__(self, call, *args, **options):
        self.calls += call is read_index
        if call is read_index:
            await self.go.wait()
        return await at_once(call, *args, **options)


async def test_cancelled_reads_lose_nothing_and_do_not_begin_again():
    rig, _, _ = await filled(60, chunks=1)
    (reader,), _ = await rig.open()
    slow = Slow()
    rig.factory.log.blocking = slow
    for _ in range(5):
        task = asyncio.ensure_future(reader.next_item())
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert slow.calls == 1
    slow.go.set()
    seen = await read_through(reader, Epoch(60))
    assert rows_of(seen) == inserts(*(e * 1000 + n for e in range(1, 61) for n in range(2)))


async def test_a_lost_list_is_told():
    rig, _, _ = await filled(60)
    (reader,), _ = await rig.open()
    for name in [name for name in rig.files.content if name.startswith("index")]:
        del rig.files.content[name]
    with pytest.raises(DamagedState, match="is missing"):
        await read_item(reader)


async def test_a_list_that_was_merged_meanwhile_is_found_again():
    rig, _, writer = await filled(40, chunks=1)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    slow = Slow()
    rig.factory.log.blocking = slow
    task = asyncio.ensure_future(reader.next_item())
    for _ in range(10):
        await asyncio.sleep(0)
    before = set(rig.factory.log.state.indexes)
    rig.factory.log.blocking = at_once
    while before & set(rig.factory.log.state.indexes):
        end = await fill(rig, writer, 1)
    await rig.factory.log.collect()
    slow.go.set()
    item = await task
    assert (item.epoch, item.chunk_id) == (1, 0)
    assert rows_of(await read_through(reader, end)) == inserts(
        *(e * 1000 + n for e in [*range(2, 41), *range(42, end + 1)] for n in range(2))
    )


class TestRewind:
    def reader_with(self, sleeps: list, random: float = 0.0) -> LogStoreOptions:
        async def sleep(seconds: float) -> None:
            sleeps.append(seconds)

        return LogStoreOptions(backoff=RewindBackoff(sleep=sleep, random=lambda: random))

    async def test_waits_double_up_to_the_longest(self):
        sleeps: list[float] = []
        _, (reader,), _ = await filled(2, options=self.reader_with(sleeps))
        for _ in range(10):
            await reader.rewind()
            await reader.start_from()
        assert sleeps == [1, 2, 4, 8, 16, 32, 64, 128, 180, 180]

    async def test_progress_begins_anew(self):
        sleeps: list[float] = []
        _, (reader,), _ = await filled(4, options=self.reader_with(sleeps))
        for truncates in (False, False, True, False, True):
            item = await read_item(reader)
            if truncates:
                reader.truncate(item.place)
            await reader.rewind()
            await reader.start_from()
        assert sleeps == [1, 2, 1, 2, 1]

    async def test_chance_takes_at_most_half_away(self):
        sleeps: list[float] = []
        _, (reader,), _ = await filled(1, options=self.reader_with(sleeps, 0.999))
        for _ in range(3):
            await reader.rewind()
            await reader.start_from()
        assert sleeps == pytest.approx([0.5, 1, 2], rel=0.01)

    async def test_nothing_is_read_until_it_is_said_where_from(self):
        sleeps: list[float] = []
        _, (reader,), _ = await filled(1, options=self.reader_with(sleeps))
        await reader.rewind()
        with pytest.raises(BrokenInvariant, match="where to start"):
            await reader.next_item()
        with pytest.raises(BrokenInvariant, match="where to start"):
            reader.truncate(Offset(Epoch(1)))

    async def test_a_log_that_does_not_allow_it_refuses(self):
        rig, _, _ = await filled(1)
        reader = KvLogStoreReader(rig.factory.log, vnodes=VnodeBitmap.full(), allow_rewind=False)
        with pytest.raises(BrokenInvariant, match="cannot be rewound"):
            await reader.rewind()

    def test_the_sequence_is_exponential_and_does_not_overflow(self):
        backoff = RewindBackoff()
        assert backoff.delay(0) == REWIND_BASE_DELAY == timedelta(seconds=1)
        for failures in range(7):
            assert backoff.delay(failures + 1) == backoff.delay(failures) * REWIND_BACKOFF_FACTOR
        assert backoff.delay(100_000) == REWIND_MAX_DELAY == timedelta(seconds=180)


async def test_pausing_holds_readers_back():
    _, (reader,), writer = await filled(1)
    writer.pause()
    assert await nothing_to_read(reader)
    task = asyncio.ensure_future(reader.next_item())
    writer.resume()
    assert isinstance(await task, LogChunk)


class TestVnodes:
    async def test_each_reader_gets_its_own_rows_and_all_barriers(self):
        for buffer_bytes in (TINY, HUGE):
            _, readers, _ = await filled(
                3, chunks=70, shards=(LOW, HIGH), buffer_bytes=buffer_bytes
            )
            every = inserts(*(e * 1000 + n for e in (1, 2, 3) for n in range(140)))
            for reader, vnodes in zip(readers, (LOW, HIGH), strict=True):
                seen = await read_through(reader, Epoch(3))
                assert sorted(rows_of(seen)) == sorted(of_vnodes(vnodes, every))
                assert [i.place.epoch for i in seen if i.barrier] == [1, 2, 3]

    async def test_after_a_restart_others_go_on_where_each_vnode_was(self):
        rig, readers, _ = await filled(3, chunks=70, shards=(LOW, HIGH))
        await read_through(readers[0], Epoch(2))
        readers[0].truncate(Offset(Epoch(2)))
        await read_through(readers[1], Epoch(1))
        readers[1].truncate(Offset(Epoch(1)))
        end = await rig.checkpoint()
        thirds = VnodeBitmap.split(3)
        readers, _ = await rig.open(shards=thirds)
        found = [rows_of(await read_through(reader, end)) for reader in readers]
        second, third = inserts(*range(2000, 2140)), inserts(*range(3000, 3140))
        owed = of_vnodes(HIGH, second) | set(third)
        assert sorted(row for rows in found for row in rows) == sorted(owed)
        for rows, vnodes in zip(found, thirds, strict=True):
            assert set(rows) == of_vnodes(vnodes, sorted(owed))

    async def test_vnodes_change_hands_at_a_barrier_when_their_reader_is_done(self):
        rig, (first, second), writer = await filled(1, chunks=70, shards=(LOW, HIGH))
        change = await rig.checkpoint(vnodes=(HIGH, LOW))
        end = await fill(rig, writer, 70)
        for reader, gains in ((first, HIGH), (second, LOW)):
            seen = await read_through(reader, change)
            assert seen[-1].barrier.vnodes == gains
            assert reader.vnodes == gains
            assert await nothing_to_read(reader)
        second.truncate(Offset(change))
        every = inserts(*(end * 1000 + n for n in range(140)))
        assert set(rows_of(await read_through(first, end))) == of_vnodes(HIGH, every)
        assert await nothing_to_read(second)
        first.truncate(Offset(end))
        assert set(rows_of(await read_through(second, end))) == of_vnodes(LOW, every)
        second.truncate(Offset(end))
        assert rig.factory.log.progress.floor() == Offset(end)

    async def test_a_reader_may_join_and_another_may_end(self):
        rig, (reader,), writer = await filled(1, chunks=70)
        change = await rig.checkpoint(vnodes=(EMPTY, LOW, HIGH))
        joined = [rig.factory.joining_reader(number, change) for number in (1, 2)]
        for one in joined:
            await one.init()
            await one.start_from()
            assert await nothing_to_read(one)
        end = await fill(rig, writer, 70)
        seen = await read_through(reader, change)
        assert seen[-1].barrier.vnodes == EMPTY
        reader.truncate(Offset(change))
        every = inserts(*(end * 1000 + n for n in range(140)))
        for one, vnodes in zip(joined, (LOW, HIGH), strict=True):
            assert set(rows_of(await read_through(one, end))) == of_vnodes(vnodes, every)
        assert rows_of(await read_through(reader, end)) == []
        with pytest.raises(BrokenInvariant, match="change hands"):
            rig.factory.joining_reader(0, end)

    async def test_an_idle_reader_is_told_of_vnodes_that_the_log_forgot_already(self):
        rig, (busy, idle), writer = await filled(1, shards=(VnodeBitmap.full(), EMPTY))
        change = await rig.checkpoint(vnodes=(EMPTY, VnodeBitmap.full()))
        await read_through(busy, change)
        busy.truncate(Offset(change))
        end = await fill(rig, writer)
        seen = await read_through(idle, end)
        assert [(i.place.epoch, i.barrier.vnodes) for i in seen if i.barrier] == [
            (change, VnodeBitmap.full()),
            (end, None),
        ]
        assert rows_of(seen) == inserts(*(end * 1000 + n for n in range(6)))
