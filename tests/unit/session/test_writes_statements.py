"""INSERT, UPDATE and DELETE of values that are known: no Spark, PostgreSQL's meaning and errors."""

import asyncio
import random
import time
from dataclasses import replace
from decimal import Decimal

import pytest

from engine_kit import bank_tap
from headwater.errors import HeadwaterError
from headwater.model.schema import Column, Schema
from headwater.model.types import INTEGER
from headwater.runtime import row_ids
from headwater.runtime.blocking import Blocking
from headwater.runtime.row_ids import ROW_ID
from headwater.session.context import OpenTransaction
from headwater.session.writes.outcome import unchanged
from writes_kit import opened

PEOPLE = """create table people (id int primary key, name varchar(5) not null,
    pay numeric(8,2) default 10.5, since date default '2020-01-01', ok boolean)"""


@pytest.fixture
async def desk(tmp_path):
    async with opened(tmp_path) as open_desk:
        yield open_desk


async def test_values_defaults_and_parameters(desk):
    await desk.create(PEOPLE)
    wrote = await desk.run(
        "insert into people (id, name, pay) values (1, 'ann', default), ($1, $2, -2.345)",
        ["2", "bob"],
    )
    assert wrote.count == 2
    assert await desk.texts("people") == [
        ("1", "ann", "10.50", "2020-01-01", None),
        ("2", "bob", "-2.35", "2020-01-01", None),
    ]


async def test_an_insert_of_values_takes_milliseconds(desk):
    await desk.create(PEOPLE)
    await desk.run("insert into people values (0, 'x')")
    best = 1.0
    for number in range(20):
        begun = time.perf_counter()
        await desk.run(f"insert into people values ({number}, 'x', 1.5, date '2024-02-29', true)")
        best = min(best, time.perf_counter() - begun)
    assert best < 0.03


async def test_returning_gives_the_new_row_or_the_old_one(desk):
    await desk.create(PEOPLE)
    got = await desk.run("insert into people values (1, 'ann') returning *, pay as p")
    assert [column.name for column in got.columns] == ["id", "name", "pay", "since", "ok", "p"]
    assert got.rows.column("p").to_pylist() == [Decimal("10.50")]
    got = await desk.run("update people set name = 'eve' where id = 1 returning name, people.id")
    assert got.rows.to_pylist() == [{"name": "eve", "id": 1}]
    got = await desk.run("delete from people p where p.id = 1 returning p.name")
    assert got.rows.to_pylist() == [{"name": "eve"}]
    got = await desk.run("delete from people where id = 1 returning name")
    assert (got.count, got.rows.num_rows) == (0, 0)


async def test_an_insert_replaces_and_the_last_row_counts(desk):
    await desk.create(PEOPLE)
    await desk.run("insert into people (id, name) values (1, 'a'), (1, 'b')")
    await desk.run("insert into people (id, name, pay) values (1, 'c', null)")
    assert await desk.texts("people") == [("1", "c", None, "2020-01-01", None)]


@pytest.mark.parametrize(
    ("text", "sqlstate", "words"),
    [
        ("insert into peeple values (1)", "42P01", 'Did you mean "people"'),
        ("insert into people (id, nam) values (1, 'x')", "42703", 'Did you mean "name"'),
        ("insert into people (id, id) values (1, 2)", "42701", "more than once"),
        ("insert into people values (1, 'a', 1, null, true, 6)", "42601", "more expressions"),
        ("insert into people (id, name) values (1)", "42601", "more target columns"),
        ("insert into people values (1, 'a'), (2)", "42601", "same length"),
        ("insert into people values (null, 'a')", "23502", 'column "id"'),
        ("insert into people (id) values (1)", "23502", "Failing row contains (1, null,"),
        ("insert into people values (1, 'abcdef')", "22001", "character varying(5)"),
        ("insert into people values (1, 'a', 1000000)", "22003", "numeric field overflow"),
        ("insert into people values (3000000000, 'a')", "22003", "integer out of range"),
        ("insert into people values ('x', 'a')", "22P02", 'integer: "x"'),
        ("insert into people values (1, 'a', 1, '2023-02-29')", "22008", "out of range"),
        ("insert into people values ($1, 'a')", "42P02", "there is no parameter $1"),
        ("update people set nam = 'x' where id = 1", "42703", 'Did you mean "name"'),
        ("update people set name = null where id = 1", "23502", 'column "name"'),
        ("update people set name = 'x', name = 'y' where id = 1", "42601", "multiple assignments"),
        ("update people set id = 2 where id = 1", "23505", "Key (id)=(2) already exists"),
        ("delete from people where id = 'x'", "22P02", 'integer: "x"'),
        ("update nobody set x = 1", "42P01", "does not exist"),
    ],
)
async def test_errors_have_postgresqls_codes_and_nothing_is_written(desk, text, sqlstate, words):
    await desk.create(PEOPLE)
    await desk.run("insert into people (id, name) values (1, 'a'), (2, 'b')")
    before = await desk.rows("people")
    with pytest.raises(HeadwaterError) as caught:
        await desk.run(text)
    assert caught.value.sqlstate == sqlstate
    assert words in str(caught.value)
    assert await desk.rows("people") == before


async def test_a_literal_that_cannot_be_read_is_pointed_at(desk):
    await desk.create(PEOPLE)
    with pytest.raises(HeadwaterError) as caught:
        await desk.run("insert into people values (1, 'a'), ('zwei', 'b')")
    assert caught.value.position == 38
    assert "^" in caught.value.detail


async def test_blanks_beyond_the_length_are_cut(desk):
    await desk.create(PEOPLE)
    await desk.run("insert into people (id, name) values (1, 'abc     '), (2, 'äöüß€')")
    assert [row[1] for row in await desk.rows("people")] == ["abc  ", "äöüß€"]


async def test_others_than_tables_are_not_written(tmp_path):
    tap = bank_tap(5)
    async with opened(tmp_path, connectors={"bank": tap}) as desk:
        await tap.create(desk.engine)
        for text in (
            "insert into accounts values (1, 2)",
            "update accounts set balance = 0",
            "delete from accounts",
        ):
            with pytest.raises(HeadwaterError, match="not a table that can be written") as caught:
                await desk.run(text)
            assert caught.value.sqlstate == "42809"
            assert "source bank" in caught.value.hint


async def test_append_only_tables_take_inserts_alone(desk):
    await desk.create("create table log (id int primary key, x int) append only")
    await desk.run("insert into log values (1, 1)")
    for text in ("update log set x = 2 where id = 1", "delete from log where id = 1"):
        with pytest.raises(HeadwaterError) as caught:
            await desk.run(text)
        assert caught.value.sqlstate == "0A000"


@pytest.mark.parametrize(
    ("rule", "count", "rows"),
    [
        ("do nothing", 1, [(1, 1, 1), (2, 5, None)]),
        ("do update if not null", 4, [(1, 7, 8), (2, 5, 9)]),
        ("do update set x = x", 4, None),
    ],
)
async def test_what_a_conflict_does(desk, rule, count, rows):
    if rows is None:
        await desk.create("create table t (id int primary key, x int, y int)")
        rows = [(1, None, 8), (2, None, 9)]
    else:
        await desk.create(f"create table t (id int primary key, x int, y int) on conflict {rule}")
    await desk.run("insert into t values (1, 1, 1)")
    wrote = await desk.run(
        "insert into t values (2, 5, null), (1, 7, null), (1, null, 8), (2, null, 9) returning id"
    )
    assert wrote.count == count
    assert wrote.rows.num_rows == count
    assert await desk.rows("t") == rows


async def test_a_conflict_that_is_an_error_writes_nothing(desk):
    table = await desk.create("create table t (a int, b text, x int, primary key (a, b))")
    await desk.engine.ddl.alter_table(
        table, lambda now, _: replace(now, detail=replace(now.detail, conflict="error"))
    )
    await desk.run("insert into t values (1, 'x', 1)")
    for text, key in (
        ("insert into t values (2, 'y', 1), (1, 'x', 2)", "(a, b)=(1, x)"),
        ("insert into t values (3, 'y', 1), (3, 'y', 2)", "(a, b)=(3, y)"),
    ):
        with pytest.raises(HeadwaterError) as caught:
            await desk.run(text)
        assert caught.value.sqlstate == "23505"
        assert key in caught.value.detail
    assert await desk.rows("t") == [(1, "x", 1)]


async def test_updates_move_keys_out_of_the_way(desk):
    await desk.create("create table t (id int primary key, x text)")
    await desk.run("insert into t values (1, 'one'), (2, 'two')")
    assert (await desk.run("update t set id = 7 where id = 1")).count == 1
    assert (await desk.run("update t set id = 7 where id = 7")).count == 1
    assert await desk.rows("t") == [(2, "two"), (7, "one")]
    await desk.run("insert into t values (1, 'again')")
    assert await desk.rows("t") == [(1, "again"), (2, "two"), (7, "one")]


async def test_conditions_that_fix_the_key(desk):
    await desk.create("create table t (a int, b text, x int, primary key (a, b))")
    await desk.create("create table u (id smallint primary key, x int)")
    await desk.run("insert into t values (1, 'a', 0), (1, 'b', 0), (2, 'a', 0)")
    await desk.run("insert into u values (1, 0), (2, 0), (3, 0)")
    assert (await desk.run("update t set x = 5 where b = 'a' and (1 = a)")).count == 1
    assert (await desk.run("update u set x = 1 where id in (1, 3, 3, 99999, null)")).count == 2
    assert (await desk.run("delete from u where u.id = null")).count == 0
    assert (await desk.run("delete from u where id = $1", ["2"])).count == 1
    assert await desk.rows("t") == [(1, "a", 5), (1, "b", 0), (2, "a", 0)]
    assert await desk.rows("u") == [(1, 1), (3, 1)]


async def test_rows_without_a_key_get_numbers_that_never_come_back(tmp_path, monkeypatch):
    seen: set[int] = set()
    for life in range(3):
        # A new process counts from the beginning.
        monkeypatch.setattr(row_ids, "_used", 0)
        async with opened(tmp_path) as desk:
            if life == 0:
                await desk.create("create table t (x int)")
            for _ in range(3):
                await desk.run("insert into t values (1), (1), (1)")
            await desk.settled()
            ids = desk.engine.table("t").rows().column(ROW_ID).to_pylist()
            assert len(ids) == len(set(ids)) == 9 * (life + 1)
            assert seen < set(ids)
            seen = set(ids)


async def test_a_transaction_holds_its_rows_back(desk):
    await desk.create("create table t (id int primary key, x int) on conflict do nothing")
    await desk.create("create table u (id int primary key, x int)")
    await desk.run("insert into t values (1, 1)")
    desk.context.transaction = OpenTransaction()
    assert (await desk.run("insert into t values (2, 2)")).count == 1
    assert (await desk.run("insert into t values (2, 3), (1, 3), (4, 4)")).count == 1
    await desk.run("update u set x = 1 where id = 1")
    await desk.run("insert into u values (1, 1)")
    for text in ("update u set x = 2 where id = 1", "delete from u where id = 1"):
        with pytest.raises(HeadwaterError) as caught:
            await desk.run(text)
        assert caught.value.sqlstate == "0A000"
        assert "COMMIT" in caught.value.hint
    writes, desk.context.transaction = desk.context.transaction.writes, None
    assert await desk.rows("t") == [(1, 1)]
    for write in writes:
        await desk.context.write(write)
    assert await desk.rows("t") == [(1, 1), (2, 2), (4, 4)]


class Slow(Blocking):
    """Lets others go first after every look at the rows."""

    async def __call__(self, call, *args, **kwargs):
        found = await super().__call__(call, *args, **kwargs)
        await asyncio.sleep(0.05)
        return found


async def test_statements_that_read_and_write_do_not_pass_each_other(desk):
    """Each sets one column of one row; without the lock, one forgets what another has set."""
    desk.context.blocking = Slow(8)
    columns = ", ".join(f"x{number} int" for number in range(8))
    rule = "on conflict do update if not null"
    await desk.create(f"create table t (id int primary key, {columns}) {rule}")
    await desk.create("create table u (id int primary key, x int) on conflict do nothing")
    await desk.run("insert into t (id) values (1)")

    async def set_one(number):
        await desk.run(f"insert into t (id, x{number}) values (1, {number})")
        await desk.run(f"update t set x{number} = {number + 10} where id = 1")
        return (await desk.run(f"insert into u values (1, {number})")).count

    counts = await asyncio.gather(*(set_one(number) for number in range(8)))
    assert await desk.rows("t") == [(1, *range(10, 18))]
    assert sum(counts) == 1
    desk.context.blocking.close()


async def test_rows_made_for_another_schema_are_refused(desk):
    table = await desk.create("create table t (id int primary key, x int)")
    wider = Schema((*table.schema.columns, Column("y", INTEGER)), table.schema.key)
    await desk.engine.ddl.alter_table(table, lambda now, _: replace(now, schema=wider))
    with pytest.raises(HeadwaterError, match="altered") as caught:
        unchanged(desk.engine.catalog.snapshot(), table)
    assert caught.value.sqlstate == "40001"
    await desk.run("insert into t values (1, 2, 3)")
    assert await desk.rows("t") == [(1, 2, 3)]


RULES = ("", "on conflict do nothing", "on conflict do update if not null")


@pytest.mark.parametrize("seed", range(6))
async def test_random_statements_against_a_dict(tmp_path, seed):
    dice = random.Random(seed)
    rule = RULES[seed % 3]
    model: dict[tuple[int, str], list[int | None]] = {}
    async with opened(tmp_path) as desk:
        await desk.create(
            f"create table t (a int, b text, x int, y int, primary key (a, b)) {rule}"
        )
        for _ in range(120):
            await _random_statement(desk, dice, rule, model)
            if dice.random() < 0.15:
                await desk.engine.flush()
            if dice.random() < 0.1:
                assert await desk.rows("t") == _rows(model)
        assert await desk.rows("t") == _rows(model)


def _rows(model):
    return sorted(((*key, *row) for key, row in model.items()), key=repr)


async def _random_statement(desk, dice, rule, model):
    def number():
        return dice.choice([None, *range(5)])

    key = (dice.randrange(4), dice.choice("pq"))
    condition = f"a = {key[0]} and b = '{key[1]}'"
    match dice.choice(["insert", "insert", "update", "move", "delete"]):
        case "insert":
            rows = [
                (dice.randrange(4), dice.choice("pq"), number(), number())
                for _ in range(dice.randrange(1, 5))
            ]
            cells = ", ".join(
                "(" + ", ".join("null" if c is None else repr(c) for c in row) + ")" for row in rows
            )
            wrote = await desk.run(f"insert into t values {cells}")
            count = 0
            for a, b, *new in rows:
                old = model.get((a, b))
                if old is not None and "nothing" in rule:
                    continue
                count += 1
                before = old if old is not None and "not null" in rule else [None, None]
                model[a, b] = [n if n is not None else o for n, o in zip(new, before, strict=True)]
            assert wrote.count == count
        case "update":
            new = number()
            wrote = await desk.run(f"update t set x = $1 where {condition}", [_text(new)])
            assert wrote.count == (key in model)
            if key in model:
                model[key] = [new, model[key][1]]
        case "move":
            to = dice.randrange(4)
            text = f"update t set a = {to} where {condition}"
            if key in model and (to, key[1]) in model and to != key[0]:
                with pytest.raises(HeadwaterError) as caught:
                    await desk.run(text)
                assert caught.value.sqlstate == "23505"
            else:
                assert (await desk.run(text)).count == (key in model)
                if key in model:
                    model[to, key[1]] = model.pop(key)
        case "delete":
            assert (await desk.run(f"delete from t where {condition}")).count == (key in model)
            model.pop(key, None)


def _text(value):
    return None if value is None else str(value)
