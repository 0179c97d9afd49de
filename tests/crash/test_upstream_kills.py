"""A follower survives `kill -9` at each point of its path, and repeats and loses nothing."""

from pathlib import Path

import pytest

from creating_kit import NAMED, PLAIN
from engine_kit import lost_files
from headwater.crash_points import POINTS
from headwater.testing.processes import ChildProcess
from upstream_kit import check_history, engine_at
from views_engine_kit import create, gone, write

CHILD = Path(__file__).resolve().parent / "upstream_child.py"
KILLED = -9
POINTS_IN_TURN = (
    "upstream.after_pin",
    "upstream.after_slice:2",
    "upstream.after_stage",
    "upstream.after_slice",
    "upstream.after_stage",
)
"""The last two are met in the change log, since the upstream is written between two lives."""


def test_every_point_is_tried():
    tried = {point.split(":")[0] for point in POINTS_IN_TURN}
    assert tried == {point for point in POINTS if point.startswith("upstream.")}


async def written(up, number):
    async with engine_at(up) as there:
        if not number:
            await create(there, "t", PLAIN)
            await create(there, "names", NAMED)
            for start in range(0, 200, 50):
                await write(there, "t", *[(i, i % 3, i) for i in range(start, start + 50)])
                await there.flush()
        await write(there, "t", (3, 7, number), (300 + number, 1, 1))
        await gone(there, "t", (20 + number,))
        await write(there, "names", (number, f"group {number}"))
        return await there.flush()


@pytest.mark.timeout(1500)
async def test_killed_at_each_point_in_turn(tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    for number, point in enumerate(POINTS_IN_TURN):
        last = await written(up, number)
        with ChildProcess(CHILD, down, up, str(last), crash=point, forked=True) as child:
            code = child.wait(timeout=240)
        assert code == KILLED, f"{point}: {code} {child.output[-500:]} {child.errors[-4000:]}"
    with ChildProcess(CHILD, down, up, str(await written(up, 9)), forked=True) as child:
        child.wait_for_line("^done", timeout=240)
        assert child.wait(timeout=120) == 0, child.errors[-4000:]
    async with engine_at(down) as here, engine_at(up) as there:
        for name in ("t", "names"):
            check_history(here, there, name)
        assert not (lost := lost_files(here)), lost
