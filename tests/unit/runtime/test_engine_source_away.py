"""A source that goes away and comes back: barriers go on, and a FLUSH asks it again."""

import asyncio

from headwater.errors import SourceUnavailable
from headwater.runtime.engine import Engine
from headwater.testing.oracle import assert_same_rows
from headwater.testing.source_kinds import bank

OPTIONS = {"seed": 5, "accounts": 10, "limit": 300}
CALM = {"barrier_interval_ms": 600_000, "maintenance_interval_s": 3600}


class Leaving:
    """A bank that cannot be reached while `away`."""

    def __init__(self, name, options):
        self._bank = bank(name, options)
        self.away = True
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._bank, name)

    async def read(self, after, *, max_bytes):
        self.asked += 1
        if self.away:
            raise SourceUnavailable("the bank is closed")
        return await self._bank.read(after, max_bytes=max_bytes)


async def test_a_flush_finds_a_source_that_just_came_back(tmp_path):
    # Seed 1938 of the simulator: in the pause after failed reads, a FLUSH asked nobody.
    source = Leaving("bank", OPTIONS)
    connectors = {"leaving": lambda name, options: source}
    async with Engine(tmp_path, settings=CALM, connectors=connectors) as engine:
        await engine.create_source("bank", "leaving", OPTIONS, tables=source.schemas)
        while source.asked < 4:
            await asyncio.sleep(0.01)
        epoch = await engine.flush()
        assert engine.table("accounts").rows(epoch).num_rows == 0
        source.away = False
        epoch = await engine.flush()
        wanted = source.oracle_at(str(OPTIONS["limit"]))
        for name in source.schemas:
            rows = engine.table(name).rows(epoch).drop_columns(["_vnode"])
            assert_same_rows(rows, list(wanted[name].values()))
        told = [event.text for event in engine.events.recent(50)]
        assert sum("the bank is closed" in text for text in told) == 1
