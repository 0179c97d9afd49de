"""Bad input over the wire, against the real server: it says what is wrong and goes on.

`test_pgwire_robustness.py` tries the protocol itself to the end; here are statements, values,
rows and clients that a running engine meets. After each test the shared server answers as
before, and what was refused has left nothing.
"""

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import psycopg
import pytest

from pgwire_kit import BareClient, error_fields, frame, start_up
from serve_kit import (
    Background,
    Served,
    assert_view,
    attempt,
    eventually,
    refusal,
    rows,
    run,
    started,
    value,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("bad") / "w") as server:
        with server.connect() as client:
            run(
                client,
                "CREATE TABLE customers (id int PRIMARY KEY, name varchar, age int NOT NULL)",
                "INSERT INTO customers VALUES (1, 'ann', 40), (2, 'bob', 30)",
                "FLUSH",
                "CREATE MATERIALIZED VIEW ages AS "
                "SELECT age, count(*) AS n FROM customers GROUP BY age",
                "CREATE TABLE digits (d int PRIMARY KEY)",
                "INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
                "FLUSH",
            )
        yield server
        assert server.running
        assert "Traceback" not in server.errors, server.errors[-4000:]


@pytest.fixture
def client(server: Served) -> Iterator[psycopg.Connection]:
    with server.connect() as client:
        yield client
    with server.connect() as other:
        assert rows(other, "SELECT id, name, age FROM customers WHERE id = 2") == [(2, "bob", 30)]


# What is wrong, and where


@pytest.mark.parametrize(
    ("statement", "points_at", "sqlstate", "says"),
    [
        ("SELEC 1", "SELEC", "42601", "syntax error"),
        ("SELECT id, FROM customers", "FROM", "42601", "syntax error"),
        ("SELECT 1 +", "", "42601", "syntax error"),
        ("CREATE TABLE x (a int, b nosuchtype)", "nosuchtype", "42704", "nosuchtype"),
        ("SELECT * FROM custommers", "custommers", "42P01", "custommers"),
        ("SELECT nam FROM customers", "nam", "42703", '"nam"'),
        ("SELECT c.x FROM customers c", "c.x", "42703", "x"),
        ("SELECT nosuch(id) FROM customers", "nosuch", "42883", "nosuch"),
        ("SELECT id FROM customers WHERE name + 1 = 2", "name + 1", "42804", "not a number"),
        ("SELECT count(*), name FROM customers", "name", "42803", "GROUP BY"),
        ("SELECT 'it''s not closed", "", "42601", "inside a quoted string"),
        ("SELECT id FROM customers WHERE id = 'x'", "id = 'x'", "22P02", "invalid input syntax"),
        ("INSERT INTO customers VALUES (9, 'x', 'old')", "'old'", "22P02", "invalid input"),
        ("SELECT id FROM customers ORDER BY 7", "7", "42P10", "position 7"),
        ("SELECT $2", "", "42P02", "$2"),
    ],
)
def test_says_what_is_wrong_and_where(statement, points_at, sqlstate, says, client):
    error = refusal(client, statement)
    assert error.sqlstate == sqlstate, error
    assert says.lower() in str(error).lower()
    assert error.diag.statement_position is not None, error
    place = int(error.diag.statement_position) - 1
    assert statement[place:].startswith(points_at), (place, str(error))


def test_the_position_counts_in_the_whole_text_and_in_characters(client):
    text = "SELECT 1; /* \u00e4\u20ac\U0001f600 */ SELECT '\u00fc', nothing FROM customers"
    error = refusal(client, text)
    assert error.sqlstate == "42703"
    assert int(error.diag.statement_position or 0) - 1 == text.index("nothing")


@pytest.mark.parametrize(
    ("statement", "suggests"),
    [
        ("SELECT * FROM custommers", "customers"),
        ("SELECT nmae FROM customers", "name"),
        ("SELECT uper(name) FROM customers", "upper"),
        ("DROP TABLE customer", "customers"),
        ("SET nosuch_flush = true", None),
        ("SET rw_implict_flush = true", "rw_implicit_flush"),
        ("ALTER SYSTEM SET barrier_intervall_ms = 3", "barrier_interval_ms"),
    ],
)
def test_a_name_that_is_almost_right_gets_a_suggestion(statement, suggests, client):
    error = refusal(client, statement)
    if suggests is not None:
        assert suggests in (error.diag.message_hint or ""), str(error)


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("INSERT INTO customers VALUES (1)", "23502"),
        ("INSERT INTO customers (id, name) VALUES (3, 'x')", "23502"),
        ("INSERT INTO customers VALUES (3, 'x', NULL)", "23502"),
        ("INSERT INTO customers VALUES (3000000000, 'x', 1)", "22003"),
        ("INSERT INTO customers VALUES (1, 'x', 1, 1)", "42601"),
        ("INSERT INTO customers (id, id) VALUES (1, 1)", "42701"),
        ("INSERT INTO customers (nothing) VALUES (1)", "42703"),
        ("INSERT INTO ages VALUES (1, 1)", "42809"),
        ("UPDATE customers SET nothing = 1", "42703"),
        ("UPDATE customers SET age = NULL WHERE id = 1", "23502"),
        ("UPDATE customers SET age = age / 0", "22012"),
        ("DELETE FROM nothing", "42P01"),
        ("CREATE TABLE x (a int, a int)", "42701"),
        ("CREATE TABLE x (a int PRIMARY KEY, PRIMARY KEY (a))", "42P16"),
        ("CREATE TABLE x (a int, PRIMARY KEY (b))", "42703"),
        ("CREATE MATERIALIZED VIEW x AS SELECT id, id FROM customers", "42701"),
        ("COMMIT; SELECT nothing", "42703"),
        ("ROLLBACK TO nowhere", "25P01"),
    ],
)
def test_refused_and_nothing_is_left(statement, sqlstate, client):
    before = rows(client, "SELECT id, name, age FROM customers ORDER BY id")
    assert refusal(client, statement).sqlstate == sqlstate
    run(client, "FLUSH")
    assert rows(client, "SELECT id, name, age FROM customers ORDER BY id") == before
    assert refusal(client, "SELECT * FROM x").sqlstate == "42P01"


# Rows that a view cannot take


def test_a_view_that_divides_by_zero_fails_alone_and_heals(client):
    good = "SELECT count(*) AS n FROM ratios"
    bad = "SELECT id, 100 / v AS q FROM ratios"
    run(
        client,
        "CREATE TABLE ratios (id int PRIMARY KEY, v int)",
        "INSERT INTO ratios VALUES (1, 5)",
        "FLUSH",
        f"CREATE MATERIALIZED VIEW ratio_count AS {good}",
        f"CREATE MATERIALIZED VIEW ratio AS {bad}",
        "CREATE MATERIALIZED VIEW ratio_sum AS SELECT sum(q) AS s FROM ratio",
        "INSERT INTO ratios VALUES (2, 0)",
        "FLUSH",
    )
    for view in ("ratio", "ratio_sum", "ratio WHERE id = 1"):
        error = refusal(client, f"SELECT * FROM {view}")
        assert error.sqlstate == "22012", error
        assert "division by zero" in str(error)
    assert rows(client, "SELECT n FROM ratio_count") == [(2,)]
    run(client, "INSERT INTO ratios VALUES (3, 4)", "FLUSH")
    assert rows(client, "SELECT n FROM ratio_count") == [(3,)]
    assert refusal(client, "SELECT * FROM ratio").sqlstate == "22012"
    failing = refusal(client, f"CREATE MATERIALIZED VIEW ratio_again AS {bad}")
    assert failing.sqlstate == "22012"
    run(client, "DELETE FROM ratios WHERE id = 2", "FLUSH")
    # A view whose query takes long is not tried again at every epoch.
    eventually(lambda: attempt(client, "SELECT * FROM ratio_sum") is None, 60, "healing")
    assert_view(client, "ratio", bad)
    assert rows(client, "SELECT s FROM ratio_sum") == [(20 + 25,)]
    run(client, f"CREATE MATERIALIZED VIEW ratio_again AS {bad}")


def test_a_key_that_exists(client):
    run(
        client,
        "CREATE TABLE over (id int PRIMARY KEY, v int)",
        "CREATE TABLE keep (id int PRIMARY KEY, v int) ON CONFLICT DO NOTHING",
    )
    for table in ("over", "keep"):
        run(client, f"INSERT INTO {table} VALUES (1, 1)", f"INSERT INTO {table} VALUES (1, 2)")
        run(client, f"INSERT INTO {table} VALUES (2, 1), (2, 2)", "FLUSH")
    assert rows(client, "SELECT id, v FROM over ORDER BY id") == [(1, 2), (2, 2)]
    assert rows(client, "SELECT id, v FROM keep ORDER BY id") == [(1, 1), (2, 1)]


# Too much


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
        "SELECT " + "-" + " -" * 20_000 + " 1",
        "SELECT " + " + ".join(["1"] * 5_000),
        "SELECT 1 WHERE " + " AND ".join(["true"] * 5_000),
        "SELECT * FROM " + "(SELECT * FROM " * 2_000 + "customers" + ") x" * 2_000,
        "SELECT " + "CASE WHEN true THEN " * 5_000 + "1" + " END" * 5_000,
    ],
    ids=["brackets", "signs", "sums", "conditions", "subqueries", "cases"],
)
def test_a_statement_that_is_too_deep(statement, server, client):
    error = attempt(client, statement)
    if error is not None:
        assert error.sqlstate in ("54001", "54000"), str(error)[:500]
    assert rows(client, "SELECT 1") == [(1,)]


@pytest.mark.timeout(400)
def test_a_statement_of_ten_megabytes(server, client):
    run(client, "CREATE TABLE large (id int PRIMARY KEY, t varchar)")
    text = "x" * 10_000_000
    run(client, f"INSERT INTO large VALUES (1, '{text}')", "FLUSH")
    assert rows(client, "SELECT t FROM large WHERE id = 1") == [(text,)]
    assert refusal(client, f"SELECT '{text}' FROM nowhere").sqlstate == "42P01"
    assert refusal(client, "SELEC " + text).sqlstate == "42601"
    with server.connect() as other:
        waiting = Background(lambda: refusal(client, "SELECT " + "," * 1_000_000))
        began = time.monotonic()
        assert rows(other, "SELECT 1") == [(1,)]
        answered = time.monotonic() - began
        assert waiting.result(300).sqlstate in ("42601", "54000")
        took = time.monotonic() - began
        assert answered < max(10, took / 2), "one client's text keeps all the others waiting"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ii", 0x7FFFFFFF, 196608),
        struct.pack(">ii", 8, 12345),
        start_up() + b"\xff" * 64,
        start_up() + frame(b"Q", b"SELECT 1"),
        start_up() + frame(b"B", b"\0\0\xff\xff"),
        start_up() + frame(b"Q", b"SELECT '\xff\xfe'\0"),
        os.urandom(512),
    ],
)
def test_bytes_that_make_no_sense(rubbish, server, client):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
        line.sendall(rubbish)
        line.shutdown(socket.SHUT_WR)
        line.settimeout(100)
        try:
            while line.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert rows(client, "SELECT 1") == [(1,)]


def test_two_hundred_clients_that_say_nothing(server, client):
    with ExitStack() as stack:
        idle = [stack.enter_context(server.connect()) for _ in range(200)]
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(50)
        ]
        assert rows(client, "SELECT name FROM customers WHERE id = 1") == [("ann",)]
        assert rows(idle[150], "SELECT name FROM customers WHERE id = 1") == [("ann",)]
        assert len(silent) == 50


# Clients that go away, and clients that change their mind

MILLION = """
    SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d + 100000 * f.d AS n,
           'some text that makes the row a little longer than it has to be' AS t
    FROM digits a, digits b, digits c, digits d, digits e, digits f
"""
ENDLESS = """
    SELECT count(*) FROM wide a JOIN wide b ON a.n % 400 = b.n % 400
    WHERE upper(a.t || b.n || b.t) LIKE '%NOTHING%LIKE%THIS%'
"""
"""Minutes of work, over rows that are read from files.

Spark looks whether it shall stop after some thousand rows of one side, each of which meets 750.
"""


def cancelled(client: psycopg.Connection, after_s: float) -> psycopg.Error:
    """Ask for too much and cancel that, so long after it was sent; the error."""
    asking = Background(lambda: refusal(client, ENDLESS))
    sent = psycopg.pq.TransactionStatus.ACTIVE
    eventually(lambda: client.info.transaction_status == sent, what="a statement on its way")
    time.sleep(after_s)
    client.cancel()
    return asking.result(300)


def spooled(server: Served) -> list[str]:
    folder = server.workspace / "scratch"
    return [path.name for path in folder.rglob("*")] if folder.exists() else []


def resident(server: Served) -> int:
    return psutil.Process(server.pid).memory_info().rss


@pytest.fixture(scope="module")
def wide(server: Served) -> Served:
    """The server with a table of 300,000 rows."""
    with server.connect() as client:
        run(client, "CREATE TABLE wide (n int PRIMARY KEY, t varchar)")
        run(client, f"INSERT INTO wide SELECT n, t FROM ({MILLION}) AS m WHERE n < 300000", "FLUSH")
        assert value(client, "SELECT count(*) FROM wide") == 300_000
    return server


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("wide")
def test_a_client_that_dies_in_the_middle_of_a_large_result(server, client):
    sizes = []
    for round_ in range(6):
        with BareClient(SimpleNamespace(host="127.0.0.1", port=server.port)) as bare:
            bare.socket.settimeout(300)
            bare.send(frame(b"Q", b"SELECT * FROM wide\0"))
            kinds = [bare.message() for _ in range(500)]
            assert [kind for message in kinds if message for kind in message[0]].count("D") > 400
            assert spooled(server) != []
            if round_ % 2:
                linger = struct.pack("ii", 1, 0)
                bare.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        eventually(lambda: not spooled(server), 120, "the end of the spooled rows")
        sizes.append(resident(server))
    # The first rounds warm it up: the table that was just written is folded meanwhile.
    assert sizes[-1] < max(sizes[:3]) + (64 << 20), sizes
    with client.cursor() as cursor:
        assert sum(1 for _ in cursor.stream("SELECT n FROM wide")) == 300_000
    eventually(lambda: not spooled(server), 120, "the end of the spooled rows")


@pytest.mark.timeout(500)
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("after_s", [0.1, 0.5, 3.0])
def test_cancel_ends_a_statement_and_the_session_goes_on(after_s, client):
    value(client, "SELECT count(*) FROM customers")
    began = time.monotonic()
    error = cancelled(client, after_s)
    assert error.sqlstate == "57014", error
    assert "canceling statement due to user request" in str(error)
    assert time.monotonic() - began < after_s + 150
    assert rows(client, "SELECT name FROM customers WHERE id = 1") == [("ann",)]
    assert value(client, "SELECT count(*) FROM customers") >= 2


@pytest.mark.timeout(500)
@pytest.mark.usefixtures("wide")
def test_cancel_inside_a_transaction_fails_it(client):
    run(client, "BEGIN", "INSERT INTO customers VALUES (50, 'x', 1)")
    assert cancelled(client, 1.0).sqlstate == "57014"
    assert refusal(client, "SELECT 1").sqlstate == "25P02"
    run(client, "ROLLBACK", "FLUSH")
    assert rows(client, "SELECT * FROM customers WHERE id = 50") == []


def test_cancel_with_nothing_to_cancel_is_harmless(client):
    client.cancel()
    assert rows(client, "SELECT 1") == [(1,)]
    client.cancel()
    run(client, "FLUSH")


@pytest.mark.timeout(700)
@pytest.mark.usefixtures("wide")
def test_a_client_that_leaves_ends_its_query(server, client):
    """Nobody works for nobody: the next query does not wait behind one that has no reader."""
    lines = [BareClient(SimpleNamespace(host="127.0.0.1", port=server.port)) for _ in range(4)]
    for line in lines:
        line.send(frame(b"Q", ENDLESS.encode() + b"\0"))
    time.sleep(2)
    for line in lines:
        line.socket.close()
    began = time.monotonic()
    assert value(client, "SELECT count(*) FROM customers") >= 2
    # All four together would take many minutes.
    assert time.monotonic() - began < 300
    java = next(p for p in server.family() if p.name() == "java")
    eventually(lambda: java.cpu_percent(interval=1.0) < 60, 300, "the end of the queries")


def test_errors_name_no_internals(client):
    for statement in ("SELECT 1/0", "SELECT nothing FROM customers", "SELECT 'x'::int"):
        text = str(refusal(client, statement))
        for word in ("Spark", "py4j", "Traceback", "java.", "org.apache", "headwater/"):
            assert word not in text


def test_the_error_message_of_a_bare_query(server):
    with BareClient(SimpleNamespace(host="127.0.0.1", port=server.port)) as bare:
        bare.send(frame(b"Q", b"SELECT nam FROM customers\0"))
        [body] = [body for kind, body in bare.until("Z") if kind == "E"]
        told = error_fields(body)
    assert told["C"] == "42703"
    assert told["P"] == "8"
    assert '"name"' in told["H"]
