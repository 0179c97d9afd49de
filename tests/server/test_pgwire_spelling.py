"""The same bytes as a real PostgreSQL server, for extreme values of every type, both formats."""

import struct
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from headwater.model import types as t
from headwater.pgwire.binary import binary_of
from headwater.pgwire.oids import length_of, modifier_of, oid_of
from headwater.pgwire.parameters import binary_text, read_parameter
from headwater.pgwire.text import text_of
from servers import postgres_server

DAYS, MICROS = 10_957, 10_957 * 86_400_000_000
FLOATS = (
    "0 -0 1 -1 1.5 0.1 1e-4 1e-5 0.00012345 12345.678 999999 1e6 1234567 1e14 123456789012345 1e15 "
    "1e16 1e17 1e20 1e21 1e22 -1e-10 1.7e38 3e-38 NaN Infinity -Infinity 16777216 0.3333333333333"
    "333"
).split()
DOUBLES = [*FLOATS, "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308",
           "9007199254740993", "999999999999999.9", "99999999999999.98", "0.1e-3"]  # fmt: skip
NUMBERS = ["0", "0.00", "1", "-1", "10000", "9999.9999", "0.0001", "0.00001", "-0.5", "100000000",
           "12345678901234567890.123456789", "1e-20", "1e30", "NaN", "Infinity", "-Infinity",
           "-99999999999999999999999999999999999999999999999999.9", "1.50"]  # fmt: skip
TEXTS = ["", "a", "NULL", "null", " a ", "a,b", 'q"q', "b\\s", "{x}", "ä\U0001f600", "\t\n\v\f\r",
         "(a)", "'", "\x01\x7f"]  # fmt: skip
STAMPS = ["2024-01-01", "2024-01-01 00:00:00.5", "1999-12-31 23:59:59.999999", "0001-01-01",
          "0001-12-31 23:59:59.999999 BC", "4713-11-24 BC", "9999-12-31 23:59:59.999999",
          "10000-01-01", "294246-12-31 23:59:59.999999", "2000-02-29 12:00", "1970-01-01",
          "1969-12-31 23:59:59.000001"]  # fmt: skip
DATES = ["2024-02-29", "0001-01-01", "0001-12-31 BC", "0044-03-15 BC", "4713-11-24 BC",
         "9999-12-31", "10000-01-01", "5874897-12-31", "2000-01-01", "1900-03-01"]  # fmt: skip
INTERVALS = ["0", "1 day", "-1 day", "1 year 2 mons 3 days 04:05:06.789", "-1 year -2 mons",
             "-1 mon +1 day", "1 mon -1 day +01:00:00", "-00:00:00.000001", "100:00:00", "14 mons",
             "-14 mons +3 days -04:00:00", "2 years", "178000000 years",
             "-1 days -01:02:03"]  # fmt: skip

UUID_TEXT = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

CASES = [
    (t.BOOLEAN, "boolean", ["t", "f"]),
    (t.SMALLINT, "int2", ["0", "-32768", "32767"]),
    (t.INTEGER, "int4", ["0", "-2147483648", "2147483647"]),
    (t.BIGINT, "int8", ["0", "-9223372036854775808", "9223372036854775807"]),
    (t.REAL, "float4", [*FLOATS, "3.4028235e38", "1e-45", "1.1754944e-38", "9999999", "999999.94"]),
    (t.DOUBLE, "float8", DOUBLES),
    (t.NUMERIC, "numeric", NUMBERS),
    (t.decimal(38, 10), "numeric(38,10)", ["0", "1e-10", "-1e-7", "1.5", "1e27", "-12.0000001"]),
    (t.decimal(5, 0), "numeric(5,0)", ["0", "99999", "-1"]),
    (t.VARCHAR, "varchar", TEXTS),
    (t.BYTEA, "bytea", ["", "\\x00ff", "\\x5c27"]),
    (t.DATE, "date", DATES),
    (t.TIME, "time", ["00:00", "23:59:59.999999", "12:00:00.5", "24:00:00"]),
    (t.TIMESTAMP, "timestamp", STAMPS),
    (t.TIMESTAMPTZ, "timestamptz", STAMPS),
    (t.INTERVAL, "interval", INTERVALS),
    (t.JSONB, "jsonb", ['{"a": [1, null, "x"]}', "null", '"ä"', "1.50"]),
    (t.UUID, "uuid", ["0" * 8 + "-0000" * 3 + "-" + "0" * 12, UUID_TEXT]),
]  # fmt: skip
ELEMENTS = [
    (t.BOOLEAN, "boolean", [True, None, False]),
    (t.INTEGER, "int4", [1, None, -3]),
    (t.BIGINT, "int8", [2**63 - 1]),
    (t.DOUBLE, "float8", [1.5, 1e20, float("nan"), None]),
    (t.NUMERIC, "numeric", ["1.10", "NaN", None]),
    (t.VARCHAR, "varchar", [*TEXTS, None]),
    (t.BYTEA, "bytea", [b"", b"\x00\\", None]),
    (t.UUID, "uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    (t.JSONB, "jsonb", ['{"a": 1}', "null"]),
]


@pytest.fixture(scope="module")
def real():
    with postgres_server("timezone=UTC") as url:
        plain = url.replace("postgresql+psycopg", "postgresql")
        with psycopg.connect(plain, autocommit=True) as connection:
            yield connection


def asked(real, sql, value, binary):
    got = real.pgconn.exec_params(sql.encode(), [value], result_format=int(binary))
    assert got.status == psycopg.pq.ExecStatus.TUPLES_OK, got.error_message
    return got


def stored(type_, text, binary):  # noqa: PLR0911  one per family
    """The value as Arrow holds it, from PostgreSQL's bytes and without our code."""
    match type_.kind:
        case t.Kind.BOOLEAN:
            return binary == b"\x01"
        case t.Kind.SMALLINT | t.Kind.INTEGER | t.Kind.BIGINT:
            return int(text)
        case t.Kind.REAL:
            return struct.unpack(">f", binary)[0]
        case t.Kind.DOUBLE:
            return struct.unpack(">d", binary)[0]
        case t.Kind.DECIMAL:
            return Decimal(text.decode())
        case t.Kind.BYTEA:
            return binary
        case t.Kind.DATE:
            return struct.unpack(">i", binary)[0] + DAYS
        case t.Kind.TIMESTAMP | t.Kind.TIMESTAMPTZ:
            return struct.unpack(">q", binary)[0] + MICROS
    return text.decode()


def column(type_, values):
    if type_.kind is t.Kind.DATE:
        return pa.array(values, pa.int32()).cast(pa.date32())
    if type_.kind in (t.Kind.TIMESTAMP, t.Kind.TIMESTAMPTZ):
        return pa.array(values, pa.int64()).cast(type_.arrow)
    return pa.array(values, type_.arrow)


@pytest.mark.parametrize(("type_", "name", "literals"), CASES, ids=[case[1] for case in CASES])
def test_scalars_have_the_same_bytes(real, type_, name, literals):
    sql = f"select $1::text::{name}"
    texts, binaries = [], []
    for literal in literals:
        texts.append(asked(real, sql, literal.encode(), False).get_value(0, 0))
        binaries.append(asked(real, sql, literal.encode(), True).get_value(0, 0))
    values = [stored(type_, *pair) for pair in zip(texts, binaries, strict=True)]
    array = column(type_, [*values, None])
    expected = [text.decode() for text in texts]
    assert text_of(array, type_).to_pylist() == [*expected, None]
    assert binary_of(array, type_).to_pylist() == [*binaries, None]
    assert [binary_text(data, oid_of(type_), type_) for data in binaries] == expected
    for text, data in zip(texts, binaries, strict=True):
        by_text = read_parameter(text, 0, oid_of(type_), None)
        by_binary = read_parameter(data, 1, oid_of(type_), None)
        assert repr(by_text.value) == repr(by_binary.value)


@pytest.mark.parametrize(("type_", "name", "literals"), CASES, ids=[case[1] for case in CASES])
def test_columns_are_described_alike(real, type_, name, literals):
    got = asked(real, f"select $1::text::{name}", literals[0].encode(), False)
    assert (got.ftype(0), got.fsize(0)) == (oid_of(type_), length_of(type_))
    assert got.fmod(0) == modifier_of(type_)


@pytest.mark.parametrize(("type_", "name", "values"), ELEMENTS, ids=[case[1] for case in ELEMENTS])
def test_arrays_have_the_same_bytes(real, type_, name, values):
    listed = t.list_of(type_)
    lists = [values, [], [None], values[:1] * 3]
    array = pa.array([*lists, None], listed.arrow)
    sql = f"select $1::text::{name}[]"
    spelled = text_of(array, listed).to_pylist()
    for place, literal in enumerate(spelled[:-1]):
        assert asked(real, sql, literal.encode(), False).get_value(0, 0).decode() == literal
        binary = asked(real, sql, literal.encode(), True).get_value(0, 0)
        assert binary_of(array, listed)[place].as_py() == binary
        assert binary_text(binary, oid_of(listed), listed) == literal
    assert spelled[-1] is None
    got = real.execute(f"select %s::text::{name}[]", [spelled[0]]).fetchone()[0]
    assert len(got) == len(values)
    assert asked(real, sql, b"{}", False).ftype(0) == oid_of(listed)


def test_nested_arrays_and_records(real):
    deep = t.list_of(t.list_of(t.INTEGER))
    array = pa.array([[[1, None], [3, 4]], [[5], [6]]], deep.arrow)
    for place in (0, 1):
        literal = text_of(array, deep)[place].as_py()
        got = asked(real, "select $1::text::int4[]", literal.encode(), True).get_value(0, 0)
        assert binary_of(array, deep)[place].as_py() == got
        assert binary_text(got, oid_of(deep), deep) == literal
    record = t.DataType(t.Kind.STRUCT, fields=(("a", t.INTEGER), ("b", t.VARCHAR)))
    for number, text in ((1, "x"), (None, 'a "b", \\'), (2, ""), (3, None), (4, "(")):
        values = pa.array([{"a": number, "b": text}], record.arrow)
        sql = "select row($1::int4, $2::varchar)"
        given = [
            None if number is None else b"%d" % number,
            None if text is None else text.encode(),
        ]
        for binary, ours in (
            (0, text_of(values, record).cast(pa.binary())),
            (1, binary_of(values, record)),
        ):
            theirs = real.pgconn.exec_params(sql.encode(), given, result_format=binary)
            assert ours[0].as_py() == theirs.get_value(0, 0)


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Asia/Kolkata", "Africa/Monrovia", "Pacific/Auckland"]
)
def test_timestamps_in_other_zones(real, zone):
    stamps = ["1900-01-01", "1950-06-01 12:00", "1972-01-01", "2024-03-10 06:59:59.9", "2024-07-01",
              "2024-11-03 05:30", "2024-03-10 07:00"]  # fmt: skip
    real.execute(f"set timezone to '{zone}'")
    try:
        values, expected = [], []
        for stamp in stamps:
            sql = "select ($1::text || '+00')::timestamptz"
            expected.append(asked(real, sql, stamp.encode(), False).get_value(0, 0).decode())
            data = asked(real, sql, stamp.encode(), True).get_value(0, 0)
            values.append(struct.unpack(">q", data)[0] + MICROS)
    finally:
        real.execute("set timezone to 'UTC'")
    array = column(t.TIMESTAMPTZ, values)
    assert text_of(array, t.TIMESTAMPTZ, zone).to_pylist() == expected


@pytest.mark.parametrize("options", ["text", "csv", "csv, header", "csv, force_quote *"])
def test_copy_streams_of_postgres_are_read_and_written_alike(real, options):
    from headwater.pgwire.copy_rows import CopyWriter
    from headwater.pgwire.copy_stream import reader_of
    from headwater.pgwire.session import CopyOptions, ResultColumn

    rows = [(str(i), text) for i, text in enumerate([*TEXTS, None, "\\N", "\\.", "x\\y\nz"])]
    values = ", ".join(f"({i}, {'NULL' if x is None else psycopg.sql.quote(x)})" for i, x in rows)
    pieces = []
    with real.cursor().copy(f"copy (values {values}) to stdout (format {options})") as copy:
        pieces += [bytes(piece) for piece in copy]
    ours = CopyOptions(format=options.split(",")[0], header="header" in options)
    reader = reader_of(ours, [t.VARCHAR, t.VARCHAR])
    read = [row for byte in b"".join(pieces) for row in reader.feed(bytes([byte]))]
    assert [tuple(row) for row in read + reader.finish()] == rows
    if "force" in options:
        return
    columns = [ResultColumn(name=f"column{i}", type=t.VARCHAR) for i in (1, 2)]
    writer = CopyWriter(ours, columns, "UTC")
    arrays = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 1)]
    written = writer.head() + bytes(writer.rows(pa.record_batch(arrays, names=["a", "b"])))
    assert _bodies(written) == pieces


def _bodies(messages):
    found = []
    while messages:
        assert messages[:1] == b"d"
        end = 1 + int.from_bytes(messages[1:5], "big")
        found.append(messages[5:end])
        messages = messages[end:]
    return found
