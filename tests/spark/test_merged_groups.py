"""Groups that are added up slice by slice are those of all rows at once, whatever the slices."""

import asyncio
from random import Random

import pyarrow as pa
import pytest

from creating_kit import NAMED, PLAIN, begin, slice_by_slice, written
from engine_kit import CALM
from headwater.runtime.creating import job, merged_groups, target
from headwater.runtime.creating.merged_groups import MergedGroups, last_of_each
from headwater.runtime.engine import Engine
from headwater.runtime.view_plan import plan_view
from headwater.sql.parse import parse_one
from headwater.views.recompute import fill
from views_engine_kit import check, create, write
from views_kit import quick

__all__ = ["quick", "slice_by_slice"]

QUERIES = {
    "sums": "select g, count(*) n, sum(v) s, count(v) c from t group by g",
    "extremes": "select g, min(v) lo, max(v) hi from t group by g",
    "means": "select g, avg(v) m, sum(v) filter (where v > 50) s from t group by g",
    "computed": "select v % 7 as r, g, count(*) n from t group by 1, 2",
    "one": "select count(*) n, max(v) hi from t",
}
SETTINGS = {**CALM, "backfill_slice_bytes": 1024, "barrier_interval_ms": 30}
"""Nothing is folded: the table stays in several files, and is read in several slices."""


async def filled(engine: Engine, rows: int = 300, groups: int = 9) -> list[tuple]:
    """A table in several files."""
    dice = Random(4)
    await create(engine, "t", PLAIN)
    await create(engine, "names", NAMED)
    found = [
        (i, dice.choice([None, *range(groups)]), dice.choice([None, *range(100)]))
        for i in range(rows)
    ]
    for start in range(0, rows, rows // 6):
        await write(engine, "t", *found[start : start + rows // 6])
        await engine.flush()
    return found


def same(left: pa.Table, right: pa.Table) -> bool:
    names = [name for name in left.column_names if "having" not in name]
    return sorted(map(repr, left.select(names).to_pylist())) == sorted(
        map(repr, right.select(names).to_pylist())
    )


async def test_any_slices_give_what_all_rows_give(tmp_path, quick):
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        rows = await filled(engine)
        table = engine.table("t").id
        for name, query in QUERIES.items():
            statement = parse_one(f"create materialized view {name} as {query}")
            layout = plan_view(statement, engine.catalog.snapshot()).layout

            def states(some, layout=layout):
                frame = quick.createDataFrame(some, PLAIN.spark)
                return fill(quick, layout, {table: frame})[0].toArrow()

            dice = Random(name)
            groups = MergedGroups(layout, layout.schemas[0].arrow.empty_table())
            brought, left = [], list(rows)
            while left:
                count = dice.randrange(1, 150)
                found = groups.add(quick, states(left[:count]))
                assert found is not None
                brought.append(found)
                del left[:count]
            assert same(last_of_each(brought, layout.schemas[0].key), states(rows)), name


async def test_states_of_many_slices_may_come_at_once(tmp_path, quick):
    """As many as an earlier life has left, each of them within the bounds."""
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        await create(engine, "t", PLAIN)
        statement = parse_one(f"create materialized view v as {QUERIES['sums']}")
        layout = plan_view(statement, engine.catalog.snapshot()).layout
        schema = layout.schemas[0].arrow
        states = pa.table(
            [pa.array(range(9000), pa.int64()).cast(field.type) for field in schema], schema=schema
        )
        groups = MergedGroups(layout, schema.empty_table())
        found = groups.add(quick, *[states] * 64)
        assert found.num_rows == 8999
        counted = found.column(found.column_names.index("n")).to_pylist()
        assert sum(counted) == 64 * sum(range(9000))


@pytest.mark.parametrize("name", QUERIES)
async def test_views_of_few_groups_are_filled_in_slices_that_wait_for_nobody(tmp_path, quick, name):
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        await filled(engine)
        async with written(engine, rows=300):
            made = await begin(engine, "v", QUERIES[name])
            assert made.job.executor._target.in_turn
            await asyncio.wait_for(asyncio.shield(made.done), 120)
        await engine.flush()
        check(engine)


@pytest.mark.usefixtures("slice_by_slice")
async def test_a_view_goes_on_from_the_groups_that_the_ledger_has(tmp_path, quick, monkeypatch):
    read, seen = target.ViewTarget.read, []

    def counted(self, *arguments):
        seen.append(self.in_turn)
        if len(seen) > 1:
            raise target.SparkGone("not now")
        return read(self, *arguments)

    monkeypatch.setattr(target.ViewTarget, "read", counted)
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        await filled(engine)
        made = await begin(engine, "v", QUERIES["extremes"])
        async with asyncio.timeout(60):
            while len(seen) < 2 or not made.job.executor.settled:
                await asyncio.sleep(0.01)
    monkeypatch.setattr(target.ViewTarget, "read", read)
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        (again,) = engine.creating.running.values()
        assert again.job.executor.machine.begun
        await asyncio.wait_for(asyncio.shield(again.done), 120)
        await engine.flush()
        check(engine)


@pytest.mark.parametrize("swept", [True, False], ids=["swept", "slice by slice"])
@pytest.mark.parametrize("most", [3, 20])
async def test_groups_that_become_many_go_on_by_the_rules(
    tmp_path, quick, monkeypatch, most, swept
):
    """With the first slice already, or when some are there."""
    if not swept:
        monkeypatch.setattr(job, "slice_query", lambda *_, **__: None)
    for module in (merged_groups, target):
        monkeypatch.setattr(module, "MOST_GROUPS", most)
    async with Engine(tmp_path, spark=quick, settings=SETTINGS) as engine:
        await create(engine, "t", PLAIN)
        for start in range(0, 120, 10):
            await write(engine, "t", *[(i, i // 2, i) for i in range(start, start + 10)])
            await engine.flush()
        made = await begin(engine, "v", QUERIES["sums"])
        assert made.job.executor._target.sweeps == swept
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert not made.job.executor._target.in_turn
        await engine.flush()
        check(engine)
