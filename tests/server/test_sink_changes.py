"""Targets that change while sinks are there: new columns, also late and after a restart, and the
end of the sink beside; rows are compared both ways."""

import time

import psycopg
import pymysql
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import headwater
from delta_readers import read_by_delta_rs
from headwater.errors import HeadwaterError
from headwater.model.epoch import NO_EPOCH
from headwater.sinks.postgres.sink import postgres_sink
from mysql_servers import SERVERS
from sql_sink_kit import MySqlYard, restartable_postgres, spec_of

pytestmark = pytest.mark.server

SETTINGS = {"barrier_interval_ms": 50, "maintenance_interval_s": 3600.0, "storage_fsync": False}


@pytest.fixture(scope="module")
def postgres():
    with restartable_postgres() as running:
        yield running


@pytest.fixture(scope="module")
def mariadb():
    with SERVERS["mariadb"]() as running:
        running.run("SET GLOBAL local_infile = 1")
        yield MySqlYard(running)


def listed(options):
    return ", ".join(f"{name} = '{value}'" for name, value in options.items())


def stored(hw):
    rows = hw.stored("t").rows(hw.visible)
    return sorted(
        (row["id"], row["v"], row["more"], row["day"] and str(row["day"]))
        for row in rows.to_pylist()
    )


def until(holds):
    deadline = time.monotonic() + 120
    while not (found := holds()):
        assert time.monotonic() < deadline, "the targets are not the same"
        time.sleep(0.1)
    return found


@pytest.mark.timeout(600)
def test_new_columns_reach_every_target(postgres, mariadb, tmp_path):
    lake = tmp_path / "lake"
    iceberg = {
        "connector": "iceberg",
        "catalog.type": "sql",
        "catalog.name": "x",
        "catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse.path": f"file://{tmp_path}/warehouse",
        "database.name": "lake",
        "table.name": "t",
        "create_table_if_not_exists": "true",
    }
    targets = {
        "pg": {"connector": "postgres", **postgres.options("t")},
        "my": {"connector": "mysql", **mariadb.options("t")},
        "delta": {"connector": "deltalake", "location": str(lake)},
        "ice": iceberg,
    }

    def same(hw):
        wanted = stored(hw)
        with psycopg.connect(postgres.url, autocommit=True) as db:
            pg = db.execute("select id, v, more, day::text from t").fetchall()
        my = mariadb.run("select id, v, more, cast(day as char) from t")
        delta = read_by_delta_rs(str(lake)).to_pylist()
        table = SqlCatalog(
            "x", uri=iceberg["catalog.uri"], warehouse=iceberg["warehouse.path"]
        ).load_table("lake.t")
        ice = table.scan().to_arrow().to_pylist()
        lakes = [
            sorted((r["id"], r["v"], r["more"], r["day"] and str(r["day"])) for r in rows)
            for rows in (delta, ice)
        ]
        return [sorted(pg), sorted(tuple(row) for row in my), *lakes] == [wanted] * 4

    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table t (id bigint primary key, v varchar)")
        hw.sql("insert into t values (1, 'one'), (2, 'two')")
        hw.sql("flush")
        for name, options in targets.items():
            hw.sql(
                f"create sink {name} from t with ({listed(options)}, auto.schema.change = 'true')"
            )
        assert "auto.schema.change" in hw.sql("show create sink pg").rows()[0][1]
        hw.sql("insert into t values (3, 'before')")
        hw.sql("alter table t add column more bigint")
        hw.sql("insert into t values (4, 'after', 44)")
        hw.sql("update t set more = 11 where id = 1")
        hw.sql("alter table t add column day date default date '2026-01-02'")
        hw.sql("flush")
        until(lambda: _quietly(same, hw))
        # A target that is away gets the column when it is back, before the rows that have it.
        postgres.stop()
        hw.sql("delete from t where id = 2")
        hw.sql("insert into t values (5, 'away', 55, date '2026-05-05')")
        hw.sql("alter table t add column last varchar")
        hw.sql("insert into t values (6, 'late', 66, date '2026-06-06', 'six')")
        hw.sql("flush")
    postgres.start()
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("insert into t values (7, 'again', 77, null, 'seven')")
        hw.sql("flush")
        until(lambda: _quietly(same, hw))
        with psycopg.connect(postgres.url, autocommit=True) as db:
            last = db.execute("select id, last from t where last is not null order by id")
            assert last.fetchall() == [(6, "six"), (7, "seven")]


def _quietly(same, hw):
    try:
        return same(hw)
    except (psycopg.errors.UndefinedColumn, pymysql.err.OperationalError, KeyError):
        # A column that is not there yet.
        return False


def test_a_sink_of_a_query_does_not_evolve(tmp_path):
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table t (id bigint primary key, v varchar)")
        with pytest.raises(HeadwaterError) as refused:
            hw.sql(
                "create sink s as select id from t with (connector = 'blackhole',"
                " auto.schema.change = 'true')"
            )
        assert refused.value.sqlstate == "22023"


def test_a_check_beside_the_end_of_the_last_sink(postgres, monkeypatch):
    """The last sink takes the table of progress along; who checks right then makes it anew."""
    first = postgres_sink(spec_of("last_one", postgres.options("last_one")))
    first.check()
    second = postgres_sink(spec_of("next_one", postgres.options("next_one")))
    made, left = second._create_progress, [2]

    def made_and_gone():
        made()
        if left[0]:
            left[0] -= 1
            postgres.run("DROP TABLE headwater_sink_progress")

    monkeypatch.setattr(second, "_create_progress", made_and_gone)
    second.check()
    assert second.begin(1) == NO_EPOCH
