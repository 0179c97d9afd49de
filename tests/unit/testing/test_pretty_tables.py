from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.errors import SchemaError
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, UUID, VARCHAR, decimal
from headwater.testing.pretty import (
    columns_from_pretty,
    columns_to_pretty,
    from_pretty,
    rows_from_pretty,
    to_pretty,
)


def test_the_example_of_the_header():
    chunk = from_pretty("""
        id I  name T  amount D(10,2)
      +  7   ann     10.00
      U- 7   ann     10.00
      U+ 7   "ann b" 20.00
      -  8   .       .
    """)
    assert chunk.schema == pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("_change_type", pa.string()),
        ]
    )
    assert chunk.to_pylist() == [
        {"id": 7, "name": "ann", "amount": Decimal("10.00"), "_change_type": "insert"},
        {"id": 7, "name": "ann", "amount": Decimal("10.00"), "_change_type": "update_preimage"},
        {"id": 7, "name": "ann b", "amount": Decimal("20.00"), "_change_type": "update_postimage"},
        {"id": 8, "name": None, "amount": None, "_change_type": "delete"},
    ]


def test_drawing_is_aligned():
    chunk = from_pretty('id I name T\n+ 7 ann\n- 1000000 "a b"')
    assert to_pretty(chunk) == ('   id I     name T\n+  7        ann\n-  1000000  "a b"\n')


@pytest.mark.parametrize(
    ("header", "cell", "value"),
    [
        ("B", "t", True),
        ("s", "-32768", -32768),
        ("F", "-inf", float("-inf")),
        ("T", '""', ""),
        ("T", '"."', "."),
        ("T", '"\\u0000"', "\0"),
        ("T", "a,b[c]", "a,b[c]"),
        ("X", "0x00ff", b"\x00\xff"),
        ("X", "0x", b""),
        ("N", "1e400", "1e400"),
        ("d", "0001-01-01", date(1, 1, 1)),
        ("TS", '"2024-01-02 03:04:05.000006"', datetime(2024, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
        ("TZ", "2024-01-02T05:04:05+02:00", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("I[]", "[1, .,3]", [1, None, 3]),
        ("T[][]", '[[],[a,"b c"],.]', [[], ["a", "b c"], None]),
        ("{a:I,b:T[]}", "{.,[x]}", {"a": None, "b": ["x"]}),
    ],
)
def test_values(header, cell, value):
    table = rows_from_pretty(f"c {header}\n{cell}")
    assert table["c"].to_pylist() == [value]
    assert rows_from_pretty(to_pretty(table)).equals(table)


def test_dates_beyond_python_are_drawn_as_numbers():
    far = pa.table(
        {
            "d": pa.array([-2_000_000, 4_000_000], pa.int32()).cast(pa.date32()),
            "t": pa.array([1 << 62, -(1 << 62)], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    assert rows_from_pretty(to_pretty(far)).equals(far)
    assert "@4611686018427387904" in to_pretty(far)


def test_a_schema_gives_types_and_missing_columns():
    schema = Schema(
        (Column("id", BIGINT), Column("u", UUID), Column("a", decimal(5, 1)), Column("z", VARCHAR)),
        ("id",),
    )
    chunk = from_pretty("z id\n+ x 1\n- . 2", schema)
    assert chunk.column_names == ["id", "u", "a", "z", "_change_type"]
    assert chunk.drop(["_change_type"]).schema == schema.arrow
    assert chunk["a"].to_pylist() == [None, None]
    assert "u U" in to_pretty(chunk, schema)
    assert "u T" in to_pretty(chunk)


def test_columns_are_written_and_read_back():
    columns = columns_from_pretty('id I "two words" {a:D(38,0),"b c":TZ[]}')
    assert columns_from_pretty(columns_to_pretty(columns)) == columns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("id I name", '"name" has no type'),
        ("id Q", "'Q' is no type"),
        ("id I id T", "drawn twice: id"),
        ("id i\n+ 99999999999", "line 2, column \"id\": '99999999999' is no integer"),
        ("id I\n\n+ 1 2", "line 3 has more values than columns"),
        ("id I name T\n+ 1", 'line 2, column "name": a value is missing'),
        ("id I\n* 1", "line 2 begins with '*'"),
        ('id T\n+ "a', "quoted text does not end"),
        ("id D(3,1)\n+ 1.23", "data loss"),
        ("id TZ\n+ 2024-01-01T00:00:00", "needs an offset"),
        ("id TS\n+ 2024-01-01T00:00:00Z", "has no offset"),
        ("id B\n+ yes", "write t or f"),
        ("id I[]\n+ 1", "'1' is no list"),
        ("id I[]\n+ [1", "expected"),
        ("id D(39,0)\n+ 1", "out of range"),
    ],
)
def test_errors_name_the_place(text, said):
    with pytest.raises(SchemaError) as caught:
        from_pretty(text)
    assert said in str(caught.value)


def test_unknown_change_types_and_arrow_types_are_refused():
    with pytest.raises(SchemaError, match="'upsert' is no change type"):
        to_pretty(pa.table({"id": [1], "_change_type": ["upsert"]}))
    with pytest.raises(SchemaError, match="duration"):
        to_pretty(pa.table({"id": pa.array([1], pa.duration("s"))}))
