"""Schemas, splits and chunks of real PostgreSQL tables, compared with what psycopg reads."""

import json
import math
import pickle
import threading
import time
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_kit import VERSIONS, options_of, run, server

from headwater.cdc.external_table import Split, SplitOptions
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.connecting import session
from headwater.cdc.postgres.schema import read_table
from headwater.cdc.postgres.table import PostgresTable, SnapshotHolder
from headwater.cdc.postgres.types import TypeCatalog
from headwater.errors import ConfigError, RelationError, SchemaError, SourceUnavailable, UserError

LARGE = 1 << 30


@pytest.fixture(scope="module", params=VERSIONS)
def url(request):
    with server(request.param) as url:
        yield url


def opened(url, name, columns=None, **options):
    given = options_of(url, **options)
    with session(given) as connection:
        types = TypeCatalog(unknown_as_text=given.unknown_types_as_text)
        return PostgresTable(given, read_table(connection, types, name, columns=columns))


def read_split(table, split, *, max_rows=10**6, max_bytes=LARGE):
    """All chunks of a split, and how many there were."""
    after, pieces = None, []
    while True:
        chunk = table.read_chunk(split, after, max_rows=max_rows, max_bytes=max_bytes)
        pieces.append(chunk.rows)
        if chunk.cursor is None:
            return pa.concat_tables(pieces), len(pieces)
        after = chunk.cursor


def read_all(table, options=None, **bounds):
    splits = table.splits(options or SplitOptions())
    return pa.concat_tables([read_split(table, split, **bounds)[0] for split in splits]), splits


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


KEYED = {
    "numbers": ("k bigint", "i"),
    "sparse": ("k bigint", "(i::bigint * i * 1000003)"),
    "skewed": ("k numeric(20,6)", "exp(i / 1000.0)"),
    "words": ('k text COLLATE "C"', "md5(i::text)"),
    "local_words": ("k text", "(array['a','A','b','B','é','_'])[1 + i % 6] || i"),
    "uuids": ("k uuid", "md5(i::text)::uuid"),
    "moments": ("k timestamptz", "timestamptz '2024-01-01 00:00:00+00' - i * interval '1.5 h'"),
    "floats": ("k float8", "sqrt(i)"),
    "blobs": ("k bytea", "decode(md5(i::text), 'hex')"),
    "fixed": ("k char(12)", "'x' || i"),
    "days": ("k date", "date '0100-01-01 BC' + i * 37"),
}


@pytest.mark.parametrize("kind", KEYED)
def test_splits_and_cursors_follow_the_servers_order(url, kind):
    """Every row once, in the server's order, over small splits and smaller chunks."""
    column, key = KEYED[kind]
    name = f"keyed_{kind}"
    run(
        url,
        f"CREATE TABLE {name} ({column} PRIMARY KEY, v int)",
        f"INSERT INTO {name} SELECT {key}, i FROM generate_series(1, 3000) i",
        f"ANALYZE {name}",
    )
    expected = [row[0] for row in run(url, f"SELECT v FROM {name} ORDER BY k")]
    table = opened(url, name)
    for even in (True, False):
        rows, splits = read_all(table, SplitOptions(rows_per_split=500, even=even), max_rows=177)
        assert rows["v"].to_pylist() == expected
        assert 5 <= len(splits) <= 8
        assert [split.number for split in splits] == list(range(len(splits)))


def test_large_tables_are_split_by_a_sample(url):
    run(
        url,
        "CREATE TABLE sampled (k bigint PRIMARY KEY, pad text)",
        "INSERT INTO sampled"
        " SELECT i::bigint * i, repeat('x', 60) FROM generate_series(1, 60000) i",
        "DELETE FROM sampled WHERE k BETWEEN 1000000 AND 900000000",
        "VACUUM ANALYZE sampled",
    )
    table = opened(url, "sampled")
    splits = table.splits(SplitOptions(rows_per_split=3000))
    counts = [read_split(table, split)[0].num_rows for split in splits]
    (total,) = run(url, "SELECT count(*) FROM sampled")[0]
    assert sum(counts) == total
    assert len(splits) >= 8
    assert max(counts) < 3 * 3000


def test_composite_keys_are_compared_as_rows(url):
    run(
        url,
        'CREATE TABLE composite ("A" text, b int, c uuid, v int, PRIMARY KEY (b, "A", c))',
        "INSERT INTO composite SELECT (array['x','it''s','ö'])[1 + i % 3], i / 400,"
        " md5(i::text)::uuid, i FROM generate_series(1, 2000) i",
    )
    table = opened(url, "composite")
    assert table.schema.key == ("b", "A", "c")
    expected = [row[0] for row in run(url, 'SELECT v FROM composite ORDER BY b, "A", c')]
    rows, splits = read_all(table, SplitOptions(rows_per_split=300), max_rows=70)
    assert rows["v"].to_pylist() == expected
    assert len(splits) >= 6
    # By one column, as the user may ask for: splits never share a value of it.
    by_last, splits = read_all(table, SplitOptions(rows_per_split=300, column=1, even=False))
    assert sorted(by_last["v"].to_pylist()) == sorted(expected)
    assert {split.columns for split in splits} == {("A",)}
    with pytest.raises(ConfigError, match="column number 3"):
        table.splits(SplitOptions(column=3))


def test_a_split_divides_into_all_of_its_rows(url):
    run(
        url,
        "CREATE TABLE divided (k int PRIMARY KEY)",
        "INSERT INTO divided SELECT i FROM generate_series(1, 1000) i",
    )
    table = opened(url, "divided")
    split = Split(number=3, columns=("k",), left=("101",), right=("901",))
    pieces = table.divide(split)
    assert len(pieces) == 4
    assert (pieces[0].left, pieces[-1].right) == (("101",), ("901",))
    rows = [row for piece in pieces for row in read_split(table, piece)[0]["k"].to_pylist()]
    assert rows == list(range(101, 901))
    lone = Split(number=0, columns=("k",), left=("5",), right=("6",))
    assert len(table.divide(lone)) == 1


def test_partitions_are_read_through_their_root_and_heirs_are_not(url):
    run(
        url,
        "CREATE TABLE parted (k int, d date, PRIMARY KEY (k, d)) PARTITION BY RANGE (d)",
        "CREATE TABLE early PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2024-07-01')",
        "CREATE TABLE later PARTITION OF parted FOR VALUES FROM ('2024-07-01') TO ('2025-01-01')",
        "INSERT INTO parted SELECT i, date '2024-01-01' + i % 360 FROM generate_series(1, 900) i",
        "CREATE TABLE parent (k int PRIMARY KEY)",
        "CREATE TABLE heir () INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO heir VALUES (2)",
    )
    rows, splits = read_all(opened(url, "parted"), SplitOptions(rows_per_split=200), max_rows=90)
    assert sorted(rows["k"].to_pylist()) == list(range(1, 901))
    assert len(splits) >= 4
    assert read_all(opened(url, "parent"))[0]["k"].to_pylist() == [1]


def test_wide_rows_are_bounded_by_bytes(url):
    run(
        url,
        "CREATE TABLE wide (k int PRIMARY KEY, pad text)",
        "ALTER TABLE wide ALTER pad SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT i, repeat('x', 1000000) FROM generate_series(1, 12) i",
    )
    table = opened(url, "wide")
    [split] = table.splits(SplitOptions(bytes_per_split=LARGE))
    sizes, after = [], None
    while True:
        chunk = table.read_chunk(split, after, max_rows=1000, max_bytes=3_000_000)
        sizes.append(chunk.rows.num_rows)
        if chunk.cursor is None:
            break
        after = chunk.cursor
    assert sum(sizes) == 12
    assert max(sizes) <= 4
    # A row larger than the bound comes alone, and whole.
    tiny = table.read_chunk(split, None, max_rows=1000, max_bytes=10)
    assert 1 <= tiny.rows.num_rows <= 2
    assert len(tiny.rows["pad"][0].as_py()) == 1_000_000


def test_a_chunk_knows_exactly_what_it_saw(url):
    """Rows of transactions that ran meanwhile are absent, and `seen` says so of each."""
    run(url, "CREATE TABLE seen (k bigint PRIMARY KEY, x bigint)")
    table = opened(url, "seen")
    mine = "INSERT INTO seen VALUES (%s, pg_current_xact_id()::text::bigint) RETURNING x"
    with psycopg.connect(url) as early, psycopg.connect(url) as late:
        (running,) = early.execute(mine, [1]).fetchone()
        (done,) = late.execute(mine, [2]).fetchone()
        late.commit()
        [split] = table.splits(SplitOptions())
        chunk = table.read_chunk(split, None, max_rows=10, max_bytes=LARGE)
        (after,) = late.execute(mine, [3]).fetchone()
        late.commit()
        early.commit()
    assert chunk.rows["x"].to_pylist() == [done]
    held = chunk.seen.holds(pa.array([running, done, after]))
    assert held.to_pylist() == [False, True, False]
    again = table.read_chunk(split, None, max_rows=10, max_bytes=LARGE)
    assert again.seen.holds(pa.array([running, done, after])).to_pylist() == [True] * 3
    assert chunk.high < again.low <= again.high


def test_a_place_before_which_nothing_is_missing_is_proven_or_not_claimed(url):
    """A transaction that might be committing right now forbids the claim; an idle one does not."""
    run(
        url,
        "CREATE TABLE proven (k bigint PRIMARY KEY)",
        "GRANT SELECT ON proven TO PUBLIC",
        "DROP ROLE IF EXISTS plain",
        "CREATE ROLE plain LOGIN",
    )
    whole = Split(number=0, columns=("k",))

    def low(table):
        return table.read_chunk(whole, None, max_rows=1, max_bytes=LARGE).low.lsn

    def end():
        [[text]] = run(url, "SELECT pg_current_wal_insert_lsn()::text")
        return PostgresOffset.of(text).lsn

    before = end()
    privileged, plain = opened(url, "proven"), opened(url, "proven", username="plain")
    assert low(privileged) >= before
    earlier = opened(url, "proven", username="plain")
    assert low(earlier) >= before
    with psycopg.connect(url) as idle, psycopg.connect(url, autocommit=True) as other:
        idle.execute("INSERT INTO proven VALUES (1)")
        other.execute("INSERT INTO proven VALUES (2)")
        during = end()
        assert low(privileged) >= during, "it idles, as those who may look can see"
        assert low(plain) == 0, "others must take it for one that commits"
        assert before <= low(earlier) < during, "but what was proven before stays proven"
        idle.commit()
    assert low(plain) >= during


@pytest.mark.parametrize("kind", KEYED)
def test_rows_are_found_by_their_keys(url, kind):
    """Keys as they are stored here, spelled so that the server finds the same rows."""
    column, key = KEYED[kind]
    name = f"found_{kind}"
    run(
        url,
        f"CREATE TABLE {name} ({column} PRIMARY KEY, v int)",
        f"INSERT INTO {name} SELECT {key}, i FROM generate_series(1, 300) i",
    )
    table = opened(url, name)
    rows, _ = read_all(table)
    some = rows.take(list(range(0, 300, 7)))
    run(url, f"DELETE FROM {name} WHERE v = {some['v'][3].as_py()}")
    chunk = table.read_keys(some.select(["k"]))
    expected = set(some["v"].to_pylist()) - {some["v"][3].as_py()}
    assert set(chunk.rows["v"].to_pylist()) == expected
    assert chunk.cursor is None
    assert table.read_keys(some.select(["k"]).slice(0, 0)).rows.num_rows == 0


def test_chunks_of_one_exported_snapshot_are_one_moment(url):
    """Tables without a key: rows that move between chunks come exactly once."""
    run(
        url,
        "CREATE TABLE keyless (v int, pad text)",
        "INSERT INTO keyless SELECT i % 700, repeat('y', 200) FROM generate_series(1, 3000) i",
    )
    table = opened(url, "keyless")
    assert table.schema.key == ()
    splits = table.splits(SplitOptions(rows_per_split=400))
    assert len(splits) > 4
    holder = SnapshotHolder(options_of(url))
    try:
        frozen = pickle.loads(pickle.dumps(table.at(holder.snapshot)))
        rows = []
        for split in splits:
            run(url, "UPDATE keyless SET v = v + 10000", "DELETE FROM keyless WHERE v % 7 = 3")
            rows += read_split(frozen, split, max_rows=150)[0]["v"].to_pylist()
        frozen.close()
        assert sorted(rows) == sorted(i % 700 for i in range(1, 3001))
    finally:
        holder.close()
    with pytest.raises(UserError, match="snapshot"):
        frozen.read_chunk(splits[0], None, max_rows=1, max_bytes=LARGE)
    pieces = table.divide(splits[0])
    assert len(pieces) > 1
    assert pieces[-1].right == splits[0].right


def test_readers_travel_and_work_side_by_side(url):
    run(
        url,
        "CREATE TABLE travelling (k int PRIMARY KEY)",
        "INSERT INTO travelling SELECT i FROM generate_series(1, 5000) i",
    )
    table = pickle.loads(pickle.dumps(opened(url, "travelling")))
    splits = table.splits(SplitOptions(rows_per_split=500))
    results = {}

    def work(split):
        results[split.number] = read_split(table, split, max_rows=100)[0]["k"].to_pylist()

    threads = [threading.Thread(target=work, args=(split,)) for split in splits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(k for keys in results.values() for k in keys) == list(range(1, 5001))
    table.close()
    time.sleep(0.1)
    [[open_]] = run(
        url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headwater'"
    )
    assert open_ == 0


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
