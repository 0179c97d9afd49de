"""Columns that change upstream, in a PostgreSQL that is written to meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

import pytest

from cdc_kit import (
    eventually,
    following,
    server,
    stored,
    upstream,
    writers,
)
from headwater.cdc.external_table import SplitOptions
from headwater.cdc.postgres import log
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.cdc.postgres.options import parse_options
from headwater.errors import HeadwaterError

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(600)

FOLLOW = "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH ({0})"


@pytest.fixture(autouse=True)
def _watches_often(monkeypatch):
    monkeypatch.setattr(log, "_WATCH_S", 0.3)


def names(hw, table):
    return list(hw.stored(table).schema.names)


def shown(hw, table):
    """The columns as the catalog has them."""
    return [row[0] for row in hw.sql(f"SHOW COLUMNS FROM {table}").rows()]


def is_same(hw, upstream, table="t"):
    hw.sql("FLUSH")
    theirs = {tuple(row) for row in upstream.rows(f"SELECT * FROM {table}")}
    return set(stored(hw, table)) == theirs


def made(upstream, rows=300):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    upstream.db.execute(f"INSERT INTO t SELECT g, g, 'b' || g FROM generate_series(1, {rows}) g")


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_column_that_goes_and_another_of_its_name_that_comes(upstream, tmp_path, away, renamed):
    """Their types differ, and yet it is no change of a type."""
    made(upstream)
    upstream.db.execute("ALTER TABLE t ADD COLUMN d text DEFAULT 'five'")
    change = "ALTER TABLE t DROP COLUMN d, ADD COLUMN d int DEFAULT 7"
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        if not away:
            upstream.db.execute(change)
            upstream.db.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            eventually(lambda: is_same(hw, upstream))
    if away:
        upstream.db.execute(change)
        upstream.db.execute("UPDATE t SET a = 0 WHERE id = 5")
    if renamed:
        upstream.db.execute("ALTER TABLE t RENAME COLUMN d TO e")
    with following(tmp_path / "w") as hw:
        eventually(lambda: names(hw, "t")[-1] == ("e" if renamed else "d"))
        eventually(lambda: is_same(hw, upstream))
        assert hw.stored("t").schema.columns[-1].type.postgres == "integer"


def test_each_change_is_followed_and_survives_a_restart(upstream, tmp_path):
    made(upstream)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(id) AS s FROM t")
        hw.sql("WAIT")
        for change, columns in (
            ("ADD COLUMN c int", ["id", "a", "b", "c"]),
            ("ADD COLUMN d text DEFAULT 'five'", ["id", "a", "b", "c", "d"]),
            ("DROP COLUMN a", ["id", "b", "c", "d"]),
            ("RENAME COLUMN b TO name", ["id", "name", "c", "d"]),
            ("ALTER COLUMN c TYPE bigint", ["id", "name", "c", "d"]),
        ):
            upstream.db.execute(f"ALTER TABLE t {change}")
            eventually(lambda c=columns: names(hw, "t") == c)
            upstream.db.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            hw.sql("WAIT")
            eventually(lambda: is_same(hw, upstream))
            assert shown(hw, "t") == columns
        assert hw.sql("SELECT c FROM t LIMIT 1") is not None
        upstream.db.execute("UPDATE t SET c = 5000000000 WHERE id = 7")
        eventually(lambda: is_same(hw, upstream))
    with following(tmp_path / "w") as hw:
        upstream.db.execute("DELETE FROM t WHERE id < 5")
        eventually(lambda: is_same(hw, upstream))
        assert hw.sql("SELECT * FROM v").rows() == [
            tuple(upstream.rows("SELECT count(*), sum(id) FROM t")[0])
        ]


def write_rows(connection, dice):
    """Changes of columns that nobody alters, and values that are not sent when they stay."""
    key, kind = dice.randrange(1, 4_000), dice.random()
    if kind < 0.35:
        connection.execute(
            "INSERT INTO t (id, a) VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET a = t.a + 1", [key]
        )
    elif kind < 0.6:
        connection.execute("UPDATE t SET a = a + 1 WHERE id BETWEEN %s AND %s", [key, key + 3])
    elif kind < 0.7:
        connection.execute(
            "UPDATE t SET large = repeat(md5(random()::text), 100) WHERE id = %s", [key]
        )
    elif kind < 0.85:
        connection.execute("DELETE FROM t WHERE id = %s", [key])
    elif kind < 0.9:
        connection.execute(
            "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
            [key + 4_000, key, key + 4_000],
        )
    else:
        connection.execute("INSERT INTO u VALUES (%s, 1) ON CONFLICT DO NOTHING", [dice.random()])


def busy(upstream, rows=3_000):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text, large text)")
    upstream.db.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    upstream.db.execute("CREATE TABLE u (id float PRIMARY KEY, n int)")
    upstream.db.execute(
        "INSERT INTO t SELECT g, g, 'b' || g, repeat(md5(g::text), 80)"
        f" FROM generate_series(1, {rows}) g"
    )


CHANGES = (
    "ADD COLUMN c int",
    "ADD COLUMN d text NOT NULL DEFAULT 'five'",
    "DROP COLUMN b",
    "ALTER COLUMN a TYPE bigint",
    "ADD COLUMN e float DEFAULT random()",
    "RENAME COLUMN c TO b",
    "DROP COLUMN d",
    "ADD COLUMN d int DEFAULT 7, ADD COLUMN f int",
    "RENAME COLUMN f TO f2",
)


@pytest.mark.parametrize("limit", ["default", "600"])
def test_changes_under_writers_after_and_during_the_backfill(upstream, tmp_path, limit):
    """With a restart after every third change, and a second table that must not notice."""
    busy(upstream)
    options = "" if limit == "default" else f"WITH (backfill_rate_limit = '{limit}')"
    with writers(upstream, write_rows) as written:
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source())
            hw.sql(f"CREATE TABLE t (*) FROM shop TABLE 'public.t' {options}")
            hw.sql("CREATE TABLE u (*) FROM shop TABLE 'public.u'")
            if limit == "default":
                hw.sql("WAIT")
        for start in range(0, len(CHANGES), 3):
            with following(tmp_path / "w") as hw:
                for change in CHANGES[start : start + 3]:
                    upstream.db.execute(f"ALTER TABLE t {change}")
                    time.sleep(0.7)
            # And one while nobody follows.
            upstream.db.execute(f"ALTER TABLE t ADD COLUMN away{start} int DEFAULT {start}")
            time.sleep(0.5)
        assert written[0] > 100
        with following(tmp_path / "w") as hw:
            if limit != "default":
                hw.sql("ALTER TABLE t SET BACKFILL_RATE_LIMIT = default")
            time.sleep(1)
    with following(tmp_path / "w") as hw:
        found = upstream.db.execute("SELECT * FROM t LIMIT 0").description
        wanted = [column.name for column in found]
        eventually(lambda: sorted(names(hw, "t")) == sorted(wanted), 120)
        hw.sql("WAIT")
        eventually(lambda: same_by_name(hw, upstream))
        eventually(lambda: is_same(hw, upstream, "u"))
        assert "stopped" not in str(hw.sql("SHOW JOBS"))


def same_by_name(hw, upstream, table="t"):
    """Columns may stand in another order here when one was dropped and added again."""
    hw.sql("FLUSH")
    columns = names(hw, table)
    said = ", ".join(columns)
    theirs = {tuple(row) for row in upstream.rows(f"SELECT {said} FROM {table}")}
    ours = stored(hw, table)
    assert len(set(ours)) == len(ours)
    return set(ours) == theirs


def test_what_is_not_possible_stops_that_table_until_it_is_refreshed(upstream, tmp_path):
    busy(upstream, 500)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("CREATE TABLE u (*) FROM shop TABLE 'public.u'")
        hw.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(id) AS s FROM t")
        hw.sql("CREATE MATERIALIZED VIEW w AS SELECT id, b FROM t")
        hw.sql("WAIT")
        upstream.db.execute("ALTER TABLE t ALTER a TYPE text")
        upstream.db.execute("INSERT INTO t VALUES (9000, 'nine', 'b', 'l')")
        upstream.db.execute("INSERT INTO u VALUES (1, 2)")
        eventually(lambda: "stopped" in str(hw.sql("SHOW JOBS")))
        said = str(hw.sql("SHOW JOBS").rows())
        assert 'column "a" was integer and is varchar now' in said
        assert 'ALTER TABLE "t" REFRESH SCHEMA' in said
        assert "create it again" in said
        # The others go on, and it stays as it was, also over a restart.
        eventually(lambda: is_same(hw, upstream, "u"))
        assert 9000 not in {row[0] for row in stored(hw, "t")}
        upstream.db.execute("ALTER TABLE t DROP COLUMN b")
    with following(tmp_path / "w") as hw:
        assert "stopped" in str(hw.sql("SHOW JOBS"))
        with pytest.raises(HeadwaterError) as refused:
            hw.sql("ALTER TABLE t REFRESH SCHEMA")
        assert 'materialized view "w"' in refused.value.detail
        assert '"v"' not in refused.value.detail
        hw.sql("DROP MATERIALIZED VIEW w")
        with writers(upstream, write_texts) as written:
            eventually(lambda: written[0] > 10)
            hw.sql("ALTER TABLE t REFRESH SCHEMA")
            hw.sql("WAIT")
        eventually(lambda: is_same(hw, upstream))
        assert "stopped" not in str(hw.sql("SHOW JOBS"))
        eventually(lambda: is_same(hw, upstream, "u"))
        count = upstream.rows("SELECT count(*), sum(id) FROM t")[0]
        assert hw.sql("SELECT n, s FROM v").rows() == [tuple(count)]
    with following(tmp_path / "w") as hw:
        # The key may be another as well, where no view rests on it.
        hw.sql("DROP MATERIALIZED VIEW v")
        upstream.db.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, a)")
        eventually(lambda: "its key is (id, a) now" in str(hw.sql("SHOW JOBS").rows()))
        hw.sql("ALTER TABLE t REFRESH SCHEMA")
        hw.sql("WAIT")
        upstream.db.execute("INSERT INTO t SELECT id, a || 'x' FROM t")
        eventually(lambda: is_same(hw, upstream))
        assert hw.stored("t").schema.key == ("id", "a")


def write_texts(connection, dice):
    key = dice.randrange(1, 1_000)
    connection.execute(
        "INSERT INTO t (id, a) VALUES (%s, 'x') ON CONFLICT (id) DO UPDATE SET a = t.a || 'y'",
        [key],
    )
    connection.execute("DELETE FROM t WHERE id = %s", [key + 7])


def test_a_view_names_itself_when_its_column_goes(upstream, tmp_path):
    made(upstream, 20)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a")
        hw.sql("CREATE VIEW plain AS SELECT a FROM t")
        hw.sql("WAIT")
        upstream.db.execute("ALTER TABLE t ADD COLUMN c int, DROP COLUMN b")
        eventually(lambda: names(hw, "t") == ["id", "a", "c"])
        upstream.db.execute("INSERT INTO t VALUES (50, 5, 5)")
        eventually(lambda: is_same(hw, upstream))
        assert (5, 2) in hw.sql("SELECT a, n FROM v").rows()
        upstream.db.execute("ALTER TABLE t RENAME COLUMN a TO aa")
        eventually(lambda: "stopped" in str(hw.sql("SHOW JOBS")))
        said = str(hw.sql("SHOW JOBS").rows())
        assert 'materialized view "v"' in said
        assert 'view "plain"' in said
        assert names(hw, "t") == ["id", "a", "c"]
        hw.sql("DROP VIEW plain")
        hw.sql("DROP MATERIALIZED VIEW v")
        hw.sql("ALTER TABLE t REFRESH SCHEMA")
        hw.sql("WAIT")
        eventually(lambda: is_same(hw, upstream))
        assert names(hw, "t") == ["id", "aa", "c"]


def test_policies_and_named_columns(upstream, tmp_path):
    for table in ("t", "u", "w"):
        upstream.db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b text)")
        upstream.db.execute(f"INSERT INTO {table} SELECT g, g, 'b' FROM generate_series(1, 9) g")
    ignore = {"schema.change": "ignore", "slot_name": "one"}
    stop = {"auto.schema.change": "true", "slot_name": "two"}
    with following(tmp_path / "w") as hw:
        with pytest.raises(HeadwaterError, match=r'schema.change cannot be "maybe"'):
            hw.sql(upstream.source(**{"schema.change": "maybe"}))
        hw.sql(upstream.source(**ignore))
        assert "schema.change = 'ignore'" in hw.sql("SHOW CREATE SOURCE shop").rows()[0][1]
        hw.sql(upstream.source("named", **stop))
        hw.sql(upstream.source("strict", **{"schema.change": "stop", "slot_name": "three"}))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("CREATE TABLE u (id int PRIMARY KEY, a int) FROM named TABLE 'public.u'")
        hw.sql("CREATE TABLE w (*) FROM strict TABLE 'public.w'")
        hw.sql("WAIT")
        for table in ("t", "u", "w"):
            upstream.db.execute(f"ALTER TABLE {table} ADD COLUMN c int DEFAULT 3")
            upstream.db.execute(f"INSERT INTO {table} VALUES (10, 10, 'b', 4)")
        eventually(lambda: (10, 10, "b") in stored(hw, "t"))
        eventually(lambda: (10, 10) in stored(hw, "u"))
        eventually(lambda: 'column "c" was added' in str(hw.sql("SHOW JOBS").rows()))
        assert len(stored(hw, "w")) == 9
        upstream.db.execute("ALTER TABLE t DROP COLUMN a")
        upstream.db.execute("UPDATE t SET b = 'new' WHERE id = 1")
        eventually(lambda: (1, None, "new") in stored(hw, "t"))
        assert (2, 2, "b") in stored(hw, "t")
        upstream.db.execute("ALTER TABLE u RENAME COLUMN a TO aa")
        upstream.db.execute("ALTER TABLE u ALTER COLUMN aa TYPE bigint")
        eventually(lambda: names(hw, "u") == ["id", "aa"])
        upstream.db.execute("UPDATE u SET aa = 5000000000 WHERE id = 1")
        eventually(lambda: (1, 5_000_000_000) in stored(hw, "u"))
    with following(tmp_path / "w") as hw:
        upstream.db.execute("UPDATE t SET b = 'newer' WHERE id = 3")
        eventually(lambda: (3, None, "newer") in stored(hw, "t"))
        upstream.db.execute("DELETE FROM u WHERE id = 2")
        eventually(lambda: set(stored(hw, "u")) == set(upstream.rows("SELECT id, aa FROM u")))
        hw.sql("ALTER TABLE w REFRESH SCHEMA")
        hw.sql("WAIT")
        eventually(lambda: is_same(hw, upstream, "w"))


def test_columns_that_change_in_the_middle_of_a_transaction(upstream, tmp_path):
    """Rows before and after the change are in one transaction, and so in one epoch."""
    busy(upstream, 100)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        with upstream.db.transaction():
            upstream.db.execute("UPDATE t SET b = 'before' WHERE id <= 10")
            upstream.db.execute("INSERT INTO t VALUES (201, 1, 'first', 'l')")
            upstream.db.execute("ALTER TABLE t RENAME COLUMN b TO name")
            upstream.db.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 8")
            upstream.db.execute("UPDATE t SET name = 'after' WHERE id <= 5")
            upstream.db.execute("INSERT INTO t VALUES (202, 1, 'second', 'l', 9)")
        eventually(lambda: names(hw, "t") == ["id", "a", "name", "large", "c"])
        hw.sql("WAIT")
        eventually(lambda: is_same(hw, upstream))
    with following(tmp_path / "w") as hw:
        upstream.db.execute("UPDATE t SET a = 0 WHERE id < 50")
        eventually(lambda: is_same(hw, upstream))


def test_a_chunk_waits_for_a_rewrite_instead_of_finding_the_table_empty(upstream):
    """To a snapshot that is older than an ALTER which rewrites the table, it has no rows."""
    made(upstream, 500)
    address = urlparse(upstream.url)
    options = {"hostname": address.hostname, "port": str(address.port), "username": "postgres",
               "database.name": address.path[1:], "slot.name": "never_made"}  # fmt: skip
    table = PostgresDatabase(parse_options(options, source="shop")).open_table("public.t")
    (split,) = table.splits(SplitOptions())
    with ThreadPoolExecutor(1) as thread:
        with upstream.connect() as other, other.transaction():
            other.execute("ALTER TABLE t ADD COLUMN r float DEFAULT random()")
            reading = thread.submit(
                table.read_chunk, split, None, max_rows=1_000, max_bytes=1 << 20
            )
            time.sleep(1)
            assert not reading.done()
        assert reading.result(120).rows.num_rows == 500
    table.close()
