"""What other tools see: whole epochs, exactly, through folds, new schemas and checkpoints."""

import threading

import pyarrow as pa
import pytest

from delta_readers import (
    READERS,
    read_by_delta_rs,
    read_by_duckdb,
    read_by_polars,
    read_changes_by_delta_rs,
)
from headwater.model.reserved import COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.model.types import BIGINT, DOUBLE, INTEGER, REAL, SMALLINT, VARCHAR, decimal
from headwater.state.delta_checkpoint import checkpoint, trim
from headwater.testing.oracle import assert_same_rows
from state_kit import SCHEMAS, Dice, Rig, schema_of


def check_tool(rig: Rig, tool: str, record=None, version: int | None = None) -> None:
    _, rows = rig.models[rig.committed if record is None else record.epoch]
    assert_same_rows(READERS[tool](rig.table.storage.url, version), rows, key=rig.key)


def check_versions(rig: Rig, oldest: int = 0) -> None:
    """Every version that is kept, as each reader sees it."""
    for record in rig.records:
        for commit in record.tables:
            if commit.version >= oldest:
                for tool in READERS:
                    check_tool(rig, tool, record, commit.version)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_reader_sees_every_epoch(tmp_path, name):
    rig, dice = Rig(tmp_path / "w", SCHEMAS[name]), Dice("tools", SCHEMAS[name])
    for _ in range(10):
        rig.stage(dice.changes())
        rig.fold()
        rig.commit()
        for tool in READERS:
            check_tool(rig, tool)
    rig.restart()
    check_versions(rig)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_change_feed_is_the_change_log(tmp_path, name):
    rig, dice = Rig(tmp_path / "w", SCHEMAS[name]), Dice("feed", SCHEMAS[name])
    rig.stage()
    rig.commit()
    start = rig.committed
    folds = 0
    for _ in range(10):
        folds += rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    assert folds
    ours = rig.table.change_rows(start, rig.committed)
    newest = rig.table.published_version()
    theirs = read_changes_by_delta_rs(rig.table.storage.url, 1, newest)
    versions = {record.epoch: commit.version for record in rig.records for commit in record.tables}
    numbers = [versions[epoch] for epoch in ours.column(COMMIT_VERSION).to_pylist()]
    ours = ours.drop_columns([COMMIT_VERSION, VNODE]).append_column(
        COMMIT_VERSION, pa.array(numbers)
    )
    # The feed's time has no zone and is the version's; ours says the zone.
    theirs_at = (
        theirs.column(COMMIT_TIMESTAMP).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    )
    theirs = theirs.drop_columns([COMMIT_TIMESTAMP]).append_column(COMMIT_TIMESTAMP, theirs_at)
    assert_same_rows(theirs, ours)


def test_what_is_not_published_is_not_seen(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(("insert", {"id": 1}))
    rig.stage(Dice("x", rig.head_schema).changes(40))
    for tool in READERS:
        check_tool(rig, tool)
    rig.commit(publish=False)
    assert_same_rows(read_by_delta_rs(rig.table.storage.url), rig.models[rig.records[0].epoch][1])
    rig.publish()
    for tool in READERS:
        check_tool(rig, tool)


def test_new_schemas_are_read_by_all(tmp_path):
    first = schema_of(
        ["id"], id=INTEGER, s=SMALLINT, i=INTEGER, r=REAL, d=decimal(9, 2), gone=VARCHAR
    )
    wide = schema_of(
        ["id"], id=BIGINT, s=INTEGER, i=BIGINT, r=DOUBLE, d=decimal(30, 2), gone=VARCHAR
    )
    wider = schema_of(
        ["id"], id=BIGINT, s=BIGINT, i=BIGINT, r=DOUBLE, d=decimal(30, 2), new=VARCHAR, more=INTEGER
    )
    rig = Rig(tmp_path / "w", first)
    dice = Dice("evolve", first)
    rig.stage(dice.changes(60))
    rig.commit()
    for schema in (wide, wider):
        dice.schema = schema
        rig.stage(dice.changes(8), schema)
        rig.commit()
        rig.put(("insert", {"id": 2**31 - 1, "i": 2**40, "r": 1e300}))
        for tool in READERS:
            check_tool(rig, tool)
    check_versions(rig)
    rig.fold()
    rig.stage()
    rig.commit()
    for tool in READERS:
        check_tool(rig, tool)
    rig.check(every=True)


def test_checkpoints_and_a_short_log_are_read_by_all(tmp_path):
    rig, dice = Rig(tmp_path / "w", SCHEMAS["everything"]), Dice("trim", SCHEMAS["everything"])
    checkpoints = []
    for number in range(24):
        rig.fold()
        rig.stage(dice.changes(8))
        rig.commit()
        if number in (7, 15, 23):
            checkpoint(rig.table.storage)
            checkpoints.append(rig.table.published_version())
    log = set(rig.table.storage.list("_delta_log"))
    check_versions(rig, rig.table.published_version() - 3)
    assert trim(rig.table.storage, checkpoints[0] - 1) == 0
    oldest = next(c.version for r in rig.records[18:] for c in r.tables)
    removed = trim(rig.table.storage, oldest)
    assert removed > 10
    assert len(set(rig.table.storage.list("_delta_log"))) == len(log) - removed
    assert trim(rig.table.storage, oldest) == 0
    check_versions(rig, oldest)
    rig.expire(rig.records[18].epoch)
    rig.collect(alone=True)
    check_versions(rig, oldest)
    rig.restart(store=True)
    assert rig.store.publish_missing(rig.records) == 0
    rig.stage(dice.changes())
    rig.commit()
    for tool in READERS:
        check_tool(rig, tool)


@pytest.mark.parametrize("name", ["with space", "p%c#?", "[br]{a,c}", "quote's", "日本"])
def test_a_table_may_lie_in_any_folder(tmp_path, name):
    rig, dice = Rig(tmp_path / name, SCHEMAS["int"]), Dice("folder", SCHEMAS["int"])
    for _ in range(4):
        rig.stage(dice.changes())
        rig.commit()
    checkpoint(rig.table.storage)
    rig.check(every=True)
    check_tool(rig, "delta-rs")


@pytest.mark.parametrize(
    "column",
    ["with space", "dot.ted", "quo`te", 'dou"ble', "semi;colon", "(a)", "ü", "a=b", "file_name"],
)
def test_a_column_may_have_any_name(tmp_path, column):
    schema = schema_of(["id", column], id=BIGINT, **{column: VARCHAR}, v=INTEGER)
    rig, dice = Rig(tmp_path / "w", schema), Dice("column", schema)
    for _ in range(4):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    rig.check(every=True)
    for tool in READERS:
        check_tool(rig, tool)


@pytest.mark.parametrize("read", [read_by_delta_rs, read_by_duckdb, read_by_polars])
def test_a_reader_only_ever_sees_whole_epochs(tmp_path, read):
    """Transfers between accounts: whoever looks, whenever, finds all the money."""
    schema = schema_of(["id"], id=BIGINT, balance=BIGINT)
    rig, accounts = Rig(tmp_path / "w", schema), 30
    rig.put(*(("insert", {"id": n, "balance": 100}) for n in range(accounts)))
    url, stop = rig.table.storage.url, threading.Event()
    seen: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            while not stop.is_set():
                rows = read(url)
                seen.append((rows.num_rows, sum(rows.column("balance").to_pylist())))
        except BaseException as error:
            errors.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    random = Dice("bank", schema).random
    try:
        for epoch in range(100):
            balance = {row["id"]: row["balance"] for row in rig.model.values()}
            changes = []
            for _ in range(3):
                one, two = random.sample(sorted(balance), 2)
                amount = random.randrange(1, 50)
                balance[one] -= amount
                balance[two] += amount
                changes.append(("delete", {"id": one}))
                changes.append(("insert", {"id": one, "balance": balance[one]}))
                changes.append(("update_postimage", {"id": two, "balance": balance[two]}))
            if epoch % 4 == 0:
                rig.fold()
            rig.put(*changes)
    finally:
        stop.set()
        watcher.join()
    assert not errors, errors
    assert len(seen) > 5
    assert set(seen) == {(accounts, 100 * accounts)}
    rig.check()
