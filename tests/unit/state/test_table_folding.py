"""Folding beside the epochs: no row changes, and nothing it needs disappears."""

import itertools
import threading
from dataclasses import replace

import pytest
from test_key_hashes import KEY_TYPES

from headwater import crash_points
from headwater.model.epoch import Epoch
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import DataFile, DeletionVector
from headwater.model.types import VARCHAR
from headwater.state.fold import plan_fold
from headwater.state.manifest import LiveFile, TableView
from state_kit import SCHEMAS, Dice, Rig, changes_of, schema_of, small_files


@pytest.fixture
def rig(tmp_path):
    """A table of five files with dead rows, worth folding."""
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    for start in range(0, 100, 20):
        rig.put(
            *(("insert", {"id": n, "name": f"n{n}"}) for n in range(start, start + 20)),
            *(("delete", {"id": n}) for n in range(max(0, start - 6), start)),
        )
    return rig


def test_a_fold_changes_no_row_and_is_adopted_by_the_next_epoch(rig):
    files = {live.file.path for live in rig.table.view().files}
    before = rig.committed
    assert rig.fold()
    rig.check(every=True)
    assert {live.file.path for live in rig.table.view().files} == files
    commit = rig.stage()
    assert commit.folded
    assert set(commit.folded) <= files
    rig.commit()
    rig.check(every=True)
    assert rig.table.change_rows(before, rig.committed).num_rows == 0


def test_rows_that_die_between_fold_and_adoption_are_dead_in_the_new_files(rig):
    plan = rig.table.plan_fold()
    rig.put(("delete", {"id": 30}), ("insert", {"id": 31, "name": "changed before"}))
    rig.table.fold(plan)
    rig.put(("insert", {"id": 200}))
    assert rig.records[-1].tables[0].folded
    rig.check(every=True)


def test_deaths_staged_ahead_and_in_the_adopting_epoch_count_too(rig):
    plan = rig.table.plan_fold()
    inputs = {live.file.path for live in plan.inputs}
    rig.stage(changes_of([("delete", {"id": 30}), ("insert", {"id": 31})], rig.head_schema))
    rig.stage(changes_of([("insert", {"id": 30, "name": "back"})], rig.head_schema))
    rig.table.fold(plan)
    gone = [("delete", {"id": n}) for n in range(20, 100, 3)]
    commit = rig.stage(changes_of([*gone, ("insert", {"id": 41, "name": "new"})], rig.head_schema))
    assert set(commit.folded) == inputs
    assert commit.changes
    rig.stage(changes_of([("delete", {"id": 41})], rig.head_schema))
    rig.commit()
    rig.check(every=True)


def test_a_row_that_moved_between_folded_files_lives_on(tmp_path):
    """Its old place was dead before the fold read it; only later deaths count."""
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(*(("insert", {"id": n}) for n in range(10)))
    rig.put(*(("insert", {"id": n, "name": "moved"}) for n in range(5)))
    rig.put(("insert", {"id": 50}))
    rig.put(("insert", {"id": 51}))
    plan = rig.table.plan_fold()
    rig.table.fold(replace(plan, inputs=plan.view.files))
    rig.put(("delete", {"id": 9}))
    assert len(rig.records[-1].tables[0].folded) == 4
    assert rig.table.rows().num_rows == 11
    rig.check(every=True)


def test_a_file_whose_rows_all_died_folds_away(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(*(("insert", {"id": n}) for n in range(10)))
    rig.put(*(("delete", {"id": n}) for n in range(10)))
    assert rig.fold()
    commit = rig.stage()
    assert (len(commit.folded), commit.added) == (1, ())
    rig.commit()
    assert rig.table.view().files == ()
    rig.check(every=True)
    rig.put(("insert", {"id": 1}))
    rig.check(every=True)


def test_a_fold_under_another_schema_is_dropped_and_collected(rig):
    rig.fold()
    waiting = rig.table.busy_paths()
    assert waiting & rig.files()
    more = Schema((*rig.head_schema.columns, Column("city", VARCHAR)), ("id",))
    rig.put(("insert", {"id": 1, "city": "Rome"}), schema=more)
    rig.check(every=True)
    rig.put(("insert", {"id": 2, "city": "Oslo"}))
    rig.check(every=True)
    rig.check_folder()


def test_a_discarded_fold_is_collected(rig):
    rig.fold()
    rig.stage(changes_of([("delete", {"id": 30})], rig.head_schema))
    rig.discard()
    rig.put(("insert", {"id": 300}))
    assert not rig.records[-1].tables[0].folded
    rig.check(every=True)
    rig.check_folder()


def test_a_fold_that_runs_over_a_discard_still_fits(rig):
    plan = rig.table.plan_fold()
    rig.stage(changes_of([("delete", {"id": 30})], rig.head_schema))
    rig.table.fold(plan)
    rig.discard()
    plan = rig.table.plan_fold()
    rig.stage(changes_of([("delete", {"id": 31})], rig.head_schema))
    rig.discard()
    rig.table.fold(plan)
    rig.put(("delete", {"id": 32}))
    assert rig.records[-1].tables[0].folded
    rig.check(every=True)


def test_only_one_fold_waits_at_a_time(rig):
    assert rig.fold()
    assert rig.table.plan_fold() is None
    rig.stage()
    rig.commit()
    while rig.fold():
        rig.stage()
        rig.commit()
    for n in range(4):
        rig.put(("insert", {"id": 600 + n}))
    assert rig.fold()
    rig.check(every=True)


def test_a_large_result_is_cut_by_vnode(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"], settings=small_files(target_file_bytes=1200))
    for start in range(0, 900, 300):
        rig.put(*(("insert", {"id": n, "name": f"{n * 7919}"}) for n in range(start, start + 300)))
    rig.put(*(("delete", {"id": n}) for n in range(0, 900, 2)))
    assert rig.fold()
    commit = rig.stage()
    rig.commit()
    ranges = sorted((f.first_vnode, f.last_vnode) for f in commit.added)
    assert len(ranges) > 2
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    rig.check(every=True)
    rig.put(*(("insert", {"id": n, "name": "again"}) for n in range(0, 900, 7)))
    rig.check(every=True)


@pytest.mark.parametrize("type_", KEY_TYPES, ids=lambda t: t.postgres)
def test_any_key_can_be_folded(tmp_path, type_):
    schema = schema_of(["k", "v"], k=type_, v=VARCHAR)
    rig, dice = Rig(tmp_path / "w", schema), Dice("fold", schema, keys=20)
    for _ in range(4):
        rig.stage(dice.changes())
        rig.commit()
    for _ in range(3):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    rig.check(every=True)


def during_fold(deed):
    """Do something when the folded files are written and nobody knows them yet."""

    def hook(name):
        if name == "compaction.after_files":
            crash_points.install_hook(None)
            # Another thread, as maintenance is: locks of this thread must not let it pass.
            other = threading.Thread(target=deed)
            other.start()
            other.join()

    crash_points.install_hook(hook)


def test_collecting_orphans_while_a_fold_runs_leaves_its_files(rig):
    plan = rig.table.plan_fold()
    for n in range(3):
        rig.put(("insert", {"id": 400 + n}))
    during_fold(rig.collect)
    rig.table.fold(plan)
    rig.put(("insert", {"id": 500}))
    assert rig.records[-1].tables[0].folded
    rig.restart(store=True)
    rig.check(every=True)


def test_a_horizon_that_passes_a_running_fold_leaves_what_it_reads(rig):
    plan = rig.table.plan_fold()
    for n in range(40, 46):
        rig.put(("delete", {"id": n}))
    rig.expire(rig.committed)
    rig.collect()
    rig.table._dead_rows._start()
    rig.table.fold(plan)
    for n in range(46, 50):
        rig.put(("delete", {"id": n}), ("delete", {"id": n + 20}))
    rig.check(every=True)


def test_a_horizon_that_passes_a_waiting_fold_leaves_what_adoption_reads(rig):
    plan = rig.table.plan_fold()
    inputs = {live.file.path: live.dead for live in plan.inputs}
    dying = rig.table.rows().column("id").to_pylist()[::3]
    rig.stage(changes_of([("delete", {"id": n}) for n in dying], rig.head_schema))
    rig.table.fold(plan)
    rig.commit()
    rig.expire(rig.committed)
    rig.collect()
    assert all(dead.path in rig.files() for dead in inputs.values() if dead)
    assert any(inputs.values())
    rig.table._dead_rows._start()
    rig.put(("insert", {"id": 4000}))
    assert rig.records[-1].tables[0].folded
    rig.check(every=True)
    rig.collect(alone=True)
    rig.expire(rig.committed)
    rig.check_folder()


def live(path: str, size: int, rows: int = 100, dead: int = 0) -> LiveFile:
    file = DataFile(path=path, bytes=size, rows=rows, first_vnode=0, last_vnode=255)
    vector = DeletionVector(path="v", offset=1, bytes=9, cardinality=dead)
    return LiveFile(file, vector if dead else None)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.55, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("count", [3, 9, 10, 16, 40, 200])
def test_folding_comes_to_an_end(share, count):
    """A table that nobody changes is folded a few times and then left alone."""
    settings = small_files(target_file_bytes=1_000_000, fold_files=3)
    files = [live(f"f{n}", int(1_000_000 * share)) for n in range(count)]
    for round_ in range(60):
        plan = plan_fold(TableView(Epoch(1), SCHEMAS["int"], tuple(files)), settings)
        if plan is None:
            return
        total = sum(f.file.bytes for f in plan.inputs)
        gone = {f.file.path for f in plan.inputs}
        parts = len(plan.ranges)
        files = [f for f in files if f.file.path not in gone]
        files += [live(f"g{round_}-{n}", total // parts) for n in range(parts)]
    pytest.fail("folding never ends")


def test_dead_rows_are_folded_from_their_share_on():
    settings = small_files(fold_files=100)
    for dead, folds in ((29, False), (30, True), (100, True)):
        view = TableView(Epoch(1), SCHEMAS["int"], (live("f", 10**9, 100, dead),))
        assert (plan_fold(view, settings) is not None) == folds
