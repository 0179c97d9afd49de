"""SIGTERM and Ctrl-C: the engine makes a last checkpoint and ends with code 0, leaving nothing."""

import time

import pytest
from lives import Lives

from engine_kit import CALM, check_rows
from headwater.runtime.engine import Engine

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
@pytest.mark.parametrize("when", ["^ready", "^epoch"])
async def test_told_to_stop(how, when, tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000, forked=False)
    with lives.begin("--endless") as child:
        child.wait_for_line(when, timeout=120)
        time.sleep(0.3)
        getattr(child, how)()
        assert child.wait(timeout=120) == 0, child.errors
        child.wait_until_gone(timeout=60)
    assert child.errors == ""
    last = int(child.output.split("epoch ")[-1].split()[0])
    async with Engine(lives.workspace, settings=CALM) as engine:
        assert engine.visible >= last
        await engine.pause()
        there = {source.name for source in engine.catalog.snapshot().sources}
        sources = {name: each for name, each in lives.sources().items() if name in there}
        # Before it is ready it may not have created both.
        assert when == "^epoch" or sources.keys() == lives.sources().keys()
        check_rows(engine, sources)


async def test_told_to_stop_with_spark_running(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000, forked=False)
    with lives.begin("--endless", "--spark") as child:
        child.wait_for_line("^ready", timeout=180)
        assert len(child.family()) > 1
        child.terminate()
        assert child.wait(timeout=120) == 0, child.errors
        child.wait_until_gone(timeout=60)


async def test_killed_with_spark_running_leaves_no_process(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000, forked=False)
    with lives.begin("--endless", "--spark") as child:
        child.wait_for_line("^ready", timeout=180)
        child.kill()
        child.wait_until_gone(timeout=120)


async def test_told_twice(tmp_path):
    lives = Lives(workspace=tmp_path / "w", limit=100_000, forked=False)
    with lives.begin("--endless") as child:
        child.wait_for_line("^epoch", timeout=120)
        child.terminate()
        child.terminate()
        child.interrupt()
        assert child.wait(timeout=120) == 0, child.errors
