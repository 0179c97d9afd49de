"""Forms that a binlog can have: compressed, without checksums, large, cut off, and documents."""

import json
import random
import signal

import pytest
from test_cdc_mysql_log import changes_of, log_of, opened, read_to_end

from headwater.cdc.external_table import Split
from headwater.errors import SourceUnavailable, UserError
from mysql_servers import SERVERS

WHOLE = Split(number=0, columns=())


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


def snapshot(server, name):
    table = opened(server, name)
    rows = table.read_chunk(WHOLE, None, max_rows=100_000, max_bytes=1 << 28).rows.to_pylist()
    table.close()
    return rows


def test_compressed_transactions_are_unpacked(server):
    setting = {
        "mariadb": "SET GLOBAL log_bin_compress = {}",
        "mysql": "SET GLOBAL binlog_transaction_compression = {}",
    }[server.kind]
    server.run("CREATE TABLE packed (id int PRIMARY KEY, v text)", database="shop")
    log = log_of(server, "packed")
    start = log.current()
    server.run(setting.format("ON"))
    try:
        server.run("INSERT INTO packed VALUES (1, REPEAT('a', 9000)), (2, 'b')",
                   "UPDATE packed SET v = CONCAT(v, REPEAT('c', 5000))",
                   "DELETE FROM packed WHERE id = 2 /* " + "long " * 200 + "*/",
                   "ALTER TABLE packed COMMENT '" + "long " * 200 + "'",
                   database="shop")  # fmt: skip
    finally:
        server.run(setting.format("OFF"))
    server.run("INSERT INTO packed VALUES (3, 'plain')", database="shop")
    batches = read_to_end(log, start)
    assert [event.table for b in batches for event in b.events] == ["packed"]
    got = [(r["_change_type"], r["id"], len(r["v"])) for r in changes_of(batches, "packed")]
    assert got == [
        ("insert", 1, 9000), ("insert", 2, 1),
        ("update_preimage", 1, 9000), ("update_postimage", 1, 14000),
        ("update_preimage", 2, 1), ("update_postimage", 2, 5001),
        ("delete", 2, 5001), ("insert", 3, 5),
    ]  # fmt: skip
    log.close()


def test_a_log_without_checksums_and_one_with_follow_each_other(server):
    server.run("CREATE TABLE summed (id int PRIMARY KEY)", database="shop")
    log = log_of(server, "summed")
    start = log.current()
    server.run("INSERT INTO summed VALUES (1)", "SET GLOBAL binlog_checksum = NONE",
               "INSERT INTO summed VALUES (2)", "SET GLOBAL binlog_checksum = CRC32",
               "INSERT INTO summed VALUES (3)", database="shop")  # fmt: skip
    for reader in (log, log_of(server, "summed")):
        batches = read_to_end(reader, start)
        assert [row["id"] for row in changes_of(batches, "summed")] == [1, 2, 3]
        reader.close()


def test_a_transaction_larger_than_the_budget_comes_whole(server):
    server.run("CREATE TABLE big (id int PRIMARY KEY, v varchar(1000))", database="shop")
    log = log_of(server, "big")
    start = log.current()
    rows = ", ".join(f"({n}, REPEAT('v', 900))" for n in range(5000))
    server.run(f"INSERT INTO big VALUES {rows}", database="shop")
    [batch] = [b for b in read_to_end(log, start, max_bytes=10_000) if b.changes]
    assert batch.changes["big"].column("id").to_pylist() == list(range(5000))
    log.close()


def test_columns_that_are_computed_when_read_do_not_shift_the_others(server):
    server.run("CREATE TABLE figured (id int PRIMARY KEY, a int AS (id * 2) VIRTUAL, v varchar(9), "
               "b varchar(20) AS (CONCAT(v, '!')) VIRTUAL, w int)", database="shop")  # fmt: skip
    log = log_of(server, "figured")
    start = log.current()
    server.run("INSERT INTO figured (id, v, w) VALUES (1, 'one', 10), (2, NULL, 20)",
               "UPDATE figured SET w = 11 WHERE id = 1", database="shop")  # fmt: skip
    changes = changes_of(read_to_end(log, start), "figured")
    assert [(r["id"], r["v"], r["w"]) for r in changes] == [
        (1, "one", 10), (2, None, 20), (1, "one", 10), (1, "one", 11)
    ]  # fmt: skip
    log.close()


def document(dice, depth=0):
    """A random JSON value."""
    kind = dice.randrange(8 if depth < 4 else 6)
    if kind == 0:
        return dice.choice([None, True, False])
    if kind == 1:
        return dice.choice([0, -1, 32767, -32769, 65536, 2**31, -(2**63), 2**64 - 1])
    if kind == 2:
        return dice.choice([0.5, -1e-7, 1e15, 1e16, 123456789.125, 1.7976931348623157e308, 5e-324,
                            1e-15, 1.5e-16, 0.1 + 0.2, -2.5e20, dice.random()])  # fmt: skip
    if kind in (3, 4, 5):
        return "".join(
            dice.choice('ab\u00e9\U0001f30a"\\\n\t\x01/') for _ in range(dice.randrange(9))
        )
    many = dice.choice([0, 1, 3, 3, 40])
    if kind == 6:
        return [document(dice, depth + 1) for _ in range(many)]
    return {f"k{dice.randrange(999)}\u00e9": document(dice, depth + 1) for _ in range(many)}


def test_documents_in_the_log_have_the_text_that_the_server_writes(server):
    dice = random.Random(5)
    server.run("CREATE TABLE papers (id int PRIMARY KEY, d json)", database="shop")
    log = log_of(server, "papers")
    start = log.current()
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for number in range(300):
            text = json.dumps(document(dice), ensure_ascii=bool(number % 2))
            cursor.execute("INSERT INTO papers VALUES (%s, %s)", (number, text))
        big = json.dumps({f"key {n}": "v" * 100 for n in range(2000)})
        cursor.execute("INSERT INTO papers VALUES (1000, %s)", (big,))
        if server.kind == "mysql":
            cursor.execute(
                "INSERT INTO papers VALUES (1001, JSON_ARRAY(CAST('12.30' AS DECIMAL(9,2)), "
                "CAST('2020-02-29' AS DATE), CAST('2020-02-29 01:02:03.5' AS DATETIME(6)), "
                "CAST('-100:00:01.25' AS TIME(2)), X'00FF', CAST(-0.0 AS DOUBLE), "
                "CAST('-123456789.987654321' AS DECIMAL(30,9))))"
            )
    logged = {row["id"]: row["d"] for row in changes_of(read_to_end(log, start), "papers")}
    shown = {row["id"]: row["d"] for row in snapshot(server, "papers")}
    for number, text in shown.items():
        assert logged[number] == text, number
    assert len(logged) == len(shown) > 300
    log.close()


def test_the_stream_survives_a_restart_of_the_server(server):
    server.run("CREATE TABLE lasting (id int PRIMARY KEY)", "INSERT INTO lasting VALUES (1)",
               database="shop")  # fmt: skip
    log = log_of(server, "lasting")
    start = log.current()
    server.run("INSERT INTO lasting VALUES (2)", database="shop")
    first = read_to_end(log, start)
    at = first[-1].offset
    server.stop(signal.SIGKILL)
    with pytest.raises(SourceUnavailable):
        log.read(at, max_bytes=1 << 20)
    server.start()
    server.run("INSERT INTO lasting VALUES (3)", database="shop")
    second = read_to_end(log, at)
    assert [row["id"] for row in changes_of([*first, *second], "lasting")] == [2, 3]
    log.close()


def test_two_phase_transactions_on_our_tables_are_refused(server):
    server.run("CREATE TABLE phased (id int PRIMARY KEY)", database="shop")
    log = log_of(server, "phased")
    start = log.current()
    server.run("XA START 'x'", "INSERT INTO phased VALUES (1)", "XA END 'x'", "XA PREPARE 'x'",
               "XA COMMIT 'x'", database="shop")  # fmt: skip
    with pytest.raises(UserError, match="XA"):
        read_to_end(log, start)
    log.close()


def test_rows_logged_without_names_are_refused(server):
    server.run("CREATE TABLE unnamed (id int PRIMARY KEY)", database="shop")
    log = log_of(server, "unnamed")
    start = log.current()
    server.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        server.run("INSERT INTO unnamed VALUES (1)", database="shop")
    finally:
        server.run("SET GLOBAL binlog_row_metadata = FULL")
    with pytest.raises(UserError, match="does not name the columns"):
        read_to_end(log, start)
    log.close()
