"""Prepared statements that write: the types of their parameters and the columns they give."""

import pytest

from headwater.errors import HeadwaterError
from headwater.model import types as T
from headwater.session.writes.described import describe_write
from headwater.sql.parse import parse_one
from writes_kit import opened

DDL = "create table t (id int primary key, name text, pay numeric(8,2), at timestamptz, l int[])"
PAY = T.decimal(8, 2)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("insert into t values ($1, $2, $3, $4, $5)",
         (T.INTEGER, T.VARCHAR, PAY, T.TIMESTAMPTZ, T.list_of(T.INTEGER))),
        ("insert into t (pay, id) values ($2, $1), ($4, $3)", (T.INTEGER, PAY, T.INTEGER, PAY)),
        ("insert into t (id) values ($1 + 1)", (None,)),
        ("insert into t (id, name) values ($1::bigint, lower($2))", (T.BIGINT, None)),
        ("insert into t (id, name) select $1, name from t where pay > $2", (T.INTEGER, PAY)),
        ("insert into t (id) select b.id from t b where b.at between $1 and $2 limit $3",
         (T.TIMESTAMPTZ, T.TIMESTAMPTZ, T.BIGINT)),
        ("update t set name = $1, pay = pay + $2 where id = $3", (T.VARCHAR, PAY, T.INTEGER)),
        ("update t x set at = $2 where x.id in ($1, $3)",
         (T.INTEGER, T.TIMESTAMPTZ, T.INTEGER)),
        ("update t set (id, name) = ($1, $2) where $3 < pay", (T.INTEGER, T.VARCHAR, PAY)),
        ("delete from t where id = any($1) and name = $2",
         (T.list_of(T.INTEGER), T.VARCHAR)),
        ("delete from t where id in (select id from t where pay < $1)", (PAY,)),
        ("delete from t", ()),
    ],
)  # fmt: skip
async def test_parameters_take_the_types_of_what_they_meet(tmp_path, text, parameters):
    async with opened(tmp_path) as desk:
        await desk.create(DDL)
        found, columns = await describe_write(desk.context, parse_one(text))
    assert found == parameters
    assert columns is None


async def test_the_columns_of_returning(tmp_path):
    async with opened(tmp_path) as desk:
        await desk.create(DDL)
        text = "insert into t values ($1, 'x') returning *, pay * 2 as twice, id + $2"
        parameters, columns = await describe_write(desk.context, parse_one(text))
        assert parameters == (T.INTEGER, T.INTEGER)
        assert [column.name for column in columns][:6] == ["id", "name", "pay", "at", "l", "twice"]
        assert [column.type for column in columns][:4] == [T.INTEGER, T.VARCHAR, PAY, T.TIMESTAMPTZ]
        assert columns[6].type == T.INTEGER
        with pytest.raises(HeadwaterError) as caught:
            await describe_write(desk.context, parse_one("delete from t returning nothing"))
        assert caught.value.sqlstate == "42703"
