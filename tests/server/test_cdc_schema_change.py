"""Columns that change upstream, in a PostgreSQL that is written to meanwhile."""

import time

import pytest

from cdc_kit import (
    FILL,
    ORDERS,
    eventually,
    following,
    same,
    server,
    stored,
    upstream,
    write_orders,
    writers,
)
from headwater.cdc.postgres import log
from headwater.errors import HeadwaterError

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
        assert hw.sql("SELECT * FROM v").rows() == [tuple(upstream.rows("SELECT count(*), sum(id) FROM t")[0])]
