"""A PostgreSQL that is being written to, and an engine that follows it."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psycopg
import pytest

from headwater.session.synchronous import Headwater
from servers import QUICK_JAVA, postgres_server

SETTINGS = {
    "barrier_interval_ms": 100,
    "storage_fsync": False,
    "spark_master": "local[2]",
    "spark_java_options": QUICK_JAVA,
    "takeover_wait_s": 1.0,
}


_OPTIONS = {"slot_name": "slot.name", "database_name": "database.name"}


class Upstream:
    """An empty database of its own on a real server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = urlparse(url)
        self.db = self.connect()

    def connect(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.url, autocommit=True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.db.execute(query).fetchall()

    def source(self, name: str = "shop", connector: str = "postgres-cdc", **more: str) -> str:
        """The statement that creates a source of it."""
        address = self._address
        options = {
            "connector": connector,
            "hostname": address.hostname,
            "port": address.port,
            "username": address.username,
            "database.name": address.path[1:],
            **{_OPTIONS.get(key, key): value for key, value in more.items()},
        }
        said = ", ".join(f"{key} = '{value}'" for key, value in options.items())
        return f"CREATE SOURCE {name} WITH ({said})"

    @property
    def ours(self) -> list[str]:
        """What of us is there: slots and publications."""
        query = "SELECT slot_name::text FROM pg_replication_slots UNION ALL "
        return [name for (name,) in self.rows(query + "SELECT pubname::text FROM pg_publication")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server("wal_level=logical", "max_replication_slots=20", "fsync=off") as url:
        yield url.replace("+psycopg", "")


def _without_slots(admin: "psycopg.Connection[Any]", name: str) -> bool:
    """Whether a database has no slot any more; a reader that was just ended may still hold one."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE database = %s AND active",
        [name],
    )
    with contextlib.suppress(psycopg.errors.ObjectInUse):
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s",
            [name],
        )
        return True
    return False


@pytest.fixture
def upstream(server: str, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A fresh database, dropped with whatever is left in it."""
    name = f"db_{abs(hash(request.node.nodeid)) % 10**9}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    made = Upstream(server.rpartition("/")[0] + f"/{name}")
    yield made
    made.db.close()
    with psycopg.connect(server, autocommit=True) as admin:
        eventually(lambda: _without_slots(admin, name))
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def following(folder: Path, **settings: Any) -> Iterator[Headwater]:
    """An engine on a workspace."""
    with Headwater(folder, settings={**SETTINGS, **settings}, take_over=True) as hw:
        yield hw


def stored(hw: Headwater, table: str, epoch: Any = None) -> list[tuple[Any, ...]]:
    """A table's rows, in the order of its key."""
    at = hw.visible if epoch is None else epoch
    rows = hw.stored(table).rows(at)
    names = hw.stored(table).view(at).schema.names
    return sorted(tuple(row[name] for name in names) for row in rows.to_pylist())


def same(hw: Headwater, upstream: Upstream, table: str) -> None:
    """Both ways: no row is missing, none is too many."""
    same_rows(hw, upstream.rows, table)


def same_rows(
    hw: Headwater,
    rows: Callable[[str], Iterable[Any]],
    table: str,
    timeout: float = 120.0,
) -> None:
    """The same, whoever answers queries upstream."""

    def compare() -> None:
        theirs = {tuple(row) for row in rows(f"SELECT * FROM {table}")}
        ours = stored(hw, table)
        assert len(set(ours)) == len(ours)
        assert not (missing := theirs - set(ours)), f"missing: {sorted(missing)[:3]}"
        assert not (extra := set(ours) - theirs), f"extra: {sorted(extra)[:3]}"

    settled(hw, compare, timeout)


def settled(hw: Headwater, compare: Callable[[], None], timeout: float = 120.0) -> None:
    """Compare once the log is read: a FLUSH does not wait for a source that answers slowly."""
    deadline = time.monotonic() + timeout
    while True:
        hw.sql("FLUSH")
        try:
            return compare()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def eventually(check: Callable[[], bool], timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@contextmanager
def writers(upstream: Upstream, write: Callable[[Any, random.Random], None]) -> Iterator[list[int]]:
    """Write all the time; what the list holds is how often. Errors of a writer are raised."""

    def once(connection: Any, dice: random.Random) -> None:
        # One of two that wait for each other, or want the same key, is rolled back, as ever.
        with contextlib.suppress(psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            write(connection, dice)

    with writing(upstream.connect, once, pause=0.001) as count:
        yield count


@contextmanager
def writing(
    connect: Callable[[], Any], write: Callable[[Any, random.Random], None], *, pause: float
) -> Iterator[list[int]]:
    """The same for any database, with two connections of its own."""
    stop, count = threading.Event(), [0]
    failed: list[BaseException] = []

    def run(seed: int) -> None:
        dice = random.Random(seed)
        try:
            with connect() as connection:
                while not stop.wait(pause):
                    write(connection, dice)
                    count[0] += 1
        except BaseException as error:
            failed.append(error)

    with in_two_threads(run, stop):
        yield count
    assert not failed, failed


@contextmanager
def in_two_threads(run: Callable[[int], None], stop: threading.Event) -> Iterator[None]:
    """Run twice, with a seed each, until the end of the block."""
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


ORDERS = """CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, status text,
    amount numeric(12,2), n int, at timestamptz, note text)"""
FILL = """INSERT INTO orders SELECT g, g % 1000, 'new', g / 100.0, g % 7,
    timestamptz '2024-01-01' + g * interval '1 second', md5(g::text)
    FROM generate_series(1, {0}) g"""
MOST = 40_000


def write_orders(connection: Any, dice: random.Random, most: int = MOST) -> None:
    """Inserts, updates with and without large values, deletes, changed keys, rollbacks."""
    key, kind = dice.randrange(1, most), dice.random()
    if kind < 0.3:
        connection.execute(
            "INSERT INTO orders VALUES (%s, 1, 'in', 1.5, 1, now(), 'x')"
            " ON CONFLICT (id) DO UPDATE SET status = 'again', amount = orders.amount + 1",
            [key],
        )
    elif kind < 0.55:
        large = dice.choice(("note = note", "note = repeat(md5(random()::text), 300)"))
        connection.execute(f"UPDATE orders SET amount = amount + 1, {large} WHERE id = %s", [key])
    elif kind < 0.75:
        connection.execute("DELETE FROM orders WHERE id = %s", [key])
    elif kind < 0.79:
        other = dice.randrange(1, 2 * most)
        connection.execute(
            "UPDATE orders SET id = %s WHERE id = %s"
            " AND NOT EXISTS (SELECT FROM orders WHERE id = %s)",
            [other, key, other],
        )
    elif kind < 0.95:
        connection.execute("UPDATE orders SET n = n + 1 WHERE id BETWEEN %s AND %s", [key, key + 3])
    else:
        connection.execute("BEGIN")
        connection.execute("UPDATE orders SET status = 'never' WHERE id = %s", [key])
        connection.execute("ROLLBACK")
