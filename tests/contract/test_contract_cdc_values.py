"""Values that come from a database are the source's, to the last digit (contract point 12).

A table has a column of every type and rows at the edges of each. Part of the rows are there when
the table is created and come by the snapshot; the others come by the log, inserted and updated,
before and after a kill -9. What a client of Headwater is told is compared, as text and in both
directions, with what the source itself says: of PostgreSQL the very bytes of its answer, of
MariaDB what its own functions spell.
"""

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest

from cdc_kit import Upstream, server, upstream
from headwater.testing.processes import free_port
from mysql_servers import RunningServer, mariadb_server
from serve_kit import Served, run

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(900)

TEXTS = (
    "''", "'plain'", "' '", "E'line\\nfeed\\ttab\\r'", "E'back\\\\slash \\\\N \\\\.'",
    "'\"double\" ''single'' `tick`'", "U&'\\+10FFFF'", "U&'\\+01F30A'", "U&'\\FFFF\\0001'",
    "'NULL'", "'{a,b}'", "'Grüße, 中文, עברית'", "'a' || chr(127) || chr(128)", "repeat('é', 5000)",
)  # fmt: skip
POSTGRES: dict[str, tuple[str, Sequence[str]]] = {
    "i2": ("int2", ("-32768", "32767", "0", "-1")),
    "i4": ("int4", ("-2147483648", "2147483647", "0", "-1")),
    "i8": ("int8", ("-9223372036854775808", "9223372036854775807", "0", "-1")),
    "n38": (
        "numeric(38,10)",
        ("9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999",
         "0", "0.0000000001", "-0.0000000001", "12345.6789"),
    ),
    "n10": ("numeric(10,2)", ("99999999.99", "-99999999.99", "0.01", "0", "1.5")),
    "n60": (
        "numeric(60,20)",
        ("9999999999999999999999999999999999999999.99999999999999999999",
         "-9999999999999999999999999999999999999999.99999999999999999999", "0",
         "0.00000000000000000001", "1"),
    ),
    "n": (
        "numeric",
        ("'NaN'", "'Infinity'", "'-Infinity'", "0", "0.000", "1.10", "-1e-50",
         "123456789012345678901234567890123456789012345678901234567890.123456789", "1e100",
         "10000", "100000000"),
    ),
    "f8": (
        "float8",
        ("'NaN'", "'Infinity'", "'-Infinity'", "0", "'-0'", "5e-324", "1.7976931348623157e308",
         "0.1", "1e15", "1e16", "123456789.123", "-1e-5", "1e22"),
    ),
    "f4": (
        "float4",
        ("'NaN'", "'Infinity'", "'-Infinity'", "0", "'-0'", "1e-45", "3.4028235e38", "0.1",
         "16777217", "1e6", "1234567"),
    ),
    "t": ("text", TEXTS),
    "v": ("varchar(20)", ("''", "'short'", "U&'\\+10FFFF'")),
    "c": ("char(5)", ("'ab'", "''", "'abcde'")),
    "tz": (
        "timestamptz",
        ("'2024-02-29 12:34:56.123456+00'", "'1970-01-01 00:00:00+00'", "'0001-01-01 00:00:00+00'",
         "'4713-01-01 00:00:00+00 BC'", "'9999-12-31 23:59:59.999999+00'",
         "'294247-01-10 04:00:54.775806+00'", "'1582-10-10 00:00:00+00'",
         "'1900-01-01 00:00:01.5+00'",
         "'12345-06-07 08:09:10+00'"),
    ),
    "ts": (
        "timestamp",
        ("'2024-02-29 12:34:56.000001'", "'1969-12-31 23:59:59.999999'", "'0001-01-01'",
         "'4713-01-01 BC'", "'9999-12-31 23:59:59.999999'", "'294247-01-10 04:00:54.775806'",
         "'1582-10-14 12:00:00'"),
    ),
    "d": (
        "date",
        ("'2024-02-29'", "'1970-01-01'", "'0001-01-01'", "'4713-01-01 BC'", "'0001-12-31 BC'",
         "'9999-12-31'", "'10000-01-01'", "'5874897-12-31'", "'1582-10-10'"),
    ),
    "tm": ("time", ("'00:00:00'", "'23:59:59.999999'", "'12:00:00.5'", "'24:00:00'")),
    "iv": (
        "interval",
        ("'1 year 2 mons 3 days 04:05:06.789'", "'0'", "'-1 day'", "'-00:00:00.000001'",
         "'178000000 years'", "'1 mon -1 day 00:00:01'"),
    ),
    "u": (
        "uuid",
        ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
         "'12345678-9abc-def0-1234-56789abcdef0'"),
    ),
    "b": ("bytea", ("''", "'\\x00'", "'\\x00ff5c0a27'", "decode(repeat('fe', 3000), 'hex')")),
    "j": (
        "jsonb",
        ("'{}'", "'[]'", "'null'", "'\"x\"'",
         "'{\"b\": [1, 2.50, null, true], \"a\": {\"é\": \"\\n\"}}'",
         "'12345678901234567890.1234567890'", "'1e30'", "'\"\\\\ud83c\\\\udf0a\"'"),
    ),
    "bo": ("bool", ("true", "false")),
    "ai": ("int[]", ("'{}'", "'{1,NULL,-2147483648}'", "'{2147483647}'")),
    "at": ("text[]", ("'{}'", "ARRAY['', 'a b', NULL, 'NULL', E'q\"\\\\', E'n\\n', '{,}']",
                      "ARRAY[U&'\\+10FFFF']")),
    "an": ("numeric[]", ("'{1.10,NaN,NULL}'", "'{}'", "ARRAY[1e50, -0.5]")),
    "atz": ("timestamptz[]", ("ARRAY['2024-01-01 00:00:00.000001+00'::timestamptz, NULL]",)),
    "ab": ("bytea[]", ("ARRAY['\\x00ff'::bytea, NULL, '']",)),
    "af": ("float8[]", ("ARRAY['NaN', '-Infinity', -0.0, 1e-7, NULL]::float8[]",)),
    "au": ("uuid[]", ("ARRAY['12345678-9abc-def0-1234-56789abcdef0'::uuid]",)),
    "abo": ("bool[]", ("'{t,f,NULL}'",)),
    "ad": ("date[]", ("'{2024-02-29,0001-01-01,NULL}'",)),
}  # fmt: skip


def _value(values: Sequence[str], row: int) -> str:
    """One of the edges; NULL comes round as well."""
    at = row % (len(values) + 1)
    return "NULL" if at == len(values) else values[at]


def _insert(rows: range, columns: Mapping[str, tuple[str, Sequence[str]]]) -> list[str]:
    return [
        f"INSERT INTO v VALUES ({row}, "
        + ", ".join(_value(values, row) for _, values in columns.values())
        + ")"
        for row in rows
    ]


def _updates(
    rows: range, shift: int, columns: Mapping[str, tuple[str, Sequence[str]]]
) -> list[str]:
    """The edges move on to other rows."""
    return [
        "UPDATE v SET "
        + ", ".join(f"{name} = {_value(each[1], row + shift)}" for name, each in columns.items())
        + f" WHERE id = {row}"
        for row in rows
    ]


def _spelled(client: "psycopg.Connection[Any]", query: str) -> "Counter[tuple[bytes | None, ...]]":
    """Rows as the bytes that came over the wire, in text format."""
    cursor = client.execute(query)
    result = cursor.pgresult
    assert result is not None
    return Counter(
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for row in range(result.ntuples)
    )


def _compare(ours: "Counter[Any]", theirs: "Counter[Any]", names: Sequence[str]) -> None:
    """Both ways; what differs is shown by column."""
    if ours == theirs:
        return
    mine = {row[0]: row for row in ours}
    shown = [
        f"{name} of row {row[0]}: source {their!r:.200}, here {our!r:.200}"
        for row in theirs
        if row[0] in mine
        for name, their, our in zip(names, row, mine[row[0]], strict=True)
        if their != our
    ]
    missing = sorted({row[0] for row in theirs} - set(mine))
    extra = sorted(set(mine) - {row[0] for row in theirs})
    raise AssertionError(f"missing {missing}, extra {extra}\n" + "\n".join(shown[:30]))


def _settled(
    client: "psycopg.Connection[Any]",
    theirs: "Counter[Any]",
    names: Sequence[str],
    form: Callable[[tuple[bytes | None, ...]], tuple[Any, ...]],
) -> None:
    """Compare table and view; a FLUSH does not wait for a source that is slow to answer."""
    deadline = time.monotonic() + 150
    for relation in ("v", "mv"):
        while True:
            run(client, "FLUSH")
            found = _spelled(client, f"SELECT {', '.join(names)} FROM {relation}")
            ours = Counter(form(row) for row in found)
            if ours == theirs or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        _compare(ours, theirs, names)


def _same_as_postgres(client: "psycopg.Connection[Any]", upstream: Upstream) -> None:
    names = ["id", *POSTGRES]
    with psycopg.connect(upstream.url, autocommit=True, options="-c TimeZone=UTC") as source:
        theirs = _spelled(source, f"SELECT {', '.join(names)} FROM v")

    _settled(client, theirs, names, lambda row: row)


def test_postgres_values_are_exact_by_snapshot_and_by_stream(upstream, tmp_path):
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in POSTGRES.items())
    upstream.db.execute(f"CREATE TABLE v (id int PRIMARY KEY, {columns})")
    for statement in _insert(range(20), POSTGRES):
        upstream.db.execute(statement)
    port = free_port()
    with Served(tmp_path / "w", port=port) as process:
        process.ready()
        with process.connect() as client:
            run(client, upstream.source(), "CREATE TABLE v (*) FROM shop TABLE 'public.v'")
            run(client, "CREATE MATERIALIZED VIEW mv AS SELECT * FROM v", "WAIT")
            _same_as_postgres(client, upstream)
            for statement in (*_insert(range(20, 40), POSTGRES), *_updates(range(10), 3, POSTGRES)):
                upstream.db.execute(statement)
            _same_as_postgres(client, upstream)
        process.kill()
    for statement in (*_insert(range(40, 50), POSTGRES), *_updates(range(15, 30), 5, POSTGRES)):
        upstream.db.execute(statement)
    with Served(tmp_path / "w", port=port) as process:
        process.ready()
        with process.connect() as client:
            _same_as_postgres(client, upstream)
            for statement in _updates(range(50), 7, POSTGRES):
                upstream.db.execute(statement)
            _same_as_postgres(client, upstream)


def _utf8(text: str) -> str:
    return f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)"


MARIA_TEXTS = tuple(
    _utf8(text)
    for text in ("", "plain", " both ", "line\nfeed\ttab\r", "back\\slash \\N \\.", "\"d\" 's' `t`",
                 "\U0010ffff", "\U0001f30a", "\uffff\x01\x00", "NULL", "Grüße, 中文")
)  # fmt: skip
PLAIN = "CAST({0} AS CHAR)"
HEX = "CONCAT('\\\\x', LOWER(HEX({0})))"
MOMENT = "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM DATE_FORMAT({0}, '%Y-%m-%d %H:%i:%s.%f')))"
FRACTION = (
    "IF({0} LIKE '%.%', TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST({0} AS CHAR))), {0})"
)
MARIADB: dict[str, tuple[str, Sequence[str], str]] = {
    "t1": ("tinyint", ("-128", "127", "0"), PLAIN),
    "tu": ("tinyint unsigned", ("255", "0", "128"), PLAIN),
    "s": ("smallint", ("-32768", "32767"), PLAIN),
    "su": ("smallint unsigned", ("65535", "0", "32768"), PLAIN),
    "m": ("mediumint", ("-8388608", "8388607"), PLAIN),
    "mu": ("mediumint unsigned", ("16777215", "0"), PLAIN),
    "i": ("int", ("-2147483648", "2147483647"), PLAIN),
    "iu": ("int unsigned", ("4294967295", "0", "2147483648"), PLAIN),
    "b": ("bigint", ("-9223372036854775808", "9223372036854775807"), PLAIN),
    "bu": ("bigint unsigned", ("18446744073709551615", "0", "9223372036854775808"), PLAIN),
    "d": ("decimal(12,2)", ("-9999999999.99", "9999999999.99", "0.01", "0"), PLAIN),
    "d38": (
        "decimal(38,10)",
        ("9999999999999999999999999999.9999999999", "-0.0000000001", "0"), PLAIN,
    ),
    "d65": (
        "decimal(65,30)",
        ("99999999999999999999999999999999999.999999999999999999999999999999",
         "-99999999999999999999999999999999999.999999999999999999999999999999",
         "0.000000000000000000000000000001", "0", "-1.5"), PLAIN,
    ),
    "f": ("float", ("0.1", "3.4028234e38", "-1.17549435e-38", "16777216"), "CAST({0} AS DOUBLE)"),
    "g": ("double", ("0.1", "-1.7976931348623157e308", "5e-324", "1e22", "123456789.123"), "{0}"),
    "b1": ("bit(1)", ("b'1'", "b'0'"), "CAST({0} + 0 AS CHAR)"),
    "b9": ("bit(9)", ("b'101010101'", "b'111111111'"), "CAST({0} + 0 AS CHAR)"),
    "b64": (
        "bit(64)", ("X'FFFFFFFFFFFFFFFF'", "1", "0"),
        "CONCAT('\\\\x', LPAD(LOWER(HEX({0})), 16, '0'))",
    ),
    "y": ("year", ("2155", "1901", "2024"), PLAIN),
    "day": ("date", ("'9999-12-31'", "'1000-01-01'", "'2024-02-29'", "'0001-01-01'"), PLAIN),
    "dt": ("datetime", ("'2024-02-29 23:59:59'", "'1000-01-01'"), MOMENT),
    "dt6": (
        "datetime(6)",
        ("'9999-12-31 23:59:59.999999'", "'1000-01-01 00:00:00.000001'", "'1969-12-31 23:59:59.5'"),
        MOMENT,
    ),
    "ts6": (
        "timestamp(6) NULL",
        ("'2038-01-19 03:14:07.999999'", "'1970-01-01 00:00:01.000001'", "'2024-02-29 12:00:00'"),
        f"CONCAT({MOMENT}, '+00')",
    ),
    "tm": ("time", ("'-838:59:59'", "'838:59:59'", "'00:00:00'"), FRACTION),
    "tm6": ("time(6)", ("'-00:00:00.000001'", "'23:59:59.999999'", "'101:02:03.45'"), FRACTION),
    "c": ("char(10)", ("'ab'", "''"), PLAIN),
    "v": ("varchar(60)", MARIA_TEXTS, "{0}"),
    "tx": ("longtext", (*MARIA_TEXTS, "REPEAT('é', 40000)"), "{0}"),
    "bi": ("binary(4)", ("X'0102'", "X'00000000'", "X'FFFFFFFF'"), HEX),
    "vb": ("varbinary(20)", ("X'00FF00'", "X''", "X'5C0A27'"), HEX),
    "bl": ("longblob", ("REPEAT(X'FE', 300)", "X''"), HEX),
    "e": ("enum('small','it''s','','large')", ("'it''s'", "''", "'large'"), PLAIN),
    "st": ("set('a','b','c','d')", ("'a,d'", "''", "'a,b,c,d'"), PLAIN),
    "j": ("json", ("'{}'", """'{"b": [1, 2.5, null, true], "a": {"é": "x"}}'""", "'null'"), "{0}"),
}  # fmt: skip
NUMBERS = {"f": "f", "g": "d"}
"""Doubles that are compared as such: each side spells the same number in its own way."""


@pytest.fixture(scope="module")
def mariadb() -> Iterator[RunningServer]:
    with mariadb_server() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


def _said(value: Any) -> bytes | None:
    return None if value is None else value if isinstance(value, bytes) else str(value).encode()


def _numbers(row: Sequence[bytes | None]) -> tuple[Any, ...]:
    """A row with its doubles by their bits."""
    places = {1 + list(MARIADB).index(name): form for name, form in NUMBERS.items()}
    return tuple(
        struct.pack(places[place], float(value)) if place in places and value is not None else value
        for place, value in enumerate(row)
    )


def _same_as_mariadb(client: "psycopg.Connection[Any]", mariadb: RunningServer) -> None:
    names = ["id", *MARIADB]
    terms = ", ".join(form.format(name) for name, (_, _, form) in MARIADB.items())
    connection = mariadb.connect("shop", charset="utf8mb4")
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT CAST(id AS CHAR), {terms} FROM v")
        theirs = Counter(_numbers([_said(value) for value in row]) for row in cursor.fetchall())
    connection.close()

    _settled(client, theirs, names, _numbers)


def test_mariadb_values_are_exact_by_snapshot_and_by_stream(mariadb, tmp_path):
    edges = {name: (type_, values) for name, (type_, values, _) in MARIADB.items()}
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in edges.items())

    def write(*statements: str) -> None:
        mariadb.run("SET time_zone = '+00:00', NAMES utf8mb4", *statements, database="shop")

    write(f"CREATE TABLE v (id int PRIMARY KEY, {columns})", *_insert(range(15), edges))
    options = mariadb.options("shop", **{"time.mode": "interval"})
    said = ", ".join(f"{key} = '{value}'" for key, value in options.items())
    port = free_port()
    with Served(tmp_path / "w", port=port) as process:
        process.ready()
        with process.connect() as client:
            run(client, f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})")
            run(client, "CREATE TABLE v (*) FROM shop TABLE 'shop.v'")
            run(client, "CREATE MATERIALIZED VIEW mv AS SELECT * FROM v", "WAIT")
            _same_as_mariadb(client, mariadb)
            write(*_insert(range(15, 30), edges), *_updates(range(10), 3, edges))
            _same_as_mariadb(client, mariadb)
        process.kill()
    write(*_insert(range(30, 40), edges), *_updates(range(8, 25), 5, edges))
    with Served(tmp_path / "w", port=port) as process:
        process.ready()
        with process.connect() as client:
            _same_as_mariadb(client, mariadb)
            write(*_updates(range(40), 7, edges))
            _same_as_mariadb(client, mariadb)
