"""Deliveries that are too large for the driver: read, folded and brought by Spark tasks."""

import time
from contextlib import ExitStack

import psycopg
import pytest

import headwater
from delta_readers import read_by_delta_rs
from headwater.runtime.sinks import copying, courier, filling, into_table, owed
from headwater.testing.embedded_postgres import embedded_postgres
from views_kit import quick

__all__ = ["quick"]

ROWS = 6_000
SETTINGS = {
    "barrier_interval_ms": 100,
    "maintenance_interval_s": 3600.0,
    "storage_fsync": False,
    "driver_bytes": 64 * 1024,
    "sink_driver_bytes": 4096,
    "sink_chunk_bytes": 16 * 1024,
    "fill_at_once_rows": 1000,
    "backfill_slice_bytes": 4096,
}


@pytest.fixture(scope="module")
def postgres():
    with embedded_postgres() as url:
        yield url


def _postgres_options(url, table):
    info = psycopg.conninfo.conninfo_to_dict(url)
    return (
        f"connector = 'postgres', host = '{info['host']}', port = '{info['port']}',"
        f" user = '{info['user']}', database = '{info['dbname']}', table = '{table}'"
    )


@pytest.mark.timeout(900)
def test_tasks_bring_what_is_large(quick, postgres, tmp_path, monkeypatch):
    asked = [
        _counted(monkeypatch, courier, "_answers"),
        _counted(monkeypatch, owed, "segment_of_row"),
        _counted(monkeypatch, copying, "segment_of_row"),
        _counted(monkeypatch, filling, "lent_segment"),
    ]
    lake = tmp_path / "lake"
    with ExitStack() as stack:
        hw = stack.enter_context(headwater.connect(tmp_path / "w", settings=SETTINGS, spark=quick))
        db = stack.enter_context(psycopg.connect(postgres, autocommit=True))
        hw.sql("create table t (id bigint primary key, v bigint, note varchar)")
        hw.sql(
            "insert into t select g, g % 7, 'it''s \"' || g || '\"'"
            f" from generate_series(1, {ROWS}) g"
        )
        hw.sql("flush")
        hw.sql(f"create sink same from t with ({_postgres_options(postgres, 'same')})")
        hw.sql(
            "create sink copied from t with"
            f" ({_postgres_options(postgres, 'copied')}, commit_checkpoint_interval = '2')"
        )
        hw.sql(f"create sink lake from t with (connector = 'deltalake', location = '{lake}')")
        hw.sql(
            "create sink by_v from t with"
            f" ({_postgres_options(postgres, 'by_v')}, primary_key = 'v')"
        )
        _until(lambda: _same(hw, db, lake) and _keys(db) == list(range(7)))
        # One epoch whose changes are too many for the driver, of every kind.
        hw.sql("update t set v = v + 100 where id % 2 = 0")
        hw.sql("delete from t where id % 5 = 0")
        hw.sql(
            f"insert into t select g, 1, 'new' from generate_series({ROWS + 1}, {ROWS + 3000}) g"
        )
        hw.sql("flush")
        _until(lambda: _same(hw, db, lake))
    assert asked[0][0] > 0, "no delivery went through Spark"
    assert asked[1][0] > 0, "no segment was written by a task"
    assert asked[2][0] > 0, "no file was copied by a task"
    assert asked[3][0] > 0, "no file was lent"


def _same(hw, db, lake):
    stored = hw.stored("t").rows(hw.visible).select(["id", "v", "note"]).to_pylist()
    mine = sorted(tuple(row.values()) for row in stored)
    there = sorted(db.execute("select id, v, note from same").fetchall())
    copied = sorted(db.execute("select id, v, note from copied").fetchall())
    delta = sorted(tuple(row.values()) for row in read_by_delta_rs(str(lake)).to_pylist())
    return there == mine and copied == mine and delta == mine


def _keys(db):
    """Several rows share a key of this target: it has one row for each, whichever."""
    return sorted(v for (v,) in db.execute("select v from by_v").fetchall())


def _counted(monkeypatch, module, name):
    calls, real = [0], getattr(module, name)

    def counting(*given):
        calls[0] += 1
        return real(*given)

    monkeypatch.setattr(module, name, counting)
    return calls


def _until(holds, limit_s=180.0):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "the targets are not the same"
        time.sleep(0.1)


@pytest.mark.timeout(900)
def test_queries_go_into_tables_as_insert_would_put_them(quick, tmp_path, monkeypatch):
    asked = _counted(monkeypatch, into_table, "_frame")
    settings = {**SETTINGS, "backfill_slice_bytes": 1 << 20}
    with headwater.connect(tmp_path / "w", settings=settings, spark=quick) as hw:
        hw.sql("create table t (id bigint primary key, v bigint, note varchar)")
        hw.sql(
            "create table totals (v integer primary key, rows integer, doubled bigint as rows * 2,"
            " kind varchar default 'sum')"
        )
        hw.sql("create table notes (note varchar, length bigint)")
        hw.sql(f"insert into t select g, g % 7, 'n' || g from generate_series(1, {ROWS}) g")
        hw.sql("flush")
        hw.sql("create sink by_v into totals (v, rows) as select v, count(*) from t group by v")
        hw.sql(
            "create sink said into notes (length, note) as select length(note), note from t"
            " with (force_append_only = 'true')"
        )
        _until(lambda: _has_all(hw, ROWS))
        hw.sql("delete from t where v = 3")
        hw.sql("update t set v = 1 where v = 2")
        hw.sql(
            f"insert into t select g, 1, 'n' || g from generate_series({ROWS + 1}, {2 * ROWS}) g"
        )
        hw.sql("flush")
        wanted = hw.sql(
            "select v::integer, count(*)::integer, count(*) * 2, 'sum' from t group by v"
        )
        assert sorted(hw.sql("select * from totals").rows()) == sorted(wanted.rows())
        _until(lambda: _has_all(hw, 2 * ROWS))
    assert asked[0] > 0, "no delivery went through Spark"


def _has_all(hw, rows):
    """Every note that was ever inserted, once; updates count as new rows here."""
    found = [note for (note,) in hw.sql("select note from notes").rows()]
    return {f"n{g}" for g in range(1, rows + 1)} == set(found)
