"""kill -9 at every named crash point, restart, and compare everything with the truth.

A point that is not passed is a failure of the test: the process then ends by itself and not by
SIGKILL. The points inside recovery are met by a process that follows one that crashed.
"""

import pytest
from lives import Lives

from engine_kit import check_workspace
from headwater.crash_points import POINTS

pytestmark = pytest.mark.timeout(900)

LATER = {
    "catalog.before_create": 3,
    "catalog.after_create": 3,
    "checkpoint.after_delta_checkpoint": 4,
    "compaction.after_files": 5,
    "retention.before_delete": 4,
    "retention.between_deletes": 9,
}
"""Which later pass of a point is tried; 8 where nothing is said."""

IN_RECOVERY = [point for point in POINTS if point.startswith("recovery.")]
_ELSEWHERE = ("cdc.", "snapshot.", "swap.", "upstream.", "sink.")
FOLLOWING = [point for point in POINTS if point.startswith(_ELSEWHERE)]
"""Points on the path of what is followed, delivered or new: the other tests of this folder."""
RUNNING = [point for point in POINTS if point not in (*IN_RECOVERY, *FOLLOWING)]


def test_every_point_is_tried():
    assert {*RUNNING, *IN_RECOVERY, *FOLLOWING} == set(POINTS)
    assert IN_RECOVERY == ["recovery.before_publish", "recovery.after_publish"]
    assert set(LATER) <= set(POINTS)


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("point", RUNNING)
async def test_killed_at(point, later, tmp_path):
    lives = Lives(workspace=tmp_path / "w")
    nth = LATER.get(point, 8) if later else 1
    lives.crash_at(f"{point}:{nth}")
    lives.finish()
    await check_workspace(lives.workspace, lives.sources())


@pytest.mark.parametrize("before", ["epoch.after_ledger:5", "publish.between_tables:6"])
@pytest.mark.parametrize("point", IN_RECOVERY)
async def test_killed_in_recovery_at(point, before, tmp_path):
    lives = Lives(workspace=tmp_path / "w")
    lives.crash_at(before)
    lives.crash_at(point)
    lives.crash_at(point)
    lives.finish()
    await check_workspace(lives.workspace, lives.sources())


async def test_killed_in_one_life_after_the_other(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=2000)
    for point in ("stage.after_files:4", "recovery.after_publish", "epoch.after_ledger:3"):
        lives.crash_at(point)
    for point in ("recovery.before_publish", "compaction.after_files:2", "epoch.before_ledger"):
        lives.crash_at(point)
    lives.finish()
    await check_workspace(lives.workspace, lives.sources())
