"""Materialized views in the engine: one epoch with their tables, whatever happens meanwhile."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal

import pytest

from engine_kit import CALM, FREQUENT, bank_tap, heard, reaches
from headwater.errors import LedgerUnavailable, RelationError, StorageUnavailable, UserError
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, DOUBLE, INTEGER, VARCHAR, decimal
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine
from views_engine_kit import check, create, gone, keep, rows_at, write
from views_kit import quick

__all__ = ["quick"]

PLAIN = Schema((Column("id", BIGINT), Column("g", BIGINT), Column("v", BIGINT)), ("id",))
NAMED = Schema((Column("g", BIGINT), Column("name", VARCHAR)), ("g",))


@asynccontextmanager
async def engine_at(folder, spark, **settings):
    async with Engine(folder, spark=spark, settings={**CALM, **settings}) as engine:
        yield engine


async def filled(engine):
    await create(engine, "t", PLAIN)
    await create(engine, "names", NAMED)
    await write(engine, "t", *[(i, i % 4, i) for i in range(20)])
    await write(engine, "names", *[(g, f"group {g}") for g in range(3)])
    await engine.flush()


async def several_views(engine):
    await keep(engine, "by_g", "select g, count(*) n, sum(v) s, max(v) m from t group by g")
    await keep(engine, "named", "select id, name, v from t left join names using (g)")
    await keep(engine, "big", "select * from by_g where n > 4")
    await keep(engine, "deep", "select count(*) c, sum(s) s from big")
    await keep(engine, "tops", "select id, v from t order by v desc, id limit 3", "incremental")
    await keep(engine, "whole", "select g, min(v) lo from t group by g", "full")


async def test_views_follow_their_tables(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await several_views(engine)
        check(engine)
        await write(engine, "t", (100, 1, 7), (3, 2, 40), (101, None, None))
        await engine.flush()
        check(engine)
        await gone(engine, "t", (0,), (5,), (101,))
        await write(engine, "names", (3, "late"), (0, "renamed"))
        await engine.flush()
        check(engine)
        await gone(engine, "t", *[(i,) for i in (*range(20), 100)])
        await engine.flush()
        check(engine)
        assert rows_at(engine, "select count(*) n from by_g") == [{"n": 0}]


async def test_averages_are_those_of_the_query(tmp_path, quick):
    """A mean is computed from stored states; it must have the very digits of the query."""
    async with engine_at(tmp_path, quick) as engine:
        columns = (
            ("id", BIGINT),
            ("g", INTEGER),
            ("i", INTEGER),
            ("b", BIGINT),
            ("d", decimal(12, 3)),
        )
        await create(engine, "m", Schema(tuple(Column(*each) for each in columns), ("id",)))
        await keep(engine, "means", "select g, avg(i) ai, avg(b) ab, avg(d) ad from m group by g")
        await keep(engine, "mean", "select avg(i) ai, avg(b) ab, avg(d) ad from m")
        rows = [(i, i % 3, i * 7 - 5, 2**61 + i * 3, Decimal(i * 37 % 101) / 7) for i in range(30)]
        exact = [(*row[:4], row[4].quantize(Decimal("0.001"))) for row in rows]
        await write(engine, "m", *exact[:20])
        await engine.flush()
        check(engine)
        await write(engine, "m", *exact[20:], (3, 1, None, None, None))
        await gone(engine, "m", (0,), (4,))
        await engine.flush()
        check(engine)
        layouts = {view.table.name: view.layout for view in engine.keeper.views.values()}
        assert all(layout.kept for layout in layouts.values()), "not merged"


async def test_a_view_is_with_its_tables_in_every_epoch(tmp_path, quick):
    """Money only moves between two rows, so any mixture of epochs would show another sum."""
    tap = bank_tap(2000)
    async with Engine(tmp_path, spark=quick, settings=FREQUENT, connectors={"bank": tap}) as engine:
        await tap.create(engine)
        await keep(engine, "total", "select sum(balance) s, count(*) n from accounts")
        await keep(engine, "rich", "select id, balance from accounts where balance > 1000")
        await keep(engine, "richest", "select count(*) n, sum(balance) s from rich")
        seen = set()
        for _ in range(12):
            check(engine)
            epoch = engine.visible
            with engine.reading(epoch):
                both = rows_at(
                    engine, "select s, (select sum(balance) from accounts) a from total", epoch
                )
            assert both[0]["s"] == both[0]["a"]
            seen.add(epoch)
            async with asyncio.timeout(60):
                while engine.visible == epoch:
                    await asyncio.sleep(0.01)
        await reaches(engine, "bank", 2000)
        check(engine)
        assert len(seen) > 3


async def test_a_source_whose_tables_are_read_stays(tmp_path, quick):
    tap = bank_tap(50)
    async with Engine(tmp_path, spark=quick, settings=FREQUENT, connectors={"bank": tap}) as engine:
        await tap.create(engine)
        await keep(engine, "total", "select sum(balance) s from accounts")
        with pytest.raises(RelationError) as raised:
            await engine.drop_source("bank")
        assert raised.value.sqlstate == "2BP01"
        await reaches(engine, "bank", 50)
        check(engine)
        await engine.ddl.drop([engine.catalog.snapshot().table("total")])
        await engine.drop_source("bank")
        assert engine.failure is None


async def test_views_come_back_after_a_restart(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await several_views(engine)
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        await write(engine, "t", (7, 3, -5), (200, 9, 9))
        await engine.flush()
        check(engine)


@pytest.mark.parametrize("failure", [LedgerUnavailable, StorageUnavailable])
async def test_a_commit_that_is_repeated_gives_the_same(tmp_path, quick, monkeypatch, failure):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await several_views(engine)
        append, failed = engine.ledger.append_resolved, []

        def away(record, **given):
            if len(failed) < 3:
                failed.append(record.epoch)
                raise failure("away")
            return append(record, **given)

        monkeypatch.setattr(engine.ledger, "append_resolved", away)
        await write(engine, "t", (300, 1, 1), (301, 1, 2))
        await engine.flush()
        assert len(failed) == 3
        assert len(set(failed)) == 1
        check(engine)
        for table in engine.store:
            named = {live.file.path for live in table.view().files}
            there = {path for path in table.storage.list() if path.endswith(".parquet")}
            data = {path for path in there if "_change_data" not in path}
            assert data == named, f"{table.name} has files that nobody names"


async def test_a_view_in_error_stops_nobody_and_heals(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await several_views(engine)
        await keep(engine, "quotient", "select id, 100 / (v - 50) q from t")
        await keep(engine, "above", "select count(*) n from quotient")
        await write(engine, "t", (400, 1, 50))
        await engine.flush()
        for view in ("quotient", "above"):
            with pytest.raises(UserError, match="division by zero") as raised:
                rows_at(engine, f"select * from {view}")
            assert raised.value.sqlstate == "22012"
        check(engine, "by_g", "named", "big", "deep", "tops", "whole")
        await heard(engine, EventKind.VIEW_FAILED, "division by zero")
        with pytest.raises(UserError, match="division by zero"):
            await keep(engine, "late", "select * from quotient")
    async with engine_at(tmp_path, quick) as engine:
        with pytest.raises(UserError, match="division by zero"):
            rows_at(engine, "select * from above")
        await write(engine, "t", (401, 1, 3))
        await engine.flush()
        with pytest.raises(UserError, match="division by zero"):
            rows_at(engine, "select * from quotient")
        await write(engine, "t", (400, 1, 51))
        broken = engine.visible
        await engine.flush()
        check(engine)
        with pytest.raises(UserError, match="division by zero"):
            rows_at(engine, "select * from quotient", broken)
        assert not engine.keeper.failures
        await heard(engine, EventKind.VIEW_HEALED)
        await write(engine, "t", (402, 1, 52))
        await engine.flush()
        check(engine)


async def test_a_view_that_cannot_be_filled_is_refused(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        with pytest.raises(UserError, match="division by zero"):
            await keep(engine, "bad", "select 1 / (v - 3) q from t")
        assert engine.catalog.snapshot().relation("bad") is None
        await keep(engine, "bad", "select 1 / (v - 33) q from t")
        await write(engine, "t", (500, 0, 0))
        await engine.flush()
        check(engine)


async def test_dropped_views_leave_nothing(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await several_views(engine)
        snapshot = engine.catalog.snapshot()
        with pytest.raises(RelationError) as raised:
            await engine.ddl.drop([snapshot.table("t")])
        assert raised.value.sqlstate == "2BP01"
        await write(engine, "t", (600, 1, 1))
        await engine.flush()
        check(engine)
        snapshot = engine.catalog.snapshot()
        above = snapshot.dependents([snapshot.table("t").id])
        await engine.ddl.drop([*above, snapshot.table("t")])
        await write(engine, "names", (77, "still here"))
        await engine.flush()
        assert [table.name for table in engine.catalog.snapshot().tables] == ["names"]
        kept = engine.store.surroundings.storage
        assert {path.split("/")[0] for path in kept.list()} == {
            engine.catalog.snapshot().table("names").folder
        }


async def test_a_view_keeps_its_meaning_when_its_table_changes(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await filled(engine)
        await keep(engine, "everything", "select * from t")
        table = engine.catalog.snapshot().table("t")
        wider = Schema((*PLAIN.columns, Column("extra", VARCHAR)), PLAIN.key)
        await engine.ddl.alter_table(
            table, lambda now, _: replace(now, schema=wider, name="renamed")
        )
        await write(engine, "renamed", (700, 1, 1, "more"))
        await engine.flush()
    async with engine_at(tmp_path, quick) as engine:
        await write(engine, "renamed", (701, 1, 2, "more"))
        await engine.flush()
        wanted = rows_at(engine, "select id, g, v from renamed order by id")
        assert rows_at(engine, "select * from everything order by id") == wanted


async def test_a_view_of_rows_keeps_both_zeros(tmp_path, quick):
    """To Spark they are one value; to whoever stored them they are two."""
    schema = Schema((Column("id", BIGINT), Column("f", DOUBLE)), ("id",))
    async with engine_at(tmp_path, quick) as engine:
        await create(engine, "t", schema)
        await write(engine, "t", (1, -0.0), (2, 0.0), (3, float("nan")))
        await engine.flush()
        await keep(engine, "v", "select id, f from t", "full")
        assert _spelled(engine) == ["-0.0", "0.0", "nan"]
        await write(engine, "t", (1, 0.0), (2, -0.0), (4, -0.0))
        await engine.flush()
        assert _spelled(engine) == ["0.0", "-0.0", "nan", "-0.0"]


def _spelled(engine):
    return [
        str(row["f"])
        for row in sorted(rows_at(engine, "select id, f from v"), key=lambda row: row["id"])
    ]
