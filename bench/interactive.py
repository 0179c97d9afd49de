"""How it feels at a prompt: statements over the wire, beside a bare Spark job of the same session.

    python bench/interactive.py [--rows 100000] [--runs 15]

Measured from a client, through a socket: INSERT of one row until it is visible in a view on the
table, SELECT by primary key and by an index, CREATE TABLE, SHOW, catalog queries, psql.
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from kit import bare_job, verdict

from headwater.runtime.engine import Engine
from headwater.session.serve import Serving


def timed(call: Callable[[], object], runs: int) -> float:
    """The median time of a call, in seconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Prompt:
    """A client at the server."""

    def __init__(self, host: str, port: int, rows: int) -> None:
        self._place = (host, str(port))
        self._connection = psycopg.connect(
            host=host, port=port, user="root", dbname="dev", autocommit=True
        )
        self._rows = rows
        self._next = 10 * rows
        self._tables = 0

    def fill(self) -> None:
        """A table with rows, an index, and a view on it."""
        run = self._connection.execute
        run("create table orders (id bigint primary key, customer bigint, amount numeric(12,2))")
        run(
            "insert into orders select i, i % 1000, i % 97 "
            f"from generate_series(1, {self._rows}) as g(i)"
        )
        run("flush")
        run("create index on orders (customer)")
        run(
            "create materialized view by_customer as "
            "select customer, count(*) as n, sum(amount) as total from orders group by customer"
        )
        run("set rw_implicit_flush = true")

    def insert(self) -> None:
        """One row, until the view has it."""
        self._next += 1
        customer = 5000 + self._next
        self._connection.execute(f"insert into orders values ({self._next}, {customer}, 9.99)")
        found = self._connection.execute(
            f"select n from by_customer where customer = {customer}"
        ).fetchall()
        assert found == [(1,)], found

    def create(self) -> None:
        """A table."""
        self._tables += 1
        self._connection.execute(f"create table t{self._tables} (id int primary key, v text)")

    def ask(self, text: str) -> Callable[[], object]:
        """A query whose rows are fetched."""
        return lambda: self._connection.execute(text).fetchall()

    def describe(self) -> None:
        """Have psql describe a table; most of the time goes into starting psql."""
        host, port = self._place
        subprocess.run(
            ["psql", "-X", "-h", host, "-p", port, "-U", "root", "-d", "dev", "-c", "\\d orders"],
            check=True,
            capture_output=True,
        )


def measure(prompt: Prompt, runs: int, job: float) -> None:
    """Print each figure as a ratio to a bare job."""
    cases: list[tuple[str, Callable[[], object], float]] = [
        ("INSERT of one row until it is in a view", prompt.insert, 6.0),
        ("SELECT by primary key", prompt.ask("select * from orders where id = 77"), 1.5),
        ("SELECT by an index", prompt.ask("select id from orders where customer = 9"), 1.5),
        ("CREATE TABLE", prompt.create, 0.5),
        ("SHOW TABLES", prompt.ask("show tables"), 0.5),
        ("SELECT 1", prompt.ask("select 1"), 0.5),
        (
            "information_schema.columns",
            prompt.ask(
                "select column_name, data_type from information_schema.columns "
                "where table_name = 'orders'"
            ),
            0.5,
        ),
        ("rw_materialized_views", prompt.ask("select name from rw_materialized_views"), 0.5),
    ]
    if shutil.which("psql") is not None:
        cases.append(("psql -c '\\d orders' as a process", prompt.describe, 0.5))
    for name, call, aim in cases:
        call()
        seconds = timed(call, runs)
        ratio = seconds / job
        print(f"{name:<42} {seconds * 1000:8.1f} ms = {ratio:5.2f} jobs, {verdict(ratio, aim)}")


async def main(rows: int, runs: int) -> None:
    """Serve an engine on a temporary workspace and ask it from a thread."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder))
        async with Serving(engine, port=0) as serving:
            host, port = serving.address
            prompt = await asyncio.to_thread(Prompt, host, port, rows)
            await asyncio.to_thread(prompt.fill)
            for _ in range(10):
                await asyncio.to_thread(prompt.insert)
            job = await asyncio.to_thread(timed, lambda: bare_job(engine.spark()), runs)
            print(f"a bare Spark job: {job * 1000:.1f} ms; the table has {rows:,} rows")
            await asyncio.to_thread(measure, prompt, runs, job)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=100_000)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rows, arguments.runs))
