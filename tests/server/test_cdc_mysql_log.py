"""The binlog of real MariaDB and MySQL servers: every type, every kind of change, and what is
lost."""

import pyarrow as pa
import pytest

import mysql_zoo
from headwater.cdc.external_table import TRANSACTION, LogEventKind, Split
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.log import MySqlLog
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.schema import read_schema
from headwater.cdc.mysql.seen import place
from headwater.cdc.mysql.table import MySqlTable
from mysql_servers import SERVERS

WHOLE = Split(number=0, columns=())
INTERVAL = {"time.mode": "interval"}


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


def options_of(server, **more):
    return MySqlOptions.parse(server.options("shop", **more))


def opened(server, name, **more):
    options = options_of(server, **more)
    with MySqlConnection(options) as connection:
        return MySqlTable(options, read_schema(connection, options, name))


def log_of(server, *names, **more):
    return MySqlLog(
        options_of(server, **more), {name: opened(server, name, **more).schema for name in names}
    )


def read_to_end(log, after, max_bytes=1 << 20):
    """Batches until the end of the log as it is now."""
    end, batches = log.current(), []
    while after < end:
        batch = log.read(after, max_bytes=max_bytes)
        batches.append(batch)
        after = batch.offset
    return batches


def changes_of(batches, name):
    return pa.concat_tables(
        [b.changes[name] for b in batches if name in b.changes], promote_options="default"
    ).to_pylist()


def test_every_type_arrives_exactly(server):
    server.run(mysql_zoo.create("zoo"), database="shop")
    log = log_of(server, "zoo", **INTERVAL)
    start = log.current()
    server.run("SET sql_mode = ''", *mysql_zoo.inserts("zoo"), database="shop")
    got = sorted(changes_of(read_to_end(log, start), "zoo"), key=lambda row: row["id"])
    snapshot = opened(server, "zoo", **INTERVAL).read_chunk(
        WHOLE, None, max_rows=100, max_bytes=1 << 20
    )
    assert [row["_change_type"] for row in got] == ["insert"] * 3
    for row, wanted, seen in zip(
        got, mysql_zoo.expected(server.kind), snapshot.rows.to_pylist(), strict=True
    ):
        for column, value in wanted.items():
            assert row[column] == value, (wanted["id"], column)
            assert seen[column] == value
    log.close()


def test_each_kind_of_change_and_its_order(server):
    server.run("CREATE TABLE pair (a int, b varchar(10), v int, PRIMARY KEY (a, b))",
               "CREATE TABLE other (id int PRIMARY KEY, v int)",
               "INSERT INTO pair VALUES (1, 'x', 1), (2, 'y', 2)", database="shop")  # fmt: skip
    log = log_of(server, "pair", "shop.other")
    start = log.current()
    server.run(
        "BEGIN", "INSERT INTO other VALUES (1, 10), (2, 20)", "UPDATE pair SET v = v + 1",
        "UPDATE pair SET b = 'X' WHERE a = 1", "DELETE FROM other WHERE id = 1", "COMMIT",
        "BEGIN", "DELETE FROM pair", "ROLLBACK",
        "UPDATE pair SET v = 99 WHERE a = 2", database="shop",
    )  # fmt: skip
    batches = read_to_end(log, start)
    pair, other = changes_of(batches, "pair"), changes_of(batches, "shop.other")
    assert [(r["_change_type"], r["a"], r["b"], r["v"], r["_seq"]) for r in pair] == [
        ("update_preimage", 1, "x", 1, 2),
        ("update_postimage", 1, "x", 2, 3),
        ("update_preimage", 2, "y", 2, 4),
        ("update_postimage", 2, "y", 3, 5),
        ("delete", 1, "x", 2, 6),
        ("insert", 1, "X", 2, 7),
        ("update_preimage", 2, "y", 3, 9),
        ("update_postimage", 2, "y", 99, 10),
    ]
    assert [(r["_change_type"], r["id"], r["v"], r["_seq"]) for r in other] == [
        ("insert", 1, 10, 0), ("insert", 2, 20, 1), ("delete", 1, 10, 8)
    ]  # fmt: skip
    first, last = pair[0][TRANSACTION], pair[-1][TRANSACTION]
    assert {r[TRANSACTION] for r in pair[:6]} == {first} == {r[TRANSACTION] for r in other}
    assert place(start) < first < last <= place(batches[-1].offset)
    log.close()


def test_reading_after_an_offset_again_gives_the_same(server):
    server.run("CREATE TABLE again (id int PRIMARY KEY, v varchar(2000))", database="shop")
    log = log_of(server, "again")
    start = log.current()
    for first in range(0, 100, 10):
        rows = ", ".join(f"({n}, REPEAT('v', 1000))" for n in range(first, first + 10))
        server.run(f"INSERT INTO again VALUES {rows}", database="shop")
    small = read_to_end(log, start, max_bytes=15_000)
    assert len(small) > 3
    assert all(len(b.changes["again"]) % 10 == 0 for b in small if b.changes)
    other = log_of(server, "again")
    for before, batch in zip([start, *(b.offset for b in small)], small, strict=False):
        for reader in (log, other):
            again = reader.read(before, max_bytes=15_000)
            # How far it goes may differ with what has arrived; what is there may not.
            if "again" in batch.changes:
                count = min(len(again.changes["again"]), len(batch.changes["again"]))
                assert count > 0
                assert again.changes["again"].slice(0, count) == batch.changes["again"].slice(
                    0, count
                )
    whole = changes_of(read_to_end(other, start), "again")
    assert [row["id"] for row in whole] == list(range(100))
    assert [row["id"] for row in changes_of(small, "again")] == list(range(100))
    log.close()
    other.close()


def test_nothing_to_read_is_an_empty_batch_and_the_end_is_reached(server):
    server.run("CREATE TABLE still (id int PRIMARY KEY)", database="shop")
    log = log_of(server, "still")
    start = log.current()
    batch = log.read(start, max_bytes=1 << 20)
    assert batch.offset == start
    assert not batch.changes
    assert not batch.more
    server.run("FLUSH BINARY LOGS", "CREATE TABLE unrelated (id int)", "DROP TABLE unrelated",
               database="shop")  # fmt: skip
    server.run("INSERT INTO still VALUES (1)", "FLUSH BINARY LOGS", database="shop")
    end = log.current()
    batches = read_to_end(log, start)
    assert batches[-1].offset == end
    assert [row["id"] for row in changes_of(batches, "still")] == [1]
    assert not log.read(end, max_bytes=1 << 20).more
    log.close()


def test_statements_on_our_tables_are_events(server):
    server.run("CREATE TABLE shape (id int PRIMARY KEY, v int)", "INSERT INTO shape VALUES (1, 1)",
               database="shop")  # fmt: skip
    log = log_of(server, "shape")
    start = log.current()
    server.run(
        "INSERT INTO shape VALUES (2, 2)", "ALTER TABLE shape ADD COLUMN w varchar(5) FIRST",
        "INSERT INTO shape VALUES ('w', 3, 3)", "TRUNCATE shape",
        "INSERT INTO `shop`.`shape` VALUES ('x', 4, 4)", "DROP TABLE shape", database="shop",
    )  # fmt: skip
    batches = [b for b in read_to_end(log, start) if b.changes or b.events]
    told = [
        [event.kind for event in b.events] or b.changes["shape"].column("id").to_pylist()
        for b in batches
    ]
    assert told == [
        [2], [LogEventKind.SCHEMA], [3], [LogEventKind.TRUNCATE], [4], [LogEventKind.DROP]
    ]  # fmt: skip
    assert all(event.table == "shape" for b in batches for event in b.events)
    log.close()


def test_a_column_added_is_in_the_changes_after_the_event(server):
    server.run("CREATE TABLE grows (id int PRIMARY KEY)", database="shop")
    log = log_of(server, "grows")
    start = log.current()
    server.run("ALTER TABLE grows ADD COLUMN w varchar(5)", "INSERT INTO grows VALUES (3, 'w')",
               database="shop")  # fmt: skip
    batches = read_to_end(log, start)
    [event] = [event for b in batches for event in b.events]
    assert [each.column.name for each in event.schema.columns] == ["id", "w"]
    assert [(r["id"], r["w"]) for r in changes_of(batches, "grows")] == [(3, "w")]
    log.close()


def test_a_place_that_is_stored_has_just_the_gtids_before_it(server, monkeypatch):
    """MariaDB tells of both in two answers; whoever commits in between made the place foreign."""
    server.run("CREATE TABLE between_answers (id int PRIMARY KEY)", database="shop")
    real = MySqlConnection.row

    def late(self, query, *arguments):
        server.run("REPLACE INTO between_answers VALUES (1)", database="shop")
        return real(self, query, *arguments)

    monkeypatch.setattr(MySqlConnection, "row", late)
    log = log_of(server, "shop.between_answers")
    end = log.exact_current()
    monkeypatch.setattr(MySqlConnection, "row", real)
    log.close()
    server.run("REPLACE INTO between_answers VALUES (2)", database="shop")
    log = log_of(server, "shop.between_answers")
    assert [row["id"] for row in changes_of(read_to_end(log, end), "shop.between_answers")] == [2]
    log.close()
