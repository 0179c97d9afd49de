"""A server that follows a PostgreSQL is killed again and again, and loses nothing.

Contract points 5 to 9 and 13: a transaction over two tables is visible whole or not at all, at
every epoch and over restarts; jobs go on without being asked; the slot advances while the tables
are idle; after DROP SOURCE ... CASCADE nothing of ours is upstream; no password is ever printed.
"""

import os
import random
import time

import psycopg
import pytest

from cdc_kit import FILL, ORDERS, eventually, server, upstream, write_orders, writers
from headwater.testing.processes import free_port
from serve_kit import Served, rows, run

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(600)

KILLS = int(os.environ.get("CONTRACT_KILLS", "2"))
SECRET = "s3cret-word"


def _banks(connection, dice):
    """Orders change, and money moves between two tables in one transaction."""
    write_orders(connection, dice)
    if dice.random() < 0.5:
        a, b = dice.sample(("here", "there"), 2)
        with connection.transaction():
            for table, sign in ((a, -1), (b, 1)):
                connection.execute(
                    f"UPDATE {table} SET money = money + %s WHERE id = %s",
                    [sign * 5, dice.randrange(1, 201)],
                )


def _sums(client):
    (total,) = rows(
        client,
        "SELECT (SELECT sum(money) FROM here) + (SELECT sum(money) FROM there)",
    )
    return total[0]


def _fill(db):
    db.execute(ORDERS)
    db.execute(FILL.format(15_000))
    for bank in ("here", "there"):
        db.execute(f"CREATE TABLE {bank} (id int PRIMARY KEY, money bigint)")
        db.execute(f"INSERT INTO {bank} SELECT g, 100 FROM generate_series(1, 200) g")
    db.execute(f"CREATE ROLE follower LOGIN REPLICATION SUPERUSER PASSWORD '{SECRET}'")


def test_kill_9_during_backfill_loses_nothing(upstream, tmp_path):
    dice = random.Random(5)
    _fill(upstream.db)
    port, output = free_port(), []
    source = upstream.source(username="follower", password=SECRET, slot_name="kept")
    with writers(upstream, _banks) as written:
        with Served(tmp_path / "w", port=port) as process:
            process.ready()
            with process.connect() as client:
                run(client, source)
                for bank in ("here", "there"):
                    run(client, f"CREATE TABLE {bank} (*) FROM shop TABLE 'public.{bank}'")
                run(
                    client,
                    "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
                    " (backfill.num_rows_per_split = '1000', backfill_rate_limit = '800')",
                )
                run(client, "CREATE MATERIALIZED VIEW total AS SELECT sum(money) AS s FROM here")
            process.kill()
            output += [process.output, process.errors]
        for life in range(KILLS):
            with Served(tmp_path / "w", port=port) as process:
                process.ready()
                with process.connect() as client:
                    assert rows(client, "SHOW TABLES")
                    if life == KILLS - 1:
                        run(client, "ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default", "WAIT")
                        for _ in range(3):
                            assert _sums(client) == 40_000
                    time.sleep(dice.uniform(0.5, 3.0))
                process.kill()
                output += [process.output, process.errors]
        assert written[0] > 50
    with Served(tmp_path / "w", port=port) as process:
        process.ready()
        with process.connect() as client:
            run(client, "WAIT")
            _same(client, upstream)
            assert _sums(client) == 40_000
            # In one statement: the log may still have changes of this table after those above.
            [(viewed, summed)] = rows(
                client, "SELECT (SELECT s FROM total), (SELECT sum(money) FROM here)"
            )
            assert viewed == summed
            _slot_advances(upstream)
            assert SECRET not in str(rows(client, "SHOW CREATE SOURCE shop"))
            run(client, "DROP SOURCE shop CASCADE")
            assert upstream.ours == []
        process.terminate()
        assert process.wait(timeout=60) == 0
        output += [process.output, process.errors]
    assert SECRET not in "".join(output)


def _same(client, upstream):
    theirs = {tuple(row) for row in upstream.rows("SELECT * FROM orders")}
    ours = set()
    # A FLUSH does not wait for a source that is slow to answer, as it is at the start.
    deadline = time.monotonic() + 120
    while ours != theirs and time.monotonic() < deadline:
        run(client, "FLUSH")
        ours = {tuple(row) for row in rows(client, "SELECT * FROM orders")}
    assert not (missing := theirs - ours), sorted(missing)[:3]
    assert not (extra := ours - theirs), sorted(extra)[:3]


def _slot_advances(upstream):
    """Our tables are idle, and others are written to."""
    place = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'kept'"
    before = upstream.rows(place)
    with psycopg.connect(upstream.url, autocommit=True) as other:
        other.execute("CREATE TABLE noise (n int)")
        other.execute("INSERT INTO noise SELECT generate_series(1, 10000)")
    eventually(lambda: upstream.rows(place) != before, timeout=120)
