"""INSERT, UPDATE and DELETE with expressions and queries, and loads that do not fit the driver.

Each statement runs twice: with all the driver's memory, and with none of it, so that every row
goes through files and Spark tasks.
"""

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import HeadwaterError
from headwater.runtime.row_ids import ROW_ID
from headwater.session.writes.copy_in import copy_target
from writes_kit import opened

pytestmark = pytest.mark.timeout(1200)

ROOMS = {"memory": 32 << 20, "files": 0}


@pytest.fixture(params=ROOMS, name="room")
def room_of(request):
    return ROOMS[request.param]


def spills(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder / "tables") if "spill" in name]


async def refused(desk, text, sqlstate):
    with pytest.raises(HeadwaterError) as caught:
        await desk.run(text)
    assert caught.value.sqlstate == sqlstate, caught.value
    return caught.value


async def test_expressions_defaults_and_generated_columns(tmp_path, spark, room):
    async with opened(tmp_path, spark=spark, driver_bytes=room) as desk:
        await desk.create(
            """create table t (id int primary key, v varchar(6) not null,
            n numeric(6,2) default 1.5, g int as (id * 2), d int default 1 + 1)"""
        )
        await desk.run("insert into t (id, v) values (1, 'a' || 'b'), (2, 'c'), (3, lower('D'))")
        await desk.run("insert into t (id, v, n) select id + 10, upper(v), '7.125' from t")
        wanted = [(1, "ab", "1.50", 2, 2), (2, "c", "1.50", 4, 2), (3, "d", "1.50", 6, 2)]
        wanted += [(11, "AB", "7.13", 22, 2), (12, "C", "7.13", 24, 2), (13, "D", "7.13", 26, 2)]
        assert [(*row[:2], str(row[2]), *row[3:]) for row in await desk.rows("t")] == sorted(
            wanted, key=repr
        )
        assert (await desk.run("update t set n = n + 1 where id > 3")).count == 3
        assert (await desk.run("update t set n = n + 1, v = v || '!' where id > 3")).count == 3
        assert (await desk.run("update t set id = id + 1")).count == 6
        assert (await desk.run("delete from t where n in (select max(n) from t)")).count == 3
        assert [(*row[:2], str(row[2]), *row[3:]) for row in await desk.rows("t")] == [
            (2, "ab", "1.50", 4, 2), (3, "c", "1.50", 6, 2), (4, "d", "1.50", 8, 2)
        ]  # fmt: skip
        await refused(desk, "insert into t (id, v) select id, v || 'too long' from t", "22001")
        await refused(desk, "insert into t (id, v) select id, null from t", "23502")
        await refused(desk, "insert into t (id, v) select id, n / 0 from t", "22012")
        await refused(desk, "update t set v = v || 'too long'", "22001")
        await refused(desk, "update t set g = 1", "428C9")
        await refused(desk, "update t set id = 7", "23505")
        await refused(desk, "update t set id = id + 1 where id < 4", "23505")
        await refused(desk, "insert into t (id, n) select id, v from t", "42804")
        await refused(desk, "insert into t (id, v) select id from t", "42601")
        await refused(desk, "insert into t (id) select id, v from t", "42601")
        assert len(await desk.rows("t")) == 3
        await desk.settled()
    assert not spills(tmp_path)


async def test_two_updates_add_up_and_inserts_are_seen(tmp_path, spark, room):
    async with opened(tmp_path, spark=spark, driver_bytes=room) as desk:
        await desk.create("create table t (id int primary key, x int)")
        await desk.create("create table u (id int primary key, n0 int)")
        await desk.run("insert into t values (1, 1), (2, 2)")
        await desk.run("update t set x = x + 1")
        await desk.run("update t set x = x + 1")
        await desk.run("insert into u select id, x * 10 from t")
        await desk.run("update t set x = x + (select max(n0) from u) where id = 1")
        await desk.run("update u set id = -id, n0 = n0 - 1")
        assert await desk.rows("t") == [(1, 43), (2, 4)]
        assert await desk.rows("u") == [(-1, 29), (-2, 39)]


async def test_returning_of_expressions_keeps_the_order(tmp_path, spark):
    async with opened(tmp_path, spark=spark) as desk:
        await desk.create("create table t (id int primary key, x int)")
        rows = ", ".join(f"({number}, {number})" for number in range(20, 0, -1))
        got = await desk.run(f"insert into t values {rows} returning t.x * 2 as twice, id")
        assert got.rows.to_pylist() == [
            {"twice": 2 * number, "id": number} for number in range(20, 0, -1)
        ]
        got = await desk.run("delete from t d where d.x > 18 returning d.id + 1 as next")
        assert sorted(got.rows.column("next").to_pylist()) == [20, 21]
        error = await refused(desk, "insert into t values (99, 0) returning 1 / x", "22012")
        assert "division" in error.message
        assert (99, 0) not in await desk.rows("t")


@pytest.mark.parametrize("rule", ["do nothing", "do update if not null", "error"])
async def test_many_rows_follow_the_rule_for_conflicts(tmp_path, spark, room, rule):
    async with opened(tmp_path, spark=spark, driver_bytes=room) as desk:
        await desk.create("create table s (n int primary key, id int, x int, y int)")
        written = f"on conflict {rule}" if rule != "error" else "on conflict do nothing"
        table = await desk.create(f"create table t (id int primary key, x int, y int) {written}")
        if rule == "error":
            await desk.engine.ddl.alter_table(
                table, lambda now, _: replace(now, detail=replace(now.detail, conflict="error"))
            )
        await desk.run("insert into t values (1, 1, 1)")
        await desk.run(
            "insert into s values (1, 2, 5, null), (2, 1, 7, null), (3, 1, null, 8), (4, 2, 6, 9)"
        )
        text = "insert into t select id, x, y from s order by n"
        if rule == "error":
            await refused(desk, text, "23505")
            await refused(desk, "insert into t select 9, x, y from s", "23505")
            assert (await desk.run("insert into t select 10 + n, x, y from s")).count == 4
            assert len(await desk.rows("t")) == 5
            return
        await desk.run(text)
        wanted = [(1, 1, 1), (2, 5, None)] if rule == "do nothing" else [(1, 7, 8), (2, 6, 9)]
        assert await desk.rows("t") == wanted


async def test_rows_without_a_key_are_numbered_in_tasks(tmp_path, spark, room):
    async with opened(tmp_path, spark=spark, driver_bytes=room) as desk:
        await desk.create("create table t (x int)")
        for _ in range(2):
            await desk.run("insert into t select g from generate_series(1, 500) as s(g)")
        await desk.run("insert into t values (0)")
        assert (await desk.run("update t set x = -x where x > 499")).count == 2
        assert (await desk.run("delete from t where x between 100 and 199")).count == 200
        await desk.settled()
        rows = desk.engine.table("t").rows()
        assert rows.num_rows == len(set(rows.column(ROW_ID).to_pylist())) == 801
        assert sorted(rows.column("x").to_pylist())[:2] == [-500, -500]


async def test_a_large_copy_is_one_epoch_and_leaves_no_files(tmp_path, spark):
    count, step = 60_000, 10_000
    async with opened(tmp_path, spark=spark, driver_bytes=1 << 20) as desk:
        table = await desk.create(
            "create table t (id int primary key, name text, n numeric(10,2), at timestamp)"
        )
        target = copy_target(desk.context, table, ())
        for first in range(0, count, step):
            ids = range(first, first + step)
            columns = [
                [str(number) for number in ids],
                [f"name {number}" for number in ids],
                [f"{number}.125" for number in ids],
                ["2024-02-29 10:00:00"] * step,
            ]
            await target.write(
                pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=list("abcd"))
            )
        assert spills(tmp_path)
        before = desk.engine.visible
        assert await target.finish() == count
        await desk.settled()
        stored = desk.engine.table("t")
        assert stored.view(before).rows == 0
        assert stored.view().rows == count
        epochs = stored.change_rows(before, stored.committed).column("_commit_version")
        assert len(epochs.unique()) == 1
        got = stored.rows().select(["id", "name", "n"]).sort_by("id").slice(4321, 1).to_pylist()
        assert got[0]["name"] == "name 4321"
        assert str(got[0]["n"]) == "4321.13"
        given_up = copy_target(desk.context, table, ("id",))
        await given_up.write(
            pa.RecordBatch.from_arrays([pa.array([str(n) for n in range(200_000)])], names=["a"])
        )
        await given_up.write(
            pa.RecordBatch.from_arrays([pa.array([str(n) for n in range(200_000)])], names=["a"])
        )
        assert len(spills(tmp_path)) >= 1
        await given_up.abort()
        assert not spills(tmp_path)


@pytest.mark.parametrize("seed", range(2))
async def test_random_statements_against_a_dict(tmp_path, spark, room, seed):
    dice = random.Random(seed)
    model: dict[int, tuple[int | None, str]] = {}
    async with opened(tmp_path, spark=spark, driver_bytes=room) as desk:
        await desk.create("create table t (id int primary key, x int, s text)")
        for _ in range(14):
            await _random_statement(desk, dice, model)
            if dice.random() < 0.3:
                await desk.engine.flush()
        assert await desk.rows("t") == sorted(((k, *v) for k, v in model.items()), key=repr)


async def _random_statement(desk, dice, model):
    low = dice.randrange(12)
    high = low + dice.randrange(8)
    matched = [key for key in model if low <= key <= high]
    match dice.choice(["values", "select", "add", "shift", "delete", "one"]):
        case "values":
            keys = [dice.randrange(12) for _ in range(4)]
            cells = ", ".join(f"({key}, {place}, 'v')" for place, key in enumerate(keys))
            await desk.run(f"insert into t values {cells}")
            model.update({key: (place, "v") for place, key in enumerate(keys)})
        case "select":
            text = (
                f"insert into t select id + 3, x, s || '+' from t where id between {low} and {high}"
            )
            assert (await desk.run(text)).count == len(matched)
            model.update({key + 3: (model[key][0], model[key][1] + "+") for key in matched})
        case "add":
            text = f"update t set x = x + 1 where id between {low} and {high}"
            assert (await desk.run(text)).count == len(matched)
            model.update({key: (model[key][0] + 1, model[key][1]) for key in matched})
        case "shift":
            moved = {key + 1: model[key] for key in matched}
            clash = [key for key in moved if key in model and key not in matched]
            text = f"update t set id = id + 1 where id between {low} and {high}"
            if clash:
                await refused(desk, text, "23505")
                return
            assert (await desk.run(text)).count == len(matched)
            for key in matched:
                del model[key]
            model.update(moved)
        case "delete":
            text = f"delete from t where id between {low} and {high} and x % 2 = 0"
            gone = [key for key in matched if model[key][0] % 2 == 0]
            assert (await desk.run(text)).count == len(gone)
            for key in gone:
                del model[key]
        case "one":
            await desk.run(f"update t set s = 'one' where id = {low}")
            if low in model:
                model[low] = (model[low][0], "one")


def test_statements_run_while_others_do(tmp_path, spark):
    """A slow query does not hold back an INSERT of values; an UPDATE does, and nothing is lost."""

    async def both():
        async with opened(tmp_path, spark=spark) as desk:
            await desk.create("create table t (id int primary key, x int)")
            await desk.run("insert into t values (1, 0)")
            updates = [desk.run("update t set x = x + 1 where id > 0") for _ in range(4)]
            inserts = [desk.run(f"insert into t values ({n}, 0)") for n in range(2, 6)]
            await asyncio.gather(*updates, *inserts)
            return await desk.rows("t")

    rows = asyncio.run(both())
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0] == (1, 4)
