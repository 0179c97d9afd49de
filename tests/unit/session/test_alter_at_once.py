"""Statements about one table at the same time: none takes back what another has done.

Each looks at the table first and waits for its turn then. By that time it may have other columns,
because somebody else added one or because its source did, or it may be gone.
"""

import asyncio

import pytest

from headwater.errors import HeadwaterError
from headwater.session.ddl_statements import alter, alter_columns, comment, create_view, drop
from headwater.session.show_statements import alter_setting
from headwater.sql import statement as st
from headwater.sql.parse import parse_one
from writes_kit import opened

FIRST = "alter table t add column y int"
OTHERS = [
    "alter table t add column z int",
    "alter table t drop column x",
    "alter table t rename to u",
    "alter table t owner to ann",
    "comment on table t is 'things'",
    "comment on column t.x is 'a thing'",
    "alter table t set backfill_rate_limit = 5",
]


def running(desk, text):
    statement = parse_one(text)
    match statement:
        case st.AddColumn() | st.DropColumn():
            return alter_columns(desk.context, statement)
        case st.Comment():
            return comment(desk.context, statement)
        case st.AlterSetting():
            return alter_setting(desk.context, statement)
        case st.CreateView():
            return create_view(desk.context, statement, text)
        case st.Drop():
            return drop(desk.context, statement)
        case _:
            return alter(desk.context, statement)


async def at_once(desk, *texts):
    """What statements give that have all looked before the first of them is done."""
    turn = desk.engine.ddl._one
    begun = []
    async with turn:
        for text in texts:
            begun.append(asyncio.ensure_future(running(desk, text)))
            while len(turn._waiters or ()) < len(begun):
                assert not begun[-1].done(), begun[-1]
                await asyncio.sleep(0.01)
    return await asyncio.gather(*begun, return_exceptions=True)


async def after(folder, *texts, together):
    """The table's definition after statements, less what tells one life from another."""
    async with opened(folder) as desk:
        made = await desk.create("create table t (id int primary key, x int)")
        if together:
            outcomes = await at_once(desk, *texts)
            assert not [each for each in outcomes if isinstance(each, BaseException)]
        else:
            for text in texts:
                await running(desk, text)
        found = desk.engine.catalog.snapshot().table_by_id(made.id)
        assert desk.engine.store[made.id].schema == found.schema
        return found.name, found.schema, found.detail


@pytest.mark.parametrize("other", OTHERS)
async def test_both_are_done(tmp_path, other):
    expected = await after(tmp_path / "in turn", FIRST, other, together=False)
    assert await after(tmp_path / "at once", FIRST, other, together=True) == expected


@pytest.mark.parametrize(
    ("first", "state", "message"),
    [
        ("drop table t", "42P01", 'relation "t" does not exist'),
        ("alter table t drop column x", "42703", 'relation "t" has no column "x" any more'),
    ],
)
async def test_no_view_of_what_went_meanwhile(tmp_path, first, state, message):
    async with opened(tmp_path) as desk:
        await desk.create("create table t (id int primary key, x int)")
        gone, error = await at_once(desk, first, "create view v as select x from t")
        assert not isinstance(gone, BaseException), gone
        assert isinstance(error, HeadwaterError)
        assert (error.sqlstate, error.message) == (state, message)
        assert desk.engine.catalog.snapshot().objects == ()


async def test_the_same_column_comes_once(tmp_path):
    async with opened(tmp_path) as desk:
        await desk.create("create table t (id int primary key, x int)")
        done, error = await at_once(desk, FIRST, FIRST)
        assert not isinstance(done, BaseException), done
        assert isinstance(error, HeadwaterError)
        assert "already exists" in str(error)
