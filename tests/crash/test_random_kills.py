"""kill -9 at random moments, again and again, under load; the same truth at the end.

Some kills come right after the start, while the engine recovers or creates, and with one of the
seeds while it imports. With long retention every version that was ever published can still be
read, so the bank's total is looked at in all of them: no reader has seen half an epoch at any
time.
"""

import time
from random import Random

import pytest
from lives import KILLED, Lives

from engine_kit import check_bank_total, check_workspace

KILLS = 16


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_at_random_moments(seed, tmp_path):
    random = Random(seed)
    keeps_all = seed == 1
    retention = "retention_s=86400" if keeps_all else "retention_s=0"
    lives = Lives(workspace=tmp_path / "w", limit=4000, settings=[retention], forked=not keeps_all)
    for _ in range(KILLS // 2):
        with lives.begin("--endless") as child:
            if random.random() < 0.7:
                child.wait_for_line("^(ready|epoch)", timeout=120)
            time.sleep(random.random() * 0.9)
            assert child.running, child.errors
            assert child.kill() == KILLED
    lives.finish()
    sources = lives.sources()
    if keeps_all:
        assert check_bank_total(lives.workspace, sources["bank"].total) > 50
    # Maintenance must not forget here what the lives before have kept.
    await check_workspace(lives.workspace, sources, retention_s=86400)
