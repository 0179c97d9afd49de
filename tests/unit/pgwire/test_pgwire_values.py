"""Values in and out: spellings, binary forms, arrays, intervals, and what is refused."""

import math
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import types as t
from headwater.pgwire.array_literal import read_array, write_array
from headwater.pgwire.binary import binary_of
from headwater.pgwire.interval import Interval, read_interval, spell_interval
from headwater.pgwire.numeric import decode_numeric, encode_numeric, spell_decimal
from headwater.pgwire.oids import oid_of, type_of
from headwater.pgwire.parameters import read_parameter
from headwater.pgwire.rows import SLICE_BYTES, cells, data_rows, slices
from headwater.pgwire.session import ResultColumn
from headwater.pgwire.text import known_zone, text_of
from headwater.pgwire.violation import WireError
from pgwire_kit import read_or_refused

SCALARS = [t.BOOLEAN, t.SMALLINT, t.INTEGER, t.BIGINT, t.REAL, t.DOUBLE, t.NUMERIC, t.VARCHAR,
           t.BYTEA, t.DATE, t.TIME, t.TIMESTAMP, t.TIMESTAMPTZ, t.INTERVAL, t.JSONB,
           t.UUID]  # fmt: skip


@pytest.mark.parametrize("type_", SCALARS, ids=str)
def test_every_type_has_a_number_and_back(type_):
    assert type_of(oid_of(type_)) == type_
    listed = t.list_of(type_)
    assert type_of(oid_of(listed)) == listed
    assert oid_of(t.list_of(listed)) == oid_of(listed)


@given(st.floats())
def test_a_double_reads_back_the_same(number):
    text = text_of(pa.array([number]), t.DOUBLE)[0].as_py()
    assert repr(float(text)) == repr(number)
    digits = text.lstrip("-").replace(".", "").partition("e")[0].strip("0")
    if math.isfinite(number):
        assert len(digits) <= 17


@given(st.floats(width=32))
def test_a_real_reads_back_the_same(number):
    array = pa.array([number], pa.float32())
    text = text_of(array, t.REAL)[0].as_py()
    assert struct.pack(">f", float(text)) == struct.pack(">f", number) or math.isnan(number)
    sent = binary_of(array, t.REAL)[0].as_py()
    assert read_parameter(sent, 1, 700, None).text == text


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12), st.integers(-60, 60))
def test_a_numeric_survives_its_binary_form(number, power):
    text = spell_decimal(number.scaleb(power))
    if text.startswith("-") and not text.strip("-0."):
        text = text[1:]
    assert spell_decimal(decode_numeric(encode_numeric(text))) == text


@given(
    st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**62), 2**62)
)
def test_an_interval_survives_its_spelling(months, days, micros):
    interval = Interval(months, days, micros)
    assert read_interval(spell_interval(interval)) == interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1Y2M3DT4H5M6.5S", (14, 3, 14_706_500_000)),
        ("1.5 days", (0, 1, 43_200_000_000)),
        ("@ 1 min ago", (0, 0, -60_000_000)),
        ("1 week", (0, 7, 0)),
        ("-1:30", (0, 0, -5_400_000_000)),
        ("5 ms", (0, 0, 5000)),
    ],
)
def test_intervals_in_other_words(text, expected):
    assert read_interval(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1", "P", "1 parsec", "P1X", "1:2:3:4", "1..2 days"])
def test_no_interval(text):
    with pytest.raises(WireError) as raised:
        read_interval(text)
    assert raised.value.sqlstate == "22P02"


ELEMENT = st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", codec="utf-8")))


@given(st.lists(ELEMENT))
def test_arrays_read_what_they_write(values):
    assert read_array(write_array(values)) == values
    column = pa.array([values], pa.list_(pa.string()))
    assert text_of(column, t.list_of(t.VARCHAR))[0].as_py() == write_array(values)


@given(st.text(alphabet='{}",\\ aN[]=:1', max_size=20))
def test_any_text_is_an_array_or_refused(text):
    with read_or_refused("22P02"):
        values = read_array(text)
        assert read_array(write_array(values)) == values


@pytest.mark.parametrize(
    "text",
    ["", "{", "}", "{1", "{1,}", "{,1}", "{1}2", "{1}{2}", '{"a}', "{{{{{{{1}}}}}}}", "{1 {2}}"],
)
def test_no_array(text):
    with pytest.raises(WireError):
        read_array(text)


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, "yes", True), (16, " OFF ", False), (23, " +7 ", 7), (701, "-inf", -math.inf),
        (1700, "1e3", Decimal("1e3")), (17, "a\\\\b\\001", b"a\\b\x01"), (17, "\\xFF", b"\xff"),
        (1007, "{1,{2}}", [1, [2]]), (1082, "today", "today"), (0, "anything", "anything"),
        (869, "::1", "::1"),
    ],
)  # fmt: skip
def test_text_parameters(oid, text, value):
    assert read_parameter(text.encode(), 0, oid, None).value == value


@pytest.mark.parametrize(
    ("oid", "code", "data", "sqlstate"),
    [
        (16, 0, b"maybe", "22P02"), (21, 0, b"32768", "22003"), (23, 0, b"1_0", "22P02"),
        (20, 0, b"9" * 5000, "22P02"), (701, 0, b"0x1", "22P02"), (1700, 0, b"sNaN", "22P02"),
        (1700, 0, b"1e999999", "22003"), (17, 0, b"\\xabc", "22P02"), (17, 0, b"\\9", "22P02"),
        (25, 0, b"\xff", "22021"), (25, 0, b"a\0", "22021"), (25, 1, b"a\0", "22021"),
        (23, 1, b"\0", "22P03"), (1700, 1, b"\0" * 7, "22P03"), (2950, 1, b"x", "22P03"),
        (1186, 1, b"x", "22P03"), (3802, 1, b"{}", "22P03"), (1083, 1, b"\xff" * 8, "22P03"),
        (1007, 1, b"\0" * 4, "22P03"),
        (1007, 1, struct.pack(">iiIii", 1, 0, 23, 1 << 30, 1), "22P03"),
        (1007, 1, struct.pack(">iiIii", 1, 0, 1007, 0, 1), "42804"), (869, 1, b"x", "0A000"),
        (1007, 1, struct.pack(">iiI", 7, 0, 23), "22P03"),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(oid, code, data, sqlstate):
    with pytest.raises(WireError) as raised:
        read_parameter(data, code, oid, None)
    assert raised.value.sqlstate == sqlstate


BINARY_OIDS = [16, 20, 21, 23, 26, 700, 701, 1700, 1082, 1083, 1114, 1184, 1186, 2950, 3802, 114,
               1007, 1231, 1009, 17, 25]  # fmt: skip


@given(oid=st.sampled_from(BINARY_OIDS), data=st.binary(max_size=60))
def test_any_binary_parameter_is_read_or_refused(oid, data):
    with read_or_refused("22P03", "22021", "42804", "22P02", "22003"):
        assert isinstance(read_parameter(data, 1, oid, None).text, str)


def test_a_parameter_takes_the_statement_s_type_when_the_client_is_silent():
    assert read_parameter(b"7", 0, 0, t.BIGINT).value == 7
    assert read_parameter(struct.pack(">q", 7), 1, 0, t.BIGINT).value == 7
    assert read_parameter(None, 1, 0, t.BIGINT).value is None


def test_rows_are_messages():
    columns = [ResultColumn(name="a", type=t.INTEGER), ResultColumn(name="b", type=t.VARCHAR)]
    batch = pa.record_batch(
        [pa.array([1, None], pa.int32()), pa.array(["x", "yz"])], names=["a", "b"]
    )
    sent = bytes(data_rows(cells(batch.slice(0), columns, [0, 0]), 2))
    assert sent == (
        b"D\0\0\0\x10\0\2\0\0\0\x011\0\0\0\x01x" + b"D\0\0\0\x10\0\2\xff\xff\xff\xff\0\0\0\x02yz"
    )
    assert bytes(data_rows(cells(batch.slice(1), columns, [1, 1]), 1)) == sent[17:]
    assert bytes(data_rows([], 2)) == b"D\0\0\0\6\0\0" * 2


def test_a_batch_is_cut_by_rows_and_by_bytes():
    narrow = pa.record_batch([pa.array(range(10_000))], names=["a"])
    assert [piece.num_rows for piece in slices(narrow)] == [4096, 4096, 1808]
    wide = pa.record_batch([pa.array(["x" * (SLICE_BYTES // 2)] * 5 + ["y"] * 100)], names=["a"])
    pieces = list(slices(wide))
    assert sum(piece.num_rows for piece in pieces) == 105
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([wide]))
    assert all(piece.nbytes <= SLICE_BYTES or piece.num_rows == 1 for piece in pieces)


def test_relatives_of_a_type_are_taken():
    assert text_of(pa.array([1], pa.int32()), t.BIGINT).to_pylist() == ["1"]
    assert text_of(pa.array(["a"]).dictionary_encode(), t.VARCHAR).to_pylist() == ["a"]
    elsewhere = pa.array([0], pa.timestamp("us", tz="Europe/Berlin"))
    assert text_of(elsewhere, t.TIMESTAMPTZ).to_pylist() == ["1970-01-01 00:00:00+00"]
    assert text_of(pa.chunked_array([[1], [2]]), t.BIGINT).to_pylist() == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("utc", "UTC"),
        ("Asia/Tokyo", "Asia/Tokyo"),
        ("No/Where", "UTC"),
        ("../etc", "UTC"),
        ("", "UTC"),
    ],
)
def test_zones(name, known):
    assert known_zone(name) == known


@pytest.mark.parametrize(
    "days", [-(2**31), -719_529, -719_163, -719_162, 0, 2_932_896, 2_932_897, 2**31 - 10_958]
)
def test_dates_of_all_years_read_back(days):
    text = text_of(pa.array([days], pa.int32()).cast(pa.date32()), t.DATE)[0].as_py()
    if days >= -(2**31) + 10_957:
        sent = binary_of(pa.array([days], pa.int32()).cast(pa.date32()), t.DATE)[0].as_py()
        back = read_parameter(sent, 1, 1082, None).text
        assert back == ("-infinity" if days == -(2**31) + 10_957 else text)
    else:
        with pytest.raises(WireError):
            binary_of(pa.array([days], pa.int32()).cast(pa.date32()), t.DATE)
