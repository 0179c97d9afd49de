"""MariaDB and MySQL: snapshot and binlog, against what the server can give at all.

    python bench/mysql.py [mariadb|mysql] [rows]

The limit of a snapshot is `mariadb-dump` to /dev/null. Both are measured in the same run, one
after the other, three times; the medians are printed with their ratio. The binlog is read from
the start to the end, against the same read without decoding.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from headwater.cdc.external_table import SplitOptions
from headwater.cdc.mysql.binlog import BinlogStream
from headwater.cdc.mysql.database import MySqlDatabase
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.table import MySqlTable
from mysql_servers import SERVERS, RunningServer

ROWS = 1_000_000
RUNS = 3
ORDERS = """CREATE TABLE orders (
    id bigint PRIMARY KEY, customer bigint, status varchar(10), amount decimal(12,2), items int,
    placed_at timestamp(6) NULL, note varchar(40)) CHARACTER SET utf8mb4"""
FILL = """INSERT INTO orders SELECT n, n * 7919 MOD 1000000,
    ELT(n MOD 3 + 1, 'new', 'paid', 'sent'), n * 104729 MOD 1000000 / 100, n MOD 9,
    FROM_UNIXTIME(1700000000 + n / 1000), LEFT(SHA2(n, 256), 40)
    FROM numbers WHERE n BETWEEN {first} AND {last}"""
CHANGED = 20_000
"""Rows changed by one transaction of the large kind."""
SMALL = 10_000
"""Transactions of one row."""


def fill(server: RunningServer, rows: int) -> None:
    server.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
    server.run("CREATE TABLE digits (d int)", "INSERT INTO digits VALUES (0),(1),(2),(3),(4),"
               "(5),(6),(7),(8),(9)", database="shop")  # fmt: skip
    joins = " , ".join(f"digits d{place}" for place in range(7))
    total = " + ".join(f"d{place}.d * {10**place}" for place in range(7))
    server.run(f"CREATE TABLE numbers (n bigint PRIMARY KEY) AS SELECT {total} AS n FROM {joins} "
               f"HAVING n < {rows}", ORDERS, database="shop")  # fmt: skip
    for first in range(0, rows, 100_000):
        server.run(FILL.format(first=first, last=first + 99_999), database="shop")
    server.run("ANALYZE TABLE orders", database="shop")


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def dump(server: RunningServer) -> None:
    subprocess.run(
        ["mariadb-dump", "-h127.0.0.1", f"-P{server.port}", "-uroot", "--skip-ssl", "--quick",
         "--single-transaction", "shop", "orders"],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip


def snapshot(table: MySqlTable) -> int:
    count = 0
    for split in table.splits(SplitOptions()):
        cursor = None
        while True:
            chunk = table.read_chunk(split, cursor, max_rows=200_000, max_bytes=64 << 20)
            count += chunk.rows.num_rows
            if (cursor := chunk.cursor) is None:
                break
    return count


def write_changes(server: RunningServer, rows: int) -> None:
    """Large updates, then many small ones, as a log has them."""
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for first in range(0, rows, CHANGED):
            cursor.execute(
                "UPDATE orders SET items = items + 1, note = REVERSE(note) "
                f"WHERE id BETWEEN {first} AND {first + CHANGED - 1}"
            )
        for number in range(SMALL):
            cursor.execute(f"UPDATE orders SET items = 7 WHERE id = {number}")


def read_log(database: MySqlDatabase, table: MySqlTable, start: Any) -> int:
    """All changes after a place, decoded; gives how many rows changed."""
    log = database.open_log({"orders": table.schema})
    end, at, count = log.current(), start, 0
    while at < end:
        batch = log.read(at, max_bytes=64 << 20)
        at = batch.offset
        count += sum(changes.num_rows // 2 for changes in batch.changes.values())
    log.close()
    return count


def fetch_log(options: MySqlOptions, start: Any) -> None:
    """The same bytes, only received: what the server can send."""
    stream = BinlogStream(options, start)
    while stream.at < stream.known_end:
        batch = stream.read(64 << 20)
        if batch is not None:
            stream.take(batch, len(batch.ends))
    stream.close()


def report(name: str, rows: int, seconds: float, limit: float) -> None:
    print(f"  {name:<34}{seconds:7.2f} s{rows / seconds / 1e6:8.2f} M/s{limit / seconds:8.2f}")


def bench(kind: str, rows: int) -> None:
    with SERVERS[kind]() as server:
        fill(server, rows)
        options = MySqlOptions.parse(server.options("shop", **{"ssl.mode": "disabled"}))
        database = MySqlDatabase(server.options("shop", **{"ssl.mode": "disabled"}))
        table = database.open_table("orders")
        assert snapshot(table) == rows
        pairs = [(timed(lambda: dump(server)), timed(lambda: snapshot(table))) for _ in range(RUNS)]
        limit = statistics.median(pair[0] for pair in pairs)
        print(f"{kind}, {rows:,} rows of 7 columns, one connection; ratio to the limit last")
        report("mariadb-dump to /dev/null", rows, limit, limit)
        report("snapshot into Arrow", rows, statistics.median(pair[1] for pair in pairs), limit)
        start = database.prepare(["orders"])
        write_changes(server, rows)
        count = read_log(database, table, start)
        both = [
            (timed(lambda: fetch_log(options, start)),
             timed(lambda: read_log(database, table, start)))
            for _ in range(RUNS)
        ]  # fmt: skip
        limit = statistics.median(pair[0] for pair in both)
        print(f"{kind}, {count:,} changed rows in the binlog")
        report("events found, not decoded", count, limit, limit)
        report("changes into Arrow", count, statistics.median(pair[1] for pair in both), limit)


if __name__ == "__main__":
    bench(sys.argv[1] if len(sys.argv) > 1 else "mariadb",
          int(sys.argv[2]) if len(sys.argv) > 2 else ROWS)  # fmt: skip
