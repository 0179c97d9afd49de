"""Starting and ending: the ready line, signals, a second server, and no process left behind."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from headwater.testing.processes import free_port
from serve_kit import (
    PROGRAM,
    Background,
    Served,
    answers,
    eventually,
    ledger_locked,
    refusal,
    rows,
    run,
    started,
    value,
)

LONG = "SELECT count(*) FROM n a, n b, n c, n d WHERE a.i + b.i + c.i + d.i < 0"
"""Hours of work for Spark, over a table of numbers."""


def numbers(client: psycopg.Connection, count: int = 400) -> None:
    """A table `n` of numbers, visible to all."""
    run(client, "CREATE TABLE n (i int PRIMARY KEY)")
    values = ", ".join(f"({i})" for i in range(count))
    run(client, f"INSERT INTO n VALUES {values}", "FLUSH")


def descends(process: psutil.Process, main: psutil.Process) -> bool:
    """Is it that process or below it? One that ends at this moment is not asked."""
    try:
        return process == main or main in process.parents()
    except psutil.NoSuchProcess:
        return True


def name_of(process: psutil.Process) -> str | None:
    """What it is called, if it still runs."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return None


def long_query(server: Served) -> Background:
    """A client that asks for too much, once Spark works on it."""
    with server.connect() as client:
        value(client, "SELECT count(*) FROM n")

    connected = threading.Event()

    def ask() -> object:
        with server.connect() as client:
            connected.set()
            return rows(client, LONG)

    asking = Background(ask)
    assert connected.wait(60)
    time.sleep(1.5)
    assert not asking.done
    return asking


def test_says_ready_once_with_its_address_and_needs_no_terminal(tmp_path):
    # The kit gives it /dev/null to read from and a session of its own.
    with started(tmp_path / "w") as server:
        ready = [line for line in server.output.splitlines() if "ready" in line]
        assert ready == [f"ready: postgresql://root@127.0.0.1:{server.port}/dev"]
        with server.connect() as client:
            assert rows(client, "SELECT 1") == [(1,)]
        server.terminate()
        assert server.wait(timeout=60) == 0
        server.wait_until_gone(timeout=45)
    assert "Traceback" not in server.errors


def test_an_address_that_is_taken_is_refused_in_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Served(tmp_path / "w", port=port) as server:
            assert server.wait(timeout=120) == 1
    first, *more = server.errors.splitlines()
    assert first == f"ERROR: cannot listen on 127.0.0.1:{port}"
    assert all(line.startswith(("DETAIL: ", "HINT: ")) for line in more)


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_told_to_stop_among_clients_and_a_long_query(how, tmp_path):
    with started(tmp_path / "w") as server:
        with server.connect() as idle, server.connect() as open_:
            numbers(idle)
            run(open_, "BEGIN", "INSERT INTO n VALUES (-1)")
            asking = long_query(server)
            run(idle, "INSERT INTO n VALUES (5000)")
            getattr(server, how)()
            assert server.wait(timeout=60) == 0, server.errors
            server.wait_until_gone(timeout=45)
            with pytest.raises(psycopg.Error) as ended:
                asking.result()
            assert ended.value.sqlstate in ("57P01", "57014", None)
            assert isinstance(refusal(idle, "SELECT 1"), psycopg.OperationalError)
    assert "Traceback" not in server.errors
    assert server.output.splitlines()[-1] == "stopped"
    with started(tmp_path / "w") as again, again.connect() as client:
        # What was written is in the last checkpoint; what was not committed is not.
        assert rows(client, "SELECT i FROM n WHERE i = 5000") == [(5000,)]
        assert rows(client, "SELECT i FROM n WHERE i = -1") == []


def heeds(server: Served, number: signal.Signals) -> bool:
    """Whether the process has said what it does on a signal; before, Python's start is not ours."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{server.pid}/status").read_text())
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_told_to_stop_at_its_very_beginning(how, tmp_path):
    with Served(tmp_path / "w") as server:
        eventually(lambda: heeds(server, signal.SIGTERM), 120, "a handler for SIGTERM")
        getattr(server, how)()
        assert server.wait(timeout=60) == 0, server.errors
        server.wait_until_gone(timeout=45)
    assert server.errors == ""


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_told_to_stop_while_it_recovers(how, tmp_path):
    workspace = tmp_path / "w"
    with started(workspace) as first:
        first.kill()
    with ExitStack() as lock:
        # Before the server starts, however fast that is.
        lock.enter_context(ledger_locked(workspace))
        with Served(workspace, port=free_port()) as server:
            eventually(lambda: answers(server), 120, "the port was bound")
            getattr(server, how)()
            time.sleep(0.5)
            assert server.running
            lock.close()
            assert server.wait(timeout=60) == 0, server.errors
            server.wait_until_gone(timeout=45)
    assert server.errors == ""


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_told_to_stop_right_after_ready_while_spark_starts(how, tmp_path):
    with started(tmp_path / "w") as server:
        time.sleep(0.5)
        getattr(server, how)()
        assert server.wait(timeout=60) == 0, server.errors
        server.wait_until_gone(timeout=45)
    assert "Traceback" not in server.errors


def test_all_processes_are_descendants_and_end_after_kill_9(tmp_path):
    with started(tmp_path / "w") as server:
        with server.connect() as client:
            numbers(client)
            run(client, "CREATE MATERIALIZED VIEW m AS SELECT count(*) AS c FROM n")
            asking = long_query(server)
            family = server.family()
            main = psutil.Process(server.pid)
            assert not [process for process in family if not descends(process, main)]
            names = {name for process in family if (name := name_of(process))}
            assert "java" in names
            assert any(name.startswith("python") for name in names)
            server.kill()
            began = time.monotonic()
            server.wait_until_gone(timeout=45)
            assert time.monotonic() - began < 45
            with pytest.raises(psycopg.OperationalError):
                asking.result()


def test_same_folder_and_port_right_after_kill_9(tmp_path):
    port = free_port()
    for life in range(3):
        with Served(tmp_path / "w", port=port) as server:
            server.ready()
            assert server.port == port
            with server.connect() as client:
                if life == 0:
                    numbers(client, 10)
                run(client, f"INSERT INTO n VALUES ({100 + life})", "FLUSH")
                assert [i for (i,) in rows(client, "SELECT i FROM n WHERE i = 100")] == [100]
            server.kill()
    with started(tmp_path / "w", port=port) as server, server.connect() as client:
        found = [i for (i,) in rows(client, "SELECT i FROM n ORDER BY i")]
        assert found == [*range(10), 100, 101, 102]


def test_output_to_a_closed_pipe_does_not_stop_it(tmp_path):
    port = free_port()
    command = [sys.executable, PROGRAM, "serve", "--workspace", tmp_path / "w"]
    process = subprocess.Popen(
        [*map(str, command), "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        process.stdout.close()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
