"""Values of INSERT: the driver's, Spark's and PostgreSQL's are the same for every type.

driver    insert into t values (1, 'text')
query     insert into t select 1, 'text'
planner   insert into t values (1, (select 'text'::type))
"""

import asyncio

import psycopg
import pyarrow as pa
import pytest

from headwater.errors import HeadwaterError
from headwater.model import types as T
from headwater.pgwire.text import text_of
from headwater.session.writes.text_columns import BadValue, read_column
from headwater.session.writes.text_input import read
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import FixedRelations
from servers import postgres_server
from writes_kit import opened

TEXTS = {
    T.BOOLEAN: ["t", "TRU", "yes", "on", "of", "o", " f ", "1", "2", "", "T\n"],
    T.SMALLINT: ["1", "-32768", "32768", " 7 ", "+5", "0x1F", "0b101", "0o17", "1_000", "_1",
                 "1__0", "1.5", "", "-", "abc", "99999999999999999999"],
    T.INTEGER: ["1", "2147483648", "-2147483648", "1e3", "0x", "-0x10"],
    T.BIGINT: ["9223372036854775807", "9223372036854775808", "-9223372036854775808"],
    T.REAL: ["1.5", "1e38", "3.5e38", "1e-46", "1e-45", "nan", "-inf", "Infinity", "0.1",
             "16777217", "16777219", "1_0", ".5", "5.", "1e", "", "-0", "1.17549429e-38"],
    T.DOUBLE: ["1.5", "1e308", "1e309", "5e-324", "1e-400", "NaN", "-Infinity", "infinit", "0",
               "-0", "0.30000000000000004", "1e22", "123456789012345678"],
    T.decimal(5, 2): ["2.345", "-2.345", "2.355", "999.994", "999.995", "1e2", "1e-5", "-0.001",
                      "0.005", "-0.005", "1000", "inf", " 1.5 ", ".5", "5.", "1_0.5", "0x1F", ""],
    T.decimal(38, 10): ["1234567890123456789012345678.1234567890",
                        "9999999999999999999999999999.99999999994",
                        "9999999999999999999999999999.99999999995"],
    T.NUMERIC: ["1.50", "1e5", "1e-5", "-0.00", "-0", "NaN", "inf", "-Infinity", "+1", "00012.30",
                "1_000.5", "1e", "e5", "0x1F", "1.e3", ".5e1", " 12 ", "1 2",
                "123456789012345678901234567890123456789012345.678"],
    T.VARCHAR: ["", "a b", "é😀", "  x ", "'\"\\"],
    T.BYTEA: [r"\xDEADbeef", r"\x", r"\xde ad", "abc", r"a\\b", r"\001\377", r"\8", "é"],
    T.DATE: ["2024-02-29", "2023-02-29", "2024-2-9", "20240229", "2024/02/29", "0044-03-15 BC",
             "10000-01-01", "5874897-12-31", "5874898-01-01", "2024-13-01", "2024-00-01",
             "2024-01-01 10:00:00", "2024-01-01T10:00:00Z", "  2024-01-01  ", "", "0000-01-01",
             "4714-11-24 BC", "4714-11-23 BC", "2024-01-01 25:00"],
    T.TIME: ["10:00", "10:00:00.5", "24:00", "24:00:01", "23:59:60", "10:00:00.1234567", "25:00",
             "10:60", "1:2", "01:02:03+05", "", "10:00:00.120"],
    T.TIMESTAMP: ["2024-02-29", "2024-02-29 10:00", "2024-02-29T10:00:00.5",
                  "2024-02-29 24:00:00", "2024-02-29 23:59:60", "2024-02-29 10:00:00.1234567",
                  "2024-02-29 10:00:00+05", "2024-02-29 10:00 Europe/Berlin",
                  "0001-01-01 00:00:00 BC", "2024-02-29 24:00:01", "2024-02-29 10",
                  "2024-02-29 10:00:00.9999999", "20240229 10:00", "2024-02-29 10:00:61"],
    T.TIMESTAMPTZ: ["2024-02-29 10:00:00+05:30", "2024-02-29 10:00:00-0330",
                    "2024-02-29 10:00:00+5", "2024-02-29T10:00:00Z", "2024-02-29 10:00:00 UTC",
                    "2024-07-01 10:00:00 Europe/Berlin", "2024-03-31 02:30:00 Europe/Berlin",
                    "2024-10-27 02:30:00 Europe/Berlin", "2024-02-29 10:00:00 Nowhere/Land",
                    "2024-02-29 10:00:00+16", "2024-02-29 10:00:00+15:59:59", "2024-02-29",
                    "0044-03-15 10:00:00+00 BC", "1900-01-01 00:00:00 Europe/Berlin"],
    T.INTERVAL: ["1 day", "1 year 2 months", "-1 day 02:03:04", "P1Y2M3DT4H5M6.5S", "1.5 months",
                 "0.5 day", "1:02", "1:02:03.5", "5", "@ 1 minute", "1 week ago",
                 "-1 year -2 mons +3 days", "2 hours 30 min", "1 mon -1 day", "", "abc",
                 "1.123456789 sec", "1 century", "-0:00:01", "1 day -00:00:01", "0", "PT0S"],
    T.UUID: ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc99-9c0b4ef8-bb6d6bb9bd380a11}",
             "a0eebc999c0b4ef8bb6d6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
             "a-0eebc999c0b4ef8bb6d6bb9bd380a11", "", " a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    T.JSONB: ['{"b":1,"a":2,"aa":3,"a":4}', "[1, 2.50, 1e2, -0, 1.0e-3]",
              '"x\\u00e9\\n\\u0001"', "null", "true", '{"a":{"c":[],"b":{}}}', "{a:1}", "", "NaN",
              '"\\u0000"', "1 2", " 12 ", '"\\ud83d\\ude00"', '"\\ud83d"', '{"é":1,"z":2}', "[1,]",
              "123456789012345678901234567890", '"/\\/"', '"\t"', "01"],
    T.list_of(T.INTEGER): ["{1,2,NULL}", "{}", "{ 1 , 2 }", "{1,2", "{1,x}", "{null}", "", '{"1"}'],
    T.list_of(T.VARCHAR): ['{a,"b c",NULL,"NULL","x\\"y",""}', "{a b}", '{"a}', "{a,,b}"],
    T.list_of(T.DATE): ["{2024-01-01,NULL}"],
}  # fmt: skip
"""What PostgreSQL accepts and what it refuses, by type."""

pytestmark = pytest.mark.timeout(1200)

PLANNER_DIFFERS = {
    (T.DOUBLE, "-0"),
    (T.BYTEA, r"a\\b"),
    (T.BYTEA, r"\001\377"),
    (T.TIMESTAMPTZ, "2024-10-27 02:30:00 Europe/Berlin"),
}
"""Literals inside queries that the planner does not read as PostgreSQL does, to this day."""

NUMBERS = ["0", "7", "-7", "2.5", "-2.5", "3.5", "0.005", "-0.005", "1e5", "1e-5", "99999999999",
           "1.005", "-99999.994", "99999.995", "32768", "2147483648", "9223372036854775807",
           "123456789012345678901"]  # fmt: skip
NUMBER_TARGETS = [T.SMALLINT, T.INTEGER, T.BIGINT, T.REAL, T.DOUBLE, T.decimal(7, 2), T.NUMERIC,
                  T.VARCHAR]  # fmt: skip


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as url:
        connection = psycopg.connect(
            url.replace("+psycopg", ""), autocommit=True, options="-c timezone=UTC"
        )
        yield connection
        connection.close()


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def theirs(postgres, type_, value):
    """What PostgreSQL stores: its spelling, or the class of its error."""
    postgres.execute("drop table if exists x")
    postgres.execute(f"create table x (v {type_.postgres})")
    try:
        postgres.execute(f"insert into x values ({value})")
    except psycopg.Error as error:
        return None, error.sqlstate
    [text] = postgres.execute("select v::text from x").fetchone()
    return text[0] if type_ == T.BOOLEAN else text, ""


def ours(text, type_):
    try:
        return text_of(pa.array([read(text, type_)], type_.arrow), type_)[0].as_py(), ""
    except HeadwaterError as error:
        return None, error.sqlstate


@pytest.mark.parametrize("type_", TEXTS, ids=lambda type_: type_.postgres)
def test_texts_are_read_as_postgresql_reads_them(postgres, type_):
    wrong = []
    for text in TEXTS[type_]:
        expected, got = theirs(postgres, type_, quoted(text)), ours(text, type_)
        if expected != got:
            wrong.append(f"{text!r}: PostgreSQL {expected}, ours {got}")
        try:
            column = text_of(read_column(pa.array([text]), type_, "UTC"), type_)[0].as_py()
        except BadValue:
            column = None
        if column != got[0]:
            wrong.append(f"{text!r}: COPY {column}, literal {got[0]}")
    assert not wrong, "\n".join(wrong)


def plannable(text):
    try:
        plan_query(parse_one(text).query, text, FixedRelations([]))
    except HeadwaterError:
        return False
    return True


async def stored(desk, table, first, count):
    rows = {row[0]: row[1] for row in await desk.texts(table)}
    return [rows.get(str(number)) for number in range(first, first + count)]


async def same_values(tmp_path, spark):
    """All types in one engine: by the driver, by a query, and by the planner's own reading."""
    async with opened(tmp_path, spark=spark) as desk:
        compared = 0
        for number, (type_, texts) in enumerate(TEXTS.items()):
            table = f"t{number}"
            await desk.create(f"create table {table} (id int primary key, v {type_.postgres})")
            # Years that Spark's literals cannot name are left to the driver.
            good = [text for text in texts if ours(text, type_)[0] is not None]
            plain = [t for t in good if "BC" not in t and not t.startswith(("10000", "5874"))]
            plain = [t for t in plain if plannable(f"select {_canonical(t, type_)}")]
            if type_ == T.NUMERIC:
                # A UNION gives all its numbers one scale, which PostgreSQL does not.
                plain = [t for t in plain if ours(t, type_)[0].lstrip("-").isdigit()]
            if not plain:
                continue
            rows = ", ".join(f"({i}, {quoted(text)})" for i, text in enumerate(plain))
            await desk.run(f"insert into {table} values {rows}")
            sides = [f"select {1000 + i}, {quoted(text)}" for i, text in enumerate(plain)]
            await desk.run(f"insert into {table} {' union all '.join(sides)}")
            expected = [ours(text, type_)[0] for text in plain]
            assert await stored(desk, table, 0, len(plain)) == expected, type_
            assert await stored(desk, table, 1000, len(plain)) == expected, type_
            compared += len(plain)
        return compared


def _canonical(text, type_):
    return f"{quoted(ours(text, type_)[0])}::{type_.postgres}"


def test_spark_stores_what_the_driver_stores(tmp_path, spark):
    assert asyncio.run(same_values(tmp_path, spark)) > 120


async def planner_values(tmp_path, spark):
    wrong = []
    async with opened(tmp_path, spark=spark) as desk:
        for number, (type_, texts) in enumerate(TEXTS.items()):
            table = f"t{number}"
            await desk.create(f"create table {table} (id int primary key, v {type_.postgres})")
            cells = [f"(select {quoted(text)}::{type_.postgres})" for text in texts]
            read_by_both = [
                (text, cell)
                for text, cell in zip(texts, cells, strict=True)
                if ours(text, type_)[0] not in (None, "NaN", "Infinity", "-Infinity")
                and plannable(f"select {cell}")
            ]
            if not read_by_both:
                continue
            rows = ", ".join(f"({i}, {cell})" for i, (_, cell) in enumerate(read_by_both))
            await desk.run(f"insert into {table} values {rows}")
            got = await stored(desk, table, 0, len(read_by_both))
            for (text, _), value in zip(read_by_both, got, strict=True):
                if value != ours(text, type_)[0] and (type_, text) not in PLANNER_DIFFERS:
                    wrong.append(f"{type_.postgres} {text!r}: {value} for {ours(text, type_)[0]}")
    return wrong


def test_the_planner_reads_literals_as_the_driver_does(tmp_path, spark):
    wrong = asyncio.run(planner_values(tmp_path, spark))
    assert not wrong, "\n".join(wrong)


async def numbers(tmp_path, spark, postgres):
    wrong = []
    async with opened(tmp_path, spark=spark) as desk:
        for place, type_ in enumerate(NUMBER_TARGETS):
            table = f"n{place}"
            await desk.create(f"create table {table} (id int primary key, v {type_.postgres})")
            fitting = []
            for number, written in enumerate(NUMBERS):
                expected, state = theirs(postgres, type_, written)
                try:
                    await desk.run(f"insert into {table} values ({number}, {written})")
                except HeadwaterError as error:
                    if error.sqlstate != state:
                        wrong.append(f"{type_.postgres} {written}: {state}, ours {error.sqlstate}")
                    continue
                fitting.append((number, written, expected))
            cells = ", ".join(f"({1000 + n}, (select {written}))" for n, written, _ in fitting)
            await desk.run(f"insert into {table} values {cells}")
            rows = dict(await desk.texts(table))
            for number, written, expected in fitting:
                got = (rows[str(number)], rows[str(1000 + number)])
                if got != (expected, expected):
                    wrong.append(f"{type_.postgres} {written}: {expected}, ours {got}")
    return wrong


def test_numbers_are_assigned_as_in_postgresql(tmp_path, spark, postgres):
    wrong = asyncio.run(numbers(tmp_path, spark, postgres))
    assert not wrong, "\n".join(wrong)
