"""Views that are filled beside the epochs, while somebody writes their tables."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from headwater.catalog.relation import ObjectDef, ObjectKind
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR
from headwater.runtime.creating import job
from headwater.runtime.creating.views import Creating
from headwater.runtime.engine import Engine
from headwater.runtime.view_plan import PlannedView, plan_view
from headwater.sql.parse import parse_one
from headwater.views.layout import RefreshPolicy
from views_engine_kit import create, gone, write

PLAIN = Schema((Column("id", BIGINT), Column("g", BIGINT), Column("v", BIGINT)), ("id",))
NAMED = Schema((Column("g", BIGINT), Column("name", VARCHAR)), ("g",))


@pytest.fixture
def slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Arrow could compute no view: each slice is a job of its own."""
    monkeypatch.setattr(job, "slice_query", lambda *_, **__: None)


VIEWS = {
    "filtered": "select id, v * 2 as w from t where v % 3 <> 0",
    "joined": "select id, name, v from t join names on t.g = names.g",
    "kept": "select id, name, v from t left join names on t.g = names.g",
    "without": "select id from t where not exists (select 1 from names where names.g = t.g)",
    "grouped": "select g, count(*) n, sum(v) s from t group by g",
    "extremes": "select g, min(v) lo, max(v) hi from t group by g",
    "named": "select name, count(*) n from t join names on t.g = names.g group by name",
    "everything": "select count(*) n, sum(v) s from t",
    "keyless": "select g, v % 5 as r from t",
    "placed": "select id, rank() over (partition by g order by v desc, id) p from t",
    "distinct_g": "select distinct g, v % 2 as odd from t",
    "first": "select id, v from t order by v desc, id limit 7",
    "both": "select id as k, v from t union all select g + 100000, 0 from names",
    "pairs": "select a.id, b.id as other from t a join t b on a.g = b.g and a.id = b.id - 4",
}


async def begin(
    engine: Engine,
    name: str,
    query: str,
    *,
    policy: str = "auto",
    limit: int | None = None,
    order: str = "",
    replaces: TableId | None = None,
) -> Creating:
    """Begin to create a view, or one that replaces another."""
    intent, planned = intended(engine, name, query, policy=policy, replaces=replaces)
    settings = {"backfill_rate_limit": "" if limit is None else str(limit)}
    settings["backfill_order"] = order
    return await engine.ddl.begin_view(replace(intent, settings=settings), planned)


def intended(
    engine: Engine,
    name: str,
    query: str,
    *,
    policy: str = "auto",
    replaces: TableId | None = None,
) -> tuple[ObjectDef, PlannedView]:
    """What a session hands over for a view."""
    text = f"create materialized view {name} as {query}"
    statement = parse_one(text)
    planned = plan_view(statement, engine.catalog.snapshot(), policy=RefreshPolicy(policy))
    intent = ObjectDef(
        id=0, kind=ObjectKind.CREATING, name=name, definition=text, replaces=replaces
    )
    return intent, planned


async def replaced(engine: Engine, name: str, query: str, *, beside: bool) -> Epoch:
    """Replace a view, inside one commit or by a job beside the epochs; the epoch of the swap."""
    old = engine.catalog.snapshot().table(name).id
    if beside:
        made = await begin(engine, name, query, replaces=old)
        return await asyncio.wait_for(asyncio.shield(made.done), 120)
    return await engine.ddl.replace_view(*intended(engine, name, query, replaces=old))


async def tables(engine: Engine, rows: int = 200, epochs: int = 4, seed: int = 1) -> None:
    """Two tables in several files each, with dead rows among them."""
    dice = Random(seed)
    await create(engine, "t", PLAIN)
    await create(engine, "names", NAMED)
    for number in range(epochs):
        ids = range(number * rows // epochs, (number + 1) * rows // epochs)
        await write(engine, "t", *[(i, dice.randrange(6), dice.randrange(100)) for i in ids])
        await write(engine, "names", (number, f"group {number}"))
        await engine.flush()
        await scribble(engine, dice, rows)
        await engine.flush()


async def scribble(engine: Engine, dice: Random, rows: int) -> None:
    """A few changes of any kind."""
    ids = dice.sample(range(rows * 2), 8)
    await write(
        engine, "t", *[(i, dice.choice([*range(6), None]), dice.randrange(100)) for i in ids[:5]]
    )
    await gone(engine, "t", *[(i,) for i in ids[5:]])
    if dice.random() < 0.5:
        g = dice.randrange(6)
        if dice.random() < 0.3:
            await gone(engine, "names", (g,))
        else:
            await write(engine, "names", (g, f"group {dice.randrange(4)}"))


@asynccontextmanager
async def written(engine: Engine, seed: int = 7, rows: int = 200, pause: float = 0.25):
    """Somebody writes all the while."""
    over = asyncio.Event()

    async def scribbling() -> None:
        dice = Random(seed)
        while not over.is_set():
            await scribble(engine, dice, rows)
            await asyncio.sleep(pause)

    task = asyncio.create_task(scribbling())
    try:
        yield
    finally:
        over.set()
        await task
