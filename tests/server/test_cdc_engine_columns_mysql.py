"""Columns that change upstream, in a MariaDB and a MySQL that are written to meanwhile."""

import random
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest
from pymysql.constants import ER

from cdc_kit import eventually, following, stored
from mysql_servers import SERVERS, RunningServer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop")
        yield running


def _change(cursor, dice):
    key, kind = dice.randrange(1, 3_000), dice.random()
    try:
        if kind < 0.5:
            cursor.execute(
                "INSERT INTO t (id, a) VALUES (%s, 1) ON DUPLICATE KEY UPDATE a = a + 1", [key]
            )
        elif kind < 0.7:
            cursor.execute("DELETE FROM t WHERE id = %s", [key])
        else:
            cursor.execute("UPDATE t SET a = a + 1 WHERE id BETWEEN %s AND %s", [key, key + 3])
    except pymysql.err.OperationalError as error:
        # One of two that wait for each other is rolled back, as ever.
        if error.args[0] != ER.LOCK_DEADLOCK:
            raise


def _write(database, stop, seed, failed):
    dice = random.Random(seed)
    try:
        connection = database.connect("shop")
        connection.autocommit(True)
        with connection.cursor() as cursor:
            while not stop.wait(0.002):
                _change(cursor, dice)
        connection.close()
    except BaseException as error:
        failed.append(error)


CHANGES = (
    "ADD COLUMN c int",
    "ADD COLUMN d varchar(20) NOT NULL DEFAULT 'five'",
    "DROP COLUMN b",
    "MODIFY COLUMN a bigint",
    "ADD COLUMN first_ int NOT NULL DEFAULT 0 AFTER id",
    "RENAME COLUMN c TO b",
    "CHANGE COLUMN d dd varchar(30)",
    "DROP COLUMN first_, ADD COLUMN e int DEFAULT 9",
    "RENAME COLUMN e TO e2",
    "RENAME COLUMN e2 TO e3, ADD COLUMN z int",
    "DROP COLUMN z, ADD COLUMN z varchar(9) DEFAULT 'zed'",
    "CHANGE COLUMN b c int, CHANGE COLUMN e3 b int",
)


def source(database, **more):
    said = ", ".join(f"{k} = '{v}'" for k, v in (database.options("shop") | more).items())
    return f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})"


def fresh(database, rows=2_000):
    database.run(
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
        f"INSERT INTO t SELECT seq, seq, concat('b', seq) FROM {_numbers(rows)}",
        database="shop",
    )


def _numbers(rows):
    return (
        f"(WITH RECURSIVE n AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < {rows})"
        " SELECT seq FROM n) AS numbers"
    )


def upstream_names(database):
    query = (
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = 't'"
    )
    return sorted(row[0] for row in database.run(query))


def is_same(hw, database):
    hw.sql("FLUSH")
    said = ", ".join(f"`{name}`" for name in hw.stored("t").schema.names)
    theirs = {tuple(row) for row in database.run(f"SELECT {said} FROM t", database="shop")}
    ours = stored(hw, "t")
    assert len(set(ours)) == len(ours)
    return set(ours) == theirs


@pytest.mark.parametrize("limit", ["default", "500"])
def test_changes_under_writers_after_and_during_the_backfill(database, tmp_path, limit):
    """Also several while nobody follows: the server then shows only the last of them."""
    fresh(database, 900)
    options = "" if limit == "default" else f"WITH (backfill_rate_limit = '{limit}')"
    stop, failed = threading.Event(), []
    threads = [threading.Thread(target=_write, args=(database, stop, s, failed)) for s in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        with following(tmp_path / "w") as hw:
            hw.sql(source(database))
            hw.sql(f"CREATE TABLE t (*) FROM shop TABLE 'shop.t' {options}")
            if limit == "default":
                hw.sql("WAIT")
            for change in CHANGES[:3]:
                database.run(f"ALTER TABLE t {change}", database="shop")
                time.sleep(0.5)
        for change in CHANGES[3:6]:
            database.run(f"ALTER TABLE t {change}", database="shop")
            time.sleep(0.2)
        with following(tmp_path / "w") as hw:
            for change in CHANGES[6:]:
                database.run(f"ALTER TABLE t {change}", database="shop")
            time.sleep(0.5)
            if limit != "default":
                hw.sql("ALTER TABLE t SET BACKFILL_RATE_LIMIT = default")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
    with following(tmp_path / "w") as hw:
        eventually(lambda: sorted(hw.stored("t").schema.names) == upstream_names(database), 90)
        hw.sql("WAIT")
        eventually(lambda: is_same(hw, database))
        assert "stopped" not in str(hw.sql("SHOW JOBS"))


def test_a_dropped_and_an_added_column_are_no_rename(database, tmp_path):
    """However alike they look; and a rename that nobody says is none."""
    fresh(database, 50)
    with following(tmp_path / "w") as hw:
        hw.sql(source(database))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'shop.t'")
        hw.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        hw.sql("WAIT")
        database.run("ALTER TABLE t DROP COLUMN a, ADD COLUMN x int AFTER id", database="shop")
        eventually(lambda: hw.stored("t").schema.names == ("id", "b", "x"))
        database.run("INSERT INTO t (id, x) VALUES (51, 7)", database="shop")
        eventually(lambda: is_same(hw, database))
        assert {row[2] for row in stored(hw, "t")} == {None, 7}
        database.run("ALTER TABLE t MODIFY COLUMN x varchar(9)", database="shop")
        eventually(lambda: "stopped" in str(hw.sql("SHOW JOBS")))
        assert "REFRESH SCHEMA" in str(hw.sql("SHOW JOBS").rows())
        hw.sql("ALTER TABLE t REFRESH SCHEMA")
        hw.sql("WAIT")
        database.run("UPDATE t SET x = 'seven' WHERE id = 51", database="shop")
        eventually(lambda: is_same(hw, database))
        assert hw.sql("SELECT n FROM v").rows() == [(51,)]
        assert "stopped" not in str(hw.sql("SHOW JOBS"))
