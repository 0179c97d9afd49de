"""An engine in a process of its own that replaces and swaps views while their tables change.

    python replacing_child.py WORKSPACE

The first life makes the tables of `creating_kit.py` and views on them. Every life writes all the
while and does what no earlier one has done: a view is replaced by a job beside the epochs, then
swapped with another. It prints `replaced` and `swapped` as these are there, and `done N` at last.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from creating_child import SETTINGS

from creating_kit import begin, tables, written
from headwater.runtime.engine import Engine
from views_engine_kit import keep

OLD = "select g, count(*) n, sum(v) s from t group by g"
NEW = "select g, count(*) n, sum(v * 2) s from t where v % 3 <> 0 group by g"
OTHER = "select t.g, count(*) n, sum(v) s from t join names on t.g = names.g group by t.g"
READERS = {
    "high": "select n, count(*) c from v group by n",
    "low": "select g, s from w where s > 50",
}


def text_of(engine: Engine, name: str) -> str:
    query = engine.catalog.snapshot().table(name).detail.query
    assert query is not None
    return query.text


async def work(engine: Engine) -> None:
    if engine.catalog.snapshot().relation("low") is None:
        await tables(engine, rows=80, epochs=1)
        for name, query in {"v": OLD, "w": OTHER, **READERS}.items():
            await keep(engine, name, query)
    print("ready", flush=True)
    async with written(engine, seed=engine.visible % 1000, rows=80, pause=0.05):
        if OLD in text_of(engine, "v") and OTHER in text_of(engine, "w"):
            if not engine.creating.running:
                await begin(engine, "v", NEW, replaces=engine.table("v").id)
            await engine.creating.wait("v")
            assert NEW in text_of(engine, "v")
        print("replaced", flush=True)
        if OTHER in text_of(engine, "w"):
            await engine.ddl.swap_views(engine.table("v").id, engine.table("w").id)
        print("swapped", flush=True)
        await asyncio.sleep(0.3)
    print(f"done {await engine.flush()}", flush=True)


async def main() -> None:
    async with Engine(sys.argv[1], settings=SETTINGS, take_over=True) as engine:
        await work(engine)


if __name__ == "__main__":
    asyncio.run(main())
