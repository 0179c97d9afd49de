"""Receipts of slices: whole or absent, and what they name is kept while a table is being filled."""

import pyarrow as pa
import pytest

from headwater.errors import DamagedState
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.table_commit import DataFile
from headwater.state.collect import collect_orphans
from headwater.state.file_name import RECEIPT_FOLDER, Origin, is_receipt, origin_of
from headwater.state.receipts import Receipt, decoded, found_before, leave, receipts
from headwater.state.snapshot_files import write_snapshot
from headwater.state.stage import StagedPart
from state_kit import SCHEMAS, Dice, Rig

FILE = DataFile(path="snapshot-x", bytes=7, rows=2, first_vnode=0, last_vnode=9)
GROUPS = pa.table({"g": pa.array([1, None], pa.int64()), "n": pa.array([3, 4], pa.int64())})


@pytest.fixture(name="rig")
def _rig(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.stage(Dice("receipts", rig.head_schema).changes())
    rig.commit()
    return rig


def written(rig, key):
    """A slice that a task has read: its file, and the receipt."""
    plan = rig.table.fresh_plan(rig.last)
    rows = Dice(key, rig.head_schema).changes().select(list(rig.head_schema.names))
    file = write_snapshot(plan, rows.cast(rig.head_schema.arrow))
    leave(plan.storage, plan.origin, Receipt(key=key, files=(file,)))
    return file.path


def restarted(rig, *, receipted=True):
    """The next engine, after its recovery."""
    rig.restart()
    rig.table.receipted = receipted
    collect_orphans(rig.table, rig.term, committed=rig.committed, alone=True)


@pytest.mark.parametrize(
    "receipt",
    [
        Receipt(key="a", files=(FILE,)),
        Receipt(key="b", groups=GROUPS),
        Receipt(key="c", groups=GROUPS.slice(0, 0)),
        Receipt(key="d", refused="many"),
        Receipt(key="e"),
    ],
    ids=lambda each: each.key,
)
def test_it_says_what_it_was_told(tmp_path, rig, receipt):
    storage = rig.table.storage
    origin = Origin(Term(3), rig.last)
    leave(storage, origin, receipt)
    ((path, found),) = receipts(storage)
    assert found == receipt
    assert is_receipt(path)
    assert origin_of(path) == origin
    assert list(receipts(storage, {path})) == []


def test_what_cannot_be_read_is_as_good_as_absent(rig):
    storage = rig.table.storage
    leave(storage, Origin(Term(1), rig.last), Receipt(key="good"))
    good = next(iter(storage.list(RECEIPT_FOLDER)))
    content = storage.get(good)
    for number, broken in enumerate((b"", b"no arrow", content[: len(content) // 2])):
        with pytest.raises(DamagedState):
            decoded(broken)
        storage.put(f"{good[:-6]}-{number}.arrow", broken)
    newer = content.replace(b'"version": "1"', b'"version": "9"')
    with pytest.raises(DamagedState, match="version 9"):
        decoded(newer)
    assert [receipt.key for _, receipt in receipts(storage)] == ["good"]


def test_the_next_engine_finds_what_was_read_and_no_more(rig):
    kept, lost = written(rig, "kept"), written(rig, "lost")
    leave(rig.table.storage, Origin(rig.term, rig.last), Receipt(key="many", refused="many"))
    leave(rig.table.storage, Origin(rig.term, rig.last), Receipt(key="sums", groups=GROUPS))
    plan = rig.table.fresh_plan(rig.last)
    schema = rig.head_schema
    unsaid = write_snapshot(plan, schema.arrow.empty_table()).path
    restarted(rig)
    assert set(rig.table.storage.list()) >= {kept, lost}
    assert unsaid not in set(rig.table.storage.list())
    rig.table.storage.delete(lost)
    found = found_before(rig.table.storage)
    assert found.keys() == {"kept", "sums"}
    assert [file.path for file in found["kept"].files] == [kept]
    rig.check(every=True)


def test_rounds_of_maintenance_leave_what_a_late_task_may_still_name(rig):
    """A task of an engine that was killed writes its file, and its receipt a little later."""
    restarted(rig)
    old = Origin(Term(rig.term - 1), rig.last)
    plan = rig.table.fresh_plan(rig.last)
    late = write_snapshot(
        type(plan)(schema=plan.schema, origin=old, storage=plan.storage),
        rig.head_schema.arrow.empty_table(),
    )
    collect_orphans(rig.table, rig.term, committed=rig.committed, alone=False)
    assert late.path in set(rig.table.storage.list())
    rig.table.receipted = False
    rig.table.prepared()
    collect_orphans(rig.table, rig.term, committed=rig.committed, alone=False)
    assert late.path not in set(rig.table.storage.list())


def test_nothing_is_left_of_them_once_the_table_is_filled(rig):
    path = written(rig, "slice")
    restarted(rig, receipted=False)
    assert path not in set(rig.table.storage.list())
    assert list(rig.table.storage.list(RECEIPT_FOLDER)) == []
    rig.check_folder()


def test_an_epoch_that_is_discarded_leaves_files_that_have_a_receipt(rig):
    """Another engine may have found the receipt, and committed the file."""
    path = written(rig, "slice")
    (receipt,) = (receipt for _, receipt in receipts(rig.table.storage))
    rig.table.receipted = True
    rig.table.stage(Epoch(rig.last + 1), parts=[StagedPart(added=receipt.files)])
    rig.table.discard()
    assert path in set(rig.table.storage.list())
    assert found_before(rig.table.storage).keys() == {"slice"}
    rig.table.receipted = False
    rig.table.stage(Epoch(rig.last + 1), parts=[StagedPart(added=receipt.files)])
    rig.table.discard()
    assert path not in set(rig.table.storage.list())
