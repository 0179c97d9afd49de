"""The writing end: numbers of rows, what is stored when, and what the ledger must say first."""

import asyncio

import pytest

from headwater.errors import BrokenInvariant, StorageUnavailable
from headwater.logstore.items import LogChunk, Offset
from headwater.logstore.serde import SEQ_COLUMN, Layout, read_segment, write_segment
from headwater.logstore.state import LogStoreState
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.vnode import VnodeBitmap
from headwater.testing.log_store_kit import (
    LogStoreRig,
    log_rows,
    nothing_to_read,
    read_through,
    vnodes_of_ids,
)
from headwater.testing.memory_storage import MemoryStorage

TINY, HUGE = 1, 1 << 30


def inserts(*ids: int) -> list:
    return [(RowOp.INSERT, number, f"row {number}") for number in ids]


def rows_of(seen: list) -> set:
    return {row for item in seen for row in item.rows}


async def opened(**options) -> tuple:
    rig = LogStoreRig(**options)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    return rig, reader, writer


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("buffer_bytes", [TINY, 4000, HUGE])
async def test_rows_are_numbered_from_0_in_each_epoch_without_gaps(buffer_bytes, layout):
    rig, _, writer = await opened(buffer_bytes=buffer_bytes, chunk_bytes=300, layout=layout)
    names = {}
    for _ in range(3):
        epoch = writer.epoch
        names[epoch] = []
        for part in range(4):
            ids = range(part * 30, part * 30 + 30)
            await writer.write_chunk(log_rows([]))
            await writer.write_chunk(log_rows([(RowOp.INSERT, n, f"{epoch}/{n}") for n in ids]))
            names[epoch] += [f"{epoch}/{n}" for n in ids]
        task = write_segment(
            rig.storage, log_rows([(RowOp.INSERT, 7, "task")]), epoch, term=rig.term
        )
        await writer.add_segments([task])
        names[epoch].append("task")
        await rig.checkpoint()
    entries = LogStoreState.decode(rig.ledger)
    found = {}
    for item in await all_chunks(rig, entries):
        table = read_segment(rig.storage, item.stored, vnode_of=vnodes_of_ids, with_key=True)
        pairs = zip(table[SEQ_COLUMN].to_pylist(), table["name"].to_pylist(), strict=True)
        found.setdefault(item.epoch, {}).update(pairs)
    assert found == {epoch: dict(enumerate(listed)) for epoch, listed in names.items()}


async def all_chunks(rig: LogStoreRig, state: LogStoreState) -> list[LogChunk]:
    """Every chunk of a log, in order."""
    (reader,), _ = await rig.open()
    found = []
    while not found or Offset.after(found[-1]) < Offset(state.epoch):
        found.append(await reader.next_item())
    return [item for item in found if isinstance(item, LogChunk)]


async def test_chunks_are_numbered_anew_after_each_barrier():
    rig, reader, writer = await opened(chunk_bytes=1)
    ends = []
    for _ in range(2):
        await writer.write_chunk(log_rows(inserts(1, 2, 3)))
        ends.append(await rig.checkpoint())
    places = [item.place for item in await read_through(reader, ends[-1])]
    per_epoch = [(0, 1, 2, float("inf"))] * 2
    assert places == [Offset(e, c) for e, ids in zip(ends, per_epoch, strict=True) for c in ids]


async def test_small_chunks_become_one():
    rig, reader, writer = await opened()
    for number in range(50):
        await writer.write_chunk(log_rows(inserts(number)))
    end = await rig.checkpoint()
    seen = await read_through(reader, end)
    assert len(seen) == 2
    assert rows_of(seen) == set(inserts(*range(50)))
    assert len(rig.files.content) == 1


async def test_an_epoch_without_rows_writes_nothing():
    rig, reader, writer = await opened()
    for _ in range(1000):
        await writer.write_chunk(log_rows([]))
        await rig.barrier()
        end = await rig.checkpoint()
    assert rig.files.content == {}
    assert len(rig.ledger) < 150
    seen = await read_through(reader, end)
    assert {item.rows for item in seen} == {()}
    assert seen[-1].barrier.checkpoint
    reader.truncate(Offset(end))
    ends = [await rig.barrier(), await rig.checkpoint()]
    seen = await read_through(reader, ends[-1])
    assert [(item.place.epoch, item.barrier.checkpoint) for item in seen] == [
        (ends[0], False),
        (ends[1], True),
    ]


async def test_only_a_checkpoint_has_a_text_and_makes_rows_durable():
    rig, reader, writer = await opened()
    await writer.write_chunk(log_rows(inserts(1)))
    first = await rig.barrier()
    await writer.write_chunk(log_rows(inserts(2)))
    assert rig.ledger is None
    assert rig.files.content == {}
    second = await rig.checkpoint()
    seen = await read_through(reader, second)
    assert [item.barrier.checkpoint for item in seen if item.barrier] == [False, True]
    assert [(item.place.epoch, item.rows) for item in seen if item.rows] == [
        (first, tuple(inserts(1))),
        (second, tuple(inserts(2))),
    ]


async def test_nothing_is_read_before_the_ledger_has_it():
    rig, reader, writer = await opened()
    await writer.write_chunk(log_rows(inserts(1)))
    text = await writer.flush_current_epoch(Epoch(2), checkpoint=True)
    assert text is not None
    assert await nothing_to_read(reader)
    writer.confirm(Epoch(1))
    writer.confirm(Epoch(1))
    seen = await read_through(reader, Epoch(1))
    assert rows_of(seen) == set(inserts(1))
    assert rig.epoch == 1


async def test_two_epochs_may_wait_for_the_ledger():
    _, reader, writer = await opened()
    for epoch in (1, 2):
        await writer.write_chunk(log_rows(inserts(epoch)))
        await writer.flush_current_epoch(Epoch(epoch + 1), checkpoint=True)
    writer.confirm(Epoch(1))
    assert rows_of(await read_through(reader, Epoch(1))) == set(inserts(1))
    assert await nothing_to_read(reader)
    writer.confirm(Epoch(2))
    assert rows_of(await read_through(reader, Epoch(2))) == set(inserts(2))


@pytest.mark.parametrize("buffer_bytes", [TINY, HUGE])
async def test_what_failed_to_commit_is_written_again_and_read_once(buffer_bytes):
    rig, reader, writer = await opened(buffer_bytes=buffer_bytes)
    await writer.write_chunk(log_rows(inserts(1, 2)))
    await writer.flush_current_epoch(Epoch(2), checkpoint=True)
    await writer.write_chunk(log_rows(inserts(3)))
    writer.discard()
    log = rig.factory.log
    assert log.buffer.held_bytes == 0
    await log.collect()
    assert rig.files.content == {}
    await writer.init(Epoch(1))
    await writer.write_chunk(log_rows(inserts(1, 2)))
    rig.ledger = await writer.flush_current_epoch(Epoch(2), checkpoint=True)
    writer.confirm(Epoch(1))
    seen = await read_through(reader, Epoch(1))
    assert [item.rows for item in seen] == [tuple(inserts(1, 2)), ()]


async def test_rows_over_the_bound_go_to_storage_at_once():
    rig, reader, writer = await opened(buffer_bytes=200_000, chunk_bytes=2000)
    log = rig.factory.log
    for number in range(100):
        await writer.write_chunk(log_rows(inserts(*range(number * 100, number * 100 + 100))))
        assert log.buffer.held_bytes <= 200_000
    assert len(rig.files.content) > 20
    end = await rig.checkpoint()
    items = []
    while not items or items[-1].epoch < end or isinstance(items[-1], LogChunk):
        items.append(await reader.next_item())
    chunks = [item for item in items if isinstance(item, LogChunk)]
    in_memory = [chunk.rows is not None for chunk in chunks]
    assert any(in_memory)
    assert not all(in_memory)
    await reader.start_from()
    assert rows_of(await read_through(reader, end)) == set(inserts(*range(10_000)))
    reader.truncate(Offset(end))
    assert log.buffer.held_bytes == 0


async def test_the_halves_of_an_update_stay_together():
    rig, reader, writer = await opened(chunk_bytes=1)
    rows = []
    for number in range(20):
        rows += [(RowOp.UPDATE_DELETE, number, "a"), (RowOp.UPDATE_INSERT, number, "b")]
    await writer.write_chunk(log_rows(rows))
    end = await rig.checkpoint()
    seen = await read_through(reader, end)
    assert [item.rows for item in seen[:-1]] == [
        tuple(rows[n : n + 2]) for n in range(0, len(rows), 2)
    ]


async def test_files_go_only_when_the_ledger_no_longer_needs_them():
    rig, reader, writer = await opened(chunk_bytes=1)
    await writer.write_chunk(log_rows(inserts(1, 2, 3)))
    end = await rig.checkpoint()
    log = rig.factory.log
    await read_through(reader, end)
    reader.truncate(Offset(end, 1))
    await log.collect()
    assert len(rig.files.content) == 3
    await rig.checkpoint()
    await log.collect()
    assert len(rig.files.content) == 1
    (again,), _ = await rig.open()
    assert rows_of(await read_through(again, end)) == set(inserts(3))


async def test_a_write_that_failed_must_be_discarded():
    class Full:
        def before(self, call: str, path: str) -> None:
            if call == "put":
                raise StorageUnavailable("storage is full")

        def after(self, call: str, path: str) -> None:
            pass

    rig, _, writer = await opened()
    rig.factory.log.storage = MemoryStorage(rig.files, gate=Full())
    await writer.write_chunk(log_rows(inserts(1)))
    with pytest.raises(StorageUnavailable):
        await writer.flush_current_epoch(Epoch(2), checkpoint=True)
    with pytest.raises(BrokenInvariant, match="discarded"):
        await writer.flush_current_epoch(Epoch(3), checkpoint=True)
    writer.discard()
    rig.factory.log.storage = rig.storage
    await writer.init(Epoch(1))
    await writer.write_chunk(log_rows(inserts(1)))
    assert await writer.flush_current_epoch(Epoch(2), checkpoint=True)


async def test_a_write_that_was_cancelled_must_be_discarded():
    rig, _, writer = await opened(buffer_bytes=TINY)
    never = asyncio.Event()

    async def stuck(call, *args, **options):
        await never.wait()

    rig.factory.log.blocking = stuck
    task = asyncio.ensure_future(writer.write_chunk(log_rows(inserts(1))))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(BrokenInvariant, match="discarded"):
        await writer.write_chunk(log_rows(inserts(1)))


async def test_calls_that_make_no_sense_are_refused():
    rig = LogStoreRig()
    (_,), writer = await rig.open()
    with pytest.raises(BrokenInvariant, match="before `init`"):
        await writer.write_chunk(log_rows(inserts(1)))
    await writer.init(rig.next_epoch())
    with pytest.raises(BrokenInvariant, match="already"):
        await writer.init(rig.next_epoch())
    with pytest.raises(BrokenInvariant, match="never staged"):
        writer.confirm(Epoch(1))
    writer.pause()
    with pytest.raises(BrokenInvariant, match="paused"):
        await writer.write_chunk(log_rows(inserts(1)))
    writer.resume()
    await rig.checkpoint()
    (_,), writer = await rig.open()
    with pytest.raises(BrokenInvariant, match="cannot go on"):
        await writer.init(Epoch(1))


@pytest.mark.parametrize(
    ("vnodes", "reason"),
    [
        ([VnodeBitmap.split(2)[0]], "must have a reader"),
        ([VnodeBitmap.full(), VnodeBitmap.of([3])], "the same vnode"),
    ],
)
async def test_vnodes_are_shared_without_gap_or_overlap(vnodes, reason):
    _, _, writer = await opened()
    with pytest.raises(BrokenInvariant, match=reason):
        await writer.flush_current_epoch(Epoch(2), checkpoint=True, vnodes=vnodes)
    writer.discard()
    await writer.init(Epoch(1))
    with pytest.raises(BrokenInvariant, match="checkpoint only"):
        await writer.flush_current_epoch(Epoch(2), checkpoint=False, vnodes=[VnodeBitmap.full()])


async def test_segments_of_a_later_epoch_are_refused():
    rig, _, writer = await opened()
    other = write_segment(rig.storage, log_rows(inserts(1)), Epoch(9), term=rig.term)
    with pytest.raises(BrokenInvariant, match="of a later epoch"):
        await writer.add_segments([other])
