"""An engine on a Spark cluster in a process of its own, for `test_cluster.py`.

    python cluster_engine.py WORKSPACE STORAGE MASTER

Prints `busy` when executors work on an epoch in the middle of the log, and `done` at its end.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine_kit import built, check_rows
from headwater.runtime.engine import Engine
from headwater.testing.source_kinds import source_from_options

LIMIT = 40_000
BATCH_BYTES = 1_200_000
TABLES = {
    "events": {"columns": "id I  kind T  at TZ  amount D(12,2)", "key": ["id"]},
    "people": {"columns": "id I  name T", "key": ["id"]},
}
SOURCES = {
    "bank": ("bank", {"seed": 3, "accounts": 5000, "limit": LIMIT}),
    "site": ("generated", {"seed": 4, "tables": TABLES, "keys": 20_000, "limit": LIMIT}),
}


class LargeBatches:
    """A test source that gives more at once than the engine asks for, so that epochs are few."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.name = inner.name

    async def read(self, after: str | None, *, max_bytes: int) -> Any:
        return await self._inner.read(after, max_bytes=BATCH_BYTES)

    async def acknowledge(self, position: str) -> None:
        await self._inner.acknowledge(position)

    async def close(self) -> None:
        await self._inner.close()


def connector(kind: str) -> Any:
    return lambda name, options: LargeBatches(source_from_options(kind, name, dict(options)))


def settings_of(master: str, storage: str) -> dict[str, Any]:
    """All staging and folding on executors; everything that was written stays readable."""
    return {
        "spark_master": master,
        "spark_driver_memory": "1g",
        "driver_bytes": 0,
        "barrier_interval_ms": 300,
        "maintenance_interval_s": 2.0,
        "retention_s": 86_400,
        "fold_files": 4,
        "storage_url": storage,
    }


async def main(workspace: str, storage: str, master: str) -> None:
    connectors = {kind: connector(kind) for kind in ("bank", "generated")}
    sources = built(SOURCES)
    settings = settings_of(master, storage)
    async with Engine(workspace, settings=settings, connectors=connectors) as engine:
        for name, (kind, options) in SOURCES.items():
            await engine.create_source(name, kind, options, tables=sources[name].schemas)
        tracker = (await asyncio.to_thread(engine.spark)).sparkContext.statusTracker()

        def share() -> float:
            return min(int(engine.position(name) or 0) for name in SOURCES) / LIMIT

        while share() < 0.15 or not tracker.getActiveStageIds():
            await asyncio.sleep(0.01)
        print(f"busy {share():.2f}", flush=True)
        told = 0.0
        while share() < 1:
            if share() > told:
                told = share()
                print(f"read {told:.2f}", flush=True)
            await asyncio.sleep(0.02)
        await engine.flush()
        check_rows(engine, sources)
        for table in engine.store:
            counted = await asyncio.to_thread(table.frame().count)
            assert counted == table.view().rows, table.name
        for _ in range(2):
            await engine.maintain()
            await engine.flush()
        check_rows(engine, sources)
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
