"""Rows as text: read back by rules written apart, every value is the one that went in."""

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sinks.spelling import MYSQL, POSTGRES
from headwater.sinks.text_rows import LITERALS, RowWriter, UnfitCell

_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}


def written(types, rows, form=POSTGRES, **more):
    columns = [
        pa.array([row[place] for row in rows], type_.arrow) for place, type_ in enumerate(types)
    ]
    return b"".join(block.text for block in RowWriter(types, form, **more).blocks(columns))


def cells_of(text):
    """COPY's text apart again; None where a cell is null."""
    assert text.endswith(b"\n")
    return [
        [None if cell == "\\N" else unescaped(cell) for cell in line.split("\t")]
        for line in text.decode().removesuffix("\n").split("\n")
    ]


def unescaped(cell):
    out, letters = [], iter(cell)
    for letter in letters:
        out.append(_LETTERS[next(letters)] if letter == "\\" else letter)
    return "".join(out)


texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["\\N", "\\", "\t\r\n"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.none() | texts, st.none() | texts), min_size=1, max_size=30),
       st.integers(1, 9))  # fmt: skip
def test_texts_come_back(rows, block_rows):
    text = written([VARCHAR, VARCHAR], rows, block_rows=block_rows)
    assert cells_of(text) == [list(row) for row in rows]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.decimals(places=4, min_value=-(10**13), max_value=10**13),
            st.none() | st.decimals(places=20, min_value=-(10**17), max_value=10**17),
            st.none() | st.floats(),
            st.none() | st.floats(width=32),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_numbers_come_back(rows):
    types = [BIGINT, decimal(18, 4), decimal(38, 20), DOUBLE, REAL]
    for row, cells in zip(rows, cells_of(written(types, rows)), strict=True):
        whole, small, wide, double, real = cells
        assert (whole is None or int(whole)) == (row[0] is None or row[0])
        for cell, value in ((small, row[1]), (wide, row[2])):
            assert (cell is None) == (value is None)
            assert cell is None or Decimal(cell) == value
        assert _bits("d", double) == _bits("d", row[3])
        assert _bits("f", real) == _bits("f", row[4])


def _bits(form, value):
    if value is None:
        return None
    number = float(value)
    return "nan" if math.isnan(number) else struct.pack(form, number)


@settings(max_examples=200, deadline=None)
@given(st.integers(-4000 * 366, 3_000_000), st.integers(-(2**55), 2**55))
def test_times_come_back(days, micros):
    [[day, moment, instant]] = cells_of(
        written_arrays([DATE, TIMESTAMP, TIMESTAMPTZ], [days, micros, micros])
    )
    assert _days(day) == days
    for cell, zone in ((moment, ""), (instant, "+00")):
        era = " BC" if cell.endswith(" BC") else ""
        whole = cell.removesuffix(" BC")
        assert whole.endswith(zone)
        stamp, _, clock = whole.removesuffix(zone).partition(" ")
        seconds, _, fraction = clock.partition(".")
        hours, minutes, left = map(int, seconds.split(":"))
        inside = ((hours * 60 + minutes) * 60 + left) * 1_000_000 + int(fraction or 0)
        assert _days(stamp + era) * 86_400_000_000 + inside == micros


def written_arrays(types, values, form=POSTGRES):
    storage = {Kind.DATE: pa.int32()}
    columns = [
        pa.array([value], storage.get(type_.kind, pa.int64())).cast(type_.arrow)
        for type_, value in zip(types, values, strict=True)
    ]
    return b"".join(block.text for block in RowWriter(types, form).blocks(columns))


def _days(text):
    """Days since 1970, by Python's calendar of 400 years moved to where it is known."""
    year, month, day = text.removesuffix(" BC").split("-")
    number = 1 - int(year) if text.endswith(" BC") else int(year)
    cycles, inside = divmod(number, 400)
    known = date(2000 + inside, int(month), int(day)) - date(1970, 1, 1)
    return known.days + (cycles - 5) * 146_097


def test_every_other_kind():
    pair = DataType(Kind.STRUCT, fields=(("a", INTEGER), ("b", VARCHAR)))
    types = [BOOLEAN, SMALLINT, BYTEA, list_of(VARCHAR), list_of(BYTEA), list_of(list_of(BIGINT)),
             pair]  # fmt: skip
    row = (True, -32768, b"\x00\xff", ['"\\', None, ""], [b"\x01"], [[1], None, []],
           {"a": None, "b": 'x"\n'})  # fmt: skip
    [full, empty] = cells_of(written(types, [row, (None,) * 7]))
    assert full[:3] == ["1", "-32768", "\\x00ff"]
    assert full[3:5] == ['{"\\"\\\\",NULL,""}', '{"\\\\x01"}']
    assert [json.loads(cell) for cell in full[5:]] == [[[1], None, []], {"a": None, "b": 'x"\n'}]
    assert empty == [None] * 7


def test_a_column_that_begins_in_the_middle_of_its_buffers():
    values = pa.array([None, "skipped", "a", None, "b\t"])
    numbers = pa.array([1, 2, 3, None, 5], pa.int32())
    raw = pa.array([b"0", b"1", b"2", None, b"4"])
    lists = pa.array([["q"], ["p"], ["x"], None, []])
    columns = [each.slice(2) for each in (values, numbers, raw, lists)]
    writer = RowWriter([VARCHAR, INTEGER, BYTEA, list_of(VARCHAR)], POSTGRES)
    text = b"".join(block.text for block in writer.blocks(columns))
    assert cells_of(text) == [
        ["a", "3", "\\x32", '{"x"}'],
        [None, None, None, None],
        ["b\t", "5", "\\x34", "{}"],
    ]


def test_literals_are_quoted():
    types = [BIGINT, VARCHAR, BYTEA]
    text = written(types, [(1, "O'Brien \\ \n", b"'"), (None, None, None)], MYSQL, layout=LITERALS)
    assert text == b"('1','O\\'Brien \\\\ \n',x'27'),(NULL,NULL,NULL),"


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (DOUBLE, float("nan")),
        (REAL, float("-inf")),
        (DATE, date(9999, 12, 31) + timedelta(0)),
        (TIMESTAMPTZ, datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_mysql_does_not_have(type_, value):
    good = type_.kind in (Kind.DATE, Kind.TIMESTAMPTZ)
    rows = [(1, None), (2, value)]
    if good:
        assert len(cells_of(written([BIGINT, type_], rows, MYSQL))) == 2
        beyond = 2_932_897 if type_.kind is Kind.DATE else -62_135_596_800_000_001
        with pytest.raises(UnfitCell, match="year"):
            written_arrays([BIGINT, type_], [1, beyond], MYSQL)
        return
    with pytest.raises(UnfitCell) as caught:
        written([BIGINT, type_], rows, MYSQL, block_rows=1)
    assert (caught.value.column, caught.value.row) == (1, 1)
