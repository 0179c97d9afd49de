"""The ledger on a real PostgreSQL server: the contract, broken lines and frozen sessions."""

import dataclasses
import socket
import threading
import time

import psycopg
import pytest
from sqlalchemy import make_url, text

from headwater.catalog.catalog import Catalog
from headwater.catalog.change import CreateSource, CreateTable, DropTable
from headwater.catalog.relation import SourceDef, TableDef
from headwater.errors import (
    CommitUnknown,
    ConfigError,
    LedgerUnavailable,
    RelationError,
    StorageUnavailable,
)
from headwater.ledger.backoff import Backoff
from headwater.ledger.ledger import Ledger
from headwater.ledger.migrate import MIGRATIONS
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import SourceName, TableId
from headwater.observe.events import EventKind, EventLog
from ledger_contract import LedgerContract
from ledger_kit import SCHEMA_OF_ORDERS, full_record, in_threads, owner, record
from ledger_unknown_contract import UnknownCommitContract
from servers import free_port, postgres_server


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


@pytest.fixture
def url(server):
    """An empty database on the server of this module."""
    name = f"ledger_{time.monotonic_ns()}"
    with psycopg.connect(libpq(server), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(libpq(server), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def libpq(url: str) -> str:
    return url.replace("+psycopg", "")


class TestLedgerOnPostgres(LedgerContract):
    pass


class TestUnknownCommitsOnPostgres(UnknownCommitContract):
    pass


class Line:
    """A TCP line to the server that goes dead around a COMMIT, once, when told to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.plan: str | None = None
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            cut = threading.Event()
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(*ends, cut), daemon=True).start()

    def _carry(self, source, target, from_client, cut) -> None:
        try:
            while data := source.recv(1 << 16):
                if from_client and b"COMMIT\x00" in data and self.plan is not None:
                    plan, self.plan = self.plan, None
                    cut.set()
                    if plan == "answer lost":
                        target.sendall(data)
                        time.sleep(0.3)
                    break
                if not from_client and cut.is_set():
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.mark.parametrize(("plan", "committed"), [("commit lost", False), ("answer lost", True)])
def test_a_line_that_breaks_at_the_commit(url, plan, committed):
    line = Line(make_url(url).port)
    ledger = Ledger.open(make_url(url).set(port=line.address).render_as_string())
    try:
        term = ledger.take_over(owner())
        first = full_record(1, 0, term)
        line.plan = plan
        with pytest.raises(CommitUnknown):
            ledger.append(first)
        assert ledger.resolve(first) is committed
        if not committed:
            ledger.append(first)
        second = record(2, 1, term)
        line.plan = plan
        ledger.append_resolved(second, backoff=Backoff(first_s=0.01))
        assert list(ledger.records(NO_EPOCH)) == [first, second]
    finally:
        ledger.close()
        line.close()


def test_resolve_waits_for_a_commit_that_is_under_way(url):
    """The session of a lost commit may still hold the lock; only then is no a no."""
    ledger = Ledger.open(url)
    term = ledger.take_over(owner())
    wanted = record(1, 0, term)
    inside, go_on = threading.Event(), threading.Event()
    answers = []

    def slow(_connection):
        inside.set()
        go_on.wait(60)

    def run(index: int) -> None:
        if index == 0:
            ledger.append(wanted, also=slow)
            return
        inside.wait(60)
        answers.append(ledger.resolve(wanted))

    def release() -> None:
        inside.wait(60)
        time.sleep(0.5)
        assert answers == []
        go_on.set()

    in_threads(lambda index: release() if index == 2 else run(index), 3)
    assert answers == [True]
    ledger.close()


def test_a_lost_session_before_the_commit_writes_nothing(url):
    ledger = Ledger.open(url)
    term = ledger.take_over(owner())

    def cut(connection):
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(libpq(url), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        connection.execute(text("SELECT 1"))

    with pytest.raises(LedgerUnavailable):
        ledger.append(record(1, 0, term), also=cut)
    assert ledger.last_epoch() == NO_EPOCH
    ledger.append(record(1, 0, term))
    ledger.close()


def test_idle_sessions_that_the_server_ended_are_replaced(url):
    ledger = Ledger.open(url)
    term = ledger.take_over(owner())
    with psycopg.connect(libpq(url), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    ledger.append(record(1, 0, term))
    ledger.close()


def test_a_frozen_engine_does_not_keep_the_lock(url, monkeypatch):
    other = Ledger.open(url)
    with monkeypatch.context() as patched:
        # Of the frozen one alone: it is given so long when it connects.
        patched.setattr("headwater.ledger.database._FROZEN_SESSION_MS", 3000)
        frozen = Ledger.open(url)
        term = frozen.take_over(owner())
    took = []

    def sleep_inside(_connection):
        took.append(other.take_over(owner(), force=True))

    with pytest.raises(LedgerUnavailable):
        frozen.append(record(1, 0, term), also=sleep_inside)
    assert took == [term + 1]
    assert other.last_epoch() == NO_EPOCH
    for ledger in (frozen, other):
        ledger.close()


def test_commits_are_never_asynchronous(url):
    name = make_url(url).database
    with psycopg.connect(libpq(url), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger = Ledger.open(url)
    with ledger.transaction() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
    ledger.close()


def test_a_read_only_server(url):
    Ledger.open(url).close()
    name = make_url(url).database
    with psycopg.connect(libpq(url), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    ledger = Ledger.open(url)
    with pytest.raises(StorageUnavailable) as refused:
        ledger.take_over(owner())
    assert "primary" in refused.value.hint
    ledger.close()


def test_engines_that_start_at_once_migrate_once(url):
    def run(_index: int) -> None:
        Ledger.open(url).close()

    in_threads(run, 6)
    ledger = Ledger.open(url)
    with ledger.reading() as connection:
        versions = connection.execute(text("SELECT version FROM hw_schema ORDER BY 1")).scalars()
        assert list(versions) == list(range(1, len(MIGRATIONS) + 1))
    ledger.close()


@pytest.mark.parametrize("where", ["nobody listens", "no such database"])
def test_a_server_that_cannot_be_reached(url, where):
    wanted = make_url(url).set(username="postgres", password="hush-hush")
    if where == "nobody listens":
        wanted = wanted.set(port=free_port())
    else:
        wanted = wanted.set(database="nothing")
    with pytest.raises(LedgerUnavailable) as refused:
        Ledger.open(wanted.render_as_string(hide_password=False))
    assert "hush-hush" not in f"{refused.value}{refused.value.__cause__}"
    assert "127.0.0.1" in refused.value.detail


def test_other_spellings_of_the_url(url):
    Ledger.open(libpq(url)).close()
    Ledger.open(libpq(url).replace("postgresql:", "postgres:")).close()
    with pytest.raises(ConfigError):
        Ledger.open("mysql://root@localhost/db")


def test_the_catalog_and_the_event_log_lie_there_too(url):
    ledger = Ledger.open(url)
    catalog, log = Catalog(ledger), EventLog(ledger, kept=3)
    term = ledger.take_over(owner())
    source = SourceDef(id=catalog.next_id(), name=SourceName("shop"), kind="postgres-cdc")
    table = TableDef(
        id=TableId(catalog.next_id()),
        name="orders",
        schema=SCHEMA_OF_ORDERS,
        folder="t2",
        source=source.name,
        append_only=True,
    )
    made = [CreateSource(source=source), CreateTable(table=table)]
    ledger.append(record(1, 0, term), also=catalog.writer(made, Epoch(1)))
    assert catalog.snapshot().tables == (dataclasses.replace(table, created=Epoch(1)),)
    again = CreateTable(table=dataclasses.replace(table, id=TableId(catalog.next_id())))
    with pytest.raises(RelationError, match="already exists"):
        ledger.append(record(2, 1, term), also=catalog.writer([again], Epoch(2)))
    assert ledger.last_epoch() == 1
    gone = [DropTable(table=table.id)]
    ledger.append(record(2, 1, term), also=catalog.writer(gone, Epoch(2)))
    assert [dropped.id for dropped in catalog.snapshot().dropped_tables] == [table.id]
    catalog.purge(table.id)
    assert catalog.snapshot().dropped_tables == ()

    for number in range(5):
        assert log.record(EventKind.EPOCH_SLOW, str(number), "slow", details={"s": number})
    assert [event.subject for event in log.recent()] == ["4", "3", "2"]
    ledger.close()
