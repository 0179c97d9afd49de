"""Flush, pause, resume, throttle, live settings, and two sources of which one fails."""

import asyncio
import time
from datetime import timedelta

import pytest

from engine_kit import CALM, Tap, bank_tap, check_rows, heard, reaches
from headwater.config import Settings
from headwater.errors import ConfigError, SourceUnavailable, UserError
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine

QUICK = {**CALM, "barrier_interval_ms": 20, "restart_backoff_ms": 10}
QUICK |= {"restart_backoff_max_ms": 100}
THINGS = {"things": {"columns": "id I  name T", "key": ["id"]}}


def shop_tap(upto: int) -> Tap:
    return Tap("generated", "shop", {"seed": 1, "tables": THINGS, "keys": 50}, upto)


async def test_a_flush_has_what_was_there_before_it(tmp_path):
    bank = bank_tap(0)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        last = engine.visible
        for upto in (1, 10, 500):
            bank.open(upto)
            epoch = await engine.flush()
            assert epoch > last
            assert engine.visible == epoch
            assert engine.position("bank") == str(upto)
            check_rows(engine, {"bank": bank.truth})
            last = epoch


async def test_many_flushes_at_once(tmp_path):
    bank = bank_tap(500)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        epochs = await asyncio.gather(*(engine.flush() for _ in range(30)))
        assert sorted(epochs) == epochs
        assert engine.visible >= epochs[-1]
        check_rows(engine, {"bank": bank.truth})


async def test_pause_stops_reading_and_not_epochs(tmp_path):
    bank = bank_tap(100)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await reaches(engine, "bank", 100)
        await engine.pause()
        bank.open(300)
        before = await engine.flush()
        await asyncio.sleep(0.3)
        after = await engine.flush()
        assert after > before
        assert engine.position("bank") == "100"
        await engine.resume()
        await reaches(engine, "bank", 300)


async def test_a_paused_engine_is_running_again_after_a_restart(tmp_path):
    bank = bank_tap(100)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await engine.pause()
        bank.open(300)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await reaches(engine, "bank", 300)


async def test_throttle(tmp_path):
    bank = bank_tap(0)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await engine.throttle("bank", 0)
        bank.open(500)
        await asyncio.sleep(0.3)
        await engine.flush()
        assert engine.position("bank") in (None, "0")
        await engine.throttle("bank", None)
        await reaches(engine, "bank", 500)
        check_rows(engine, {"bank": bank.truth})


async def test_settings_that_change_while_running(tmp_path):
    bank = bank_tap(10)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        before = await engine.flush()
        await asyncio.sleep(0.3)
        assert engine.visible == before, "the interval is a minute"
        changed = await engine.change_settings({"barrier_interval_ms": 20})
        assert isinstance(changed, Settings)
        began = time.monotonic()
        while engine.visible == before:
            assert time.monotonic() - began < 50
            await asyncio.sleep(0.01)
        event = await heard(engine, EventKind.SETTINGS_CHANGED, "barrier_interval_ms = 20")
        assert event.subject == "settings"
        with pytest.raises(ConfigError, match="cannot change while the engine runs"):
            await engine.change_settings({"fold_files": 5})
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        assert engine.settings.now.barrier_interval_ms == CALM["barrier_interval_ms"]


async def test_commands_to_an_engine_that_has_stopped(tmp_path):
    engine = Engine(tmp_path, settings=CALM)
    await engine.start()
    await engine.stop()
    await engine.stop()
    for command in (engine.flush, engine.pause, engine.resume):
        with pytest.raises(UserError, match="stopped"):
            await command()


class Failing(Tap):
    """A source that raises while it is told to."""

    error: Exception | None = None
    reads = 0

    async def read(self, after, *, max_bytes):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return await super().read(after, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom"), EventKind.ACTOR_FAILED),
        (SourceUnavailable("the server is away"), EventKind.SOURCE_UNAVAILABLE),
    ],
    ids=["bug", "away"],
)
async def test_a_failing_source_stops_no_other(error, kind, tmp_path):
    bad = Failing("bank", "bank", {"seed": 7, "accounts": 50}, 100)
    good = shop_tap(100)
    connectors = {"bank": bad, "shop": good}
    async with Engine(tmp_path, settings=QUICK, connectors=connectors) as engine:
        await bad.create(engine)
        await good.create(engine)
        await reaches(engine, "bank", 100)
        await reaches(engine, "shop", 100)
        bad.error = error
        bad.open(300)
        await heard(engine, kind, str(error))
        for upto in (200, 300, 400):
            good.open(upto)
            await reaches(engine, "shop", upto)
            check_rows(engine, {"shop": good.truth, "bank": bad.truth})
        assert engine.position("bank") == "100"
        reads, began = bad.reads, time.monotonic()
        await asyncio.sleep(0.5)
        waited = time.monotonic() - began
        assert bad.reads - reads < 120 * waited, "it is retried without a pause"
        bad.error = None
        await reaches(engine, "bank", 300)
        check_rows(engine, {"shop": good.truth, "bank": bad.truth})
        assert engine.failure is None


async def test_a_source_that_fails_at_the_start_of_an_engine(tmp_path):
    bad = Failing("bank", "bank", {"seed": 7, "accounts": 50}, 100)
    good = shop_tap(100)
    connectors = {"bank": bad, "shop": good}
    async with Engine(tmp_path, settings=QUICK, connectors=connectors) as engine:
        await bad.create(engine)
        await good.create(engine)
        await reaches(engine, "bank", 100)
    bad.error = RuntimeError("boom")
    bad.open(200)
    good.open(200)
    async with Engine(tmp_path, settings=QUICK, connectors=connectors) as engine:
        await reaches(engine, "shop", 200)
        assert engine.position("bank") == "100"
        bad.error = None
        await reaches(engine, "bank", 200)
        check_rows(engine, {"shop": good.truth, "bank": bad.truth})


async def test_an_engine_stops_while_a_source_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.runtime.engine._STOP_GRACE", timedelta(seconds=600))
    bad = Failing("bank", "bank", {"seed": 7, "accounts": 50}, 100)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bad}) as engine:
        await bad.create(engine)
        await reaches(engine, "bank", 100)
        bad.error = RuntimeError("boom")
        await heard(engine, EventKind.ACTOR_FAILED, "boom")
        began = time.monotonic()
    assert time.monotonic() - began < 120, "it waited for the source"
