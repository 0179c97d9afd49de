"""Tables that follow a PostgreSQL: filled while it is written to, and the same in the end."""

import time

import psycopg
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
from headwater.errors import HeadwaterError

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(600)

FOLLOW = "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH ({0})"
SPLITS = "backfill.num_rows_per_split = '2000'"


def test_nobody_waits_for_the_interval_once_all_rows_are_here(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(5_000))
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("ALTER SYSTEM SET barrier_interval_ms = 600000")
        began = time.monotonic()
        hw.sql(FOLLOW.format(SPLITS))
        hw.sql("WAIT")
        assert time.monotonic() - began < 300, "an interval has passed"
        hw.sql("ALTER SYSTEM SET barrier_interval_ms = 100")
        same(hw, upstream, "orders")


def test_filled_under_writers_with_restarts_in_between(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(20_000))
    with writers(upstream, write_orders) as written:
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source())
            # So slow that it is under way in all lives, however long they take.
            hw.sql(FOLLOW.format(f"{SPLITS}, backfill_rate_limit = '200'"))
            eventually(lambda: hw.stored("orders").view().rows > 500)
        for _ in range(2):
            with following(tmp_path / "w") as hw:
                before = hw.stored("orders").view().rows
                eventually(lambda b=before: hw.stored("orders").view().rows > b + 200)
        assert written[0] > 20
        with following(tmp_path / "w") as hw:
            assert "orders" in str(hw.sql("SHOW JOBS"))
            hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            assert "orders" not in str(hw.sql("SHOW JOBS"))
            time.sleep(1)
    with following(tmp_path / "w") as hw:
        hw.sql("FLUSH")
        same(hw, upstream, "orders")


def test_transactions_over_two_tables_are_seen_whole(upstream, tmp_path):
    """Money moves between two tables; whoever reads an epoch finds the same sum."""
    for bank in ("here", "there"):
        upstream.db.execute(f"CREATE TABLE {bank} (id int PRIMARY KEY, money bigint)")
        upstream.db.execute(f"INSERT INTO {bank} SELECT g, 100 FROM generate_series(1, 500) g")

    def move(connection, dice):
        a, b = dice.sample(("here", "there"), 2)
        amount = dice.randrange(1, 20)
        with connection.transaction():
            for table, sign in ((a, -1), (b, 1)):
                connection.execute(
                    f"UPDATE {table} SET money = money + %s WHERE id = %s",
                    [sign * amount, dice.randrange(1, 501)],
                )

    with writers(upstream, move) as moved, following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE here (*) FROM shop TABLE 'public.here'")
        hw.sql("CREATE TABLE there (*) FROM shop TABLE 'public.there'")
        hw.sql("WAIT")
        seen = set()
        while len(seen) < 15:
            epoch = hw.flush()
            seen.add(epoch)
            total = sum(row[1] for bank in ("here", "there") for row in stored(hw, bank, epoch))
            assert total == 100_000, f"at epoch {epoch}, after {moved[0]} transfers"
        assert moved[0] > 30


def test_tables_come_and_go_and_leave_nothing_behind(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    upstream.db.execute('CREATE TABLE "B b" (k text, l uuid, v jsonb, PRIMARY KEY (k, l))')
    upstream.db.execute("INSERT INTO a VALUES (1, 'one'), (2, NULL)")
    upstream.db.execute(
        """INSERT INTO "B b" SELECT 'k' || g, gen_random_uuid(), '{"x": 1}'
        FROM generate_series(1, 50) g"""
    )
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        assert len(upstream.ours) == 2
        hw.sql("CREATE TABLE a (*) FROM shop TABLE 'public.a'")
        hw.sql("WAIT")
        hw.sql("""CREATE TABLE b (*) FROM shop TABLE 'public."B b"'""")
        upstream.db.execute("UPDATE a SET v = 'two' WHERE id = 2")
        hw.sql("WAIT")
        same(hw, upstream, "a")
        assert stored(hw, "a") == [(1, "one"), (2, "two")]
        assert len(stored(hw, "b")) == 50
        hw.sql("DROP TABLE a")
        upstream.db.execute("""INSERT INTO "B b" VALUES ('new', gen_random_uuid(), '[]')""")
        eventually(lambda: (hw.sql("FLUSH"), len(stored(hw, "b")))[1] == 51)
        with pytest.raises(HeadwaterError, match="depend"):
            hw.sql("DROP SOURCE shop")
        hw.sql("DROP SOURCE shop CASCADE")
        assert upstream.ours == []
        # And all again, under the same names.
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE a (*) FROM shop TABLE 'public.a'")
        hw.sql("WAIT")
        hw.sql("FLUSH")
        assert stored(hw, "a") == [(1, "one"), (2, "two")]
        hw.sql("DROP SOURCE shop CASCADE")


def test_a_transaction_that_began_before_the_table_was_followed_is_not_lost(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE early (id int PRIMARY KEY, v text)")
    upstream.db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    upstream.db.execute("INSERT INTO early VALUES (1, 'old')")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE other (*) FROM shop TABLE 'public.other'")
        hw.sql("WAIT")
        with upstream.connect() as late:
            late.execute("BEGIN")
            late.execute("INSERT INTO early VALUES (2, 'written before, committed after')")
            late.execute("UPDATE early SET v = 'new' WHERE id = 1")
            hw.sql("CREATE TABLE early (*) FROM shop TABLE 'public.early'")
            time.sleep(1)
            upstream.db.execute("INSERT INTO other VALUES (7)")
            # The others go on meanwhile.
            eventually(lambda: (hw.sql("FLUSH"), stored(hw, "other"))[1] == [(7,)])
            late.execute("COMMIT")
        hw.sql("WAIT")
        hw.sql("FLUSH")
        same(hw, upstream, "early")


def test_truncate_large_values_and_a_cut_connection(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, n int, large text)")
    upstream.db.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    upstream.db.execute(
        "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 200) FROM generate_series(1, 300) g"
    )
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        upstream.db.execute("UPDATE t SET n = n + 1 WHERE id % 2 = 0")
        upstream.db.execute("UPDATE t SET id = id + 1000 WHERE id % 10 = 0")
        hw.sql("FLUSH")
        same(hw, upstream, "t")
        upstream.db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        upstream.db.execute("UPDATE t SET n = n + 1")
        eventually(lambda: _is_same(hw, upstream))
        upstream.db.execute("TRUNCATE t")
        upstream.db.execute("INSERT INTO t VALUES (5, 5, 'five')")
        hw.sql("FLUSH")
        same(hw, upstream, "t")


def _is_same(hw, upstream):
    hw.sql("FLUSH")
    return set(stored(hw, "t")) == {tuple(row) for row in upstream.rows("SELECT * FROM t")}


def test_a_limit_of_zero_pauses_and_others_go_on(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(5_000))
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(FOLLOW.format("backfill_rate_limit = '0'"))

        def written() -> bool:
            upstream.db.execute("UPDATE orders SET n = n + 1 WHERE id = 77")
            hw.sql("FLUSH")
            return [row[0] for row in stored(hw, "orders")] == [77]

        # The log is applied once the table has joined; the snapshot, which has the rest, waits.
        eventually(written)
        time.sleep(0.5)
        hw.sql("FLUSH")
        assert len(stored(hw, "orders")) == 1
        hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        hw.sql("FLUSH")
        same(hw, upstream, "orders")


def test_a_column_that_changes_upstream_stops_its_table_alone(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    upstream.db.execute("CREATE TABLE u (id int PRIMARY KEY, n int)")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("CREATE TABLE u (*) FROM shop TABLE 'public.u'")
        hw.sql("WAIT")
        upstream.db.execute("ALTER TABLE u ADD COLUMN more text")
        upstream.db.execute("ALTER TABLE t ALTER n TYPE text")
        upstream.db.execute("INSERT INTO t VALUES (1, 'x')")
        upstream.db.execute("INSERT INTO u VALUES (1, 2, 'more')")
        hw.sql("FLUSH")
        eventually(lambda: stored(hw, "u") == [(1, 2, "more")])
        eventually(lambda: "stopped" in str(hw.sql("SHOW JOBS")))
        assert stored(hw, "t") == []
    with following(tmp_path / "w") as hw:
        assert 'column "n" was integer and is varchar now' in str(hw.sql("SHOW JOBS").rows())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"hostname": "127.0.0.1", "port": "1"}, "127.0.0.1:1"),
        ({"database_name": "nowhere"}, "nowhere"),
        ({"usrname": "x"}, 'no option "usrname"'),
        ({"connector": "oracle-cdc"}, "oracle-cdc"),
    ],
)
def test_wrong_options_are_named(upstream, tmp_path, options, complaint):
    with following(tmp_path / "w") as hw:
        with pytest.raises(HeadwaterError, match=complaint):
            hw.sql(upstream.source(**options))
        assert "shop" not in str(hw.sql("SHOW SOURCES"))
    assert upstream.ours == []


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("CREATE TABLE x (*) FROM shop TABLE 'public.missing'", "missing"),
        ("CREATE TABLE x (*) FROM shop TABLE 'public.keyless'", "which rows"),
        ("CREATE TABLE x (*) FROM shoop TABLE 'public.t'", "shoop"),
        ("CREATE TABLE x (id text PRIMARY KEY) FROM shop TABLE 'public.t'", "integer upstream"),
        ("CREATE TABLE x (n int PRIMARY KEY) FROM shop TABLE 'public.t'", "key column"),
        ("CREATE TABLE x (*) FROM shop TABLE 'public.t' WITH (foo = '1')", 'no option "foo"'),
        ("CREATE TABLE x (*) FROM shop TABLE 'public.t' WITH (snapshot = 'x')", "true or false"),
    ],
)
def test_wrong_tables_are_named(upstream, tmp_path, statement, complaint):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    upstream.db.execute("CREATE TABLE keyless (n int)")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        with pytest.raises(HeadwaterError, match=complaint):
            hw.sql(statement)
        hw.sql("CREATE TABLE x (*) FROM shop TABLE 'public.t'")
        hw.sql("DROP SOURCE shop CASCADE")


def test_a_lost_slot_is_said_loudly_and_nothing_is_skipped(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source(slot_name="mine"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        assert "mine" in upstream.ours

        def drop_slot():
            try:
                upstream.db.execute("SELECT pg_drop_replication_slot('mine')")
            except psycopg.errors.ObjectInUse:
                return False
            return True

        eventually(drop_slot)
        upstream.db.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: "is gone" in str(hw.sql("SELECT * FROM hw_catalog.events")))
        hw.sql("FLUSH")
        assert stored(hw, "t") == []
