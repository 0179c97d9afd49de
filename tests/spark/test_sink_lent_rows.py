"""The rows that a sink finds in its table are lent to its log, and kept until it has delivered."""

import time
from contextlib import ExitStack

import psycopg
import pytest

import headwater
from delta_readers import read_by_delta_rs
from headwater.runtime.sinks import sinks
from headwater.testing.embedded_postgres import embedded_postgres
from views_kit import quick

__all__ = ["quick"]

ROWS = 4_000
SETTINGS = {
    "barrier_interval_ms": 100,
    "storage_fsync": False,
    "sink_driver_bytes": 4096,
    "fill_at_once_rows": 1000,
    # Nothing is kept for its own sake, and old files go as soon as they may.
    "retention_s": 0,
    "maintenance_interval_s": 0.2,
    "fold_files": 2,
}


@pytest.fixture(scope="module")
def postgres():
    with embedded_postgres() as url:
        yield url


def _options(url, table):
    info = psycopg.conninfo.conninfo_to_dict(url)
    return (
        f"connector = 'postgres', host = '{info['host']}', port = '{info['port']}',"
        f" user = '{info['user']}', database = '{info['dbname']}', table = '{table}'"
    )


def _filled(hw, name):
    """A table with several files and dead rows in them."""
    hw.sql(f"create table {name} (id bigint primary key, v bigint, note varchar)")
    for low in (0, ROWS // 2):
        hw.sql(
            f"insert into {name} select g, g % 7, 'n' || g"
            f" from generate_series({low + 1}, {low + ROWS // 2}) g"
        )
        hw.sql("flush")
    hw.sql(f"delete from {name} where id % 10 = 0")
    hw.sql(f"update {name} set v = 100 where id % 10 = 1")
    hw.sql("flush")


def _churned(hw, name):
    """Change it a lot, so that its files of before are folded away and forgotten."""
    for turn in range(3):
        hw.sql(f"update {name} set v = v + 1, note = note || '{turn}' where id % 3 = {turn}")
        hw.sql(f"delete from {name} where id % 40 = {turn + 1}")
        hw.sql("flush")
    time.sleep(1.0)


def _mine(hw, name):
    stored = hw.stored(name).rows(hw.visible).select(["id", "v", "note"]).to_pylist()
    return sorted(tuple(row.values()) for row in stored)


def _until(holds, what, limit_s=90.0):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to this: {what}"
        time.sleep(0.1)


def _pins(hw):
    return [pin for pin in hw.engine.ledger.pins() if pin.startswith("sink_log/")]


def _written(folder):
    return list((folder / "w" / "sink_logs").rglob("rows-*"))


@pytest.mark.timeout(600)
def test_what_was_lent_stays_until_all_targets_have_it(quick, postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_COLLECT_S", 0.2)
    lake = tmp_path / "lake"
    with ExitStack() as stack:
        hw = stack.enter_context(headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick))
        db = stack.enter_context(psycopg.connect(postgres, autocommit=True))
        _filled(hw, "t")
        hw.sql("create table copy (id bigint primary key, v bigint, note varchar)")
        db.execute("create table held (id bigint primary key, v bigint, note varchar)")
        db.execute("create table once (id bigint primary key, v bigint, note varchar)")
        first = _mine(hw, "t")
        paused = "sink_rate_limit = '0'"
        hw.sql(f"create sink held from t with ({_options(postgres, 'held')}, {paused})")
        assert _written(tmp_path) == [], "the rows were copied"
        hw.sql(f"create sink lake from t with (connector = 'deltalake', location = '{lake}')")
        hw.sql("create sink copied into copy from t")
        hw.sql(
            f"create sink once from t with ({_options(postgres, 'once')}, type = 'append-only',"
            " ignore_delete = 'true')"
        )
        once = "select id, v, note from once order by id"
        _until(lambda: db.execute(once).fetchall() == first, "every row once")
        hw.sql("drop sink once")
        _churned(hw, "t")
        _until(lambda: len(_pins(hw)) == 1, "only one sink still needs what it was lent")
        hw.sql("alter sink held set sink_rate_limit = default")
        there = "select id, v, note from held order by id"
        _until(lambda: db.execute(there).fetchall() == _mine(hw, "t"), "the same rows")
        _until(lambda: _pins(hw) == [], "nothing is lent any more")
        hw.sql("flush")
        assert _mine(hw, "copy") == _mine(hw, "t")
        found = sorted(tuple(row.values()) for row in read_by_delta_rs(str(lake)).to_pylist())
        assert found == _mine(hw, "t")


@pytest.mark.timeout(600)
def test_the_next_engine_finds_what_was_lent(quick, postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_COLLECT_S", 0.2)
    with ExitStack() as stack:
        db = stack.enter_context(psycopg.connect(postgres, autocommit=True))
        db.execute("create table later (id bigint primary key, v bigint, note varchar)")
        paused = "sink_rate_limit = '0'"
        with headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick) as hw:
            _filled(hw, "t")
            hw.sql(f"create sink later from t with ({_options(postgres, 'later')}, {paused})")
            hw.sql("alter table t add column more bigint")
            _churned(hw, "t")
        with headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick) as hw:
            _churned(hw, "t")
            assert len(_pins(hw)) == 1
            hw.sql("alter sink later set sink_rate_limit = default")
            there = "select id, v, note from later order by id"
            _until(lambda: db.execute(there).fetchall() == _mine(hw, "t"), "the same rows")
            _until(lambda: _pins(hw) == [], "nothing is lent any more")
        with headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick) as hw:
            hw.engine.ledger.pin("sink_log/987654", hw.visible)
        with headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick) as hw:
            _until(lambda: _pins(hw) == [], "a sink that never was keeps no epoch")
