"""Queries that need no Spark: which they are, and that no other is taken for one."""

import pytest

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, DATE, DOUBLE, INTEGER, VARCHAR, decimal
from headwater.session.constants import as_constants
from headwater.session.fast_lookup import as_lookup
from headwater.session.parameters import parameter_count
from headwater.sql.parse import parse_one

COLUMNS = (
    Column("id", BIGINT, False),
    Column("region", VARCHAR, False),
    Column("day", DATE),
    Column("amount", decimal(9, 2)),
    Column("ratio", DOUBLE),
    Column("small", INTEGER),
)
SNAPSHOT = CatalogSnapshot(
    tables=(
        TableDef(id=TableId(1), name="t", schema=Schema(COLUMNS, ("id", "region")), folder="t"),
        TableDef(
            id=TableId(2), name="T", schema=Schema(COLUMNS, ("id",)), folder="u", namespace="Odd"
        ),
    ),
    objects=(
        ObjectDef(id=3, kind=ObjectKind.INDEX, name="i", table=TableId(1), keys=("day",)),
        ObjectDef(id=4, kind=ObjectKind.VIEW, name="v", columns=COLUMNS),
    ),
)


def lookup(text, parameters=()):
    return as_lookup(parse_one(text).query, SNAPSHOT, ("public",), parameters)


def test_a_whole_key_is_a_lookup():
    found = lookup("select amount as a, id from t where region = 'eu' and 7 = id limit 3")
    assert found.table.id == 1
    assert found.keys == {"region": "eu", "id": 7}
    assert [column.name for column in found.columns] == ["a", "id"]
    assert found.stored == ("amount", "id")
    assert found.limit == 3


def test_parameters_and_stars_and_quoted_names():
    found = lookup("select * from t where id = $1 and t.region = $2", ("12", "eu"))
    assert found.keys == {"id": 12, "region": "eu"}
    assert len(found.stored) == len(COLUMNS)
    assert lookup('select id from "Odd"."T" where id = 5').table.id == 2
    assert lookup('select id from "Odd".T where id = 5') is None


def test_an_index_is_a_lookup():
    assert lookup("select id from t where day = '2024-02-29'").keys.keys() == {"day"}


@pytest.mark.parametrize(
    "text",
    [
        "select * from t where id = 7",
        "select * from t where id = 7 and region = 'eu' and small = 1",
        "select * from t where id = 7 or region = 'eu'",
        "select * from t where id > 7 and region = 'eu'",
        "select * from t where id = 7.5 and region = 'eu'",
        "select * from t where id = -7 and region = 'eu'",
        "select * from t where id = null and region = 'eu'",
        "select * from t where id = 7 and region = 'eu' and id = 8",
        "select * from t where id = 99999999999999999999999 and region = 'eu'",
        "select * from t where id = small and region = 'eu'",
        "select id + 1 from t where id = 7 and region = 'eu'",
        "select distinct id from t where id = 7 and region = 'eu'",
        "select id from t where id = 7 and region = 'eu' order by id",
        "select count(*) from t where id = 7 and region = 'eu'",
        "select id from t where id = 7 and region = 'eu' group by id",
        "select id from t where id = 7 and region = 'eu' limit 1 offset 1",
        "select id from t where id = 7 and region = 'eu' limit null",
        "select t.id from t, t u where t.id = 7 and t.region = 'eu'",
        "select x.id from t x where x.id = 7 and x.region = 'eu'",
        "select nope from t where id = 7 and region = 'eu'",
        "select * from v where id = 7 and region = 'eu'",
        "select * from nope where id = 7 and region = 'eu'",
        "select * from t where day = 'tomorrow'",
        "select id from t where id = 7 and region = 'eu' union select 1",
        "select * from t where id in (7) and region = 'eu'",
        "with x as (select 1) select id from t where id = 7 and region = 'eu'",
        "select id from t where id = 7 and region = 'eu' for update",
    ],
)
def test_everything_else_is_left_to_spark(text):
    assert lookup(text) is None


@pytest.mark.parametrize(
    ("text", "row", "names"),
    [
        ("select 1", (1,), ["?column?"]),
        (
            "select -5 as a, 'x', true, null",
            (-5, "x", True, None),
            ["a", "?column?", "bool", "?column?"],
        ),
    ],
)
def test_literals_answer_themselves(text, row, names):
    columns, table = as_constants(parse_one(text).query)
    assert tuple(table.to_pylist()[0].values()) == row
    assert [column.name for column in columns] == names


@pytest.mark.parametrize(
    "text",
    [
        "select 1.5", "select 1 + 1", "select 1 where false", "select 3000000000",
        "select 1 from t", "select 1 union select 2", "select date '2024-01-01'",
        "select 1 limit 0", "select $1",
    ],
)  # fmt: skip
def test_what_is_more_than_literals_does_not(text):
    assert as_constants(parse_one(text).query) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("select 1", 0),
        ("select $2::int + $1 from t where id in (select $3::int)", 3),
        ("insert into t values ($1, $2), ($3, $4) returning $5::int", 5),
        ("update t set amount = $2 where id = $1", 2),
        ("delete from t where id = $9", 9),
        ("select '$3'", 0),
    ],
)
def test_parameters_are_counted(text, count):
    assert parameter_count(parse_one(text)) == count
