"""Files of a log: both layouts, order, parts by vnode, and files that are not as they should be."""

import dataclasses
import pickle

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import OP, VNODE
from headwater.logstore.serde import (
    EPOCH_COLUMN,
    SEQ_COLUMN,
    BarrierOp,
    Layout,
    checked_rows,
    is_old_layout,
    loaded_epoch,
    migrate_segment,
    only_inserts,
    read_segment,
    stored_epoch,
    write_segment,
)
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.state.storage import LocalStorage
from headwater.testing.log_store_kit import as_rows, log_rows, vnodes_of_ids
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage

EPOCH, TERM = Epoch(5 << 16), Term(3)


@pytest.fixture(params=["memory", "folder"])
def storage(request, tmp_path):
    if request.param == "memory":
        return MemoryStorage(MemoryFiles(immutable=True))
    return LocalStorage(tmp_path, fsync=False)


def mixed(count: int) -> list:
    """Rows of many vnodes, several of each, that tell their own place."""
    ops = (RowOp.INSERT, RowOp.DELETE)
    return [(ops[n % 2], (n * 37) % 600, f"row {n}") for n in range(count)]


def by_vnode(rows: list) -> list:
    return sorted(rows, key=lambda row: row[1] % VNODE_COUNT)


@pytest.mark.parametrize("layout", Layout)
def test_rows_come_back_by_vnode_each_in_its_order(storage, layout):
    rows = mixed(3000)
    segment = write_segment(storage, log_rows(rows), EPOCH, term=TERM, layout=layout)
    table = read_segment(storage, segment, vnode_of=vnodes_of_ids)
    assert as_rows(table) == by_vnode(rows)
    assert table.schema.field(OP).type == pa.int8()
    assert table.schema.field(VNODE).type == pa.int16()
    assert segment.rows == 3000
    assert segment.vnodes == VnodeBitmap.of({row[1] % VNODE_COUNT for row in rows})
    assert is_old_layout(segment) == (layout is Layout.V1)


@pytest.mark.parametrize("layout", Layout)
def test_the_key_of_a_row_is_its_epoch_and_its_place(storage, layout):
    rows = mixed(700)
    segment = write_segment(
        storage, log_rows(rows), EPOCH, term=TERM, layout=layout, first_seq=1000
    )
    table = read_segment(storage, segment, vnode_of=vnodes_of_ids, with_key=True)
    assert set(table[EPOCH_COLUMN].to_pylist()) == {stored_epoch(EPOCH)}
    seq = table[SEQ_COLUMN].to_pylist()
    assert sorted(seq) == list(range(1000, 1700))
    for place, name in zip(seq, table["name"].to_pylist(), strict=True):
        assert name == f"row {place - 1000}"


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("count", [1, 200, 70_000])
def test_a_reader_of_some_vnodes_gets_theirs_and_no_others(storage, layout, count):
    rows = mixed(count)
    segment = write_segment(storage, log_rows(rows), EPOCH, term=TERM, layout=layout)
    for vnodes in (VnodeBitmap.of([37]), VnodeBitmap.split(3)[1], VnodeBitmap.of([0, 255])):
        table = read_segment(storage, segment, vnodes, vnode_of=vnodes_of_ids)
        expected = [row for row in by_vnode(rows) if row[1] % VNODE_COUNT in vnodes]
        assert as_rows(table) == expected


def test_a_reader_of_few_vnodes_reads_few_batches(monkeypatch):
    storage = MemoryStorage(MemoryFiles())
    rows = pa.table(
        {
            OP: pa.array(np.ones(200_000, dtype=np.int8)),
            VNODE: pa.array((np.arange(200_000) % VNODE_COUNT).astype(np.int16)),
            "id": pa.array(np.arange(200_000)),
        }
    )
    segment = write_segment(storage, rows, EPOCH, term=TERM)
    read = []
    get_batch = pa.ipc.RecordBatchFileReader.get_batch

    def counted(self, number):
        read.append(get_batch(self, number).num_rows)
        return get_batch(self, number)

    monkeypatch.setattr(pa.ipc.RecordBatchFileReader, "get_batch", counted)
    table = read_segment(storage, segment, VnodeBitmap.of([8]))
    ids = table["id"].to_pylist()
    assert ids == list(range(8, 200_000, VNODE_COUNT))
    assert sum(read) < 40_000


def test_a_vnode_with_very_many_rows_has_several_batches():
    storage = MemoryStorage(MemoryFiles())
    count = 150_000
    rows = pa.table(
        {
            OP: pa.array(np.ones(count, dtype=np.int8)),
            VNODE: pa.array(np.where(np.arange(count) == 9, 200, 7).astype(np.int16)),
            "id": pa.array(np.arange(count)),
        }
    )
    segment = write_segment(storage, rows, EPOCH, term=TERM)
    seven = read_segment(storage, segment, VnodeBitmap.of([7]))["id"].to_pylist()
    assert seven == [n for n in range(count) if n != 9]
    assert read_segment(storage, segment, VnodeBitmap.of([200]))["id"].to_pylist() == [9]


def test_epochs_keep_their_order_as_signed_numbers():
    epochs = [Epoch(n) for n in (0, 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)]
    stored = [stored_epoch(epoch) for epoch in epochs]
    assert stored == sorted(stored)
    assert -(1 << 63) <= stored[0] < stored[-1] < 1 << 63
    assert [loaded_epoch(number) for number in stored] == epochs


def test_codes_are_those_of_the_log():
    assert [int(op) for op in RowOp] == [1, 2, 3, 4]
    assert (BarrierOp.BARRIER, BarrierOp.CHECKPOINT_BARRIER) == (5, 6)


def test_an_old_file_is_written_again_with_the_same_keys(storage):
    rows = mixed(900)
    old = write_segment(storage, log_rows(rows), EPOCH, term=TERM, layout=Layout.V1, first_seq=50)
    new = migrate_segment(storage, old, term=Term(4), vnode_of=vnodes_of_ids)
    assert not is_old_layout(new)
    assert dataclasses.replace(new, name=old.name, bytes=old.bytes) == old
    before = read_segment(storage, old, vnode_of=vnodes_of_ids, with_key=True)
    assert read_segment(storage, new, with_key=True).equals(before)


def test_an_old_file_needs_a_way_to_tell_vnodes(storage):
    old = write_segment(storage, log_rows(mixed(3)), EPOCH, term=TERM, layout=Layout.V1)
    with pytest.raises(BrokenInvariant, match="layout v1"):
        read_segment(storage, old)


def test_damage_is_told_and_not_guessed_around(storage):
    segment = write_segment(storage, log_rows(mixed(500)), EPOCH, term=TERM)
    with pytest.raises(DamagedState, match="missing"):
        read_segment(storage, dataclasses.replace(segment, name="rows-gone"))
    with pytest.raises(DamagedState, match="500 rows"):
        read_segment(storage, dataclasses.replace(segment, rows=501))
    with pytest.raises(DamagedState, match="not the one"):
        read_segment(storage, dataclasses.replace(segment, epoch=Epoch(1)))
    storage.put("short", storage.get(segment.name)[:-100])
    with pytest.raises(DamagedState, match="cannot be read"):
        read_segment(storage, dataclasses.replace(segment, name="short"))


def test_whether_all_rows_are_inserts_is_told_by_their_column_alone(storage):
    plain = [(RowOp.INSERT, number, "x") for number in range(40_000)]
    for rows, wanted in ((plain, True), ([*plain, (RowOp.DELETE, 7, "x")], False)):
        segment = write_segment(storage, log_rows(rows), EPOCH, term=TERM)
        assert only_inserts(storage, segment) is wanted
    storage.delete(segment.name)
    with pytest.raises(DamagedState, match="missing"):
        only_inserts(storage, segment)


def test_segments_travel_to_tasks_and_back(storage):
    segment = write_segment(storage, log_rows(mixed(5)), EPOCH, term=TERM)
    assert pickle.loads(pickle.dumps(segment)) == segment


def test_every_kind_of_value_survives():
    storage = MemoryStorage(MemoryFiles())
    columns = {
        "d": pa.array([None, 12, 5]).cast(pa.decimal128(30, 4)),
        "t": pa.array([1, None, 3], pa.timestamp("us", tz="UTC")),
        "b": pa.array([b"\x00", None, b""], pa.binary()),
        "f": pa.array([float("nan"), None, -0.0]),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "s": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int64())])),
    }
    ops, vnodes = pa.array([1, 2, 1], pa.int8()), pa.array([9, 4, 200], pa.int16())
    rows = pa.table({OP: ops, VNODE: vnodes, **columns})
    segment = write_segment(storage, rows, EPOCH, term=TERM)
    expected = rows.take([1, 0, 2])
    assert repr(read_segment(storage, segment).to_pylist()) == repr(expected.to_pylist())


def test_an_update_that_changes_vnodes_is_a_delete_and_an_insert():
    rows = [
        (RowOp.UPDATE_DELETE, 1, "a"),
        (RowOp.UPDATE_INSERT, 2, "a"),
        (RowOp.UPDATE_DELETE, 3, "b"),
        (RowOp.UPDATE_INSERT, 3, "c"),
    ]
    checked = checked_rows(log_rows(rows, with_vnodes=False), None, vnodes_of_ids)
    assert checked[OP].to_pylist() == [2, 1, 4, 3]
    assert checked[VNODE].to_pylist() == [1, 2, 3, 3]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(BrokenInvariant, match="_vnode"):
        checked_rows(log_rows(mixed(1), with_vnodes=False), None, None)
    wanted = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    with pytest.raises(BrokenInvariant, match="other"):
        checked_rows(log_rows(mixed(1)), wanted, None)
