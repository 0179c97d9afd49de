"""Views whose slices are read many at once: exact, resumed from receipts, or read otherwise."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from creating_kit import PLAIN, VIEWS, begin, intended, tables, written
from engine_kit import CALM, lost_files
from headwater.errors import HeadwaterError, StorageUnavailable
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, TIMESTAMP
from headwater.runtime.creating import sweep
from headwater.runtime.creating.merged_groups import MergedGroups
from headwater.runtime.creating.sweep import Sweeps
from headwater.runtime.engine import Engine
from headwater.runtime.spark_errors import SparkGone
from headwater.state.file_name import RECEIPT_FOLDER
from headwater.state.receipts import receipts
from views_engine_kit import check, create, write
from views_kit import quick

__all__ = ["quick"]

SWEPT = ("filtered", "joined", "kept", "without", "grouped", "extremes", "named", "everything")
SETTINGS = {**CALM, "backfill_slice_bytes": 1024, "barrier_interval_ms": 30}
"""Nothing is folded: the table stays in several files, and is read in several slices."""


def engine_at(folder, spark):
    return Engine(folder, spark=spark, settings=SETTINGS)


@pytest.fixture(name="told")
def _told(monkeypatch):
    """Every sweep: how many slices it was asked for, and how many of them tasks had to read."""
    asked, read = [], []
    sweeping, task = Sweeps.read, sweep.SliceTask

    def counted(self, spark, slices, *given):
        asked.append(len(slices))
        return sweeping(self, spark, slices, *given)

    def made(**given):
        read.append(len(given["slices"]))
        return task(**given)

    monkeypatch.setattr(Sweeps, "read", counted)
    monkeypatch.setattr(sweep, "SliceTask", made)
    return asked, read


def receipts_of(engine, made):
    return list(made.view.stores[0].storage.list(RECEIPT_FOLDER))


@pytest.mark.timeout(600)
async def test_they_join_while_their_tables_change_and_leave_no_receipts(tmp_path, quick, told):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=5)
        async with written(engine):
            made = []
            for name in SWEPT:
                made.append(await begin(engine, name, VIEWS[name]))
                assert made[-1].job.executor._target.sweeps, name
            for each in made:
                await asyncio.wait_for(asyncio.shield(each.done), 300)
        await engine.flush()
        check(engine)
        asked, read = told
        assert len(asked) >= len(SWEPT)
        assert all(count > 3 for count in asked)
        assert asked == read
        await engine.maintain()
        assert not [path for each in made for path in receipts_of(engine, each)]
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        assert not (lost := lost_files(engine)), lost


@pytest.mark.parametrize("name", ["filtered", "joined", "extremes"])
async def test_what_tasks_have_read_is_not_read_again_by_the_next_engine(
    tmp_path, quick, monkeypatch, told, name
):
    asked, read = told
    sweeping = Sweeps.read

    def dies(self, spark, slices, epoch, *given):
        # All tasks are done, and nobody has heard of it.
        sweeping(self, spark, slices, epoch, lambda found: True, *given[1:])
        raise SparkGone("not now")

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=5)
        with monkeypatch.context() as patch:
            patch.setattr(Sweeps, "read", dies)
            made = await begin(engine, name, VIEWS[name])
            async with asyncio.timeout(60):
                while not asked or "not now" not in str(made.job.executor.progress):
                    await asyncio.sleep(0.01)
            await engine.maintain()
            assert len(receipts_of(engine, made)) == read[0] > 3
            assert not made.job.executor.machine.begun
            await write(engine, "t", (3, 2, 1000), (9999, 1, -5))
            await engine.flush()
    done = sum(read)
    async with engine_at(tmp_path, quick) as engine:
        (again,) = engine.creating.running.values()
        await asyncio.wait_for(asyncio.shield(again.done), 120)
        await engine.flush()
        check(engine)
        assert asked[-1] > 3
        assert sum(read) == done, "slices were read again"
        await engine.maintain()
        assert not receipts_of(engine, again)
        assert not (lost := lost_files(engine)), lost


@pytest.mark.parametrize("at", [0, 70])
async def test_what_arrow_cannot_say_is_read_by_spark_from_there_on(tmp_path, quick, told, at):
    """Arrow computes both branches, and one of them overflows for a single row."""
    async with engine_at(tmp_path, quick) as engine:
        await create(engine, "t", PLAIN)
        for start in range(0, 100, 10):
            rows = [(i, i % 3, 1 << 62 if i == at else i) for i in range(start, start + 10)]
            await write(engine, "t", *rows)
            await engine.flush()
        query = "select id, case when v < 1000 then v * 2 else 0 end as w from t"
        made = await begin(engine, "v", query)
        target = made.job.executor._target
        assert target.sweeps
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert not target.sweeps
        await engine.flush()
        check(engine)
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        assert not (lost := lost_files(engine)), lost


@pytest.mark.parametrize("name", ["filtered", "grouped"])
async def test_storage_that_is_away_when_receipts_are_looked_for(
    tmp_path, quick, monkeypatch, name
):
    looked = []

    def away(storage, seen):
        looked.append(storage)
        if len(looked) in (1, 2, 4):
            raise StorageUnavailable("away")
        return receipts(storage, seen)

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=5)
        monkeypatch.setattr(sweep, "receipts", away)
        monkeypatch.setattr(sweep, "_LOOK_S", 0.01)
        made = await begin(engine, "v", VIEWS[name])
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert len(looked) > 3
        await engine.flush()
        check(engine)


@pytest.mark.parametrize("problem", [SparkGone, StorageUnavailable])
async def test_what_goes_wrong_with_what_has_come_is_told_and_tried_again(
    tmp_path, quick, monkeypatch, problem
):
    """The job is cancelled then; its own error is not the one that counts."""
    added, told = MergedGroups.add, []

    def fails(self, *given):
        told.append(given)
        if len(told) == 1:
            raise problem("not now")
        return added(self, *given)

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=5)
        monkeypatch.setattr(MergedGroups, "add", fails)
        monkeypatch.setattr(sweep, "_LOOK_S", 0.01)
        made = await begin(engine, "v", VIEWS["grouped"])
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert len(told) > 1
        await engine.flush()
        check(engine)


async def test_a_sweep_that_is_to_end_reads_nothing_more(tmp_path, quick, monkeypatch, told):
    """Also when that is said before its job has begun: there is nothing yet to be cancelled."""
    asked, read = told
    found, pauses = sweep.found_before, []

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=5)

        def slow(storage):
            if not pauses:
                pauses.append(made.job.executor)
                made.job.executor.halt()
            return found(storage)

        monkeypatch.setattr(sweep, "found_before", slow)
        made = await begin(engine, "v", VIEWS["filtered"], limit=0)
        await engine.ddl.limit_view(made.intent, None)
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert pauses
        assert len(asked) == 2
        assert read == asked[1:]
        await engine.flush()
        check(engine)


async def test_an_error_of_the_query_is_sparks_and_ends_the_view(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await create(engine, "t", PLAIN)
        await write(engine, "t", (1, 1, 5), (2, 1, 1 << 62))
        await engine.flush()
        made = await begin(engine, "v", "select id, v * 4 as w from t")
        assert made.job.executor._target.sweeps
        with pytest.raises(HeadwaterError, match=r"out of range|overflow"):
            await asyncio.wait_for(asyncio.shield(made.done), 120)
        assert not engine.catalog.snapshot().materialized_views


async def test_constants_that_only_spark_knows_reach_the_tasks(tmp_path, quick):
    timed = Schema((Column("id", BIGINT), Column("at", TIMESTAMP)), ("id",))
    start = datetime(2024, 1, 1)  # noqa: DTZ001  a time without a zone
    async with engine_at(tmp_path, quick) as engine:
        await create(engine, "e", timed)
        for month in range(6):
            rows = [
                (month * 10 + day, start + timedelta(days=31 * month + day)) for day in range(9)
            ]
            await write(engine, "e", *rows)
            await engine.flush()
        late = "timestamp '2024-02-29 00:00:00' + interval '1 month'"
        made = await begin(engine, "v", f"select id, at from e where at < {late}")
        assert made.job.executor._target.sweeps
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        await engine.flush()
        check(engine)
        assert 20 < engine.store[made.view.id].view().rows < 54


async def test_as_many_tasks_read_at_a_time_as_somebody_has_set(tmp_path, quick, monkeypatch):
    parts = []
    ranged = type(quick).range

    def counted(self, *given):
        if len(given) == 4:
            parts.append(given)
        return ranged(self, *given)

    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=120, epochs=6)
        monkeypatch.setattr(type(quick), "range", counted)
        intent, planned = intended(engine, "v", VIEWS["filtered"])
        settings = {"backfill_parallelism": "1"}
        made = await engine.ddl.begin_view(replace(intent, settings=settings), planned)
        await asyncio.wait_for(asyncio.shield(made.done), 120)
        (_, count, _, tasks), *_ = parts
        assert count > 3
        assert tasks == 1
        await engine.flush()
        check(engine)


async def test_tables_that_do_not_fit_into_memory_are_not_held_there(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(sweep, "_MOST_IN_MEMORY", 100)
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=60, epochs=3)
        alone = await begin(engine, "alone", VIEWS["filtered"])
        joined = await begin(engine, "joined", VIEWS["joined"])
        assert alone.job.executor._target.sweeps
        assert not joined.job.executor._target.sweeps
        for each in (alone, joined):
            await asyncio.wait_for(asyncio.shield(each.done), 120)
        await engine.flush()
        check(engine)
