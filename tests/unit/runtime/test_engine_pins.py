"""Pins and horizons: what somebody still reads stays, and nobody is held up by it."""

import pytest

from headwater.errors import HistoryGone
from headwater.model.epoch import Epoch
from headwater.runtime.engine import Engine
from headwater.testing.source_kinds import bank

OPTIONS = {"seed": 3, "accounts": 20, "limit": 400}
EAGER = {"barrier_interval_ms": 20, "maintenance_interval_s": 3600, "retention_s": 0}


async def _grow(engine: Engine) -> Epoch:
    await engine.create_source("bank", "bank", OPTIONS, tables=bank("bank", OPTIONS).schemas)
    first = await engine.flush()
    table = engine.table("accounts")
    # Folding leaves files behind that only older epochs need.
    for _ in range(3):
        plan = table.plan_fold()
        if plan is not None:
            table.fold(plan)
        await engine.flush()
    return first


async def test_a_pin_set_after_the_horizon_was_chosen_wins_and_epochs_go_on(tmp_path):
    async with Engine(tmp_path, settings=EAGER) as engine:
        first = await _grow(engine)
        table = engine.table("accounts")
        engine.ledger.pin("reader", first)
        engine.committer.ask_horizons({table.id: engine.visible})
        await engine.flush()
        assert table.manifest().horizon <= first
        assert table.rows(first).num_rows == OPTIONS["accounts"]


async def test_without_a_pin_old_epochs_go(tmp_path):
    async with Engine(tmp_path, settings=EAGER) as engine:
        first = await _grow(engine)
        table = engine.table("accounts")
        engine.committer.ask_horizons({table.id: engine.visible})
        await engine.flush()
        await engine.maintain()
        with pytest.raises(HistoryGone):
            table.rows(first)


async def test_a_connector_that_cannot_acknowledge_stops_nobody(tmp_path):
    class Deaf:
        def __init__(self, source):
            self._source = source

        def __getattr__(self, name):
            return getattr(self._source, name)

        async def acknowledge(self, position):
            raise ValueError("no ears")

    connectors = {"deaf": lambda name, options: Deaf(bank(name, options))}
    async with Engine(tmp_path, settings=EAGER, connectors=connectors) as engine:
        schemas = bank("bank", OPTIONS).schemas
        await engine.create_source("bank", "deaf", OPTIONS, tables=schemas)
        await engine.flush()
        await engine.flush()
        assert engine.failure is None
        assert any("no ears" in event.text for event in engine.events.recent(50))
