"""`headwater serve` as a process of its own, and clients that talk to it over the wire.

    with Served(workspace) as server:
        server.ready()
        with server.connect() as client:
            assert rows(client, "SELECT 1") == [(1,)]
        server.kill()                         # as kill -9
    server.wait_until_gone(timeout=45)        # the JVM and the Python workers too

Nothing here looks into the engine: a test sees what a user of the program sees, its lines, its
exit code, its processes, its answers, and the files of the workspace.
"""

import re
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from headwater.testing.processes import ChildProcess
from servers import QUICK_JAVA

PROGRAM = Path(sys.executable).with_name("headwater")
READY = re.compile(r"ready.*//root@127\.0\.0\.1:(\d+)/dev")
SETTINGS: dict[str, Any] = {
    "barrier_interval_ms": 200,
    "spark_master": "local[2]",
    "spark_driver_memory": "1g",
    "spark_java_options": QUICK_JAVA,
}
"""Short epochs, and a Spark that fits beside another one."""

READY_S = 120.0
"""The contract: ready again within a minute or two, whatever it was doing."""


class Served(ChildProcess):
    """A server on one workspace; port 0 lets it choose."""

    def __init__(
        self,
        workspace: Path,
        *more: str,
        port: int = 0,
        settings: Mapping[str, Any] | None = None,
        crash: str | None = None,
        forked: bool = False,
    ) -> None:
        self.workspace = workspace
        self.port = port
        given = [*more, "--workspace", workspace, "--listen", f"127.0.0.1:{port}"]
        for name, value in {**SETTINGS, **(settings or {})}.items():
            given += ["--set", f"{name}={value}"]
        super().__init__(PROGRAM, "serve", *given, crash=crash, forked=forked)

    def __enter__(self) -> "Served":
        return self

    def ready(self, timeout: float = READY_S) -> float:
        """Wait until it says that it is ready; how long that took, in seconds."""
        began = time.monotonic()
        self.port = int(self.wait_for_line(READY.pattern, timeout=timeout)[1])
        return time.monotonic() - began

    @contextmanager
    def connect(self, **more: Any) -> Iterator[psycopg.Connection[Any]]:
        """A client, as psql would be one; at the end it hangs up and says nothing more."""
        given = {"user": "root", "dbname": "dev", "connect_timeout": 60, "autocommit": True}
        client = psycopg.connect(host="127.0.0.1", port=self.port, **{**given, **more})
        try:
            yield client
        finally:
            client.close()


@contextmanager
def started(workspace: Path, *more: str, **given: Any) -> Iterator[Served]:
    """A server that is ready, and gone afterwards."""
    with Served(workspace, *more, **given) as server:
        server.ready()
        yield server


def rows(client: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return client.execute(query, parameters or None).fetchall()


def value(client: psycopg.Connection[Any], query: str, *parameters: Any) -> Any:
    """The one value of a query."""
    [(found,)] = rows(client, query, *parameters)
    return found


def run(client: psycopg.Connection[Any], *statements: str) -> None:
    """Run statements one after the other."""
    for statement in statements:
        client.execute(statement)


def attempt(client: psycopg.Connection[Any], statement: str) -> psycopg.Error | None:
    """Run a statement that may be refused; the error, if it was."""
    try:
        client.execute(statement)
    except psycopg.Error as error:
        return error
    return None


def refusal(client: psycopg.Connection[Any], statement: str) -> psycopg.Error:
    """The error that a statement is refused with."""
    error = attempt(client, statement)
    assert error is not None, f"this was accepted: {statement[:200]}"
    return error


def assert_view(client: psycopg.Connection[Any], view: str, query: str) -> None:
    """A view equals its query, both ways and with duplicates, as one statement sees them."""
    both = (
        f"SELECT 'extra' AS side, count(*) FROM (SELECT * FROM {view} EXCEPT ALL {query}) a "
        f"UNION ALL "
        f"SELECT 'missing', count(*) FROM ({query} EXCEPT ALL SELECT * FROM {view}) b"
    )
    assert dict(rows(client, both)) == {"extra": 0, "missing": 0}, view


def relations(client: psycopg.Connection[Any]) -> set[str]:
    """The names of all tables and views in schema public."""
    found = rows(
        client, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    )
    return {name for (name,) in found}


class Background:
    """Runs a client's work in a thread; `result` gives what came of it, errors included."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._found: Any = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return not self._thread.is_alive()

    def result(self, timeout: float = 120) -> Any:
        """What the work gave; raises what it raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the client still waits"
        if self._error is not None:
            raise self._error
        return self._found


def eventually(condition: Callable[[], object], limit_s: float = 60.0, what: str = "it") -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_s} seconds"
        time.sleep(0.05)


def answers(server: Served) -> bool:
    """Whether somebody listens at the server's port, ready or not."""
    with socket.socket() as probe:
        probe.settimeout(30)
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


@contextmanager
def ledger_locked(workspace: Path) -> Iterator[None]:
    """Hold the lock of the ledger's file, so that a server that starts now cannot get on."""
    ledger = sqlite3.connect(workspace / "ledger.db", timeout=30, isolation_level=None)
    try:
        ledger.execute("BEGIN IMMEDIATE")
        yield
        ledger.execute("ROLLBACK")
    finally:
        ledger.close()
