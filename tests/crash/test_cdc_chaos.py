"""A followed database has a bad day, and so has the machine here; in the end both have the same.

The server is restarted, softly and hard; connections are cut at random; tables are dropped and
truncated in the middle of being read; a row is wider than any budget; the disk here is full. The
engine goes on by itself each time, and others are not held up.
"""

import contextlib
import random
import signal
import threading
import time

import psycopg
import pytest
from cdc_shops import MARIA_ORDERS, write_maria

from cdc_kit import (
    FILL,
    ORDERS,
    Upstream,
    eventually,
    following,
    in_two_threads,
    same_rows,
    server,
    upstream,
    write_orders,
)
from chaos_kit import cutting, fill_up, restartable_postgres, small_disk
from headwater.errors import HeadwaterError, RetryableError
from mysql_servers import mariadb_server

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(1800)

ROWS = 3_000
FOLLOW = (
    "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
    " (backfill.num_rows_per_split = '300', backfill_rate_limit = '{0}')"
)


@contextlib.contextmanager
def persistent_writers(write, connect):
    """Write all the time, also to a server that comes and goes; gives how often."""
    stop, count = threading.Event(), [0]

    def run(seed):
        dice = random.Random(seed)
        while not stop.is_set():
            with contextlib.suppress(Exception), contextlib.closing(connect()) as connection:
                while not stop.wait(0.005):
                    with contextlib.suppress(psycopg.errors.DeadlockDetected):
                        write(connection, dice)
                    count[0] += 1
            stop.wait(0.05)

    with in_two_threads(run, stop):
        yield count


def write_some(connection, dice):
    write_orders(connection, dice, most=2 * ROWS)


def test_postgres_restarted_while_filling_and_while_streaming(tmp_path):
    with restartable_postgres() as running:
        there = Upstream(running.url)
        there.db.execute(ORDERS)
        there.db.execute(FILL.format(ROWS))
        with (
            persistent_writers(write_some, there.connect) as written,
            following(tmp_path / "w") as hw,
        ):
            hw.sql(there.source())
            hw.sql(FOLLOW.format(400))
            for mode in ("fast", "immediate"):
                before = hw.stored("orders").view().rows
                eventually(lambda b=before: hw.stored("orders").view().rows > b + 200)
                running.restart(mode)
            hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            for mode in ("immediate", "fast"):
                seen = written[0]
                eventually(lambda s=seen: written[0] > s + 50)
                running.restart(mode)
            eventually(lambda s=written[0]: written[0] > s + 50)
            running.restart("immediate")
        there = Upstream(running.url)
        with following(tmp_path / "w") as hw:
            same_rows(hw, there.rows, "orders", timeout=300)
            hw.sql("DROP SOURCE shop CASCADE")
            assert there.ours == []
        there.db.close()


def write_some_maria(connection, dice):
    write_maria(connection, dice, ROWS)


def test_mariadb_restarted_while_filling_and_while_streaming(tmp_path):
    with mariadb_server("--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1") as running:
        running.run("CREATE DATABASE shop")
        running.run(MARIA_ORDERS, database="shop")
        with running.connect("shop") as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO orders VALUES (%s, 'new', %s, 'note')",
                [(n, n / 4) for n in range(1, ROWS + 1)],
            )
        said = ", ".join(f"{k} = '{v}'" for k, v in running.options("shop").items())

        def restart(how):
            running.stop(how)
            running.start()

        with (
            persistent_writers(write_some_maria, lambda: running.connect("shop")) as written,
            following(tmp_path / "w") as hw,
        ):
            hw.sql(f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})")
            hw.sql(FOLLOW.format(400).replace("public.", "shop."))
            for how in (signal.SIGTERM, signal.SIGKILL):
                before = hw.stored("orders").view().rows
                eventually(lambda b=before: hw.stored("orders").view().rows > b + 200)
                restart(how)
            hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            for how in (signal.SIGKILL, signal.SIGTERM):
                seen = written[0]
                eventually(lambda s=seen: written[0] > s + 50)
                restart(how)
        with following(tmp_path / "w") as hw:
            same_rows(hw, lambda query: running.run(query, database="shop"), "orders", timeout=300)


def test_connections_that_are_cut_at_random(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    port = upstream.db.info.port
    with following(tmp_path / "w") as hw:
        with (
            persistent_writers(write_some, upstream.connect) as written,
            cutting(port) as proxy,
        ):
            # The statement itself may meet a cut: then it is said again, as people do.
            source = upstream.source(port=str(proxy.port), slot_name="kept")
            eventually(lambda: said(hw, source), 240)
            eventually(lambda: said(hw, FOLLOW.format(800)), 240)
            hw.sql("WAIT")
            seen, cuts = written[0], proxy.cuts
            eventually(lambda: written[0] > seen + 100 and proxy.cuts > cuts + 20, 120)
        assert proxy.cuts > 20
        same_rows(hw, upstream.rows, "orders", timeout=300)
        hw.sql("DROP SOURCE shop CASCADE")
        assert upstream.ours == []
        proxy.close()


def said(hw, statement):
    """Whether a statement is carried out, now or before; only a cut may come between."""
    try:
        hw.sql(statement)
    except RetryableError:
        return False
    except HeadwaterError as error:
        if error.sqlstate not in ("42710", "42P07"):
            raise
    return True


def test_a_table_is_dropped_and_another_truncated_while_they_fill(upstream, tmp_path):
    for name in ("gone", "cleared", "other"):
        upstream.db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        upstream.db.execute(
            f"INSERT INTO {name} SELECT g, md5(g::text) FROM generate_series(1, {ROWS}) g"
        )
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        for name in ("gone", "cleared", "other"):
            hw.sql(
                f"CREATE TABLE {name} (*) FROM shop TABLE 'public.{name}' WITH"
                " (backfill.num_rows_per_split = '200', backfill_rate_limit = '80')"
            )
        for name in ("gone", "cleared"):
            eventually(lambda n=name: 200 < hw.stored(n).view().rows < ROWS)
        upstream.db.execute("DROP TABLE gone")
        upstream.db.execute("TRUNCATE cleared")
        upstream.db.execute("INSERT INTO cleared VALUES (7, 'after')")
        upstream.db.execute("UPDATE other SET v = 'later' WHERE id < 50")
        for name in ("cleared", "other"):
            hw.sql(f"ALTER TABLE {name} SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        same_rows(hw, upstream.rows, "cleared", timeout=300)
        same_rows(hw, upstream.rows, "other", timeout=300)
        [(state, trouble)] = hw.sql(
            "SELECT state, trouble FROM hw_catalog.cdc_progress WHERE \"table\" = 'gone'"
        ).rows()
        assert state == "stopped"
        assert "dropped upstream" in trouble
        hw.sql("DROP TABLE gone")
        # It comes back under its name, and is another table.
        upstream.db.execute("CREATE TABLE gone (id int PRIMARY KEY, n int)")
        upstream.db.execute("INSERT INTO gone VALUES (1, 2)")
        hw.sql("CREATE TABLE gone (*) FROM shop TABLE 'public.gone'")
        hw.sql("WAIT")
        same_rows(hw, upstream.rows, "gone", timeout=300)
        hw.sql("DROP SOURCE shop CASCADE")


def test_a_row_is_wider_than_the_budget(upstream, tmp_path):
    """In the snapshot, in the log, and many small ones in one transaction."""
    upstream.db.execute("CREATE TABLE wide (id int PRIMARY KEY, n int, v text)")
    upstream.db.execute("ALTER TABLE wide ALTER v SET STORAGE EXTERNAL")
    upstream.db.execute("INSERT INTO wide VALUES (1, 0, repeat('a', 8000000)), (2, 0, 'small')")
    with following(tmp_path / "w", driver_bytes=65_536) as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE wide (*) FROM shop TABLE 'public.wide'")
        hw.sql("WAIT")
        upstream.db.execute("INSERT INTO wide VALUES (3, 0, repeat('b', 8000000))")
        upstream.db.execute("UPDATE wide SET n = n + 1")
        upstream.db.execute(
            "INSERT INTO wide SELECT g, 0, repeat('c', 500) FROM generate_series(10, 4000) g"
        )
        upstream.db.execute("UPDATE wide SET id = id + 10000 WHERE id IN (1, 3)")
        same_rows(hw, upstream.rows, "wide", timeout=300)


def nothing_more(hw, disk):
    """Whether the disk is full for every epoch; what was cleaned up meanwhile is taken as well."""
    fill_up(disk)
    before = hw.visible
    time.sleep(1)
    return hw.visible == before


def test_the_disk_here_is_full_and_has_room_again(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    upstream.db.execute("INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 2000) g")
    with small_disk(tmp_path / "disk", 96) as disk, following(disk / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(
            "CREATE TABLE t (*) FROM shop TABLE 'public.t' WITH"
            " (backfill.num_rows_per_split = '200', backfill_rate_limit = '500')"
        )
        eventually(lambda: hw.stored("t").view().rows > 300)
        for _ in range(2):
            fill_up(disk)
            # Two rounds of this: the backfill goes on, and so do changes that must be stored.
            upstream.db.execute("UPDATE t SET v = v || 'x' WHERE id % 3 = 0")
            upstream.db.execute("DELETE FROM t WHERE id % 50 = 7")
            time.sleep(3)
            assert hw.engine.failure is None
            eventually(lambda: nothing_more(hw, disk))
            (disk / "filler").unlink()
            upstream.db.execute("UPDATE t SET v = v || 'y' WHERE id % 7 = 0")
            hw.sql("WAIT")
            same_rows(hw, upstream.rows, "t", timeout=300)
        hw.sql("DROP SOURCE shop CASCADE")
