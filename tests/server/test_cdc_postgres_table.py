"""Schemas and values of real PostgreSQL tables, compared with what the server prints."""

import json
import math
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_kit import VERSIONS, run, server
from cdc_postgres_tables import opened, read_all

from headwater.errors import RelationError, SchemaError, SourceUnavailable, UserError


@pytest.fixture(scope="module", params=VERSIONS)
def url(request):
    with server(request.param) as url:
        yield url


EVERYTHING = """
    CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
    CREATE DOMAIN price AS numeric(10,2) CHECK (value >= 0);
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE everything (
        "Id" bigint PRIMARY KEY, "b o""ol" boolean, i2 smallint, i4 integer, f4 real,
        f8 double precision,
        n numeric, n12 numeric(12,2), n38 numeric(38,10), n50 numeric(50,3),
        t text, v varchar(20), c char(5), by bytea, d date, tm time, tz timetz,
        ts timestamp, tsz timestamptz(3), iv interval, j json, jb jsonb, u uuid,
        m mood, p price, r pair, ir int4range, ip inet, cash money, bits bit varying,
        ia int[], ta text[], na numeric(6,2)[], ma mood[], pa pair[], o oid, gone int,
        g bigint GENERATED ALWAYS AS (i2 * 2) STORED);
    ALTER TABLE everything DROP COLUMN gone;
    INSERT INTO everything VALUES
        (1, true, -32768, 2147483647, 'NaN', '-Infinity',
         123456789012345678901234567890.5000, -0.05,
         -9999999999999999999999999999.9999999999,
         12345678901234567890123456789012345678901234567.125,
         'naïve 😀', 'x', 'ab', '\\x00ff', '0044-03-15 BC',
         '23:59:59.120', '12:00+05:30',
         '1969-12-31 23:59:59.999999', '9999-12-31 23:59:59.999+00',
         '1 year 2 mons -3 days 04:05:06.7',
         '{"a":  1}', '{"b": [1, null]}', '00112233-4455-6677-8899-aabbccddeeff', 'it''s ok', 1.5,
         ROW(1, 'x,y'), '[1,5)', '10.0.0.1/8', 12.34, B'101', '{1,NULL,3}', '{"a,b",NULL,"",NULL}',
         '{1.5,2.25}', '{sad,NULL}', ARRAY[ROW(1,'q')::pair], 4294967295),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         NULL, NULL, NULL,
         NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (3, false, 0, 0, 0, 1e-300, 'Infinity', 'NaN', 0, 0, '', '', '', '', '10000-01-01',
         '24:00:00',
         '00:00+00', '0001-01-01', '1970-01-01+00', '0', 'null', '{}',
         '00000000-0000-0000-0000-000000000000',
         'sad', 0, NULL, 'empty', '::1', 0, B'', '{}', '{}', '{}', '{}', '{}', 0)
"""


@pytest.fixture(scope="module")
def everything(url):
    run(url, *EVERYTHING.split(";\n"))
    return url


def test_every_common_type_has_its_type_here(everything):
    types = {
        each.column.name: each.column.type.postgres
        for each in opened(everything, "everything").schema.columns
    }
    assert types == {
        "Id": "bigint", 'b o"ol': "boolean", "i2": "smallint", "i4": "integer", "f4": "real",
        "f8": "double precision", "n": "numeric", "n12": "numeric(12,2)", "n38": "numeric(38,10)",
        "n50": "numeric", "t": "varchar", "v": "varchar", "c": "varchar", "by": "bytea",
        "d": "date", "tm": "time", "tz": "varchar", "ts": "timestamp", "tsz": "timestamptz",
        "iv": "interval", "j": "jsonb", "jb": "jsonb", "u": "uuid", "m": "varchar",
        "p": "numeric(10,2)", "r": "varchar", "ir": "varchar", "ip": "varchar", "cash": "varchar",
        "bits": "varchar", "ia": "integer[]", "ta": "varchar[]", "na": "numeric(6,2)[]",
        "ma": "varchar[]", "pa": "varchar[]", "o": "bigint",
    }  # fmt: skip


def test_values_are_exactly_what_the_server_prints(everything):
    """Each column as text, here and there; moments by their distance from 1970."""
    table = opened(everything, "everything", unrepresentable_values="null")
    rows, _ = read_all(table)
    assert rows.num_rows == 3
    for column in table.described.columns:
        name = '"' + column.name.replace('"', '""') + '"'
        asked = {
            "date": f"({name} - date '1970-01-01')::text",
            "timestamp": f"(extract(epoch FROM {name}) * 1000000)::bigint::text",
            "timestamptz": f"(extract(epoch FROM {name}) * 1000000)::bigint::text",
        }.get(column.wire.type.postgres, f"{name}::text")
        if column.upstream_type == "inet":
            asked = f"format('%s', {name})"  # as it is shown; a cast would add the mask
        if column.upstream_type == "character(5)":
            asked = f"rpad({name}::text, 5)"
        if column.wire.type.kind == "list":
            asked = f"array_to_json({name}::text[])::text"
        query = (
            f'SELECT CASE WHEN {name} IS NOT NULL THEN {asked} END FROM everything ORDER BY "Id"'
        )
        with psycopg.connect(everything, options="-c timezone=UTC") as connection:
            expected = [row[0] for row in connection.execute(query)]
        got = [spelled(value) for value in _plain(rows[column.name])]
        if column.name == "n12":
            assert expected[2] == "NaN"
            expected[2] = None
        assert got == expected, column.name


def _plain(column):
    column = column.combine_chunks()
    if pa.types.is_date(column.type):
        return column.view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(column.type):
        return column.view(pa.int64()).to_pylist()
    return column.to_pylist()


def spelled(value):  # noqa: PLR0911  one line per type
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float():
            return repr(value).removesuffix(".0")
        case Decimal():
            return f"{value:f}"
        case bytes():
            return "\\x" + value.hex()
        case list():
            shown = [None if each is None else spelled(each) for each in value]
            return json.dumps(shown, separators=(",", ":"))
        case _:
            return str(value)


def test_a_value_that_has_no_place_is_refused_by_name(everything):
    table = opened(everything, "everything")
    with pytest.raises(SchemaError, match=r'column "n12" of public\.everything'):
        read_all(table)
    for column, value in (("d", "infinity"), ("ts", "-infinity"), ("tsz", "294276-12-31")):
        run(
            everything,
            f"CREATE TABLE odd_{column} AS SELECT 1 AS id, '{value}'::"
            + {"d": "date", "ts": "timestamp", "tsz": "timestamptz"}[column]
            + f" AS {column}",
            f"ALTER TABLE odd_{column} ADD PRIMARY KEY (id)",
        )
        with pytest.raises(SchemaError, match=f'"{column}" of public.odd_{column}'):
            read_all(opened(everything, f"odd_{column}"))
        lenient, _ = read_all(opened(everything, f"odd_{column}", unrepresentable_values="null"))
        assert lenient.to_pylist() == [{"id": 1, column: None}]


def test_generated_and_missing_columns_are_refused_by_name(everything):
    assert [
        each.column.name for each in opened(everything, "everything", ["Id", "t"]).schema.columns
    ] == ["Id", "t"]
    for columns, complaint in (
        (["Id", "g"], '"g" of public.everything is generated'),
        (["Id", "nope"], 'no column "nope"'),
        (["t"], 'key column "Id"'),
    ):
        with pytest.raises(SchemaError, match=complaint):
            opened(everything, "everything", columns)


def test_things_that_are_no_tables_are_refused_by_name(url):
    run(
        url,
        'CREATE SCHEMA "My Schema"',
        'CREATE TABLE "My Schema"."Tab.le" (k int PRIMARY KEY)',
        'INSERT INTO "My Schema"."Tab.le" VALUES (4)',
        "CREATE VIEW a_view AS SELECT 1",
        "CREATE UNLOGGED TABLE fast_one (k int PRIMARY KEY)",
    )
    table = opened(url, '"My Schema"."Tab.le"')
    assert table.name == '"My Schema"."Tab.le"'
    assert read_all(table)[0].to_pylist() == [{"k": 4}]
    with pytest.raises(RelationError, match=r"no table public\.nowhere"):
        opened(url, "nowhere")
    with pytest.raises(SchemaError, match="a_view is a view"):
        opened(url, "public.a_view")
    with pytest.raises(SchemaError) as caught:
        opened(url, "fast_one")
    assert "SET LOGGED" in caught.value.hint
    with pytest.raises(RelationError, match=r"schema\.table"):
        opened(url, "a.b.c")


def test_bytes_that_are_no_utf8_are_refused_by_name(url):
    run(
        url,
        "CREATE DATABASE loose ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    loose = url.rsplit("/", 1)[0] + "/loose"
    run(
        loose,
        "CREATE TABLE latin (k int PRIMARY KEY, name text)",
        "SET client_encoding = 'SQL_ASCII';INSERT INTO latin VALUES (1, 'plain'), (2, E'caf\\351')",
    )
    with pytest.raises(SchemaError, match=r'"name" of public\.latin'):
        read_all(opened(loose, "latin"))
    rows, _ = read_all(opened(loose, "latin", unrepresentable_values="null"))
    assert rows.to_pylist() == [{"k": 1, "name": "plain"}, {"k": 2, "name": None}]


def test_errors_say_who_must_act(url):
    run(
        url,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "CREATE TABLE hidden (k int PRIMARY KEY)",
    )
    with pytest.raises(UserError, match="42501") as caught:
        read_all(opened(url, "hidden", username="reader"))
    assert "hidden" in caught.value.detail
    with pytest.raises(UserError, match='no database "nope"'):
        opened(url, "hidden", database_name="nope")
    with pytest.raises(UserError, match='user "stranger"'):
        opened(url, "hidden", username="stranger")
    with pytest.raises(SourceUnavailable, match=":1 "):
        opened(url, "hidden", port="1")
    with pytest.raises(SourceUnavailable):
        opened(url, "hidden", hostname="no.such.host.invalid")
