"""Schemas: what is refused, how they are spelled, and how they may change."""

import json

import pyarrow as pa
import pytest

from headwater.errors import SchemaError
from headwater.model.schema import Column, Schema
from headwater.model.types import (
    BIGINT,
    DOUBLE,
    INTEGER,
    JSONB,
    REAL,
    SMALLINT,
    VARCHAR,
    decimal,
    list_of,
)

ORDERS = Schema(
    (Column("id", BIGINT, nullable=False), Column("who", VARCHAR), Column("total", decimal(10, 2))),
    key=("id",),
)


def columns(*pairs):
    return tuple(Column(name, type_) for name, type_ in pairs)


@pytest.mark.parametrize(
    ("made_of", "key", "complaint"),
    [
        ((), ("id",), "at least one column"),
        (columns(("_vnode", INTEGER)), ("_vnode",), 'column name "_vnode" is reserved'),
        (columns(("_hw_x", INTEGER)), ("_hw_x",), "is reserved"),
        (columns(("id", INTEGER), ("ID", INTEGER)), ("id",), 'column "ID" is there twice'),
        (columns(("id", INTEGER), ("id", INTEGER)), ("id",), 'column "id" is there twice'),
        (columns(("id", INTEGER)), (), "needs a key"),
        (columns(("id", INTEGER)), ("id", "id"), "named twice"),
        (columns(("id", INTEGER)), ("no",), 'key column "no" does not exist'),
        (columns(("id", INTEGER)), ("ID",), 'key column "ID" does not exist'),
        (columns(("id", JSONB)), ("id",), "jsonb cannot be part of a key"),
        (columns(("id", list_of(INTEGER))), ("id",), "cannot be part of a key"),
    ],
)
def test_what_is_refused(made_of, key, complaint):
    with pytest.raises(SchemaError) as caught:
        Schema(made_of, key)
    assert complaint in caught.value.message


def test_key_order_is_the_keys_own():
    schema = Schema(columns(("a", INTEGER), ("b", VARCHAR)), key=("b", "a"))
    assert [column.name for column in schema.key_columns] == ["b", "a"]
    assert schema.names == ("a", "b")
    assert schema["b"].type is VARCHAR
    with pytest.raises(KeyError):
        schema["c"]


def test_spelled_for_spark_arrow_and_delta():
    odd = Schema(columns(("a`b", INTEGER), ("c d", VARCHAR)), key=("a`b",))
    assert odd.spark == "`a``b` int, `c d` string"
    assert ORDERS.arrow == pa.schema(
        [("id", pa.int64()), ("who", pa.string()), ("total", pa.decimal128(10, 2))]
    )
    delta = json.loads(ORDERS.delta)
    assert [(field["name"], field["type"]) for field in delta["fields"]] == [
        ("id", "long"),
        ("who", "string"),
        ("total", "decimal(10,2)"),
    ]
    assert all(field["nullable"] for field in delta["fields"]), "change rows hold nulls"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SMALLINT, INTEGER),
        (SMALLINT, BIGINT),
        (INTEGER, BIGINT),
        (REAL, DOUBLE),
        (decimal(10, 2), decimal(12, 2)),
        (VARCHAR, VARCHAR),
    ],
)
def test_types_may_widen(old, new):
    before = Schema(columns(("id", BIGINT), ("x", old)), key=("id",))
    after = Schema(columns(("id", BIGINT), ("x", new)), key=("id",))
    assert before.evolve(after) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BIGINT, INTEGER),
        (DOUBLE, REAL),
        (INTEGER, VARCHAR),
        (INTEGER, DOUBLE),
        (decimal(10, 2), decimal(9, 2)),
        (decimal(10, 2), decimal(12, 4)),
        (list_of(INTEGER), list_of(BIGINT)),
    ],
)
def test_other_changes_of_type_are_refused(old, new):
    before = Schema(columns(("id", BIGINT), ("x", old)), key=("id",))
    after = Schema(columns(("id", BIGINT), ("x", new)), key=("id",))
    with pytest.raises(SchemaError, match='column "x" cannot change') as caught:
        before.evolve(after)
    assert caught.value.hint


def test_columns_may_be_added_and_dropped():
    added = Schema((*ORDERS.columns, Column("note", VARCHAR)), key=("id",))
    assert ORDERS.evolve(added) == added
    dropped = Schema(ORDERS.columns[:2], key=("id",))
    assert ORDERS.evolve(dropped) == dropped
    assert ORDERS.evolve(ORDERS) == ORDERS


def test_the_key_may_not_change():
    with pytest.raises(SchemaError, match=r"key cannot change from \(id\) to \(who\)"):
        ORDERS.evolve(Schema(ORDERS.columns, key=("who",)))
