"""Texts to stored values: spellings, rounding, limits and zones, as PostgreSQL reads them."""

import datetime
import random
import struct
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from headwater.errors import HeadwaterError
from headwater.model import types as T
from headwater.pgwire.civil import spell_date
from headwater.session.writes.moments import days_of
from headwater.session.writes.text_columns import BadValue, read_column
from headwater.session.writes.text_input import read

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (T.BOOLEAN, " oFf ", False),
        (T.INTEGER, "0x1_F", 31),
        (T.BIGINT, "-9223372036854775808", -(2**63)),
        (T.decimal(5, 2), "-0.005", Decimal("-0.01")),
        (T.decimal(5, 2), "-0.004", Decimal("0.00")),
        (T.NUMERIC, "-0.00", "0.00"),
        (T.NUMERIC, "1.50e3", "1500"),
        (T.NUMERIC, "-inf", "-Infinity"),
        (T.BYTEA, "\\xDE ad", b"\xde\xad"),
        (T.BYTEA, "a\\\\\\001", b"a\\\x01"),
        (T.TIME, "24:00", "24:00:00"),
        (T.TIME, "10:00:00.500", "10:00:00.5"),
        (T.INTERVAL, "P1Y2M3DT4H", "1 year 2 mons 3 days 04:00:00"),
        (T.INTERVAL, "-1 day +02:03", "-1 days +02:03:00"),
        (T.UUID, "{A0EEBC99-9C0B4EF8-BB6D6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (T.JSONB, '{"bb": 1, "a": 2, "a": [1.50]}', '{"a": [1.50], "bb": 1}'),
        (T.list_of(T.NUMERIC), '{1.0,NULL,"2"}', ["1.0", None, "2"]),
        (T.list_of(T.list_of(T.INTEGER)), "{{1},{2}}", [[1], [2]]),
        (T.DATE, "0044-03-15 BC", -735160),
    ],
    ids=str,
)
def test_spellings(type_, text, value):
    assert read(text, type_) == value
    column = read_column(pa.array([text, None]), type_, "UTC")
    assert column.equals(pa.array([value, None], type_.arrow))


@pytest.mark.parametrize(
    ("type_", "text", "sqlstate"),
    [
        (T.BOOLEAN, "o", "22P02"),
        (T.SMALLINT, "32768", "22003"),
        (T.INTEGER, "1.0", "22P02"),
        (T.REAL, "3.5e38", "22003"),
        (T.DOUBLE, "1e-400", "22003"),
        (T.decimal(4, 2), "99.995", "22003"),
        (T.NUMERIC, "1e", "22P02"),
        (T.DATE, "2023-02-29", "22008"),
        (T.DATE, "0000-01-01", "22008"),
        (T.DATE, "tomorrow", "22007"),
        (T.TIMESTAMP, "2024-01-01 24:00:01", "22008"),
        (T.TIMESTAMPTZ, "2024-01-01 10:00:00+16", "22009"),
        (T.TIMESTAMPTZ, "2024-01-01 10:00:00 Nowhere/Land", "22023"),
        (T.INTERVAL, "1 fortnight", "22007"),
        (T.UUID, "a0eebc99", "22P02"),
        (T.JSONB, "{a: 1}", "22P02"),
        (T.JSONB, '"\\u0000"', "22P05"),
        (T.VARCHAR, "a\x00", "22021"),
        (T.list_of(T.INTEGER), "{{1},{2}}", "22P02"),
    ],
    ids=str,
)
def test_texts_that_cannot_be_read(type_, text, sqlstate):
    with pytest.raises(HeadwaterError) as caught:
        read(text, type_)
    assert caught.value.sqlstate == sqlstate
    with pytest.raises(BadValue) as bad:
        read_column(pa.array([None, text]), type_, "UTC")
    assert bad.value.place == 1
    assert bad.value.error.sqlstate == sqlstate


def test_days_are_those_of_the_calendar():
    dice = random.Random(3)
    for _ in range(3000):
        days = dice.randrange(-2_000_000, 4_000_000)
        text = spell_date(days)
        assert read(text, T.DATE) == days, text
    assert days_of(1970, 1, 1) == 0


def test_local_times_are_those_of_their_zone():
    dice = random.Random(4)
    for name in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"):
        for _ in range(500):
            moment = EPOCH + datetime.timedelta(minutes=dice.randrange(-(10**7), 3 * 10**7))
            local = moment.astimezone(ZoneInfo(name))
            if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
                continue
            text = f"{local:%Y-%m-%d %H:%M:%S}"
            micros = (moment - EPOCH) // datetime.timedelta(microseconds=1)
            assert read(f"{text} {name}", T.TIMESTAMPTZ) == micros
            assert read(text, T.TIMESTAMPTZ, name) == micros
            assert read(text, T.TIMESTAMPTZ) == micros + local.utcoffset() // datetime.timedelta(
                microseconds=1
            )


def test_a_clock_that_is_set_back_and_forth():
    at = {
        "2024-03-31 02:30": datetime.datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        "2024-10-27 02:30": datetime.datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
    }
    for text, moment in at.items():
        micros = (moment - EPOCH) // datetime.timedelta(microseconds=1)
        assert read(f"{text} Europe/Berlin", T.TIMESTAMPTZ) == micros


def test_reals_are_rounded_once():
    dice = random.Random(5)
    for _ in range(2000):
        bits = dice.randrange(1 << 30)
        low = struct.unpack(">f", struct.pack(">I", bits))[0]
        high = struct.unpack(">f", struct.pack(">I", bits + 1))[0]
        middle = (Fraction(low) + Fraction(high)) / 2
        text = str(Decimal(middle.numerator) / Decimal(middle.denominator))
        nearest = min((low, high), key=lambda each: abs(Fraction(each) - Fraction(text)))
        got = read(text, T.REAL)
        assert got in (low, high)
        if abs(Fraction(low) - Fraction(text)) != abs(Fraction(high) - Fraction(text)):
            assert got == nearest, text


def test_whole_columns_are_read_as_single_values():
    dice = random.Random(6)
    samples = {
        T.INTEGER: lambda: str(dice.randrange(-(2**31), 2**31)),
        T.DOUBLE: lambda: repr(dice.uniform(-1e10, 1e10)),
        T.decimal(12, 4): lambda: f"{dice.uniform(-1e6, 1e6):.{dice.randrange(8)}f}",
        T.TIMESTAMP: lambda: f"2024-01-{dice.randrange(1, 32):02} 10:00:{dice.randrange(60):02}.5",
        T.TIMESTAMPTZ: lambda: f"2024-01-02 10:00:00{dice.choice(['+02', '-05:30', '', 'Z'])}",
        T.BOOLEAN: lambda: dice.choice(["t", "FALSE", "yes", "0"]),
        T.UUID: lambda: f"{dice.getrandbits(128):032x}",
        T.NUMERIC: lambda: dice.choice(["1.50", "-0", "1e3", "007"]),
    }
    for type_, sample in samples.items():
        for size in (1, 50):
            texts = [sample() for _ in range(size)]
            got = read_column(pa.array([*texts, None]), type_, "Europe/Berlin")
            values = [read(text, type_, "Europe/Berlin") for text in texts]
            assert got.equals(pa.array([*values, None], type_.arrow)), (type_, texts)
