"""The log as a whole: opened, filled, behind, crashed, caught up, and in an older layout."""

import asyncio

import pytest

from headwater.config import Settings
from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import Offset
from headwater.logstore.kv_log_store import KvLogStoreFactory, LogStoreOptions
from headwater.logstore.serde import Layout
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VnodeBitmap
from headwater.runtime.blocking import Blocking
from headwater.state.storage import LocalStorage
from headwater.testing.log_store_kit import (
    LogStoreRig,
    as_rows,
    at_once,
    log_rows,
    nothing_to_read,
    read_through,
)


def inserts(*ids: int) -> list:
    return [(RowOp.INSERT, number, f"row {number}") for number in ids]


def rows_of(seen: list) -> list:
    return [row for item in seen for row in item.rows]


def test_rewinding_is_allowed_and_settings_are_taken():
    assert KvLogStoreFactory.ALLOW_REWIND is True
    options = LogStoreOptions.of(Settings().change({"sink_buffer_bytes": 70_000}))
    assert (options.buffer_bytes, options.chunk_bytes) == (70_000, Settings().sink_chunk_bytes)
    assert LogStoreOptions() == LogStoreOptions.of(Settings())


async def test_a_target_that_is_far_behind_costs_storage_only_and_catches_up():
    rig = LogStoreRig(buffer_bytes=5000, chunk_bytes=1000)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    log, longest = rig.factory.log, 0
    for number in range(500):
        await writer.write_chunk(log_rows(inserts(*range(number * 10, number * 10 + 10))))
        end = await rig.checkpoint()
        longest = max(longest, len(rig.ledger))
        assert log.buffer.held_bytes <= 5000
        assert len(log.buffer) <= 16
        await log.collect()
    assert longest < 5000
    files = len(rig.files.content)
    assert 500 <= files < 520
    seen = await read_through(reader, end)
    assert sorted(rows_of(seen)) == inserts(*range(5000))
    # Files go while it catches up, also those that only an index names.
    reader.truncate(seen[501].place)
    await rig.checkpoint()
    await log.collect()
    assert len(rig.files.content) < files - 240
    reader.truncate(Offset(end))
    await rig.checkpoint()
    await log.collect()
    assert rig.files.content == {}
    assert len(rig.ledger) < 250


@pytest.mark.parametrize("crashes_between", [False, True])
async def test_an_older_layout_is_read_and_written_anew(crashes_between):
    rig = LogStoreRig(layout=Layout.V1, chunk_bytes=300)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    for number in range(60):
        await writer.write_chunk(log_rows(inserts(*range(number * 20, number * 20 + 20))))
        end = await rig.checkpoint()
    whole = await read_through(reader, end)
    reader.truncate(whole[30].place)
    await rig.checkpoint()
    assert {name.split(".")[1] for name in rig.files.content} == {"v1", "json"}
    new = LogStoreOptions(buffer_bytes=1000, chunk_bytes=300)
    if crashes_between:
        # Both layouts are there; the ledger still has the old one.
        await rig.open(options=new)
        await rig.factory.log.collect_orphans()
    (reader,), writer = await rig.open(options=new)
    assert await read_through(reader, end) == whole[31:]
    await writer.init(rig.next_epoch())
    await rig.checkpoint()
    await rig.factory.log.collect()
    await rig.factory.log.collect_orphans()
    assert {name.split(".")[1] for name in rig.files.content} == {"v2", "json"}
    (reader,), _ = await rig.open(options=new)
    assert await read_through(reader, end) == whole[31:]


async def test_old_files_are_read_where_nothing_is_written_anew():
    rig = LogStoreRig(layout=Layout.V1)
    (reader,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    await writer.write_chunk(log_rows(inserts(*range(700)), with_vnodes=False))
    end = await rig.checkpoint()
    seen = await read_through(reader, end)
    halves = VnodeBitmap.split(2)
    readers, _ = await rig.open(shards=halves)
    for half, one in zip(halves, readers, strict=True):
        found = rows_of(await read_through(one, end))
        assert found == [row for row in rows_of(seen) if row[1] % 256 in half]
        assert len(found) > 300


async def test_what_a_crash_left_is_collected_at_the_next_start():
    rig = LogStoreRig(buffer_bytes=1)
    (_,), writer = await rig.open()
    await writer.init(rig.next_epoch())
    await writer.write_chunk(log_rows(inserts(1)))
    end = await rig.checkpoint()
    kept = set(rig.files.content)
    await writer.write_chunk(log_rows(inserts(2)))
    await writer.flush_current_epoch(Epoch(9), checkpoint=True)
    await writer.write_chunk(log_rows(inserts(3)))
    assert len(rig.files.content) == 3
    (reader,), _ = await rig.open()
    assert set(rig.files.content) == kept
    assert rows_of(await read_through(reader, end)) == inserts(1)
    assert await nothing_to_read(reader)


async def test_a_log_is_opened_once_and_only_from_a_text_that_can_be_read():
    rig = LogStoreRig()
    await rig.open()
    with pytest.raises(BrokenInvariant, match="opened twice"):
        await rig.factory.open(None)
    rig.ledger = '{"format":99}'
    with pytest.raises(DamagedState, match="unknown format 99"):
        await rig.open()
    closed = KvLogStoreFactory(rig.storage, "shut", blocking=at_once, term=Term(1))
    with pytest.raises(BrokenInvariant, match='sink "shut" is not open'):
        _ = closed.log


async def test_it_runs_on_files_and_threads(tmp_path):
    blocking = Blocking(2)
    try:
        rig = LogStoreRig(
            storage=LocalStorage(tmp_path, fsync=False),
            blocking=blocking,
            buffer_bytes=20_000,
            chunk_bytes=4000,
        )
        (reader,), writer = await rig.open()
        await writer.init(rig.next_epoch())
        reading = asyncio.ensure_future(read_through(reader, Epoch(20)))
        expected = {}
        for number in range(20):
            rows = inserts(*range(number * 300, number * 300 + 300))
            await writer.write_chunk(log_rows(rows))
            expected[await rig.checkpoint()] = rows
        found: dict = {}
        for item in await reading:
            found.setdefault(item.place.epoch, []).extend(item.rows)
        assert {e: sorted(rows) for e, rows in found.items()} == {
            e: sorted(rows) for e, rows in expected.items()
        }
        reader.truncate(Offset(Epoch(20)))
        await rig.checkpoint()
        await rig.factory.log.collect()
        assert list(tmp_path.iterdir()) == []
    finally:
        blocking.close()


async def test_one_reader_and_one_writer_is_the_usual_case():
    rig = LogStoreRig()
    factory = KvLogStoreFactory(rig.storage, "plain", blocking=at_once, term=Term(1))
    reader, writer = await factory.open(None)
    await reader.init()
    await reader.start_from()
    await writer.init(Epoch(1))
    await writer.write_chunk(log_rows(inserts(5, 4)))
    await writer.flush_current_epoch(Epoch(2), checkpoint=True, stop=True)
    writer.confirm(Epoch(1))
    chunk = await reader.next_item()
    assert as_rows(await reader.load(chunk)) == inserts(4, 5)
    barrier = await reader.next_item()
    assert (barrier.checkpoint, barrier.stop) == (True, True)
