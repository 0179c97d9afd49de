"""Snapshots of real MariaDB and MySQL tables: every type, every key, every bound, every split."""

import pickle

import pyarrow as pa
import pytest

import mysql_zoo
from headwater.cdc.external_table import Split, SplitOptions
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.schema import read_schema
from headwater.cdc.mysql.seen import place
from headwater.cdc.mysql.table import MySqlTable
from headwater.errors import SchemaError
from mysql_servers import SERVERS

WHOLE = Split(number=0, columns=())


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


def opened(server, name, columns=None, **more):
    options = MySqlOptions.parse(server.options("shop", **more))
    with MySqlConnection(options) as connection:
        return MySqlTable(options, read_schema(connection, options, name, columns))


def read(table, split=WHOLE, *, max_rows=1000, max_bytes=1 << 20):
    """All chunks of a split."""
    chunks, cursor = [], None
    while True:
        chunk = table.read_chunk(split, cursor, max_rows=max_rows, max_bytes=max_bytes)
        chunks.append(chunk)
        cursor = chunk.cursor
        if cursor is None:
            return chunks


def rows_of(chunks):
    return pa.concat_tables(chunk.rows for chunk in chunks).to_pylist()


def test_every_type_arrives_exactly(server):
    server.run("SET sql_mode = ''", mysql_zoo.create("zoo"), *mysql_zoo.inserts("zoo"),
               database="shop")  # fmt: skip
    table = opened(server, "zoo", **{"time.mode": "interval"})
    [chunk] = read(table)
    assert chunk.rows.schema.equals(table.schema.schema.arrow)
    chunk.rows.validate(full=True)
    for got, wanted in zip(chunk.rows.to_pylist(), mysql_zoo.expected(server.kind), strict=True):
        for column, value in wanted.items():
            assert got[column] == value, (wanted["id"], column)


KEYS = {
    "integer": ("k int NOT NULL", ["-2147483648", "-1", "0", "1", "7", "2147483647"]),
    "unsigned": ("k bigint unsigned NOT NULL", ["0", "1", "9223372036854775807",
                 "9223372036854775808", "18446744073709551615"]),
    "case": ("k varchar(20) COLLATE utf8mb4_general_ci NOT NULL",
             ["'b'", "'A'", "'a b'", "'B2'", "'\u00f6'", "'Z'", "''", "'zz'"]),
    "binary text": ("k varchar(20) COLLATE utf8mb4_bin NOT NULL",
                    ["'b'", "'A'", "'a'", "'B'", "'\u00e4'", "'Z'", "''", "'it''s'", "'\\\\'"]),
    "latin1": ("k varchar(20) CHARACTER SET latin1 NOT NULL",
               ["'b'", "'\u00e4'", "'z'", "'\u20ac'"]),
    "uuid": ("k char(36) CHARACTER SET ascii NOT NULL", [f"'{n}0000000-0000-4000-8000-000000000000'"
             for n in "0369bf"]),
    "bytes": ("k varbinary(20) NOT NULL", ["X'00'", "X''", "X'0000'", "X'80'", "X'FF'"]),
    "decimal": ("k decimal(12,3) NOT NULL", ["-1.5", "0", "0.001", "10", "9"]),
    "moment": ("k datetime(6) NOT NULL", ["'2020-01-01'", "'1000-01-01 00:00:00.000001'",
               "'9999-12-31 23:59:59.999999'"]),
    "stamp": ("k timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
              ["'2020-01-01 00:00:00.001'", "'2020-01-01'", "'2030-01-01'"]),
    "day": ("k date NOT NULL", ["'2020-01-01'", "'1000-01-01'", "'2020-02-29'"]),
    "enum": ("k enum('z','a','m') NOT NULL", ["'a'", "'m'", "'z'"]),
    "set": ("k set('z','a','m') NOT NULL", ["'a'", "'m'", "'z'", "'z,m'", "''", "'a,m'"]),
    "bit": ("k bit(12) NOT NULL", ["b'0'", "b'1'", "b'100000000000'", "b'101'"]),
    "year": ("k year NOT NULL", ["2000", "1999", "2155"]),
    "time": ("k time(6) NOT NULL", ["'00:00:01'", "'23:59:59.999999'", "'00:00:00'"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_of_one_row_follow_the_servers_own_order(server, kind):
    """Every cursor is used once, so a key that is spelled or compared wrongly loses a row."""
    column, values = KEYS[kind]
    rows = ", ".join(f"({value}, {n}, 'row {n}')" for value in values for n in (1, 2, 3))
    server.run("SET time_zone = '+00:00'", "DROP TABLE IF EXISTS keyed",
               f"CREATE TABLE keyed ({column}, n int, v varchar(10), PRIMARY KEY (k, n))",
               f"INSERT INTO keyed VALUES {rows}", database="shop")  # fmt: skip
    wanted = server.run("SELECT n, v FROM keyed ORDER BY k, n", database="shop")
    table = opened(server, "keyed")
    chunks = read(table, max_rows=1)
    assert [(row["n"], row["v"]) for row in rows_of(chunks)] == [tuple(row) for row in wanted]
    assert len(chunks) == len(wanted) + 1
    splits = table.splits(SplitOptions(rows_per_split=2))
    assert len(splits) > len(wanted) // 3
    pieces = [row for split in splits for row in rows_of(read(table, split, max_rows=1))]
    assert pieces == rows_of(chunks)


def test_a_byte_budget_bounds_chunks_of_wide_rows(server):
    server.run("CREATE TABLE wide (id int PRIMARY KEY, v longtext)", database="shop")
    server.run(*[f"INSERT INTO wide VALUES ({n}, REPEAT('w', 100000))" for n in range(50)],
               "INSERT INTO wide VALUES (50, REPEAT('x', 3000000))", database="shop")  # fmt: skip
    chunks = read(opened(server, "wide"), max_rows=1_000_000, max_bytes=500_000)
    assert [row["id"] for row in rows_of(chunks)] == list(range(51))
    *others, last = [chunk for chunk in chunks if chunk.rows.num_rows]
    assert len(others) > 5
    assert all(chunk.rows.nbytes < 1_000_000 for chunk in others)
    assert 3_000_000 < last.rows.nbytes < 4_000_000


def test_a_row_longer_than_a_packet_is_joined(server):
    server.run("SET GLOBAL max_allowed_packet = 67108864")
    server.run("CREATE TABLE long_rows (id int PRIMARY KEY, v longtext, w int)",
               "INSERT INTO long_rows VALUES (1, REPEAT('abcdefg', 5000000), 7)",
               "INSERT INTO long_rows VALUES (2, 'short', 8)", database="shop")  # fmt: skip
    [first, second] = rows_of(read(opened(server, "long_rows"), max_bytes=1 << 28))
    assert first == {"id": 1, "v": "abcdefg" * 5_000_000, "w": 7}
    assert second == {"id": 2, "v": "short", "w": 8}


@pytest.mark.parametrize("spread", ["dense", "sparse", "skewed", "empty"])
def test_integer_keys_are_divided_by_where_the_rows_are(server, spread):
    numbers = {
        "dense": range(5000),
        "sparse": range(-(2**62), 2**62, 2**63 // 5000),
        "skewed": [*range(4000), *range(2**62, 2**62 + 1000)],
        "empty": [],
    }[spread]
    server.run("DROP TABLE IF EXISTS spread", "CREATE TABLE spread (id bigint PRIMARY KEY, v int)",
               database="shop")  # fmt: skip
    if numbers:
        rows = ", ".join(f"({n}, 0)" for n in numbers)
        server.run(f"INSERT INTO spread VALUES {rows}", "ANALYZE TABLE spread", database="shop")
    table = opened(server, "spread")
    splits = table.splits(SplitOptions(rows_per_split=500))
    parts = [rows_of(read(table, split)) for split in splits]
    assert [row["id"] for part in parts for row in part] == list(numbers)
    assert splits[0].left is None
    assert splits[-1].right is None
    assert [split.number for split in splits] == list(range(len(splits)))
    assert max(len(part) for part in parts) <= (2500 if numbers else 0)
    assert len(splits) <= 40
    if numbers:
        divided = table.divide(splits[0])
        assert len(divided) > 1
        again = [row for split in divided for row in rows_of(read(table, split))]
        assert again == parts[0]
        assert (divided[0].left, divided[-1].right) == (splits[0].left, splits[0].right)


def test_zero_dates_and_long_times_are_refused_by_name_or_held(server):
    server.run("SET sql_mode = ''", "CREATE TABLE odd (id int PRIMARY KEY, d date, m datetime(6), "
               "s timestamp NULL, t time)", "INSERT INTO odd VALUES (1, '0000-00-00', "
               "'2020-00-01', '0000-00-00', '100:00:00')", database="shop")  # fmt: skip
    with pytest.raises(SchemaError, match=r'column "d" of table "shop\.odd" holds a zero date'):
        read(opened(server, "odd"))
    with pytest.raises(SchemaError, match=r'column "t" of table "shop\.odd" holds a TIME'):
        read(opened(server, "odd", **{"zero.dates": "null"}))
    table = opened(server, "odd", **{"zero.dates": "null", "time.mode": "varchar"})
    assert rows_of(read(table)) == [{"id": 1, "d": None, "m": None, "s": None, "t": "100:00:00"}]


def test_a_chunk_knows_what_it_saw(server):
    server.run("CREATE TABLE marks (id int PRIMARY KEY)", database="shop")
    table = pickle.loads(pickle.dumps(opened(server, "marks")))
    before = table.read_chunk(WHOLE, None, max_rows=10, max_bytes=1000)
    server.run("INSERT INTO marks VALUES (1)", database="shop")
    after = table.read_chunk(WHOLE, None, max_rows=10, max_bytes=1000)
    assert (before.rows.num_rows, after.rows.num_rows) == (0, 1)
    written = pa.array([place(after.low)])
    assert not before.seen.holds(written)[0].as_py()
    assert after.seen.holds(written)[0].as_py()
    assert before.high < after.low
    table.close()
