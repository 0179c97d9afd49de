"""INCLUDE ... AS of a PostgreSQL: the server's own commit times are what the rows must have."""

import datetime
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cdc_kit import eventually, following, settled, upstream, writers
from headwater.cdc.postgres import log
from headwater.errors import HeadwaterError
from headwater.state.file_name import is_snapshot
from servers import postgres_server

__all__ = ["upstream"]

pytestmark = pytest.mark.timeout(600)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ALL = (
    "INCLUDE TIMESTAMP AS ts INCLUDE DATABASE_NAME AS d"
    " INCLUDE SCHEMA_NAME AS s INCLUDE TABLE_NAME AS n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server(
        "wal_level=logical", "max_replication_slots=20", "fsync=off", "track_commit_timestamp=on"
    ) as url:
        yield url.replace("+psycopg", "")


@pytest.fixture(autouse=True)
def _watches_often(monkeypatch):
    monkeypatch.setattr(log, "_WATCH_S", 0.3)


def stored(hw: Any, table: str = "t", names: str = "") -> "Counter[tuple[Any, ...]]":
    wanted = names.split(", ") if names else [c.name for c in hw._definition(table).columns]
    rows = hw.stored(table).rows(hw.visible).select(wanted)
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def now(upstream: Any) -> Any:
    return upstream.rows("SELECT clock_timestamp()")[0][0]


def expected(upstream: Any, names: str, since: Any, table: str = "t") -> "Counter[tuple[Any, ...]]":
    """The rows upstream; those that were written since then with the time of their commit."""
    query = (
        f"SELECT {names}, CASE WHEN pg_xact_commit_timestamp(xmin) > %s"
        " THEN pg_xact_commit_timestamp(xmin) ELSE 'epoch' END,"
        f" current_database()::text, 'public', '{table}' FROM {table}"
    )
    rows = upstream.db.execute(query, [since]).fetchall()
    return Counter(
        tuple(v.astimezone(datetime.UTC) if isinstance(v, datetime.datetime) else v for v in row)
        for row in rows
    )


def same(hw: Any, upstream: Any, names: str, since: Any, table: str = "t") -> None:
    """Both ways, with duplicates, the included columns too."""

    def compare() -> None:
        ours = stored(hw, table, f"{names}, ts, d, s, n")
        theirs = expected(upstream, names, since, table)
        assert not (missing := theirs - ours), f"missing: {list(missing.items())[:3]}"
        assert not (extra := ours - theirs), f"extra: {list(extra.items())[:3]}"

    settled(hw, compare)


def made(upstream: Any, rows: int = 300) -> None:
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    upstream.db.execute("ALTER TABLE t ALTER b SET STORAGE EXTERNAL")
    upstream.db.execute(
        f"INSERT INTO t SELECT g, g, repeat('b' || g, 1000) FROM generate_series(1, {rows}) g"
    )


def write_all_kinds(upstream: Any) -> None:
    """Updates with and without the large value, inserts, deletes, changed keys, rollbacks."""
    db = upstream.db
    db.execute("UPDATE t SET a = a + 1 WHERE id % 7 = 0")
    db.execute("UPDATE t SET b = 'short' WHERE id % 11 = 0")
    db.execute("DELETE FROM t WHERE id % 13 = 0")
    db.execute("UPDATE t SET id = id + 100000 WHERE id % 17 = 0")
    db.execute("INSERT INTO t SELECT g, 1, 'new' FROM generate_series(200001, 200010) g")
    with db.transaction():
        db.execute("UPDATE t SET a = 5 WHERE id = 1")
        time.sleep(0.05)
        db.execute("UPDATE t SET a = 6 WHERE id = 2")
    db.execute("BEGIN")
    db.execute("UPDATE t SET a = -1")
    db.execute("ROLLBACK")


@pytest.mark.parametrize("form", ["{0} FROM shop TABLE 'public.t'", "FROM shop TABLE 't' {0}"])
def test_rows_say_when_and_where_over_restarts(upstream, tmp_path, form):
    made(upstream)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(f"CREATE TABLE t (*) {form.format(ALL)}")
        hw.sql("CREATE MATERIALIZED VIEW late AS SELECT max(ts) AS ts, count(*) c FROM t")
        hw.sql("WAIT")
        since = now(upstream)
        same(hw, upstream, "id, a, b", since)
        assert {each[-4] for each in stored(hw)} == {EPOCH}
        write_all_kinds(upstream)
        same(hw, upstream, "id, a, b", since)
        shown = [tuple(row)[:2] for row in hw.sql("DESCRIBE t").rows()][:7]
        assert shown == [
            ("id", "integer"), ("a", "integer"), ("b", "varchar"),
            ("ts", "timestamptz"), ("d", "varchar"),
            ("s", "varchar"), ("n", "varchar"),
        ]  # fmt: skip
    with following(tmp_path / "w") as hw:
        same(hw, upstream, "id, a, b", since)
        upstream.db.execute("UPDATE t SET a = a + 1 WHERE id < 50")
        same(hw, upstream, "id, a, b", since)
        assert ALL in str(hw.sql("SHOW CREATE TABLE t").rows())
        [(latest, count)] = hw.sql("SELECT * FROM late").rows()
        theirs = upstream.rows("SELECT max(pg_xact_commit_timestamp(xmin)), count(*) FROM t")
        assert [(latest, count)] == theirs


def write(connection: Any, dice: random.Random) -> None:
    key = dice.randrange(1, 9_000)
    match dice.randrange(4):
        case 0:
            connection.execute(
                "INSERT INTO t VALUES (%s, 0, 'in') ON CONFLICT (id) DO UPDATE SET a = t.a + 1",
                [key],
            )
        case 1:
            connection.execute("DELETE FROM t WHERE id = %s", [key])
        case 2:
            connection.execute(
                "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
                [key + 9_000, key, key + 9_000],
            )
        case _:
            connection.execute("UPDATE t SET a = a + 1 WHERE id BETWEEN %s AND %s", [key, key + 3])


def test_filled_under_writers_and_over_a_restart(upstream, tmp_path):
    """While it fills, a row has the time of its last commit, or the epoch if a chunk has read it
    after that; what is written once it is filled has its time in any case."""
    made(upstream, 6_000)
    options = "WITH (backfill.num_rows_per_split = '300', backfill_rate_limit = '1500')"
    with writers(upstream, write) as written:
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source())
            hw.sql(f"CREATE TABLE t (*) {ALL} FROM shop TABLE 'public.t' {options}")
            eventually(lambda: hw.stored("t").view().rows > 1_000)
        with following(tmp_path / "w") as hw:
            hw.sql("ALTER TABLE t SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            hw.sql("FLUSH")
            since = now(upstream)
            time.sleep(2)
        assert written[0] > 100
    with following(tmp_path / "w") as hw:

        def compare() -> None:
            times = {(id_, a, b): at for id_, a, b, at, _, _, _ in stored(hw)}
            rows = upstream.rows("SELECT id, a, b, pg_xact_commit_timestamp(xmin) FROM t")
            assert set(times) == {row[:3] for row in rows}
            for *row, at in rows:
                ours = times[tuple(row)]
                assert ours == at or (at < since and ours == EPOCH), (row, at, ours)

        settled(hw, compare)
        assert {row[4:] for row in stored(hw)} == {
            (upstream.rows("SELECT current_database()")[0][0], "public", "t")
        }


def test_tasks_write_them_and_large_transactions_bring_them(upstream, tmp_path):
    """More than the 64 MiB that are kept in memory, of a table that Spark tasks have read."""
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    upstream.db.execute("INSERT INTO t SELECT g, g, 'b' FROM generate_series(1, 150000) g")
    upstream.db.execute("ANALYZE")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(
            f"CREATE TABLE t (*) {ALL} FROM shop TABLE 'public.t'"
            " WITH (backfill.num_rows_per_split = '75000')"
        )
        hw.sql("WAIT")
        assert any(is_snapshot(live.file.path) for live in hw.stored("t").view().files)
        since = now(upstream)
        upstream.db.execute("UPDATE t SET b = repeat('x', 800) WHERE id % 2 = 0")
        upstream.db.execute("UPDATE t SET a = 0 WHERE id % 5 = 0")
        same(hw, upstream, "id, a, b", since)


def test_columns_change_upstream_next_to_them(upstream, tmp_path):
    made(upstream)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(f"CREATE TABLE t (*) {ALL} FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        since = now(upstream)
        for change, own in (
            ("ADD COLUMN c int", "id, a, b, c"),
            ("ADD COLUMN e text DEFAULT 'five'", "id, a, b, c, e"),
            ("DROP COLUMN a", "id, b, c, e"),
            ("RENAME COLUMN c TO cc", "id, b, cc, e"),
            ("ALTER COLUMN cc TYPE bigint", "id, b, cc, e"),
        ):
            upstream.db.execute(f"ALTER TABLE t {change}")
            wanted = {*own.split(", "), "ts", "d", "s", "n"}
            eventually(lambda w=wanted: set(hw.stored("t").schema.names) == w)
            hw.sql("WAIT")
            if "TYPE" not in change:
                # A rewrite of the table upstream gives all rows another transaction.
                same(hw, upstream, own, since)
            upstream.db.execute("UPDATE t SET id = id WHERE id % 3 = 0")
            if "TYPE" not in change:
                same(hw, upstream, own, since)
        upstream.db.execute("UPDATE t SET id = id")
        same(hw, upstream, own, since)
        # One transaction with rows of both forms, and a large value that is sent once only.
        with upstream.db.transaction():
            upstream.db.execute("UPDATE t SET e = 'both' WHERE id < 100")
            upstream.db.execute("ALTER TABLE t ADD COLUMN f text")
            upstream.db.execute("ALTER TABLE t ALTER f SET STORAGE EXTERNAL")
            upstream.db.execute("UPDATE t SET f = repeat(id::text, 5000) WHERE id < 50")
            upstream.db.execute("UPDATE t SET e = 'last' WHERE id < 20")
        own = f"{own}, f"
        eventually(lambda: "f" in hw.stored("t").schema.names)
        same(hw, upstream, own, since)
    with following(tmp_path / "w") as hw:
        hw.sql("ALTER TABLE t REFRESH SCHEMA")
        hw.sql("WAIT")
        settled(hw, lambda: None)
        since = now(upstream)
        same(hw, upstream, own, since)
        upstream.db.execute("UPDATE t SET e = 'six' WHERE id % 2 = 0")
        same(hw, upstream, own, since)
        upstream.db.execute("ALTER TABLE t ADD COLUMN ts int")
        eventually(lambda: "stopped" in str(hw.sql("SHOW JOBS").rows()))
        assert "included column" in str(hw.sql("SHOW JOBS").rows())
        with pytest.raises(HeadwaterError, match='cannot be called "ts"'):
            hw.sql("ALTER TABLE t REFRESH SCHEMA")


def test_a_table_without_a_key(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE k (x int, y text)")
    upstream.db.execute("ALTER TABLE k REPLICA IDENTITY FULL")
    upstream.db.execute("INSERT INTO k SELECT g % 50, 'y' FROM generate_series(1, 500) g")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(f"CREATE TABLE k (*) {ALL} FROM shop TABLE 'public.k'")
        hw.sql("WAIT")
        since = now(upstream)
        same(hw, upstream, "x, y", since, "k")
        for statement in (
            "INSERT INTO k SELECT g % 50, 'y' FROM generate_series(1, 100) g",
            "UPDATE k SET y = 'z' WHERE x < 10",
            "DELETE FROM k WHERE x = 11",
            "UPDATE k SET x = 12 WHERE x = 13",
            # A row that stays what it is has been written all the same.
            "UPDATE k SET x = x WHERE x = 20",
        ):
            upstream.db.execute(statement)
            same(hw, upstream, "x, y", since, "k")
        with upstream.db.transaction():
            upstream.db.execute("UPDATE k SET x = 99 WHERE x = 30")
            upstream.db.execute("INSERT INTO k VALUES (30, 'y'), (30, 'y')")
            upstream.db.execute("DELETE FROM k WHERE x = 99")
        same(hw, upstream, "x, y", since, "k")
    with following(tmp_path / "w") as hw:
        upstream.db.execute("UPDATE k SET y = 'last' WHERE x % 2 = 0")
        same(hw, upstream, "x, y", since, "k")
        assert len(hw.sql("SELECT * FROM k LIMIT 1").rows()[0]) == 6


def test_without_a_snapshot_and_with_named_columns(upstream, tmp_path):
    """Columns that are not followed may have any name upstream, also that of an included one."""
    made(upstream)
    upstream.db.execute("ALTER TABLE t ADD COLUMN ts text")
    upstream.db.execute("ALTER TABLE t ALTER ts SET STORAGE EXTERNAL")
    upstream.db.execute("UPDATE t SET ts = repeat('t', 10000)")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(
            "CREATE TABLE t (id int PRIMARY KEY, b varchar) WITH (snapshot = 'false')"
            f" {ALL} FROM shop TABLE 'public.t'"
        )
        hw.sql("WAIT")
        since = now(upstream)
        assert not stored(hw)
        # The large values stay, and are not sent: the rows are read by key.
        upstream.db.execute("UPDATE t SET a = 0 WHERE id <= 20")

        def arrived() -> bool:
            hw.sql("FLUSH")
            return len(stored(hw)) == 20

        eventually(arrived)
        assert {row[1] for row in stored(hw, "t", "id, b")} == {
            row[0] for row in upstream.rows("SELECT b FROM t WHERE id <= 20")
        }
        upstream.db.execute("UPDATE t SET a = 1")
        eventually(lambda: hw.sql("FLUSH") is not None and len(stored(hw)) == 300)
        upstream.db.execute("UPDATE t SET a = 2")
        same(hw, upstream, "id, b", since)


def test_default_names_are_risingwaves(upstream, tmp_path):
    made(upstream, 3)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) INCLUDE TIMESTAMP INCLUDE table_name FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        names = [row[0] for row in hw.sql("SHOW COLUMNS FROM t").rows()]
        assert names == [
            "id", "a", "b", "_rw_postgres-cdc_timestamp", "_rw_postgres-cdc_table_name"
        ]  # fmt: skip
    with following(tmp_path / "w") as hw:
        [(name,)] = hw.sql('SELECT DISTINCT "_rw_postgres-cdc_table_name" FROM t').rows()
        assert name == "t"


@pytest.mark.parametrize(
    ("clause", "state", "word"),
    [
        ("INCLUDE OFFSET AS o", "0A000", "TIMESTAMP, DATABASE_NAME"),
        ("INCLUDE HEADER 'x' AS o", "42601", ""),
        ("INCLUDE TIMESTAMP AS A", "42701", 'has a column "a"'),
        ('INCLUDE TIMESTAMP AS ok INCLUDE TABLE_NAME AS "OK"', "42701", "another one"),
        ("INCLUDE TIMESTAMP AS _hw_x", "42804", "reserved"),
        ("INCLUDE 5 AS x", "42601", ""),
    ],
)
def test_what_cannot_be_included_is_refused(upstream, tmp_path, clause, state, word):
    made(upstream, 3)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        with pytest.raises(HeadwaterError) as refused:
            hw.sql(f"CREATE TABLE t (*) {clause} FROM shop TABLE 'public.t'")
        assert refused.value.sqlstate == state
        assert word in str(refused.value)
        assert hw.sql("SHOW TABLES").rows() == []
