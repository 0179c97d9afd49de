"""Definitions whose connection broke are done or not done; jobs go on after a restart."""

import socket
import struct
import threading
import time

import psycopg
import pytest

from pgwire_kit import frame, start_up
from serve_kit import (
    Background,
    Served,
    assert_view,
    attempt,
    eventually,
    refusal,
    relations,
    rows,
    run,
    started,
    value,
)

EXISTS, MISSING = {"42P07", "42710"}, {"42P01", "42704"}
VIEW = "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g"


def fill(client: psycopg.Connection, count: int = 500) -> None:
    run(client, "CREATE TABLE t (id int PRIMARY KEY, g int, v bigint)")
    values = ", ".join(f"({i}, {i % 7}, {i * i})" for i in range(count))
    run(client, f"INSERT INTO t VALUES {values}", "FLUSH")


def send_and_hang_up(server: Served, statement: str, *, hard: bool) -> None:
    """Say a statement and leave at once: by FIN, or by RST as a killed client's kernel does."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
        line.sendall(start_up())
        greeting = b""
        while b"Z\0\0\0\5I" not in greeting:
            greeting += line.recv(1 << 16)
        line.sendall(frame(b"Q", statement.encode() + b"\0"))
        if hard:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("hard", [False, True], ids=["closed", "reset"])
def test_a_definition_whose_client_is_gone_is_done_or_not_done(hard, server, client):
    name = f"gone_{'reset' if hard else 'closed'}"
    run(client, f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    statements = [
        (f"CREATE TABLE {name}_2 (id int PRIMARY KEY)", EXISTS),
        (f"CREATE MATERIALIZED VIEW {name}_m AS SELECT count(*) AS n FROM {name}", EXISTS),
        (f"CREATE MATERIALIZED VIEW {name}_mm AS SELECT max(n) AS n FROM {name}_m", EXISTS),
        (f"DROP TABLE {name}_2", MISSING),
        (f"DROP MATERIALIZED VIEW {name}_m CASCADE", MISSING),
    ]
    for statement, already in statements:
        send_and_hang_up(server, statement, hard=hard)
        error = attempt(client, statement)
        assert error is None or error.sqlstate in already, (statement, error)
        # Now it is done, whoever did it.
        assert refusal(client, statement).sqlstate in already
    assert {each for each in relations(client) if each.startswith(name)} == {name}


@pytest.mark.timeout(400)
def test_jobs_go_on_after_a_restart_and_wait_returns(tmp_path):
    workspace = tmp_path / "w"
    with started(workspace) as server, server.connect() as client:
        fill(client)
        run(client, "SET background_ddl = true", f"CREATE MATERIALIZED VIEW m AS {VIEW}")
        run(client, "CREATE MATERIALIZED VIEW m2 AS SELECT max(v) AS top FROM t")
        server.kill()
    with started(workspace) as server, server.connect() as client:
        # Nobody asks for it; it is there after a while, and a second one is refused meanwhile.
        assert refusal(client, f"CREATE MATERIALIZED VIEW m AS {VIEW}").sqlstate in EXISTS
        waiting = Background(lambda: client.execute("WAIT"))
        waiting.result(timeout=250)
        assert rows(client, "SHOW JOBS") == []
        assert_view(client, "m", VIEW)
        assert rows(client, "SELECT top FROM m2") == [(499 * 499,)]
        run(client, "WAIT")
        run(client, "INSERT INTO t VALUES (1000, 3, 5)", "FLUSH")
        assert_view(client, "m", VIEW)


def test_a_job_that_fails_is_over_and_leaves_nothing(server):
    with server.connect() as client:
        run(
            client,
            "CREATE TABLE failing (id int PRIMARY KEY, v int)",
            "INSERT INTO failing VALUES (1, 0)",
            "FLUSH",
            "SET background_ddl = true",
            "CREATE MATERIALIZED VIEW failing_m AS SELECT id, 1 / v AS q FROM failing",
            "WAIT",
        )
        assert "failing_m" not in relations(client)
        assert refusal(client, "SELECT * FROM failing_m").sqlstate == "42P01"
        assert refusal(client, "DROP MATERIALIZED VIEW failing_m").sqlstate == "42P01"


def test_a_job_that_is_dropped_meanwhile_is_gone(server):
    with server.connect() as client:
        run(
            client,
            "CREATE TABLE dropping (id int PRIMARY KEY, v int)",
            "SET background_ddl = true",
            "CREATE MATERIALIZED VIEW dropping_m AS SELECT count(*) AS n FROM dropping",
            "DROP MATERIALIZED VIEW dropping_m",
        )
        assert "dropping_m" not in relations(client)
        assert refusal(client, "DROP MATERIALIZED VIEW dropping_m").sqlstate == "42P01"
        run(client, "DROP TABLE dropping")


FLICKERS = {
    "SELECT k, v FROM flicker WHERE k = 1": ([], [(1, 1)]),
    "SELECT n FROM flicker_m": ([(0,)], [(1,)]),
}


def look_at(client: psycopg.Connection, query: str) -> str:
    """Ask for a relation that comes and goes."""
    try:
        found = rows(client, query)
    except psycopg.errors.UndefinedTable:
        return "missing"
    assert found in FLICKERS[query], (query, found)
    return "there"


def test_selects_beside_definitions_see_a_relation_whole_or_not_at_all(server):
    began, ended = time.monotonic(), threading.Event()
    wanted = {(query, what) for query in FLICKERS for what in ("there", "missing")}
    seen: set[tuple[str, str]] = set()

    def look() -> None:
        with server.connect() as client:
            while not ended.is_set():
                for query in FLICKERS:
                    seen.add((query, look_at(client, query)))

    def goes_on() -> bool:
        """At least eight seconds, and on a slow machine until everything was seen."""
        return time.monotonic() - began < (8 if seen == wanted else 150)

    looking = [Background(look) for _ in range(2)]
    try:
        with server.connect() as client:
            while goes_on() and not any(each.done for each in looking):
                run(
                    client,
                    "CREATE TABLE flicker (k int PRIMARY KEY, v int)",
                    "INSERT INTO flicker VALUES (1, 1)",
                    "FLUSH",
                    "CREATE MATERIALIZED VIEW flicker_m AS SELECT count(*) AS n FROM flicker",
                    "DROP TABLE flicker CASCADE",
                )
    finally:
        ended.set()
    for each in looking:
        each.result()
    assert seen == wanted


def test_files_of_dropped_relations_are_gone(server, client):
    tables = server.workspace / "tables"
    run(
        client,
        "CREATE TABLE shortlived (id int PRIMARY KEY, v int)",
        "INSERT INTO shortlived VALUES (1, 1)",
        "CREATE MATERIALIZED VIEW shortlived_m AS SELECT count(*) AS n FROM shortlived",
    )
    assert len(list(tables.glob("shortlived*/**/*.parquet"))) >= 2
    run(client, "DROP TABLE shortlived CASCADE")
    every = "shortlived*/**/*"
    eventually(lambda: not any(p.is_file() for p in tables.glob(every)), 90, "the files' end")
    assert value(client, "SELECT 1") == 1
