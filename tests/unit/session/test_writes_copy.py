"""COPY FROM STDIN of few rows: texts to values, one epoch, and errors that name the line."""

import pyarrow as pa
import pytest

from headwater.errors import HeadwaterError
from headwater.session.writes.copy_in import copy_target
from writes_kit import opened

DDL = """create table t (id int primary key, n numeric(6,2) not null, f double precision, b boolean,
    d date default '2020-01-01', z timestamptz, s varchar(4))"""


@pytest.fixture
async def desk(tmp_path):
    async with opened(tmp_path) as open_desk:
        yield open_desk


def batch(*rows):
    names = [f"c{place}" for place in range(len(rows[0]))]
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)


async def test_rows_take_effect_at_the_end_and_in_one_epoch(desk):
    table = await desk.create(DDL)
    target = copy_target(desk.context, table, ())
    first = ("1", "1.005", " 1e3", "yes", "2024-02-29", "2024-02-29 10:00:00.5+02", "ab  ")
    await target.write(batch(first))
    await target.write(batch(("2", "+2", "nan", "f", None, "2024-02-29 10:00", "äöü  ")))
    assert await desk.rows("t") == []
    assert await target.finish() == 2
    assert await desk.texts("t") == [
        ("1", "1.01", "1000", "t", "2024-02-29", "2024-02-29 08:00:00.5+00", "ab  "),
        ("2", "2.00", "NaN", "f", None, "2024-02-29 10:00:00+00", "äöü "),
    ]


async def test_columns_that_are_not_copied_have_their_defaults(desk):
    table = await desk.create(DDL)
    target = copy_target(desk.context, table, ("n", "id"))
    await target.write(batch(("1.5", "7"), ("2.5", "8")))
    assert await target.finish() == 2
    assert await desk.texts("t") == [
        ("7", "1.50", None, None, "2020-01-01", None, None),
        ("8", "2.50", None, None, "2020-01-01", None, None),
    ]


@pytest.mark.parametrize(
    ("row", "sqlstate", "where"),
    [
        (("x", "1"), "22P02", 'line 5, column id: "x"'),
        (("3", "12345.678"), "22003", 'line 5, column n: "12345.678"'),
        (("3", None), "23502", "line 5"),
        ((None, "1"), "23502", "line 5"),
    ],
)
async def test_errors_name_the_line(desk, row, sqlstate, where):
    table = await desk.create(DDL)
    target = copy_target(desk.context, table, ("id", "n"))
    await target.write(batch(("1", "1"), ("2", "2"), ("3", "3")))
    with pytest.raises(HeadwaterError) as caught:
        await target.write(batch(("4", "4"), row, ("6", "6")))
    await target.abort()
    assert caught.value.sqlstate == sqlstate
    assert f"COPY t, {where}" in caught.value.detail
    assert await desk.rows("t") == []


async def test_a_copy_that_is_given_up_leaves_nothing(desk):
    table = await desk.create(DDL)
    target = copy_target(desk.context, table, ("id", "n"))
    await target.write(batch(("1", "1")))
    await target.abort()
    await target.abort()
    assert await desk.rows("t") == []


async def test_the_rule_for_conflicts_holds(desk):
    table = await desk.create("create table u (id int primary key, x int) on conflict do nothing")
    await desk.run("insert into u values (1, 1)")
    target = copy_target(desk.context, table, ())
    await target.write(batch(("1", "5"), ("2", "6")))
    await target.write(batch(("2", "7")))
    await target.finish()
    assert await desk.rows("u") == [(1, 1), (2, 6)]


async def test_generated_columns_are_not_copied(desk):
    table = await desk.create("create table g (id int primary key, x int as (id + 1))")
    with pytest.raises(HeadwaterError) as caught:
        copy_target(desk.context, table, ("id", "x"))
    assert caught.value.sqlstate == "428C9"
