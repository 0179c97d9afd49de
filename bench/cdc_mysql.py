"""Following a MariaDB or MySQL, as a user sees it: through `headwater serve` and its SQL.

    python bench/cdc_mysql.py [--kind mariadb|mysql] [--rows 1e6] [--runs 3]

Snapshot     from CREATE TABLE until all rows are visible in open tables, beside `mariadb-dump` of
             the same table to nowhere.
Changes      large and small updates, written while the engine is frozen; from its waking until all
             of them are visible, beside the same bytes of the binlog received and not decoded.

`bench/mysql.py` has the readers alone. The engine is warm before anything is measured.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mysql import SMALL, dump, fetch_log, fill, report, timed, write_changes

from headwater.cdc.mysql.database import MySqlDatabase
from headwater.cdc.mysql.options import MySqlOptions
from mysql_servers import SERVERS, RunningServer
from serve_kit import Served

MOST_S = 3600.0
FOLLOW = "CREATE TABLE {0} (*) FROM shop TABLE 'shop.{0}'"
WARM = "CREATE TABLE warm LIKE orders", "INSERT INTO warm SELECT * FROM orders LIMIT 300000"


def follow(server: RunningServer, client: Any) -> None:
    """Make the source, and have Spark, its workers and the kernels up."""
    options = {"connector": "mysql-cdc", **server.options("shop", **{"ssl.mode": "disabled"})}
    said = ", ".join(f"\"{name}\" = '{value}'" for name, value in options.items())
    client.execute(f"CREATE SOURCE shop WITH ({said})")
    server.run(*WARM, "ANALYZE TABLE warm", database="shop")
    client.execute(FOLLOW.format("warm") + " WITH (\"backfill.num_rows_per_split\" = '100000')")
    client.execute("WAIT")
    client.execute("DROP TABLE warm")
    server.run("DROP TABLE warm", database="shop")


def snapshot(server: RunningServer, client: Any, rows: int, runs: int) -> None:
    """One table, from nothing to all rows."""
    theirs, ours = [], []
    for _ in range(runs):

        def create() -> None:
            client.execute(FOLLOW.format("orders"))
            client.execute("WAIT")

        client.execute("DROP TABLE IF EXISTS orders")
        theirs.append(timed(lambda: dump(server)))
        ours.append(timed(create))
        [(count,)] = client.execute("SELECT count(*) FROM orders").fetchall()
        assert count == rows, f"{count} of {rows} rows"
    limit = statistics.median(theirs)
    print(f"{rows:,} rows of 7 columns; ratio to the limit last")
    report("mariadb-dump to /dev/null", rows, limit, limit)
    report("CREATE TABLE until visible", rows, statistics.median(ours), limit)


def changes(server: RunningServer, served: Served, client: Any, rows: int, runs: int) -> None:
    """A backlog, from the engine's waking until it is visible."""
    options = MySqlOptions.parse(server.options("shop", **{"ssl.mode": "disabled"}))
    database = MySqlDatabase(server.options("shop", **{"ssl.mode": "disabled"}))
    theirs, ours = [], []
    for turn in range(runs):
        served.freeze()
        start = database.prepare(["orders"])
        write_changes(server, rows)
        server.run(f"UPDATE orders SET items = {1000 + turn} WHERE id = 1", database="shop")
        theirs.append(timed(lambda s=start: fetch_log(options, s)))
        served.thaw()
        ours.append(timed(lambda t=turn: seen(client, 1000 + t)))
    limit, count = statistics.median(theirs), rows + SMALL + 1
    print(f"{count:,} changed rows in the binlog")
    report("events received, not decoded", count, limit, limit)
    report("applied and visible", count, statistics.median(ours), limit)


def seen(client: Any, wanted: int) -> None:
    """Until a client sees the last change."""
    deadline = time.monotonic() + MOST_S
    while client.execute("SELECT items FROM orders WHERE id = 1").fetchall() != [(wanted,)]:
        assert time.monotonic() < deadline, "the changes did not come"
        time.sleep(0.02)


def bench(kind: str, rows: int, runs: int) -> None:
    with SERVERS[kind]() as server, tempfile.TemporaryDirectory() as folder:
        fill(server, rows)
        settings = {"spark_driver_memory": "2g", "barrier_interval_ms": 1000}
        with Served(Path(folder) / "w", settings=settings) as served:
            served.ready()
            with served.connect() as client:
                follow(server, client)
                print(f"== {kind}", flush=True)
                snapshot(server, client, rows, runs)
                changes(server, served, client, rows, runs)
            served.terminate()
            served.wait(timeout=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kind", default="mariadb", choices=sorted(SERVERS))
    parser.add_argument("--rows", default="1e6")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    bench(given.kind, int(float(given.rows)), given.runs)
