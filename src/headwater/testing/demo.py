"""`make demo`: two tables, a crash in the middle, and the proof that nothing was lost.

A bank moves money between accounts, thousands of transfers a second. An engine in a process of
its own follows it into two Delta tables. In the middle it is killed with SIGKILL and started
again. In the end both tables are compared with the bank, row by row and in both directions, by
Spark and by delta-rs, and the money is counted at every epoch that was published.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch, epoch_time, system_clock
from headwater.model.reserved import VNODE
from headwater.session.synchronous import Headwater
from headwater.testing.bank_source import BankSource
from headwater.testing.oracle import assert_same_rows
from headwater.testing.processes import ChildProcess
from headwater.testing.source_kinds import bank

ACCOUNTS = 1000
RATE = 10_000
SECONDS = 10
SETTINGS = {"barrier_interval_ms": 250, "maintenance_interval_s": 1.0, "fold_files": 8}

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
        run(folder)
    except KeyboardInterrupt:
        _console.print("\nstopped")
        sys.exit(130)
    finally:
        if arguments.workspace is None:
            shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path) -> None:
    """The story, from an empty folder to the comparison."""
    limit = RATE * SECONDS
    started = system_clock() + timedelta(seconds=1)
    options = {
        "seed": 7,
        "accounts": ACCOUNTS,
        "rate": RATE,
        "start": started.isoformat(),
        "limit": limit,
    }
    source = bank("bank", options)
    assert isinstance(source, BankSource)
    _create(folder, source, options)
    _say("1", f"a workspace with two tables: {', '.join(source.schemas)}")
    _say("2", f"a bank with {ACCOUNTS:,} accounts makes {RATE:,} transactions a second")
    url = f"sqlite:///{folder / 'ledger.db'}"
    columns = (
        TextColumn("   {task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:>12}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console) as progress:
        task = progress.add_task("transactions in the ledger", total=limit, speed="")
        with _engine(folder) as engine:
            _follow(progress, task, url, until=limit * 2 // 5)
            engine.kill()
            before, position = _ledger_state(url)
            progress.console.print(
                f"[red]   kill -9[/red] at transaction {position:,}, "
                f"epoch {before} of {epoch_time(before):%H:%M:%S}"
            )
        time.sleep(0.5)
        with _engine(folder) as engine:
            progress.console.print("[green]   started again[/green] on the same workspace")
            _follow(progress, task, url, until=limit)
            engine.terminate()
            engine.wait(timeout=60)
    _compare(folder, source)
    _count_money(folder, source)


VIEWS = {
    "held": "select count(*) as accounts, sum(balance) as held from accounts",
    "richest": "select id, owner, balance from accounts order by balance desc, id limit 10",
    "on_the_way": "select count(*) as transfers, sum(amount) as amount from transfers",
}


def _create(folder: Path, source: BankSource, options: dict[str, object]) -> None:
    with Headwater(folder) as hw:
        hw.create_source("bank", "bank", options, tables=source.schemas)
        for name, query in VIEWS.items():
            hw.sql(f"create materialized view {name} as {query}")


def _engine(folder: Path) -> ChildProcess:
    command = ["-m", "headwater.cli.main", "run", "--workspace", str(folder)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    engine = ChildProcess(*command)
    engine.wait_for_line("ready", timeout=60)
    return engine


def _follow(progress: Progress, task: TaskID, url: str, *, until: int) -> None:
    """Move the bar with the position in the ledger."""
    _, last = _ledger_state(url)
    while last < until:
        time.sleep(0.25)
        _, position = _ledger_state(url)
        progress.update(task, completed=position, speed=f"{(position - last) * 4:,}/s")
        last = position


def _ledger_state(url: str) -> tuple[Epoch, int]:
    ledger = Ledger.open(url)
    try:
        return ledger.last_epoch(), int(ledger.facts().positions.get("bank") or 0)
    finally:
        ledger.close()


def _compare(folder: Path, source: BankSource) -> None:
    """Rows of the bank against rows of the tables, both ways, by two readers."""
    with Headwater(folder) as hw:
        epoch = hw.flush()
        position = hw.engine.position("bank")
        assert position is not None
        expected = source.oracle_at(position)
        _say("3", f"compared with the bank at transaction {int(position):,}, epoch {epoch}")
        for name in source.schemas:
            wanted = list(expected[name].values())
            by_spark = hw.table(name, epoch).toArrow()
            assert_same_rows(by_spark, wanted)
            path = hw.stored(name).storage.url
            by_delta = pa.table(DeltaTable(path).scan())
            assert_same_rows(by_delta, wanted)
            assert VNODE not in by_delta.column_names
            _console.print(
                f"   {name:10} {len(wanted):>7,} rows  Spark [green]equal[/green]  "
                f"delta-rs [green]equal[/green]"
            )
        for name, query in VIEWS.items():
            rows = hw.table(name, epoch).toArrow()
            assert_same_rows(rows, hw.sql(query, epoch=epoch).toArrow())
            _console.print(
                f"   {name:10} {rows.num_rows:>7,} rows  "
                "its query, recomputed, [green]equal[/green]"
            )


def _count_money(folder: Path, source: BankSource) -> None:
    """At every published version of both tables the sum is the same."""
    total = sum(row["balance"] for row in source.oracle_at("1")["accounts"].values())
    seen = 0
    for totals in _totals(folder):
        if totals != total:
            sys.exit(f"money is missing: {totals} instead of {total}")
        seen += 1
    _say("4", f"the money was counted at {seen} epochs: always {total:,}")


def _totals(folder: Path) -> Iterator[int]:
    """The money in both tables, at every epoch that changed one of them."""
    with Headwater(folder) as hw:
        accounts, transfers = hw.stored("accounts"), hw.stored("transfers")
        for record in hw.engine.ledger.records(hw.engine.ledger.floor()):
            if not record.tables or record.epoch < accounts.manifest().horizon:
                continue
            moved = transfers.rows(record.epoch).column("amount")
            held = accounts.rows(record.epoch).column("balance")
            if len(held):
                yield int((pc.sum(held).as_py() or 0) + (pc.sum(moved).as_py() or 0))


def _say(number: str, text: str) -> None:
    _console.print(f"[bold]{number}[/bold]  {text}")


if __name__ == "__main__":
    main()
