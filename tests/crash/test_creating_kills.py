"""Views that are being created survive `kill -9`: at each point of the hand-over, and at random.

A view that a life has begun is gone on with by the next one, without being asked. In the end each
view is its query over the tables, both ways, at the last epoch and at those before it.
"""

import os
from pathlib import Path
from random import Random

import pytest

from engine_kit import CALM, lost_files
from headwater.crash_points import POINTS
from headwater.runtime.engine import Engine
from headwater.testing.oracle import assert_same_rows
from headwater.testing.processes import ChildProcess
from views_engine_kit import check, rows_at
from views_kit import quick

__all__ = ["quick"]

CHILD = Path(__file__).resolve().parent / "creating_child.py"
KILLED = -9
KILLS = int(os.environ.get("HEADWATER_KILLS", "4"))
"""Random kills of one long backfill; the full figure is 50."""


def started(workspace, *given, crash=None):
    return ChildProcess(CHILD, workspace, *given, crash=crash)


def finished(workspace, *given):
    with started(workspace, *given) as child:
        child.wait_for_line("^done", timeout=120)
        assert child.wait(timeout=60) == 0, child.errors[-4000:]


def check_since_it_joined(engine, view, most=12):
    """At the epoch that took it along, and at those that changed its tables since."""
    later = [
        entry.epoch
        for id_ in sorted(engine.keeper.views[view.id].reads)
        for entry in engine.store[id_].log(view.created, engine.visible)
    ]
    assert later
    query = view.detail.query.text.split(" as ", 1)[1]
    for epoch in [view.created, *Random(1).sample(later, min(most, len(later)))]:
        assert_same_rows(
            rows_at(engine, f"select * from {view.name}", epoch), rows_at(engine, query, epoch)
        )


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


@pytest.mark.timeout(600)
async def test_killed_at_each_point_in_turn(tmp_path, quick):
    for point in POINTS_IN_TURN:
        with started(tmp_path / "w", crash=point) as child:
            code = child.wait(timeout=120)
        assert code == KILLED, f"{point}: {code} {child.output[-500:]} {child.errors[-4000:]}"
    finished(tmp_path / "w")
    await checked(tmp_path / "w", quick)


@pytest.mark.timeout(1200)
async def test_killed_at_random_during_one_long_backfill(tmp_path, quick):
    dice = Random(KILLS)
    given = ("--rows", "1200", "--limit", str(max(20, 600 // KILLS)))
    for number in range(KILLS):
        with started(tmp_path / "w", *given) as child:
            child.wait_for_line("^ready", timeout=120)
            for _ in range(dice.randrange(5, 40)):
                child.wait_for_line("^epoch", timeout=60)
            assert not any(line.startswith("done") for line in child.output.splitlines()), number
            child.kill()
    finished(tmp_path / "w", "--rows", "1200")
    await checked(tmp_path / "w", quick)
