"""One engine per workspace: refusal, take-over, a frozen engine that wakes up, and restarts."""

import os
import sqlite3
import time
from pathlib import Path

import psutil
import pytest
from lives import ENDED_BY_ITSELF, KILLED, NOT_STARTED, Lives

from engine_kit import CALM, check_workspace
from headwater.errors import Fenced, WorkspaceInUse
from headwater.runtime.engine import Engine
from headwater.testing.processes import ChildProcess

pytestmark = pytest.mark.timeout(900)


def freeze_between_commits(child: ChildProcess, workspace: Path) -> None:
    """Freeze the process at a moment when it does not hold SQLite's lock.

    A process that is frozen inside a transaction keeps the file locked; nobody can take over
    from it then, and the error says so. That is SQLite's nature and is tested elsewhere.
    """
    for _ in range(200):
        child.freeze()
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        ledger = sqlite3.connect(workspace / "ledger.db", timeout=0.05, isolation_level=None)
        try:
            ledger.execute("BEGIN IMMEDIATE")
            ledger.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            child.thaw()
            time.sleep(0.013)
        finally:
            ledger.close()
    raise AssertionError("the process holds the ledger's lock all the time")


def published(workspace: Path) -> dict[Path, bytes]:
    """Every version of the tables that stay; the child also drops one on its way."""
    logs = (workspace / "tables").glob("*/_delta_log/0*.json")
    return {path: path.read_bytes() for path in logs if "things" not in str(path)}


@pytest.mark.parametrize("moment", [0.0, 0.11, 0.37])
async def test_a_frozen_engine_that_wakes_up_is_fenced_and_writes_nothing(moment, tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=2500, settings=["retention_s=3600"])
    with lives.begin("--endless") as first:
        first.wait_for_line("ready", timeout=120)
        time.sleep(moment)
        freeze_between_commits(first, lives.workspace)

        with lives.begin() as refused:
            assert refused.wait(timeout=120) == NOT_STARTED
        assert "WorkspaceInUse" in refused.errors
        assert f"pid {first.pid} on " in refused.errors
        assert "HINT: Stop it first, or take over by force" in refused.errors

        with lives.begin("--take-over", "--endless") as second:
            second.wait_for_line("^epoch", timeout=120)
            seen = published(lives.workspace)
            first.thaw()
            assert first.wait(timeout=120) == ENDED_BY_ITSELF
            ended = [line for line in first.errors.splitlines() if line.startswith("ended:")]
            assert ended[0].startswith("ended: Fenced: term 1 no longer owns this ledger")
            first.wait_until_gone(timeout=60)
            second.wait_for_line("^done", timeout=120)
            now = published(lives.workspace)
            assert {path: now.get(path) for path in seen} == seen
            second.terminate()
            assert second.wait(timeout=120) == 0
    await check_workspace(lives.workspace, lives.sources(), retention_s=3600)


async def test_two_engines_that_start_at_the_same_moment(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=800)
    with lives.begin("--endless") as one, lives.begin("--endless") as other:
        deadline = time.monotonic() + 120
        while one.running and other.running and time.monotonic() < deadline:
            time.sleep(0.02)
        loser, winner = (other, one) if one.running else (one, other)
        assert loser.wait(timeout=60) == NOT_STARTED
        assert f"pid {winner.pid} on " in loser.errors
        winner.wait_for_line("^done", timeout=120)
        winner.terminate()
        assert winner.wait(timeout=120) == 0
    await check_workspace(lives.workspace, lives.sources())


async def test_killed_and_started_again_at_once(tmp_path):
    lives = Lives(workspace=tmp_path / "w")
    for _ in range(3):
        with lives.begin() as child:
            child.wait_for_line("^(ready|epoch)", timeout=120)
            assert child.kill() == KILLED
    lives.finish()
    await check_workspace(lives.workspace, lives.sources())


async def test_the_refusal_and_the_fence_inside_one_process(tmp_path):
    async with Engine(tmp_path, settings={**CALM, "barrier_interval_ms": 50}) as first:
        with pytest.raises(WorkspaceInUse, match=f"pid {os.getpid()} on ") as refused:
            await Engine(tmp_path).start()
        assert "term 1" in refused.value.detail
        assert "by force" in refused.value.hint
        async with Engine(tmp_path, settings=CALM, take_over=True) as second:
            assert second.term == first.term + 1
            with pytest.raises(Fenced):
                await first.flush()
            with pytest.raises(Fenced):
                await first.wait_failed()
            assert isinstance(first.failure, Fenced)
            await second.flush()
    async with Engine(tmp_path, settings=CALM) as third:
        assert third.term == second.term + 1
