"""`make demo`: a shop is followed while it is written to, the engine is killed, nothing is lost.

An embedded PostgreSQL holds a small shop whose customers do not stop. `headwater serve`, in a
process of its own, follows its tables, keeps three views on them, one over another, and delivers
one of these into a second PostgreSQL. In the middle of the backfill it is killed with SIGKILL and
started again. In the end tables are compared with the shop, views with what PostgreSQL itself
answers, and the second PostgreSQL with the view, row by row and in both directions.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psycopg
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headwater.testing.embedded_postgres import NotHere, embedded_postgres
from headwater.testing.processes import ChildProcess, free_port
from headwater.testing.shop import Shop

TABLES = ("customers", "orders")
VIEWS = {
    "paid": "SELECT count(*) AS orders, sum(amount) AS amount FROM orders WHERE status = 'paid'",
    "sales": "SELECT country, status, count(*) AS orders, sum(amount) AS amount"
    " FROM orders JOIN customers ON customer = customers.id GROUP BY country, status",
    "countries": "SELECT country, sum(amount) AS paid FROM sales WHERE status = 'paid'"
    " GROUP BY country",
}
DELIVERED = "sales"
RATE = 15_000
SETTINGS = {"barrier_interval_ms": 500, "spark_driver_memory": "1g"}
_CAUGHT_UP_S = 60.0
_PERCENT = re.compile(r"([\d.]+)%(?: \(([^)]*)\))?")

_console = Console(highlight=False)


def main() -> None:
    """Run the demo; exit code 0 means that everything was there."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--workspace", type=Path, help="keep the tables in this folder")
    arguments = parser.parse_args()
    folder = arguments.workspace or Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    if arguments.workspace and folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; give a new folder with --workspace")
    try:
        with embedded_postgres("wal_level=logical") as url, embedded_postgres() as target:
            run(Shop(url), target, folder)
    except NotHere as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        _console.print("\nstopped")
        sys.exit(130)
    finally:
        if arguments.workspace is None:
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.workspace is not None:
        _say_where(folder)


def run(shop: Shop, target: str, folder: Path) -> None:
    """The story, from an empty folder to the comparison."""
    port = free_port()
    _say("1", "a PostgreSQL with a shop; its customers do not stop")
    with shop.open():
        with _served(folder, port) as server:
            _create(shop, port)
            _deliver(target, port)
            _say("2", f"headwater follows it: psql -h 127.0.0.1 -p {port} -U root dev")
            with _bars() as bars:
                tasks = _follow(bars, port, {}, until=40.0)
                server.kill()
                _console.print(
                    f"   [red]kill -9[/red] in the middle, after {shop.transactions:,} transactions"
                )
                with _served(folder, port):
                    _console.print("   [green]started again[/green] on the same workspace")
                    _follow(bars, port, tasks, until=100.0)
                    _no_half_transactions(port)
        # The second engine has ended by itself; a third one finds everything.
    with _served(folder, port):
        _say("3", f"the shop has closed after {shop.transactions:,} transactions; compared with it")
        _compare(shop, port)
        _compare_target(target, port)


@contextmanager
def _served(folder: Path, port: int) -> Iterator[ChildProcess]:
    command = ["-m", "headwater.cli.main", "serve", "--workspace", str(folder)]
    command += ["--listen", f"127.0.0.1:{port}"]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    with ChildProcess(*command) as server:
        server.wait_for_line("ready", timeout=120)
        yield server


@contextmanager
def _client(port: int) -> Iterator[Any]:
    address = f"postgresql://root@127.0.0.1:{port}/dev"
    with psycopg.connect(address, autocommit=True) as client:
        yield client


def _create(shop: Shop, port: int) -> None:
    address = urlparse(shop.url)
    with _client(port) as client:
        client.execute(
            f"CREATE SOURCE shop WITH (connector = 'postgres-cdc', hostname = '{address.hostname}',"
            f" port = '{address.port}', username = 'postgres', database.name = 'postgres')"
        )
        for table in TABLES:
            client.execute(
                f"CREATE TABLE {table} (*) FROM shop TABLE 'public.{table}' WITH"
                " (backfill.num_rows_per_split = '5000', backfill_rate_limit = '0')"
            )
        for name, query in VIEWS.items():
            client.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        for table in TABLES:
            # So slow that there is something to see, and to kill.
            client.execute(f"ALTER TABLE {table} SET BACKFILL_RATE_LIMIT = {RATE}")


def _deliver(target: str, port: int) -> None:
    """Have a view delivered into a second PostgreSQL."""
    address = urlparse(target)
    with _client(port) as client:
        client.execute(
            f"CREATE SINK {DELIVERED}_out FROM {DELIVERED} WITH (connector = 'postgres',"
            f" host = '{address.hostname}', port = '{address.port}', user = 'postgres',"
            f" database = 'postgres', table = '{DELIVERED}', primary_key = 'country, status')"
        )


def _bars() -> Progress:
    return Progress(
        TextColumn("   {task.description:12}"),
        BarColumn(),
        TextColumn("{task.percentage:5.1f}%  {task.fields[said]}"),
        console=_console,
    )


def _follow(
    bars: Progress, port: int, tasks: dict[str, TaskID], *, until: float
) -> dict[str, TaskID]:
    """Move the bars with what SHOW JOBS says, until the larger table is so far."""
    tasks = tasks or {t: bars.add_task(t, total=100.0, said="") for t in TABLES}
    with _client(port) as client:
        while True:
            said = {row[1].split()[2]: row[3] for row in client.execute("SHOW JOBS").fetchall()}
            for table, task in tasks.items():
                percent, more = _progress(said.get(table))
                bars.update(task, completed=percent, said=more)
            if _progress(said.get(TABLES[-1]))[0] >= until:
                return tasks
            time.sleep(0.2)


def _progress(said: str | None) -> tuple[float, str]:
    if said is None:
        return 100.0, "follows the log"
    found = _PERCENT.search(said)
    return (float(found[1]), found[2] or "") if found else (0.0, said)


def _no_half_transactions(port: int) -> None:
    """What was paid is on the customers' balances, at whatever epoch one looks."""
    with _client(port) as client:
        for _ in range(5):
            paid, held = client.execute(
                "SELECT (SELECT amount FROM paid), (SELECT sum(balance) FROM customers)"
            ).fetchone()
            if paid != held:
                sys.exit(f"half a transaction was seen: {paid} paid, {held} on balances")
            time.sleep(0.3)
    _console.print("   paid orders and balances agree at every epoch looked at, shop still open")


def _compare(shop: Shop, port: int) -> None:
    """Rows of the shop against rows of the tables and views, both ways."""
    queries = {table: f"SELECT * FROM {table}" for table in TABLES}
    plain = VIEWS["countries"].replace("FROM sales", f"FROM ({VIEWS['sales']}) sales")
    wanted = {name: shop.rows(query) for name, query in queries.items()}
    wanted |= {name: shop.rows(query) for name, query in {**VIEWS, "countries": plain}.items()}
    with _client(port) as client:
        client.execute("WAIT")
        for name, theirs in wanted.items():
            ours = _caught_up(client, name, theirs)
            missing, extra = set(theirs) - set(ours), set(ours) - set(theirs)
            if missing or extra or len(ours) != len(theirs):
                sys.exit(f"{name}: {len(missing)} rows missing, {len(extra)} too many")
            _console.print(f"   {name:10} {len(ours):>8,} rows  [green]equal[/green] both ways")


def _compare_target(target: str, port: int) -> None:
    """Rows of the view against rows of the second PostgreSQL, both ways."""
    query = f"SELECT country, status, orders, amount FROM {DELIVERED}"
    with _client(port) as client:
        ours = client.execute(query).fetchall()
    deadline = time.monotonic() + _CAUGHT_UP_S
    with psycopg.connect(target, autocommit=True) as second:
        theirs = second.execute(query).fetchall()
        while sorted(theirs) != sorted(ours) and time.monotonic() < deadline:
            time.sleep(0.1)
            theirs = second.execute(query).fetchall()
    if sorted(theirs) != sorted(ours):
        sys.exit(f"the target of the sink has {len(theirs)} rows, the view {len(ours)}")
    _console.print(
        f"   {DELIVERED:10} {len(ours):>8,} rows  [green]equal[/green] in the second PostgreSQL"
    )


def _caught_up(client: Any, name: str, theirs: Sequence[Any]) -> list[Any]:
    """Our rows, once the log has been read to where the shop closed."""
    deadline = time.monotonic() + _CAUGHT_UP_S
    while True:
        client.execute("FLUSH")
        ours: list[Any] = client.execute(f"SELECT * FROM {name}").fetchall()
        if set(ours) == set(theirs) or time.monotonic() > deadline:
            return ours


def _say_where(folder: Path) -> None:
    """How to look around in what is kept."""
    orders = next(folder.glob("**/orders-*"), folder)
    _say("4", "to look around:")
    _console.print(f"   headwater serve --workspace {folder}    and then")
    _console.print("   psql -h 127.0.0.1 -p 4566 -U root dev -c 'SELECT * FROM countries'")
    _console.print(f"   duckdb -c \"SELECT count(*) FROM delta_scan('{orders}')\"")


def _say(number: str, text: str) -> None:
    _console.print(f"[bold]{number}[/bold]  {text}")


if __name__ == "__main__":
    main()
