"""History that a new view needs and that is gone: visible, isolated, and nothing is left behind.

A pin keeps what a view needs, whatever the retention. Here somebody takes it away.
"""

import asyncio

import pytest

from creating_kit import VIEWS, begin, tables, written
from engine_kit import CALM, heard, lost_files
from headwater.backfill.snapshot.machine import Phase, SnapshotBackfillMachine
from headwater.errors import HistoryGone
from headwater.observe.events import EventKind
from headwater.runtime.creating.job import BACKFILL
from headwater.runtime.engine import Engine
from views_engine_kit import check, keep, write
from views_kit import quick

__all__ = ["quick"]

SETTINGS = {
    **CALM,
    "backfill_slice_bytes": 1024,
    "barrier_interval_ms": 30,
    "fold_files": 2,
    "retention_s": 0,
    "manifest_every": 3,
    "restart_backoff_ms": 10,
    "restart_backoff_max_ms": 50,
}


def engine_at(folder, spark):
    return Engine(folder, spark=spark, settings=SETTINGS)


async def until(condition, timeout=120.0):
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


async def lose_history(engine, creating):
    """Let go of what a view needs, and have the tables forget it."""
    needed = engine.ledger.pins()[creating.job.key]
    tables_ = [engine.store[id_] for id_ in sorted(creating.view.reads)]
    engine.ledger.unpin(creating.job.key)
    async with asyncio.timeout(60):
        while not all(table.manifest().horizon > needed for table in tables_):
            await write(engine, "t", (1, 1, 1))
            await write(engine, "names", (1, "one"))
            await engine.flush()
            await engine.maintain()


async def assert_gone_alone(engine, name, live):
    """Nothing of a view is left, and others go on."""
    await until(lambda: not engine.creating.running)
    await heard(engine, EventKind.JOB_FAILED, "no longer kept")
    assert engine.failure is None
    assert not engine.catalog.snapshot().objects
    assert {table.name for table in engine.catalog.snapshot().tables} == {"t", "names", *live}
    assert not engine.ledger.pins()
    stored = {key: text for key, text in engine.committer.progress.items() if text}
    assert not [key for key in stored if key.startswith(BACKFILL)]
    before = engine.visible
    await write(engine, "t", (77, 3, 1234))
    await engine.flush()
    assert engine.visible > before
    check(engine, *live)
    again = await begin(engine, name, VIEWS["joined"])
    await asyncio.wait_for(asyncio.shield(again.done), 120)
    check(engine, name)
    assert not (lost := lost_files(engine)), lost


@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", [Phase.SNAPSHOT, Phase.LOG])
async def test_a_view_whose_history_is_gone_fails_alone(tmp_path, quick, monkeypatch, phase):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=2)
        await keep(engine, "live", "select g, sum(v) s from t group by g")
        with monkeypatch.context() as held:
            held.setattr(SnapshotBackfillMachine, "_follow", lambda self, now, log: None)
            made = await begin(engine, "new", VIEWS["joined"], limit=3)
            executor = made.job.executor
            await until(lambda: executor.machine.begun)
            if phase is Phase.LOG:
                await engine.ddl.limit_view(made.intent, None)
                await until(lambda: executor.machine.phase is Phase.LOG)
            await engine.ddl.limit_view(made.intent, 0)
            await until(lambda: executor.settled)
            assert executor.machine.phase is phase
            await lose_history(engine, made)
        if phase is Phase.SNAPSHOT:
            # Who follows the log finds out without being asked to do anything.
            await engine.ddl.limit_view(made.intent, None)
        with pytest.raises(HistoryGone, match="no longer kept"):
            await asyncio.wait_for(asyncio.shield(made.done), 120)
        await assert_gone_alone(engine, "new", ["live"])


@pytest.mark.timeout(600)
async def test_an_engine_that_starts_without_it_says_so_too(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=2)
        await keep(engine, "live", "select g, sum(v) s from t group by g")
        made = await begin(engine, "new", VIEWS["joined"], limit=3)
        await until(lambda: made.job.executor.machine.begun)
        await engine.ddl.limit_view(made.intent, 0)
        await until(lambda: made.job.executor.settled)
        await lose_history(engine, made)
    async with engine_at(tmp_path, quick) as engine:
        await assert_gone_alone(engine, "new", ["live"])


async def test_a_pin_holds_against_every_retention(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=2)
        made = await begin(engine, "new", VIEWS["joined"], limit=0)
        needed = engine.ledger.pins()[made.job.key]
        async with written(engine, pause=0.02):
            for _ in range(6):
                await engine.flush()
                await engine.maintain()
        assert all(engine.store[id_].manifest().horizon <= needed for id_ in made.view.reads)
        await engine.ddl.limit_view(made.intent, None)
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        await engine.flush()
        check(engine)
