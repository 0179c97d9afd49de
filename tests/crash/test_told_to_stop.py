"""SIGTERM and Ctrl-C: the engine makes a last checkpoint and ends with code 0, leaving nothing."""

import time

import pytest
from lives import Lives

from engine_kit import CALM, check_rows
from headwater.runtime.engine import Engine


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
@pytest.mark.parametrize("when", ["^ready", "^epoch"])
async def test_told_to_stop(how, when, tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000)
    with lives.begin("--endless") as child:
        child.wait_for_line(when, timeout=60)
        time.sleep(0.3)
        asked_at = time.monotonic()
        getattr(child, how)()
        assert child.wait(timeout=60) == 0, child.errors
        assert time.monotonic() - asked_at < 10
        child.wait_until_gone(timeout=5)
    assert child.errors == ""
    last = int(child.output.split("epoch ")[-1].split()[0])
    async with Engine(lives.workspace, settings=CALM) as engine:
        assert engine.visible >= last
        await engine.pause()
        check_rows(engine, lives.sources())


async def test_told_to_stop_with_spark_running(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000)
    with lives.begin("--endless", "--spark") as child:
        child.wait_for_line("^ready", timeout=90)
        assert len(child.family()) > 1
        child.terminate()
        assert child.wait(timeout=60) == 0, child.errors
        child.wait_until_gone(timeout=10)


async def test_killed_with_spark_running_leaves_no_process(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000)
    with lives.begin("--endless", "--spark") as child:
        child.wait_for_line("^ready", timeout=90)
        child.kill()
        child.wait_until_gone(timeout=45)


async def test_told_twice(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000)
    with lives.begin("--endless") as child:
        child.wait_for_line("^epoch", timeout=60)
        child.terminate()
        child.terminate()
        child.interrupt()
        assert child.wait(timeout=60) == 0, child.errors
