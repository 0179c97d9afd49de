"""Views that are created beside the epochs, while their tables change all the time."""

import asyncio

import pytest

from creating_kit import VIEWS, begin, slice_by_slice, tables, written
from engine_kit import CALM, FREQUENT, heard, lost_files
from headwater.backfill.snapshot.machine import Phase
from headwater.errors import BrokenInvariant, RelationError, UserError
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine
from headwater.runtime.view_keeper import ViewKeeper
from views_engine_kit import check, keep, rows_at, write
from views_kit import quick

__all__ = ["quick", "slice_by_slice"]

SMALL = {"backfill_slice_bytes": 1024, "barrier_interval_ms": 30}


def engine_at(folder, spark, **settings):
    return Engine(folder, spark=spark, settings={**FREQUENT, **SMALL, **settings})


async def until(condition, timeout=120.0):
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


SHAPES = {
    "rows": ("filtered", "joined", "kept", "without"),
    "groups": ("grouped", "extremes", "named", "everything", "distinct_g"),
    "others": ("keyless", "placed", "first", "both", "pairs"),
}


def test_every_view_is_in_a_group():
    assert sorted(name for names in SHAPES.values() for name in names) == sorted(VIEWS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("names", SHAPES.values(), ids=SHAPES)
@pytest.mark.usefixtures("slice_by_slice")
async def test_views_of_every_shape_join_while_their_tables_change(tmp_path, quick, names):
    """Through Spark, each slice a job of its own; `test_sweeping_views.py` has the other way."""
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=2)
        await keep(engine, "before", "select g, count(*) n from t group by g")
        async with written(engine):
            made = [await begin(engine, name, VIEWS[name]) for name in names]
            for each in made:
                await asyncio.wait_for(asyncio.shield(each.done), 300)
        await engine.flush()
        check(engine)
        assert {view.name for view in engine.catalog.snapshot().materialized_views} == {
            "before",
            *names,
        }
        assert not engine.ledger.pins()
        assert not engine.creating.running
        # And they are kept current from then on, also by the next engine.
        await write(engine, "t", (3, 2, 1000), (9999, 1, -5))
        await engine.flush()
        check(engine)
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        assert not (lost := lost_files(engine)), lost


@pytest.mark.parametrize("name", ["filtered", "grouped", "placed", "joined", "without", "named"])
async def test_a_view_goes_on_where_it_was_after_a_restart(tmp_path, quick, name):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=400)
        made = await begin(engine, name, VIEWS[name], limit=20)
        await until(lambda: sum(p.rows for p in made.job.executor.machine.progress.values()) > 50)
        await engine.ddl.limit_view(made.intent, 0)
        await until(lambda: made.job.executor.settled)
        stored = engine.committer.progress[made.job.key]
        assert made.job.executor.machine.phase is Phase.SNAPSHOT
    async with engine_at(tmp_path, quick) as engine:
        (again,) = engine.creating.running.values()
        # Nothing is read again: it goes on from what the ledger has.
        before = sum(p.rows for p in again.job.executor.machine.progress.values())
        assert before > 50
        assert engine.committer.progress[again.job.key] == stored
        with pytest.raises(RelationError, match="still being created"):
            rows_at(engine, f"select * from {name}")
        async with written(engine):
            await engine.ddl.scale_view(again.intent, 3)
            await engine.ddl.limit_view(again.intent, None)
            await asyncio.wait_for(asyncio.shield(again.done), 120)
        await engine.flush()
        check(engine)
        assert again.job.executor.parallelism == 3
        # The rows of the snapshot were read once.
        assert again.job.executor.progress.rows >= before


async def test_others_go_on_while_a_view_waits(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine)
        await keep(engine, "live", "select g, sum(v) s from t group by g")
        waiting = await begin(engine, "slow", VIEWS["joined"], limit=0)
        snapshot = waiting.job.executor.machine.epoch
        async with written(engine):
            last = engine.visible
            for _ in range(5):
                await until(lambda at=last: engine.visible > at)
                last = engine.visible
                check(engine, "live")
            await engine.maintain()
        # What it still needs is kept, whatever the retention.
        assert engine.ledger.pins() == {waiting.job.key: snapshot}
        engine.table("t").rows(snapshot)
        await engine.ddl.limit_view(waiting.intent, None)
        await asyncio.wait_for(asyncio.shield(waiting.done), 120)
        await engine.flush()
        check(engine)


async def test_what_is_dropped_or_cancelled_leaves_nothing(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine)
        held = await begin(engine, "held", VIEWS["filtered"], limit=0)
        some = await begin(engine, "some", VIEWS["grouped"], limit=10)
        await until(lambda: some.job.executor.progress.rows > 10)
        assert await engine.creating.cancel(some.intent.id)
        await engine.ddl.drop([held.intent])
        for each in (held, some):
            with pytest.raises(UserError, match="cancelled"):
                await each.done
        assert not await engine.creating.cancel(some.intent.id)
        assert not engine.ledger.pins()
        assert not [t for t in engine.catalog.snapshot().tables if t.name not in ("t", "names")]
        assert not engine.catalog.snapshot().objects
        # The name is free again.
        again = await begin(engine, "held", VIEWS["filtered"])
        await asyncio.wait_for(asyncio.shield(again.done), 120)
        check(engine)
    async with engine_at(tmp_path, quick) as engine:
        assert not engine.creating.running
        assert not (lost := lost_files(engine)), lost


async def test_a_table_goes_only_with_the_views_that_are_made_of_it(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine)
        await begin(engine, "held", VIEWS["filtered"], limit=0)
        snapshot = engine.catalog.snapshot()
        table = snapshot.table("t")
        with pytest.raises(RelationError, match="depend"):
            await engine.ddl.drop([table])
        await engine.ddl.drop([*snapshot.dependents([table.id]), table])
        assert not engine.creating.running


async def test_a_query_that_fails_over_the_rows_ends_the_view(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine)
        await write(engine, "t", (5, 1, 0))
        await engine.flush()
        bad = await begin(engine, "bad", "select id, 10 / v as q from t")
        with pytest.raises(UserError, match="division by zero"):
            await asyncio.wait_for(asyncio.shield(bad.done), 120)
        await until(lambda: not engine.creating.running)
        await heard(engine, EventKind.JOB_FAILED, "division by zero")
        assert not engine.catalog.snapshot().objects


async def test_a_view_on_a_view(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine)
        await keep(engine, "low", "select g, count(*) n, sum(v) s from t group by g")
        async with written(engine):
            high = await begin(engine, "high", "select n, count(*) c from low group by n")
            await asyncio.wait_for(asyncio.shield(high.done), 120)
        await engine.flush()
        check(engine)


async def test_without_writers_and_barriers_it_is_done_at_once(tmp_path, quick):
    # Nobody may have to wait for the next periodic barrier.
    async with Engine(
        tmp_path, spark=quick, settings={**CALM, "backfill_slice_bytes": 1024}
    ) as engine:
        await tables(engine)
        for name in ("filtered", "grouped"):
            made = await begin(engine, name, VIEWS[name])
            await asyncio.wait_for(asyncio.shield(made.done), 120)
        check(engine)


@pytest.mark.parametrize("limit", [None, 2000])
async def test_tables_are_read_in_the_order_that_was_set(tmp_path, quick, limit):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=80, epochs=2)
        ids = {name: engine.table(name).id for name in ("t", "names")}
        async with written(engine):
            for before, after in (("t", "names"), ("names", "t")):
                order = f"{ids[before]}>{ids[after]}"
                made = await begin(
                    engine, f"{after}_last", VIEWS["joined"], limit=limit, order=order
                )
                machine = made.job.executor.machine
                assert [step.tables for step in machine.steps] == [(ids[before],), (ids[after],)]
                await asyncio.wait_for(asyncio.shield(made.done), 120)
        await engine.flush()
        check(engine)


async def test_a_bug_that_shows_when_a_view_joins_stops_nobody_else(tmp_path, quick, monkeypatch):
    def broken(self, view, after, epoch):
        raise BrokenInvariant("this cannot be")

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=1)
        await keep(engine, "live", "select g, sum(v) s from t group by g")
        monkeypatch.setattr(ViewKeeper, "join", broken)
        made = await begin(engine, "new", VIEWS["filtered"])
        with pytest.raises(BrokenInvariant):
            await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert engine.failure is None
        await heard(engine, EventKind.JOB_FAILED, "this cannot be")
        await write(engine, "t", (1, 1, 1))
        await engine.flush()
        check(engine)
        assert not engine.catalog.snapshot().objects
