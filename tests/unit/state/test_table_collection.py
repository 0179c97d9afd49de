"""Deleting: everything nobody needs goes, and nothing else, wherever it stops."""

import threading

import pytest

from headwater import crash_points
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.state.collect import collect_orphans, collect_strays, expire, orphans
from headwater.state.file_name import Origin
from state_kit import SCHEMAS, Dice, Rig, changes_of


@pytest.fixture
def rig(tmp_path):
    rig, dice = Rig(tmp_path / "w", SCHEMAS["int"]), Dice("collect", SCHEMAS["int"])
    for _ in range(14):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    return rig


def test_after_a_horizon_only_needed_files_are_left(rig):
    rig.check_folder()
    everything = rig.files()
    for record in rig.records[::3]:
        rig.expire(record.epoch)
        rig.check(every=True)
        rig.check_folder()
    assert len(rig.files()) < len(everything) / 2
    rig.expire(rig.committed)
    needed = {live.file.path for live in rig.table.view().files}
    needed |= {live.dead.path for live in rig.table.view().files if live.dead}
    assert rig.files() == needed | rig.table.busy_paths()


@pytest.mark.parametrize("passed", range(0, 12, 3))
def test_deleting_may_stop_anywhere_and_go_on_after_a_restart(rig, passed):
    class Stop(Exception):
        pass

    left = passed

    def hook(name):
        nonlocal left
        if name == "retention.between_deletes":
            if left == 0:
                raise Stop
            left -= 1

    crash_points.install_hook(hook)
    with pytest.raises(Stop):
        rig.expire(rig.committed)
    crash_points.install_hook(None)
    rig.restart()
    rig.check(every=True)
    rig.check_folder()


def put(rig, path: str) -> str:
    rig.table.storage.put(path, b"x")
    return path


def test_whose_file_it_is_decides(rig):
    rig.term = Term(5)
    before, now, later = Epoch(rig.committed - 9), rig.committed, Epoch(rig.committed + 9)
    over = {
        put(rig, make(Origin(Term(term), epoch)))
        for make in (Origin.data_file, Origin.change_file, Origin.vector_file)
        for term, epoch in ((4, before), (4, now), (4, later), (1, later), (5, before))
    }
    under_way = {
        put(rig, make(Origin(Term(term), epoch)))
        for make in (Origin.data_file, Origin.change_file, Origin.vector_file)
        for term, epoch in ((5, now), (5, later))
    }
    newer = {put(rig, Origin(Term(6), before).data_file())}
    foreign = {put(rig, path) for path in ("notes.txt", "deletion_vector_notes.bin", "x/y.parquet")}
    found = set(orphans(rig.table, rig.term, committed=rig.committed, alone=False))
    assert found == over
    found = set(orphans(rig.table, rig.term, committed=rig.committed, alone=True))
    assert found == over | under_way
    collect_orphans(rig.table, rig.term, committed=rig.committed, alone=True)
    assert newer | foreign <= rig.files()
    rig.check(every=True)


def test_temporary_files_of_engines_that_are_gone_go(rig):
    rig.term = Term(2)
    old, own = Origin(Term(1), Epoch(5)), Origin(Term(2), rig.committed)
    gone = {
        put(rig, f".staging/{old.data_file()}.k2j4h5.tmp"),
        put(rig, f".{old.vector_file()}.0a1b2c3d.tmp"),
    }
    kept = {put(rig, f".staging/{own.data_file()}.k2j4h5.tmp")}
    log = put(rig, "_delta_log/.00000000000000000099.json.0a1b2c3d.tmp")
    assert set(orphans(rig.table, rig.term, committed=rig.committed, alone=False)) == gone
    rig.collect(alone=True)
    assert not gone & rig.files()
    assert kept <= rig.files()
    assert log not in set(rig.table.storage.list())


def test_the_delta_log_is_never_touched(rig):
    log = set(rig.table.storage.list("_delta_log"))
    assert len(log) == rig.table.published_version() + 1
    rig.expire(rig.committed)
    rig.collect(alone=True)
    assert set(rig.table.storage.list("_delta_log")) == log


def test_what_is_staged_or_waits_is_not_collected(rig):
    dice = Dice("busy", rig.head_schema)
    while not rig.fold():
        rig.stage(dice.changes())
        rig.commit()
    rig.stage(changes_of([("insert", {"id": 4711})], rig.head_schema))
    rig.stage(changes_of([("delete", {"id": 4711})], rig.head_schema))
    rig.collect(alone=True)
    rig.commit()
    rig.restart()
    rig.check(every=True)


def test_collecting_beside_confirmations_never_takes_a_folded_file(rig, monkeypatch):
    """A fold's files carry an old epoch; they must be seen on their way into the ledger."""
    dice = Dice("race", rig.head_schema)
    while not rig.fold():
        rig.stage(dice.changes())
        rig.commit()
    rig.stage(dice.changes())
    real = rig.table.manifest
    asked = 0

    def manifest_and_then_confirm():
        nonlocal asked
        asked += 1
        found = real()
        if asked == 1:
            other = threading.Thread(target=rig.commit)
            other.start()
            other.join()
        return found

    monkeypatch.setattr(rig.table, "manifest", manifest_and_then_confirm)
    rig.collect()
    monkeypatch.undo()
    rig.restart()
    rig.check(every=True)


def test_expiring_again_is_expiring_once(rig):
    middle = rig.records[6].epoch
    assert rig.expire(middle) > 0
    assert expire(rig.table, middle) == 0
    rig.check(every=True)


def test_strays_are_files_of_ours_in_folders_without_a_table(rig):
    storage, old = rig.storage, Origin(Term(1), Epoch(5))
    commit = rig.table.storage.get("_delta_log/00000000000000000000.json")
    strays = {
        f"gone-12/{old.data_file()}": b"x",
        f"gone-12/{old.change_file()}": b"x",
        f"gone-12/{old.vector_file()}": b"x",
        "gone-12/_delta_log/00000000000000000000.json": commit,
    }
    kept = {
        f"gone-12/{Origin(Term(3), Epoch(5)).data_file()}": b"x",
        "gone-12/notes.txt": b"x",
        "gone-12/_delta_log/00000000000000000001.json": b'{"commitInfo":{}}',
        f"somebody/{old.data_file()}": b"x",
        old.data_file(): b"x",
        f"known-3/{old.data_file()}": b"x",
    }
    for path, content in {**strays, **kept}.items():
        storage.put(path, content)
    before = set(storage.list())
    assert collect_strays(storage, Term(3), known={"t", "known-3"}) == len(strays)
    assert set(storage.list()) == before - strays.keys()
    assert collect_strays(storage, Term(3), known={"t", "known-3"}) == 0
    rig.check(every=True)
