"""Views that are being created survive `kill -9`: at each point of the hand-over, and at random.

A view that a life has begun is gone on with by the next one, without being asked. In the end each
view is its query over the tables, both ways, at the epoch that it joined and at all later ones.
"""

import os
import sqlite3
import time
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from engine_kit import CALM, lost_files, plain
from headwater.crash_points import POINTS
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.runtime.engine import Engine
from headwater.state.file_name import RECEIPT_FOLDER
from headwater.testing.oracle import apply_exact, assert_same_rows
from headwater.testing.processes import ChildProcess
from views_engine_kit import check, rows_at
from views_kit import quick

__all__ = ["quick"]

CHILD = Path(__file__).resolve().parent / "creating_child.py"
KILLED = -9
KILLS = int(os.environ.pop("HEADWATER_KILLS", "2"))
"""Random kills of one long backfill; the full figure is 50.

Taken out of the environment, since an engine reads whatever begins so as a setting.
"""


def started(workspace, *given, crash=None):
    return ChildProcess(CHILD, workspace, *given, crash=crash, forked=True)


def finished(workspace, *given):
    with started(workspace, *given) as child:
        child.wait_for_line("^done", timeout=300)
        assert child.wait(timeout=120) == 0, child.errors[-4000:]


class Replayed:
    """A table from an epoch on, carried along by its own change log."""

    def __init__(self, table, since, upto):
        self.table = table
        self.rows = {}
        self._take = partial(apply_exact, self.rows, key=table.schema.key)
        self._take(_inserts(table.rows(since)))
        self._at = since
        self.epochs = [entry.epoch for entry in table.log(since, upto)]

    def go_to(self, epoch):
        while self._at < epoch:
            later = min((each for each in self.epochs if each > self._at), default=epoch)
            if later <= epoch:
                self._take(self.table.change_rows(self._at, later))
            self._at = min(later, epoch)


def _inserts(rows):
    kinds = pa.array([ChangeType.INSERT.value] * rows.num_rows, pa.string())
    return plain(rows).append_column(CHANGE_TYPE, kinds)


def check_since_it_joined(engine, view):
    """At the epoch that took it along, and at every later one that changed it or its tables.

    The rows are replayed from change logs, and SQLite computes the query over them.
    """
    last = engine.visible
    view_rows = Replayed(engine.store[view.id], view.created, last)
    reads = [engine.store[id_] for id_ in sorted(engine.keeper.views[view.id].reads)]
    tables = [Replayed(table, view.created, last) for table in reads]
    epochs = sorted({epoch for each in (view_rows, *tables) for epoch in each.epochs})
    assert len(epochs) > 5
    names = [column.name for column in view.columns]
    query = view.detail.query.text.split(" as ", 1)[1]
    with closing(sqlite3.connect(":memory:")) as database:
        for epoch in [view.created, *epochs]:
            for each in (view_rows, *tables):
                each.go_to(epoch)
            wanted = answered(database, engine, tables, query)
            found = [{name: whole(row[name]) for name in names} for row in view_rows.rows.values()]
            assert_same_rows(found, [dict(zip(names, row, strict=True)) for row in wanted])
    # What is replayed is also what a reader of these epochs gets.
    for epoch in {view.created, epochs[len(epochs) // 2], last}:
        assert_same_rows(
            rows_at(engine, f"select * from {view.name}", epoch), rows_at(engine, query, epoch)
        )
    for each in (view_rows, *tables):
        assert_same_rows(plain(each.table.rows(last)), list(each.rows.values()))


def whole(value):
    """SQLite sums whole numbers up to one of the same kind, and we to a decimal."""
    return int(value) if isinstance(value, Decimal) else value


def answered(database, engine, tables, query):
    for each in tables:
        names = each.table.schema.names
        name = engine.catalog.snapshot().table_by_id(each.table.id).name
        database.execute(f"drop table if exists {name}")
        database.execute(f"create table {name} ({', '.join(names)})")
        marks = ", ".join("?" for _ in names)
        rows = [tuple(row[column] for column in names) for row in each.rows.values()]
        database.executemany(f"insert into {name} values ({marks})", rows)
    return database.execute(query).fetchall()


async def checked(workspace, spark):
    async with Engine(workspace, spark=spark, settings=CALM) as engine:
        assert not engine.creating.running
        assert len(engine.catalog.snapshot().materialized_views) == 2
        assert not engine.ledger.pins()
        check(engine)
        for view in engine.catalog.snapshot().materialized_views:
            check_since_it_joined(engine, view)
        assert not (lost := lost_files(engine)), lost


POINTS_IN_TURN = (
    "snapshot.after_slice:2",
    "snapshot.after_stage:2",
    "snapshot.before_merge",
    "snapshot.in_merge",
    "snapshot.after_merge",
)
"""Each met by a life that follows one that was killed at the point before."""


def test_every_point_is_tried():
    tried = {point.split(":")[0] for point in POINTS_IN_TURN}
    assert tried == {point for point in POINTS if point.startswith("snapshot.")}


@pytest.mark.timeout(1800)
async def test_killed_at_each_point_in_turn(tmp_path, quick):
    for point in POINTS_IN_TURN:
        with started(tmp_path / "w", crash=point) as child:
            code = child.wait(timeout=300)
        assert code == KILLED, f"{point}: {code} {child.output[-500:]} {child.errors[-4000:]}"
    finished(tmp_path / "w")
    await checked(tmp_path / "w", quick)


@pytest.mark.timeout(1200 + 30 * KILLS)
async def test_killed_at_random_during_one_long_backfill(tmp_path, quick):
    dice = Random(KILLS)
    # Two minutes of reading: no machine is so slow that a life ends before its epochs are seen.
    given = ("--rows", "1200", "--limit", "10")
    for number in range(KILLS):
        with started(tmp_path / "w", *given) as child:
            child.wait_for_line("^ready", timeout=300)
            for _ in range(dice.randrange(5, 40)):
                child.wait_for_line("^epoch", timeout=120)
            assert not any(line.startswith("done") for line in child.output.splitlines()), number
            child.kill()
    finished(tmp_path / "w", "--rows", "1200")
    await checked(tmp_path / "w", quick)


def receipts_appear(workspace, child, timeout=180.0):
    """Wait until tasks have left some; False when the views are there before one was seen."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if any(workspace.glob(f"tables/*/{RECEIPT_FOLDER}/*.arrow")):
            return True
        if "view " in child.output:
            return False
        time.sleep(0.005)
    raise AssertionError(f"no task leaves a receipt: {child.errors[-4000:]}")


@pytest.mark.timeout(1200 + 30 * KILLS)
async def test_killed_while_tasks_leave_receipts(tmp_path, quick):
    """What they have read counts in the next life; what is half written does not."""
    dice = Random(KILLS + 1)
    workspace, given = tmp_path / "w", ("--rows", "4000", "--epochs", "40")
    killed = 0
    for _ in range(KILLS):
        with started(workspace, *given) as child:
            child.wait_for_line("^ready", timeout=300)
            if not receipts_appear(workspace, child):
                break
            time.sleep(dice.random() * 0.4)
            child.kill()
            killed += 1
    assert killed
    finished(workspace, *given)
    await checked(workspace, quick)
    assert not list(workspace.glob(f"tables/*/{RECEIPT_FOLDER}/*.arrow"))
