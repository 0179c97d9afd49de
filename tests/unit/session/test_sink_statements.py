"""CREATE SINK and its like: what is refused and why, and what reaches a target, without Spark."""

import json
import time
from collections import Counter

import pytest

import headwater
from headwater.errors import HeadwaterError

SETTINGS = {"barrier_interval_ms": 20, "maintenance_interval_s": 3600.0, "storage_fsync": False}
NOWHERE = "connector = 'blackhole'"


@pytest.fixture(scope="module")
def hw(tmp_path_factory):
    with headwater.connect(tmp_path_factory.mktemp("sinks") / "w", settings=SETTINGS) as engine:
        engine.sql("create table t (id bigint primary key, v varchar, doc jsonb)")
        engine.sql("create table log (v bigint) append only")
        engine.sql("create table nokey (v bigint)")
        yield engine


@pytest.mark.parametrize(
    ("statement", "sqlstate", "message"),
    [
        ("create sink s from t with (type = 'upsert')", "22023", "needs a connector"),
        ("create sink s from t with (connector = 'kafak')", "22023", "no sink connector"),
        (f"create sink s from t with ({NOWHERE}, colour = 'red')", "22023", 'no option "colour"'),
        (f"create sink s from nothing with ({NOWHERE})", "42P01", "does not exist"),
        (f"create sink s from t with ({NOWHERE}, type = 'append-only')", "22023", "append-only"),
        (f"create sink s from t with ({NOWHERE}, type = 'sideways')", "22023", "type cannot be"),
        (f"create sink s from t with ({NOWHERE}, primary_key = 'nix')", "42703", "does not exist"),
        (f"create sink s from t with ({NOWHERE}, primary_key = 'doc')", "22023", "primary_key"),
        (f"create sink s from t with ({NOWHERE}, primary_key = 'id,id')", "22023", "twice"),
        (f"create sink s from nokey with ({NOWHERE})", "22023", "primary key not defined"),
        (f"create sink s from t with ({NOWHERE}, snapshot = 'maybe')", "22023", "true or false"),
        (f"create sink s from t with ({NOWHERE}, sink_rate_limit = 'fast')", "22023", "cannot be"),
        (
            f"create sink s from t with ({NOWHERE}, commit_checkpoint_interval = '0')",
            "22023",
            "1 to",
        ),
        (f"create sink s from t with ({NOWHERE}, auto.schema.change = '1')", "22023", "true or"),
        (f"create sink t from log with ({NOWHERE})", "42P07", "already exists"),
        (f"create sink s from t with ({NOWHERE}) format fancy encode json", "0A000", "FANCY"),
        (
            f"create sink s from t with ({NOWHERE}, type = 'upsert') format plain encode json",
            "22023",
            "does not go with",
        ),
        (
            f"create sink s as select v, count(*) as n from t group by v with ({NOWHERE},"
            " snapshot = 'false', primary_key = 'v')",
            "0A000",
            "filters and projects",
        ),
        ("drop sink nix", "42704", "does not exist"),
        ("alter sink nix set sink_rate_limit = 5", "42704", "does not exist"),
        ("drop sink t", "42809", "is not a sink"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(hw, statement, sqlstate, message):
    with pytest.raises(HeadwaterError, match=message.replace("(", r"\(")) as refused:
        hw.sql(statement)
    assert refused.value.sqlstate == sqlstate
    assert not hw.engine.sinks.delivering
    assert not [v for v in hw.engine.catalog.snapshot().materialized_views if v.sinks_own]


def lines(folder):
    """Every row that a reader of the folder finds, as often as it is there."""
    found = Counter()
    for path in folder.glob("*.json*"):
        for line in path.read_text().splitlines():
            found[tuple(sorted(json.loads(line).items()))] += 1
    return found


def test_rows_reach_a_folder_once_each_and_a_sink_can_be_altered_and_dropped(hw, tmp_path):
    target = tmp_path / "out"
    hw.sql("insert into log values (1), (2)")
    hw.sql("flush")
    hw.sql(
        f"create sink files from log with (connector = 'fs', path = '{target}',"
        " type = 'append-only') format plain encode json"
    )
    hw.sql("insert into log values (3)")
    hw.sql("flush")
    wanted = Counter({(("v", n),): 1 for n in (1, 2, 3)})
    _until(lambda: target.exists() and lines(target) == wanted)
    hw.sql("alter sink files set sink_rate_limit = 0")
    hw.sql("insert into log values (4)")
    hw.sql("flush")
    _until(lambda: _state(hw) == "paused")
    assert lines(target) == wanted
    hw.sql("alter sink files set sink_rate_limit = default")
    wanted[(("v", 4),)] = 1
    _until(lambda: lines(target) == wanted)
    before = hw.visible
    hw.sql("insert into log values (5)")
    hw.sql("flush")
    wanted[(("v", 5),)] = 1
    _until(lambda: lines(target) == wanted)
    hw.sql(f"alter sink files rewind to epoch {before}")
    # An append-only target gets what followed a second time, and the statement says so.
    wanted[(("v", 5),)] = 2
    _until(lambda: lines(target) == wanted)
    hw.sql("drop sink files")
    assert not hw.engine.sinks.delivering
    _until(lambda: not list(hw.engine.store.surroundings.storage.list("sink_logs")))
    assert lines(target) == wanted


def test_a_table_with_a_sink_is_not_dropped_alone(hw):
    hw.sql("create table needed (id bigint primary key)")
    hw.sql(f"create sink needs from needed with ({NOWHERE})")
    with pytest.raises(HeadwaterError) as refused:
        hw.sql("drop table needed")
    assert refused.value.sqlstate == "2BP01"
    assert "needs" in refused.value.detail
    hw.sql("drop table needed cascade")
    # Epochs go on after a sink has gone together with its table.
    hw.sql("insert into log values (9)")
    hw.sql("flush")
    assert not hw.engine.sinks.delivering


def test_a_sink_that_is_renamed_goes_on_under_its_new_name(hw):
    hw.sql("create table named (id bigint primary key)")
    hw.sql(f"create sink before_it from named with ({NOWHERE})")
    hw.sql("insert into named values (1)")
    hw.sql("flush")
    _until(lambda: _series(hw, "headwater_sink_rows_total") == {"before_it": 1.0})
    hw.sql("alter sink before_it rename to after_it")
    hw.sql("insert into named values (2), (3)")
    hw.sql("flush")
    _until(lambda: _series(hw, "headwater_sink_rows_total") == {"after_it": 2.0})
    assert set(_series(hw, "headwater_sink_lag_seconds")) == {"after_it"}
    hw.sql("drop table named cascade")
    assert not _series(hw, "headwater_sink_lag_seconds")


def _series(hw, name):
    families = hw.engine.metrics.registry.collect()
    samples = [each for family in families for each in family.samples if each.name == name]
    return {each.labels["sink"]: each.value for each in samples}


def _state(hw):
    (delivering,) = hw.engine.sinks.delivering.values()
    return delivering.executor.status.state.value


def _until(holds, limit_s=90.0):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
