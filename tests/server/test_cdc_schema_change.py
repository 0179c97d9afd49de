"""Columns that change upstream, in a PostgreSQL that is written to meanwhile."""

import time

import pytest

from cdc_kit import (
    eventually,
    following,
    server,
    stored,
    upstream,
    writers,
)
from headwater.cdc.postgres import log

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(300)

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
        assert is_same(hw, upstream, "u")
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
