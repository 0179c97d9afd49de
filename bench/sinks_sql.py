"""How fast sinks write to PostgreSQL and MariaDB, against the same rows loaded by hand.

    python bench/sinks_sql.py [--rows 1000000] [--turns 3] [--only postgres|mariadb]

Rows have 7 columns and come in the order of their vnodes, as deliveries do. By hand: a ready-made
file goes through COPY (text, and binary) or LOAD DATA into a table with a key, in one transaction.
Ours: `deliver` is handed Arrow batches, and writes its progress in the same transaction.
Upsert: half of the rows are there already; by hand they go into a temporary table and then through
INSERT ... ON CONFLICT or ON DUPLICATE KEY. All ways take turns on the same server; a figure is the
median of the turns. A ratio is time by hand over our time: 1.0 is as fast, less is slower.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import psycopg
import pyarrow as pa

from headwater.model.change import RowOp
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, TIMESTAMPTZ, VARCHAR, decimal
from headwater.sinks.mysql.sink import mysql_sink
from headwater.sinks.postgres.sink import postgres_sink
from headwater.sinks.sink import OP, SinkKind
from headwater.sinks.spelling import MYSQL, POSTGRES
from headwater.sinks.text_rows import RowWriter
from mysql_servers import mariadb_server
from sql_sink_kit import delivery_of, restartable_postgres, spec_of

COLUMNS = (
    Column("id", BIGINT),
    Column("customer", BIGINT),
    Column("status", VARCHAR),
    Column("amount", decimal(12, 2)),
    Column("items", INTEGER),
    Column("placed_at", TIMESTAMPTZ),
    Column("note", VARCHAR),
)
NAMES = ", ".join(column.name for column in COLUMNS)
BATCH_ROWS = 65_536
APPEND_AIM, UPSERT_AIM = 0.7, 0.8
CHANGES = ", ".join(f"{c.name} = {{}}.{c.name}" for c in COLUMNS[1:])


def orders(rows: int) -> list[pa.RecordBatch]:
    ids = np.arange(rows, dtype=np.int64)
    ids = ids[np.argsort((ids * 2_654_435_761) % 256, kind="stable")]
    cents = pa.array((ids * 104_729) % 1_000_000).cast(pa.decimal128(19, 0))
    table = pa.table(
        {
            OP: np.full(rows, RowOp.INSERT.value, np.int8),
            "id": ids,
            "customer": (ids * 7919) % 1_000_003,
            "status": np.array(["new", "paid", "sent"])[ids % 3],
            "amount": cents.cast(pa.decimal128(12, 2), safe=False),
            "items": (ids % 9).astype(np.int32),
            "placed_at": pa.array(1_700_000_000_000_000 + ids * 1001).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "note": [f"{number * 40_503:032x}" for number in ids.tolist()],
        }
    )
    return list(table.to_batches(max_chunksize=BATCH_ROWS))


def text_file(path: Path, batches: list[pa.RecordBatch], form: Any) -> Path:
    writer = RowWriter([column.type for column in COLUMNS], form)
    with path.open("wb") as file:
        for batch in batches:
            for block in writer.blocks(batch.columns[1:]):
                file.write(block.text)
    return path


def medians(ways: dict[str, Callable[[], None]], prepare: Callable[[], None], turns: int) -> Any:
    """The time of each way; the first turn warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, work in ways.items():
            prepare()
            started = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in times.items()}


def report(title: str, figures: dict[str, float], rows: int, aim: float) -> None:
    ours = figures["ours"]
    print(f"\n{title}")
    for name, seconds in figures.items():
        ratio = "" if name == "ours" else f"   ratio {seconds / ours:.2f}"
        print(f"  {name:<28} {seconds:6.2f} s {rows / seconds / 1e6:6.2f} M rows/s{ratio}")
    best = min(seconds for name, seconds in figures.items() if name != "ours")
    met = "met" if best / ours >= aim else "NOT met"
    print(f"  aim {aim:g} of the fastest by hand: {best / ours:.2f}, {met}")


class Turns:
    """A sink whose deliveries follow one another."""

    def __init__(self, make: Any, spec: Any, batches: list[pa.RecordBatch], *, new: bool) -> None:
        self._sink, self._spec, self._batches, self._new = make(spec), spec, batches, new
        self._sink.check()
        self._epoch = self._sink.begin(1)

    def __call__(self) -> None:
        """Bring the next delivery."""
        rows = sum(batch.num_rows for batch in self._batches)
        delivery = delivery_of(
            self._spec, self._epoch + 1, after=self._epoch, rows=rows, new=self._new
        )
        self._sink.deliver(delivery, iter(self._batches))
        self._epoch += 1


def postgres(batches: list[pa.RecordBatch], folder: Path, rows: int, turns: int) -> None:
    file = text_file(folder / "postgres.txt", batches, POSTGRES)
    with restartable_postgres() as server, psycopg.connect(server.url) as line:
        line.autocommit = True
        line.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, status text, "
            "amount numeric(12,2), items int, placed_at timestamptz, note text)"
        )

        def copied(path: Path, form: str, into: str = "orders") -> None:
            with line.cursor() as cursor, path.open("rb") as source:
                with cursor.copy(f"COPY {into} ({NAMES}) FROM STDIN (FORMAT {form})") as copy:
                    while piece := source.read(1 << 18):
                        copy.write(piece)

        def empty() -> None:
            line.execute("TRUNCATE orders")
            line.execute("CHECKPOINT")

        def half() -> None:
            empty()
            line.execute("INSERT INTO orders SELECT * FROM there")
            line.execute("VACUUM ANALYZE orders")
            line.execute("CHECKPOINT")

        def merged() -> None:
            with line.transaction():
                line.execute("CREATE TEMPORARY TABLE stage (LIKE orders) ON COMMIT DROP")
                copied(file, "text", "stage")
                line.execute(
                    f"INSERT INTO orders SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET "
                    f"{CHANGES.format(*['excluded'] * 6)}"
                )

        copied(file, "text")
        line.execute("CREATE TABLE there AS SELECT * FROM orders WHERE id % 2 = 0")
        binary = folder / "postgres.bin"
        with line.cursor() as cursor, binary.open("wb") as target:
            query = f"COPY orders ({NAMES}) TO STDOUT (FORMAT binary)"
            with cursor.copy(query) as copy:
                for piece in copy:
                    target.write(piece)
        options = server.options("orders")
        append = spec_of("append", options, columns=COLUMNS, kind=SinkKind.APPEND_ONLY)
        ours = Turns(postgres_sink, append, batches, new=True)
        ways = {
            "COPY, text file": lambda: copied(file, "text"),
            "COPY, binary file": lambda: copied(binary, "binary"),
            "ours": ours,
        }
        report("PostgreSQL, append-only", medians(ways, empty, turns), rows, APPEND_AIM)
        upsert = spec_of("upsert", options, columns=COLUMNS)
        ours = Turns(postgres_sink, upsert, batches, new=False)
        figures = medians({"by hand": merged, "ours": ours}, half, turns)
        report("PostgreSQL, upsert, half of the rows there", figures, rows, UPSERT_AIM)


def mariadb(batches: list[pa.RecordBatch], folder: Path, rows: int, turns: int) -> None:
    file = text_file(folder / "mariadb.txt", batches, MYSQL)
    table = (
        "(id BIGINT PRIMARY KEY, customer BIGINT, status VARCHAR(20), amount DECIMAL(12,2), "
        "items INT, placed_at DATETIME(6), note VARCHAR(64)) ENGINE = InnoDB"
    )
    with mariadb_server("--local-infile=ON") as server:
        server.run("CREATE DATABASE shop")
        line = server.connect("shop", local_infile=True)

        def run(*statements: str) -> None:
            with line.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        def loaded(into: str = "orders") -> None:
            run(
                f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {into} CHARACTER SET utf8mb4 ({NAMES})"
            )

        def half() -> None:
            run("TRUNCATE orders", "INSERT INTO orders SELECT * FROM there")

        def merged() -> None:
            run("START TRANSACTION", f"CREATE TEMPORARY TABLE stage {table}".replace(
                " PRIMARY KEY", ""))  # fmt: skip
            loaded("stage")
            run(
                "INSERT INTO orders SELECT * FROM stage ON DUPLICATE KEY UPDATE "
                f"{CHANGES.format(*['stage'] * 6)}".replace(", ", ", orders.").replace(
                    "UPDATE ", "UPDATE orders.", 1
                ),
                "COMMIT",
                "DROP TEMPORARY TABLE stage",
            )

        run(f"CREATE TABLE orders {table}")
        loaded()
        run(
            f"CREATE TABLE there {table}", "INSERT INTO there SELECT * FROM orders WHERE id % 2 = 0"
        )
        options = {
            "host": "127.0.0.1", "port": str(server.port), "user": "root", "database": "shop",
            "table": "orders",
        }  # fmt: skip
        append = spec_of("append", options, columns=COLUMNS, kind=SinkKind.APPEND_ONLY)
        ours = Turns(mysql_sink, append, batches, new=True)
        ways = {"LOAD DATA, text file": loaded, "ours": ours}
        figures = medians(ways, lambda: run("TRUNCATE orders"), turns)
        report("MariaDB, append-only", figures, rows, APPEND_AIM)
        upsert = spec_of("upsert", options, columns=COLUMNS)
        ours = Turns(mysql_sink, upsert, batches, new=False)
        figures = medians({"by hand": merged, "ours": ours}, half, turns)
        report("MariaDB, upsert, half of the rows there", figures, rows, UPSERT_AIM)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=("postgres", "mariadb"))
    given = parser.parse_args()
    batches = orders(given.rows)
    with tempfile.TemporaryDirectory() as name:
        for bench in (postgres, mariadb):
            if given.only in (None, bench.__name__):
                bench(batches, Path(name), given.rows, given.turns)


if __name__ == "__main__":
    main()
