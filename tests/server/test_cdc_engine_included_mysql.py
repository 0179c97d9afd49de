"""INCLUDE ... AS of a MariaDB and a MySQL: rows have the time at which they were committed."""

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cdc_kit import eventually, following, settled
from headwater.errors import HeadwaterError
from mysql_servers import SERVERS, RunningServer

pytestmark = pytest.mark.timeout(600)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ALL = "INCLUDE TIMESTAMP AS ts INCLUDE DATABASE_NAME AS d INCLUDE TABLE_NAME AS n"


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop")
        yield running


class Written:
    """Writes, and remembers between which two moments each row was committed."""

    def __init__(self, database: RunningServer) -> None:
        self._database = database
        # What a server without microseconds says of a commit is the second that it was in.
        self._cut = database.kind == "mariadb"
        self.between: dict[int, tuple[Any, Any]] = {}

    def _now(self) -> Any:
        [(now,)] = self._database.run("SELECT UTC_TIMESTAMP(6)")
        return now.replace(tzinfo=datetime.UTC)

    def write(self, ids: range, *statements: str) -> None:
        before = self._now()
        self._database.run(*statements, database="shop")
        low = before.replace(microsecond=0) if self._cut else before
        self.between |= dict.fromkeys(ids, (low, self._now()))

    def check(self, hw: Any, own: str) -> None:
        theirs = {tuple(row) for row in self._database.run(f"SELECT {own} FROM t", database="shop")}
        names = [*own.split(", "), "ts", "d", "n"]
        rows = hw.stored("t").rows(hw.visible).select(names).to_pylist()
        ours = {tuple(row.values())[:-3] for row in rows}
        assert len(rows) == len(ours)
        assert theirs == ours, (sorted(theirs - ours)[:3], sorted(ours - theirs)[:3])
        assert {(row["d"], row["n"]) for row in rows} <= {("shop", "t")}
        for row in rows:
            low, high = self.between.get(row["id"], (EPOCH, EPOCH))
            assert low <= row["ts"] <= high, (row, low, high)


def same(hw: Any, written: Written, own: str = "id, a, b") -> None:
    settled(hw, lambda: written.check(hw, own))


def made(database: RunningServer) -> None:
    database.run(
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(200))",
        "INSERT INTO t WITH RECURSIVE g AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM g"
        " WHERE n < 500) SELECT n, n, concat('b', n) FROM g",
        database="shop",
    )


def source(database: RunningServer) -> str:
    said = ", ".join(f"{k} = '{v}'" for k, v in database.options("shop").items())
    return f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})"


def test_rows_say_when_and_where_over_restarts_and_changes_of_columns(database, tmp_path):
    made(database)
    written = Written(database)
    with following(tmp_path / "w") as hw:
        hw.sql(source(database))
        hw.sql(f"CREATE TABLE t (*) {ALL} FROM shop TABLE 'shop.t'")
        hw.sql("WAIT")
        same(hw, written)
        time.sleep(1.1)
        written.write(range(1, 51), "UPDATE t SET a = a + 1 WHERE id <= 50")
        written.write(range(1001, 1003), "INSERT INTO t VALUES (1001, 1, 'n'), (1002, 2, NULL)")
        database.run("DELETE FROM t WHERE id BETWEEN 60 AND 70", database="shop")
        written.write(range(2100, 2101), "UPDATE t SET id = 2100 WHERE id = 100")
        same(hw, written)
        database.run("ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 7", database="shop")
        database.run("ALTER TABLE t CHANGE COLUMN a aa bigint", database="shop")
        eventually(lambda: {"c", "aa"} <= set(hw.stored("t").schema.names))
        hw.sql("WAIT")
        same(hw, written, "id, aa, b, c")
    time.sleep(1.1)
    written.write(range(40, 60), "UPDATE t SET c = 8 WHERE id BETWEEN 40 AND 59")
    with following(tmp_path / "w") as hw:
        same(hw, written, "id, aa, b, c")
        time.sleep(1.1)
        written.write(range(10), "UPDATE t SET c = 9 WHERE id < 10")
        same(hw, written, "id, aa, b, c")
        assert ALL in str(hw.sql("SHOW CREATE TABLE t").rows())


def test_what_a_mysql_does_not_have_is_refused(database, tmp_path):
    made(database)
    with following(tmp_path / "w") as hw:
        hw.sql(source(database))
        with pytest.raises(HeadwaterError, match="DATABASE_NAME") as refused:
            hw.sql("CREATE TABLE t (*) INCLUDE SCHEMA_NAME AS s FROM shop TABLE 'shop.t'")
        assert refused.value.sqlstate == "0A000"
        assert refused.value.position == len("CREATE TABLE t (*) INCLUDE ") + 1
