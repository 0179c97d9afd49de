"""kill -9 of a real server at every crash point that a followed database passes.

One workspace lives through one death after the other, while others write to the PostgreSQL that
it follows: rows come, change, go and get other keys. Whatever was under way, the next life goes
on by itself; in the end no row is missing and none is too many. A point that is not passed fails
the test: the process then does not end by SIGKILL.
"""

import contextlib
import random
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
    upstream,
    write_orders,
    writers,
)
from headwater.crash_points import POINTS
from headwater.testing.processes import free_port
from serve_kit import Served

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(400)

KILLED = -9
ROWS = 6_000
ELSEWHERE = {
    "checkpoint.after_delta_checkpoint", "compaction.after_files", "retention.before_delete",
    "retention.between_deletes",
}  # fmt: skip
"""Maintenance, which knows nothing of sources: tests/crash/test_kill_at_points.py."""
RUNNING = (
    "stage.before_files", "cdc.after_chunk", "stage.after_files", "epoch.before_ledger",
    "epoch.after_ledger", "recovery.before_publish", "publish.between_tables",
    "recovery.after_publish", "publish.after", "source.after_acknowledge", "cdc.after_acknowledge",
)  # fmt: skip
CREATING = (
    "catalog.before_create", "cdc.before_slot", "cdc.after_slot", "cdc.before_table",
    "catalog.after_create", "cdc.after_publish", "cdc.after_splits",
)  # fmt: skip
DROPPING = ("cdc.after_drop",)

TABLES = (
    "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
    " (backfill.num_rows_per_split = '500', backfill_rate_limit = '250')",
    "CREATE TABLE small (*) FROM shop TABLE 'public.small'",
)


def test_every_point_of_the_path_is_tried():
    assert {*RUNNING, *CREATING, *DROPPING} == set(POINTS) - ELSEWHERE


def write(connection, dice):
    write_orders(connection, dice, most=2 * ROWS)
    connection.execute("UPDATE small SET n = n + 1 WHERE id = %s", [dice.randrange(1, 20)])
    time.sleep(0.002)


def fill(upstream):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    upstream.db.execute("CREATE TABLE small (id int PRIMARY KEY, n int)")
    upstream.db.execute("INSERT INTO small SELECT g, 0 FROM generate_series(1, 20) g")


def ask(process, *statements):
    """What a client says to a server that may die meanwhile; "exists already" is an answer."""
    with contextlib.suppress(psycopg.OperationalError), process.connect() as client:
        for statement in statements:
            try:
                client.execute(statement)
            except (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable):
                continue


def die_at(workspace, port, point, *statements):
    """One life, which ends at a point."""
    with Served(workspace, port=port, crash=point) as process:
        if statements:
            process.ready()
            ask(process, *statements)
        code = process.wait(timeout=90)
        told = f"at {point}: exit code {code}\n{process.output[-2000:]}{process.errors[-4000:]}"
        assert code == KILLED, told


def live(workspace, port, *statements):
    """One life in which statements are carried out, and which is killed afterwards."""
    with Served(workspace, port=port) as process:
        process.ready()
        ask(process, *statements)
        process.kill()


def check(workspace, upstream, tables=("orders", "small")):
    """Nothing writes any more: both ways the same, soon."""
    with following(workspace) as hw:
        hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        for table in tables:
            count = f"SELECT count(*) FROM {table}"

            def as_many(table=table, count=count):
                hw.sql("FLUSH")
                return [(hw.stored(table).view().rows,)] == upstream.rows(count)

            eventually(as_many, timeout=30)
            hw.sql("FLUSH")
            same(hw, upstream, table)


def test_killed_at_every_point_while_it_fills(upstream, tmp_path):
    dice = random.Random(11)
    fill(upstream)
    workspace, port = tmp_path / "w", free_port()
    with writers(upstream, write) as written:
        live(workspace, port, upstream.source(), *TABLES)
        for point in RUNNING:
            nth = 1 if point.startswith("recovery.") else dice.randrange(1, 5)
            die_at(workspace, port, f"{point}:{nth}")
        assert written[0] > 50
    check(workspace, upstream)


def test_killed_while_it_is_created(upstream, tmp_path):
    """Each death leaves something half-made; what follows finds it, and makes it whole."""
    fill(upstream)
    workspace, port = tmp_path / "w", free_port()
    source, (orders, small) = upstream.source(), TABLES
    with writers(upstream, write):
        die_at(workspace, port, "catalog.before_create", source)
        assert upstream.ours == []
        die_at(workspace, port, "cdc.before_slot", source)
        assert upstream.ours == []
        # From here on nobody asks for the source again: it is in the catalog.
        die_at(workspace, port, "cdc.after_slot")
        assert len(upstream.ours) == 2
        die_at(workspace, port, "cdc.before_table", orders)
        die_at(workspace, port, "catalog.after_create", orders)
        die_at(workspace, port, "cdc.after_publish", small)
        die_at(workspace, port, "cdc.after_splits")
        live(workspace, port, source, *TABLES)
    check(workspace, upstream)
    with following(workspace) as hw:
        hw.sql("DROP SOURCE shop CASCADE")
    assert upstream.ours == []


def test_killed_while_it_is_dropped(upstream, tmp_path):
    fill(upstream)
    workspace, port = tmp_path / "w", free_port()
    live(workspace, port, upstream.source(), *TABLES)
    die_at(workspace, port, "cdc.after_drop", "DROP SOURCE shop CASCADE")
    with following(workspace) as hw:
        # It is still here, and says what is the matter; dropped again it is gone.
        eventually(lambda: "is gone" in str(hw.sql("SELECT text FROM hw_catalog.events").rows()))
        assert upstream.ours == []
        hw.sql("DROP SOURCE shop CASCADE")
        assert hw.sql("SHOW SOURCES").rows() == []
        assert upstream.ours == []
