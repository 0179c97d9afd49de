"""An engine in a process of its own that creates views while their tables change.

    python creating_child.py WORKSPACE [--rows N] [--epochs N] [--limit ROWS_PER_S]

It makes and fills the tables of `creating_kit.py` once, begins the views that no earlier life has
begun, lifts the limits of the others if it is given none, writes all the while, prints `epoch N`
as epochs become visible and `view NAME` as views are live, and `done N` when all of them are there
and were kept current for a few epochs more.
"""

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from random import Random

from child import report

from creating_kit import VIEWS, begin, scribble, tables, written
from engine_kit import FREQUENT
from headwater.errors import RelationError
from headwater.runtime.engine import Engine

CREATED = ("joined", "grouped")
SETTINGS = {
    **FREQUENT,
    "barrier_interval_ms": 50,
    "backfill_slice_bytes": 2048,
    "retention_s": 3600,
    "spark_master": "local[2]",
    "storage_fsync": "false",
}


async def work(engine: Engine, given: argparse.Namespace) -> None:
    there = {table.name for table in engine.catalog.snapshot().tables}
    if "names" not in there:
        await tables(engine, rows=given.rows, epochs=given.epochs)
    elif len(engine.table("t").rows()) < given.rows // 2:
        raise SystemExit("a life ended before the tables were filled")
    print("ready", flush=True)
    telling = asyncio.create_task(report(engine))
    async with written(engine, seed=engine.visible % 1000, rows=given.rows, pause=0.05):
        for name in CREATED:
            snapshot = engine.catalog.snapshot()
            if snapshot.relation(name) is None:
                await begin(engine, name, VIEWS[name], limit=given.limit)
        if given.limit is None:
            for each in list(engine.creating.running.values()):
                # One that is done meanwhile has no limit any more.
                with suppress(RelationError):
                    await engine.ddl.limit_view(each.intent, None)
        for name in CREATED:
            await engine.creating.wait(name)
            assert any(v.name == name for v in engine.catalog.snapshot().materialized_views), name
            print(f"view {name}", flush=True)
    dice = Random(1)
    for _ in range(8):
        await scribble(engine, dice, given.rows)
        await engine.flush()
    telling.cancel()
    print(f"done {await engine.flush()}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    async with Engine(given.workspace, settings=SETTINGS, take_over=True) as engine:
        await work(engine, given)


if __name__ == "__main__":
    asyncio.run(main())
