"""Staging: invisible until confirmed, gone when discarded, never in the way of readers."""

import threading

import pyarrow as pa
import pytest

from headwater import crash_points
from headwater.errors import BrokenInvariant, HistoryGone, SchemaError
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, VARCHAR
from headwater.state.stage import staged_paths
from headwater.testing.oracle import assert_same_rows
from state_kit import SCHEMAS, Dice, Rig, changes_of, plain, schema_of


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(*(("insert", {"id": n, "name": "first"}) for n in range(50)))
    return rig


def test_what_is_staged_cannot_be_seen(rig):
    before = plain(rig.table.rows())
    rig.stage(changes_of([("insert", {"id": 1, "name": "new"})], rig.head_schema))
    rig.stage(changes_of([("delete", {"id": 2})], rig.head_schema))
    assert_same_rows(plain(rig.table.rows()), before)
    assert_same_rows(plain(rig.table.rows(rig.last)), before)
    assert_same_rows(rig.table.lookup(pa.table({"id": [1, 2]})), before.filter(
        pa.compute.is_in(before["id"], pa.array([1, 2]))))  # fmt: skip
    assert rig.table.change_rows(rig.committed, rig.last).num_rows == 0
    assert rig.table.published_version() == 0
    rig.commit()
    rig.check(every=True)


def test_epochs_staged_ahead_build_on_each_other(rig):
    for round_ in range(6):
        rig.stage(changes_of(
            [("update_postimage", {"id": n, "name": f"round {round_}"}) for n in range(round_, 20)],
            rig.head_schema))  # fmt: skip
    for _ in range(6):
        rig.commit(1)
        rig.check(every=True)


def test_discarding_goes_back_exactly_and_deletes_the_files(rig):
    before, files, manifest = rig.table.rows(), rig.files(), rig.table.manifest().encode()
    paths = set()
    for number in range(4):
        commit = rig.stage(changes_of(
            [("delete", {"id": number}), ("insert", {"id": 900 + number})], rig.head_schema
        ))  # fmt: skip
        paths |= set(staged_paths(commit))
    assert paths <= rig.files()
    rig.discard()
    assert rig.files() == files
    assert rig.table.rows().equals(before)
    assert rig.table.manifest().encode() == manifest
    rig.discard()
    rig.put(("delete", {"id": 3}))
    rig.check(every=True)


def test_only_what_is_not_confirmed_is_discarded(rig):
    rig.stage(changes_of([("insert", {"id": 100})], rig.head_schema))
    rig.stage(changes_of([("insert", {"id": 101})], rig.head_schema))
    rig.commit(1)
    rig.discard()
    rig.check(every=True)
    assert rig.table.lookup(pa.table({"id": [100, 101]})).column("id").to_pylist() == [100]


def test_an_epoch_that_changes_nothing_leaves_nothing(rig):
    files = rig.files()
    assert rig.stage(changes_of([("delete", {"id": 777})], rig.head_schema)) is None
    assert rig.stage(changes_of([], rig.head_schema)) is None
    assert rig.stage(None) is None
    rig.commit()
    assert rig.files() == files
    rig.check(every=True)


def test_the_first_stage_creates_the_table_also_without_rows(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    commit = rig.stage()
    assert commit.version == 0
    assert commit.schema == SCHEMAS["int"]
    rig.commit()
    rig.check(every=True)
    rig.put(("insert", {"id": 1}))
    rig.check(every=True)


def test_an_insert_only_epoch_has_no_change_file(rig):
    commit = rig.stage(changes_of([("insert", {"id": 100})], rig.head_schema))
    assert commit.changes == ()
    assert commit.dead == ()
    commit = rig.stage(changes_of([("delete", {"id": 100})], rig.head_schema))
    assert len(commit.changes) == 1
    assert commit.added == ()
    rig.commit()
    rig.check(every=True)


def test_an_epoch_out_of_order_is_refused(rig):
    changes = changes_of([("insert", {"id": 100})], rig.head_schema)
    with pytest.raises(BrokenInvariant, match="is not after epoch"):
        rig.table.stage(rig.committed, changes)
    rig.check(every=True)


def test_confirming_twice_is_confirming_once(rig):
    rig.stage(changes_of([("insert", {"id": 100})], rig.head_schema))
    rig.commit()
    rig.table.confirm(rig.committed)
    rig.check(every=True)


@pytest.mark.parametrize("point", ["stage.before_files", "stage.after_files"])
def test_readers_and_confirmation_do_not_wait_for_a_stage(rig, point):
    """A large batch stages for minutes; meanwhile the table is read, published and collected."""
    rig.stage(changes_of([("insert", {"id": 100})], rig.head_schema))
    inside, go_on = threading.Event(), threading.Event()

    def hook(name):
        if name == point and threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(150)

    crash_points.install_hook(hook)
    changes = changes_of([("insert", {"id": 101})], rig.head_schema)
    epoch = rig.last + (1 << 16)
    stager = threading.Thread(target=rig.table.stage, args=(epoch, changes))
    stager.start()
    try:
        assert inside.wait(60)
        done = threading.Event()

        def use():
            rig.check(every=True)
            rig.commit()
            rig.check(every=True)
            rig.table.plan_fold()
            rig.collect()
            done.set()

        threading.Thread(target=use, daemon=True).start()
        assert done.wait(60), "reading waited for staging"
    finally:
        go_on.set()
        stager.join()
    rig.table.confirm(epoch)
    assert rig.table.lookup(pa.table({"id": [100, 101]})).num_rows == 2


def test_schemas_evolve_with_the_rows(rig):
    first = rig.committed
    more = Schema((*rig.head_schema.columns, Column("city", VARCHAR)), ("id",))
    rig.put(("insert", {"id": 1, "city": "Rome"}), ("insert", {"id": 500}), schema=more)
    assert rig.table.rows(first).column_names == [*SCHEMAS["int"].names, "_vnode"]
    assert rig.table.rows().column_names == [*more.names, "_vnode"]
    less = Schema(tuple(c for c in more.columns if c.name != "name"), ("id",))
    rig.put(("delete", {"id": 2}), schema=less)
    rig.check(every=True)
    rig.restart(store=True)
    rig.check(every=True)
    again = Schema((*less.columns, Column("name", VARCHAR)), ("id",))
    with pytest.raises(SchemaError, match="was dropped and cannot be added again"):
        rig.stage(None, again)
    rig.check(every=True)


@pytest.mark.parametrize("other", ["NAME", "Name"])
def test_a_name_never_comes_back_in_other_letters(rig, other):
    """Most readers of Delta tables do not tell letters' case apart: they would see old values."""
    less = Schema(tuple(c for c in rig.head_schema.columns if c.name != "name"), ("id",))
    back = Schema((*less.columns, Column(other, VARCHAR)), ("id",))
    with pytest.raises(SchemaError, match="under that name"):
        rig.stage(None, back)
    rig.put(schema=less)
    with pytest.raises(SchemaError, match="under that name"):
        rig.stage(None, back)


def test_a_refused_schema_leaves_the_table_as_it_was(rig):
    narrower = schema_of(["id"], id=INTEGER)
    for wrong in (narrower, schema_of(["x"], x=BIGINT)):
        with pytest.raises(SchemaError):
            rig.stage(None, wrong)
    assert rig.table.schema == SCHEMAS["int"]
    rig.put(("insert", {"id": 1000}))
    rig.check(every=True)


def test_a_staged_schema_goes_with_a_discard(rig):
    more = Schema((*rig.head_schema.columns, Column("city", VARCHAR)), ("id",))
    rig.stage(None, more)
    assert rig.table.schema == more
    rig.discard()
    assert rig.table.schema == SCHEMAS["int"]
    rig.put(("insert", {"id": 1, "city": "Rome"}), schema=more)
    rig.check(every=True)


def test_a_widened_key_finds_its_old_rows(tmp_path):
    narrow = schema_of(["a", "b"], a=INTEGER, b=VARCHAR, v=INTEGER)
    wide = schema_of(["a", "b"], a=BIGINT, b=VARCHAR, v=BIGINT)
    rig = Rig(tmp_path / "w", narrow)
    rig.put(*(("insert", {"a": n - 25, "b": "x", "v": n}) for n in range(50)))
    rig.put(*(("insert", {"a": n, "b": "x", "v": 2**40}) for n in range(10)), schema=wide)
    rig.put(
        *(("delete", {"a": -n, "b": "x"}) for n in range(10)), ("insert", {"a": 2**40, "b": ""})
    )
    assert rig.table.rows().num_rows == 41
    rig.check(every=True)


def test_history_is_kept_from_the_horizon_on(rig):
    dice = Dice("horizon", rig.head_schema)
    for _ in range(10):
        rig.stage(dice.changes())
        rig.commit()
    middle = rig.records[5].epoch
    rig.expire(middle)
    rig.check(every=True)
    for epoch in (rig.records[4].epoch, middle - 1, rig.records[0].epoch):
        for deed in (rig.table.rows, rig.table.view, lambda e: rig.table.change_rows(e, middle)):
            with pytest.raises(HistoryGone):
                deed(epoch)
    assert rig.table.change_rows(middle, rig.committed).num_rows > 0
    rig.expire(rig.records[2].epoch)
    rig.check(every=True)
