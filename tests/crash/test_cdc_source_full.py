"""The disk of the followed PostgreSQL is full: its writes fail, it panics, and comes back.

The engine says what is the matter, other sources go on as ever, and once there is room again both
have the same. Meanwhile it keeps nothing there longer than it must: what is stored here is
acknowledged as soon as the server can note it.
"""

import random
import tempfile
from pathlib import Path

import psycopg
import pytest

from cdc_kit import (
    FILL,
    ORDERS,
    Upstream,
    eventually,
    following,
    same_rows,
    server,
    upstream,
    write_orders,
)
from chaos_kit import fill_up, restartable_postgres, small_disk

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(1800)

ROWS = 3_000
SMALL = ("max_wal_size=32MB", "min_wal_size=32MB", "checkpoint_timeout=30s",
         "shared_buffers=16MB", "autovacuum=off")  # fmt: skip
STATE = "SELECT state, trouble FROM hw_catalog.cdc_progress WHERE \"table\" = 'orders'"
HELD = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
TOLD = "SELECT text FROM hw_catalog.events WHERE kind = 'source_unavailable'"


@pytest.fixture
def disk():
    """A small one, which the server's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-disk-"))
    folder.chmod(0o755)
    with small_disk(folder, 220) as made:
        yield made
    folder.rmdir()


def until_it_panics(there: Upstream) -> str:
    """Write until the server is gone; how it refused a row before that."""
    said = ""
    for _ in range(500):
        try:
            with there.connect() as connection:
                try:
                    connection.execute("UPDATE orders SET note = repeat(md5(random()::text), 200)")
                except psycopg.errors.DiskFull as error:
                    said = str(error)
                # Its log needs no room in a table, and soon a file more.
                connection.execute(
                    "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))"
                )
        except psycopg.OperationalError:
            return said
    raise AssertionError("the server goes on")


def test_the_disk_of_the_source_is_full_and_has_room_again(disk, upstream, tmp_path):
    upstream.db.execute("CREATE TABLE calm (id int PRIMARY KEY, n int)")
    upstream.db.execute("INSERT INTO calm VALUES (1, 0)")
    with restartable_postgres(*SMALL, within=disk) as running:
        there = Upstream(running.url)
        there.db.execute(ORDERS)
        there.db.execute(FILL.format(ROWS))
        there.db.close()
        with following(tmp_path / "w") as hw:
            hw.sql(there.source())
            hw.sql(upstream.source("other", slot_name="other"))
            hw.sql(
                "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
                " (backfill.num_rows_per_split = '300', backfill_rate_limit = '200')"
            )
            hw.sql("CREATE TABLE calm (*) FROM other TABLE 'public.calm'")
            eventually(lambda: hw.stored("orders").view().rows > 300)
            for filling in (True, False):
                fill_up(disk)
                eventually(lambda: tells(hw, "is full"), 120)
                assert "No space left" in until_it_panics(there)
                assert hw.engine.failure is None
                goes_on(hw, upstream)
                (disk / "filler").unlink()
                running.restart("immediate")
                again = Upstream(running.url)
                write(again)
                if filling:
                    hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
                hw.sql("WAIT")
                same_rows(hw, again.rows, "orders", timeout=300)
                eventually(lambda a=again: a.rows(HELD)[0][0] < 1 << 20)
                again.db.close()


def tells(hw, words):
    """Whether the table is said to be stalled for that reason, and an event says it too."""
    [(state, trouble)] = hw.sql(STATE).rows()
    return state == "stalled" and words in trouble and words in str(hw.sql(TOLD).rows())


def goes_on(hw, upstream):
    """A source that has room is followed as ever."""
    upstream.db.execute("UPDATE calm SET n = n + 1")
    same_rows(hw, upstream.rows, "calm", timeout=300)


def write(there):
    dice = random.Random(4)
    for _ in range(200):
        write_orders(there.db, dice, most=2 * ROWS)
