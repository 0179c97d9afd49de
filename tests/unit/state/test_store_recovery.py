"""Coming back: a stored list of files, the records after it, and what Delta lacks."""

import dataclasses
import json

import pytest

from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.schema import Column, Schema
from headwater.model.types import VARCHAR
from headwater.state.delta_log import version_path
from state_kit import SCHEMAS, TABLE, Dice, Rig, changes_of


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path / "w", SCHEMAS["int"])


@pytest.mark.parametrize("stored_at", [None, 0, 3, 9])
@pytest.mark.parametrize("published", [0, 1, 6, 10])
def test_a_table_comes_back_from_any_list_and_any_publication(rig, stored_at, published):
    dice = Dice("recover", rig.head_schema)
    for number in range(10):
        rig.stage(dice.changes())
        rig.fold()
        rig.commit(publish=number < published)
        if number == stored_at:
            rig.stored = rig.table.manifest().encode()
    known = rig.table.manifest().encode()
    rig.stage(dice.changes())
    rig.restart()
    assert rig.table.manifest().encode() == known
    assert rig.table.published_version() == published - 1
    versions = [commit.version for record in rig.records for commit in record.tables]
    assert rig.store.publish_missing(iter(rig.records)) == len(versions) - published
    assert rig.table.published_version() == versions[-1]
    assert rig.store.publish_missing(rig.records) == 0
    rig.check(every=True)
    rig.check_folder()


def test_what_is_published_is_the_same_before_and_after_a_crash(tmp_path):
    """A version depends on the ledger alone, so who publishes it does not matter."""
    rig = Rig(tmp_path / "w", SCHEMAS["everything"])
    dice = Dice("publish", rig.head_schema)
    for _ in range(12):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    paths = [version_path(version) for version in range(rig.table.published_version() + 1)]
    before = {path: rig.table.storage.get(path) for path in paths}
    for path in paths[4:]:
        rig.table.storage.delete(path)
    rig.restart()
    rig.store.publish_missing(rig.records)
    assert {path: rig.table.storage.get(path) for path in paths} == before


def test_publishing_twice_changes_nothing(rig):
    rig.put(("insert", {"id": 1}))
    content = rig.table.storage.get(version_path(0))
    rig.table.publish(rig.records[0], rig.records[0].tables[0])
    assert rig.table.storage.get(version_path(0)) == content
    assert rig.table.published_version() == 0


FOREIGN = {
    "foreign": b'{"commitInfo":{"operation":"WRITE"}}\n',
    "of another epoch": b'{"txn":{"appId":"headwater","version":12}}\n',
    "not even JSON": b"what is this",
    "of strange JSON": b"[]\n7\n",
    "empty": b"",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_commit_in_the_way_is_found(rig, what):
    rig.put(("insert", {"id": 1}))
    rig.table.storage.put(version_path(1), FOREIGN[what])
    rig.stage(changes_of([("insert", {"id": 2})], rig.head_schema))
    with pytest.raises(DamagedState, match="version 1 of the Delta table") as caught:
        rig.commit()
    assert "only writer" in caught.value.hint


@pytest.mark.parametrize("ours", [1, 2, 3])
@pytest.mark.parametrize("theirs", [1, 2, 3])
def test_foreign_commits_after_a_crash_are_found(rig, ours, theirs):
    """The versions we still owe were taken by somebody else while we were away."""
    rig.put(("insert", {"id": 1}))
    for number in range(ours):
        rig.stage(changes_of([("insert", {"id": 10 + number})], rig.head_schema))
    rig.commit(publish=False)
    for number in range(theirs):
        rig.table.storage.put(version_path(1 + number), FOREIGN["foreign"])
    rig.restart()
    with pytest.raises(DamagedState, match="Delta table"):
        rig.store.publish_missing(rig.records)


def test_a_foreign_commit_on_top_is_found(rig):
    rig.put(("insert", {"id": 1}))
    rig.table.storage.put(version_path(1), FOREIGN["foreign"])
    rig.restart()
    with pytest.raises(DamagedState, match="that the ledger does not have"):
        rig.store.publish_missing(rig.records)


def test_a_hole_in_the_records_is_found(rig):
    for n in range(4):
        rig.put(("insert", {"id": n}))
    del rig.records[1]
    with pytest.raises(DamagedState, match="lacks a commit"):
        rig.restart()


def test_records_before_the_stored_list_are_passed_over(rig):
    for n in range(6):
        rig.put(("insert", {"id": n}))
    rig.restart(store=True)
    rig.check(every=True)
    rig.put(("delete", {"id": 3}))
    rig.records = rig.records[4:]
    rig.restart()
    rig.check(every=True)


def test_versions_are_published_below_a_horizon_that_reaches_the_last_visible_epoch(rig):
    dice = Dice("horizon", rig.head_schema)
    for _ in range(6):
        rig.stage(dice.changes())
        rig.fold()
        rig.commit()
    rig.expire(rig.committed)
    for _ in range(3):
        rig.stage(dice.changes())
        rig.fold()
    rig.commit(publish=False)
    for store in (False, True):
        rig.restart(store=store)
        rig.store.publish_missing(rig.records)
        rig.published = len(rig.records)
        rig.check(every=True)
    assert rig.table.published_version() == rig.records[-1].tables[0].version


def test_the_catalog_may_know_a_newer_schema_than_the_first_records(rig):
    rig.put(("insert", {"id": 1, "name": "a"}))
    more = Schema((*rig.head_schema.columns, Column("city", VARCHAR)), ("id",))
    rig.put(("insert", {"id": 2, "city": "Rome"}), schema=more)
    known = rig.table.manifest()
    rig.spec = dataclasses.replace(rig.spec, schema=more)
    rig.restart()
    rig.check(every=True)
    assert rig.table.manifest()._retired == known._retired
    rig.put(("insert", {"id": 3, "city": "Oslo"}))
    rig.check(every=True)


def test_a_table_without_epochs_comes_back_empty(rig):
    rig.records = []
    rig.stored = None
    rig.store.recover([rig.spec], {}, [], {})
    assert rig.store[TABLE].rows().num_rows == 0
    assert rig.store.publish_missing([]) == 0
    rig.store.drop(TABLE)
    assert TABLE not in rig.store
    rig.store.drop(TABLE)


def test_a_table_opened_without_spark_says_so(rig):
    rig.put(("insert", {"id": 1}))
    with pytest.raises(BrokenInvariant, match="without Spark"):
        rig.table.frame()


def test_every_version_names_its_epoch(rig):
    dice = Dice("txn", rig.head_schema)
    for _ in range(5):
        rig.stage(dice.changes())
        rig.commit()
    for record in rig.records:
        for commit in record.tables:
            lines = rig.table.storage.get(version_path(commit.version)).splitlines()
            actions = [json.loads(line) for line in lines]
            assert [a["txn"]["version"] for a in actions if "txn" in a] == [record.epoch]
