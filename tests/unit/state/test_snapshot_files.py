"""Files of a snapshot that an epoch adopts, beside a log that writes all keys at all times."""

import numpy as np
import pyarrow as pa
import pytest

from delta_readers import READERS, read_changes_by_delta_rs
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.state.file_name import is_snapshot
from headwater.state.snapshot_files import ReadyFile, snapshot_keys, write_snapshot
from headwater.testing.oracle import apply_changes, assert_same_rows, key_of
from state_kit import SCHEMAS, Dice, Rig, changes_of

_SHARES = 6


def written(rig: Rig, rows: list[dict], hides: set) -> ReadyFile:
    """A file as a task writes it, with some of its keys hidden."""
    table = changes_of([("insert", row) for row in rows], rig.head_schema)
    plan = rig.table.snapshot_plan()
    file = write_snapshot(plan, table.drop_columns([CHANGE_TYPE]))
    assert is_snapshot(file.path)
    keys = snapshot_keys(plan.storage, file, plan.schema).to_pylist()
    places = [place for place, row in enumerate(keys) if key_of(row, rig.key) in hides]
    return ReadyFile(file, np.array(places, dtype=np.int64))


def stage_snapshot(rig: Rig, changes: pa.Table, shares: list[list[dict]], dice: Dice) -> None:
    """Stage changes, then the rows of files, in the table and in the model."""
    ready, shown = [], []
    for rows in shares:
        hides = {key_of(row, rig.key) for row in rows if dice.random.random() < 0.2}
        ready.append(written(rig, rows, hides))
        shown += [row for row in rows if key_of(row, rig.key) not in hides]
    stage = rig.table.stage
    rig.table.stage = lambda epoch, given, schema=None: stage(epoch, given, files=ready)
    try:
        rig.stage(changes)
    finally:
        rig.table.stage = stage
    apply_changes(
        rig.head, changes_of([("insert", row) for row in shown], rig.head_schema), rig.key
    )
    rig.models[rig.last] = (rig.head_schema, dict(rig.head))


def fill(rig: Rig, dice: Dice, *, quiet: float) -> None:
    """Fill a table share by share, while the log brings changes most of the time."""
    rig.table.filling = True
    shares: list[list[dict]] = [[] for _ in range(_SHARES)]
    for key in dice.keys:
        shares[dice.random.randrange(_SHARES)].append({**dice.row(), **key})
    while shares:
        now = [shares.pop() for _ in range(min(len(shares), dice.random.randrange(3)))]
        few = 0 if dice.random.random() < quiet else 12
        stage_snapshot(rig, dice.changes(few), [rows for rows in now if rows], dice)
        if dice.random.random() < 0.2:
            rig.discard()
            shares += now
            continue
        rig.commit()
        rig.check(every=True)
        rig.collect()
        if dice.random.random() < 0.5:
            rig.fold()
        if dice.random.random() < 0.2:
            rig.restart(store=dice.random.random() < 0.5)
            rig.table.filling = True
    rig.table.filling = False


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(3))
def test_every_epoch_is_what_log_and_snapshot_say(tmp_path, name, seed):
    rig = Rig(tmp_path / "w", SCHEMAS[name])
    dice = Dice(f"snapshot {name} {seed}", SCHEMAS[name])
    fill(rig, dice, quiet=(0.3, 0.9, 0.0)[seed])
    for tool in READERS:
        assert_same_rows(READERS[tool](rig.table.storage.url, None), rig.model, key=rig.key)
    for _ in range(4):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
        rig.check(every=True)
    rig.check_folder()


@pytest.mark.parametrize("name", ["int", "composite"])
def test_other_tools_read_the_same_changes(tmp_path, name):
    rig = Rig(tmp_path / "w", SCHEMAS[name])
    dice = Dice(f"feed {name}", SCHEMAS[name])
    rig.stage()
    rig.commit()
    fill(rig, dice, quiet=0.5)
    start = rig.records[0].epoch
    ours = rig.table.change_rows(start, rig.committed)
    theirs = read_changes_by_delta_rs(rig.table.storage.url, 1, rig.table.published_version())
    extra = [COMMIT_VERSION, COMMIT_TIMESTAMP, VNODE]
    assert_same_rows(theirs.drop_columns(extra[:2]), ours.drop_columns(extra))


def test_a_quiet_log_costs_no_other_file(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    dice = Dice("quiet", SCHEMAS["int"])
    rig.stage()
    rig.commit()
    rows = [{**dice.row(), **key} for key in dice.keys]
    ready = written(rig, rows, set())
    before = rig.files()
    commit = rig.table.stage(type(rig.last)(rig.last + 1), dice.changes(0), files=[ready])
    assert commit is not None
    assert commit.added == (ready.file,)
    assert not commit.changes
    assert rig.files() == before


def test_files_on_their_way_are_not_collected(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    dice = Dice("way", SCHEMAS["int"])
    rig.stage(dice.changes())
    rig.commit()
    rig.table.filling = True
    ready = written(rig, [dice.row()], set())
    rig.stage(dice.changes())
    rig.commit()
    rig.collect()
    assert ready.file.path in rig.files()
    rig.table.filling = False
    rig.stage(dice.changes())
    rig.commit()
    rig.collect()
    assert ready.file.path not in rig.files()
