import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.testing.oracle import (
    InexactChunk,
    RowsDiffer,
    apply_changes,
    apply_exact,
    assert_same_rows,
    compare_rows,
)
from headwater.testing.pretty import from_pretty, rows_from_pretty


class ArrowFrame:
    """Has what the oracle asks of a DataFrame, over real Arrow."""

    def __init__(self, table):
        self.table = table

    def toArrow(self):
        return self.table


def test_order_does_not_matter_and_counts_do():
    rows = rows_from_pretty("id I\n1\n2\n2")
    assert_same_rows(rows, [{"id": 2}, {"id": 1}, {"id": 2}])
    with pytest.raises(RowsDiffer, match="1 missing, 0 extra"):
        assert_same_rows(rows, [{"id": 2}, {"id": 1}, {"id": 2}, {"id": 2}])
    with pytest.raises(RowsDiffer, match="0 missing, 1 extra"):
        assert_same_rows(rows, [{"id": 2}, {"id": 1}])


def test_both_directions_are_told():
    difference = compare_rows([{"a": 1}, {"a": 3}], [{"a": 1}, {"a": 2}, {"a": 2}])
    assert difference.missing == ({"a": 2}, {"a": 2})
    assert difference.extra == ({"a": 3},)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (1, Decimal(1)),
        (1.0, Decimal(1)),
        (0.0, -0.0),
        (0, None),
        ("", None),
        ("a", b"a"),
        ("a", "a "),
        (Decimal("1.000000000000000000000000000000000001"), Decimal(1)),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ([1, None], [1]),
        ([[]], [None]),
        ({"a": None}, None),
    ],
)
def test_values_that_differ(left, right):
    assert compare_rows([{"x": left}], [{"x": right}])
    assert compare_rows([{"x": right}], [{"x": left}])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (math.nan, -math.nan),
        (Decimal("1.0"), Decimal("1.00")),
        (
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        ),
        ({"a": 1, "b": [math.nan]}, {"b": [math.nan], "a": 1}),
    ],
)
def test_values_that_are_equal(left, right):
    assert not compare_rows([{"x": left}], [{"x": right}])


def test_one_zero_on_request():
    assert not compare_rows([{"x": 0.0}], [{"x": -0.0}], one_zero=True)
    left, right = pa.table({"x": [0.0]}), pa.table({"x": [-0.0]})
    # Arrow calls these tables equal; the oracle must not.
    assert compare_rows(left, right)
    assert not compare_rows(left, right, one_zero=True)


def test_arrow_spark_and_dicts_agree():
    table = rows_from_pretty("id I at TZ d d l {a:F}[]\n1 2024-01-01T00:00:00Z 2024-01-01 [{nan}]")
    rows = table.to_pylist()
    keyed = {(1,): rows[0]}
    for left in (table, rows, keyed, ArrowFrame(table), table.to_batches()[0]):
        for right in (table, rows, keyed, ArrowFrame(table)):
            assert_same_rows(left, right)
    narrow = table.set_column(0, "id", table["id"].cast(pa.int32()))
    berlin = narrow.set_column(1, "at", table["at"].cast(pa.timestamp("ns", "Europe/Berlin")))
    assert_same_rows(berlin, table)


def test_timestamps_beyond_python_compare_exactly():
    def far(n):
        return pa.table({"t": pa.array([n], pa.int64()).cast(pa.timestamp("us", "UTC"))})

    assert_same_rows(far(1 << 62), far(1 << 62))
    with pytest.raises(RowsDiffer, match="1 missing, 1 extra"):
        assert_same_rows(far(1 << 62), far((1 << 62) + 1))


def test_columns_go_by_name():
    assert_same_rows([{"a": 1, "b": 2}], [{"b": 2, "a": 1}])
    with pytest.raises(RowsDiffer, match="not expected: b; missing: c"):
        assert_same_rows([{"a": 1, "b": 2}], [{"a": 1, "c": 2}])
    with pytest.raises(ValueError, match="row 2 and row 1"):
        assert_same_rows([{"a": 1}, {"b": 1}], [])
    assert_same_rows([], pa.table({"a": pa.array([], pa.int64())}))


def test_the_message_shows_a_sample():
    with pytest.raises(RowsDiffer) as caught:
        assert_same_rows(
            [{"id": n, "x": n} for n in range(30)],
            [{"id": n, "x": n if n != 3 else 4} for n in range(15)],
            key=["id"],
        )
    text = str(caught.value)
    assert "1 missing, 16 extra" in text
    assert "key {id: 3}: x is 3, expected 4" in text
    assert "{id: 3, x: 4}" in text
    assert "... and 6 more" in text


IN = from_pretty("""
      id I  name T
  +   1     ann
  +   2     bob
  U-  9     nonsense
  U+  1     anna
  -   2     .
  -   3     .
  +   1     anne
""")


def test_changes_into_a_table():
    rows = {}
    apply_changes(rows, IN, ["id"])
    assert rows == {(1,): {"id": 1, "name": "anne"}}
    apply_changes(rows, IN, ["id"])
    assert rows == {(1,): {"id": 1, "name": "anne"}}


def test_changes_follow_their_sequence_and_drop_our_columns():
    rows = {}
    chunk = [
        {"id": 1, "x": 2, "_change_type": "insert", "_seq": 2, "_vnode": 7},
        {"id": 1, "x": 1, "_change_type": "insert", "_seq": 1, "_vnode": 7},
    ]
    apply_changes(rows, chunk, ["id"])
    assert rows == {(1,): {"id": 1, "x": 2}}


def test_nan_and_zero_are_one_key():
    rows = {}
    apply_changes(rows, from_pretty("k F x I\n+ nan 1\n+ 0.0 1"), ["k"])
    apply_changes(rows, from_pretty("k F x I\n+ nan 2\n+ -0.0 2"), ["k"])
    assert sorted(row["x"] for row in rows.values()) == [2, 2]


def test_an_exact_chunk():
    rows = {(1,): {"id": 1, "x": math.nan}, (2,): {"id": 2, "x": 2.0}}
    chunk = from_pretty("id I x F\nU- 1 nan\nU+ 1 5.0\n- 2 2.0\n+ 3 .\n- 3 .\n+ 3 1.0\n- 1 5.0")
    apply_exact(rows, chunk, ["id"])
    assert rows == {(3,): {"id": 3, "x": 1.0}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 9 1.0", "change 1, delete of key {id: 9}: no such key"),
        ("+ 1 1.0", "the key is there already, as {id: 1, x: 1.0}"),
        ("+ 2 1.0\n+ 2 1.0", "change 2, insert of key {id: 2}: the key is there already"),
        ("- 1 2.0", "it shows {id: 1, x: 2.0}, but stored is {id: 1, x: 1.0}"),
        ("- 1 .", "it shows"),
        ("U- 1 2.0\nU+ 1 3.0", "it shows"),
        ("U- 9 2.0\nU+ 9 3.0", "no such key"),
        ("U+ 1 3.0", "no preimage stands right before it"),
        ("U- 1 1.0\n+ 2 1.0\nU+ 1 3.0", "has no postimage right after it"),
        ("U- 1 1.0\nU+ 2 1.0", "has no postimage right after it"),
        ("U- 1 1.0", "ends with a preimage of key {id: 1}"),
        ("- 1 1.0\n- 1 1.0", "no such key"),
    ],
)
def test_inexact_chunks_are_refused_whole(text, said):
    before = {(1,): {"id": 1, "x": 1.0}}
    rows = dict(before)
    with pytest.raises(InexactChunk) as caught:
        apply_exact(rows, from_pretty(f"id I x F\n+ 7 7.0\n- 7 7.0\n{text}"), ["id"])
    assert said.replace("change 1", "change 3").replace("change 2", "change 4") in str(caught.value)
    assert rows == before
