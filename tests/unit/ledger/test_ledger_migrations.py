"""Workspaces of every age open, and interrupted upgrades go on."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect

from headwater.catalog import tables as catalog_tables
from headwater.errors import WorkspaceInUse
from headwater.ledger import migrate as migrating
from headwater.ledger import tables
from headwater.ledger.database import Database
from headwater.ledger.ledger import Ledger
from headwater.ledger.migrate import MIGRATIONS, migrate
from headwater.model.epoch import NO_EPOCH, Epoch, system_clock
from headwater.model.ids import TableId
from headwater.observe import events
from ledger_kit import SCHEMA_OF_ORDERS, full_record, owner, record

STORED = Path(__file__).with_name("workspace_at_version_1.sql")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


def open_at(url: str, version: int) -> Ledger:
    """A workspace that an older Headwater has made."""
    database = Database.connect(url)
    migrate(database, system_clock, wait_s=15, migrations=MIGRATIONS[:version])
    return Ledger(database)


def versions(ledger: Ledger) -> list[int]:
    with ledger.reading() as connection:
        return sorted(connection.execute(tables.SCHEMA.select()).scalars())


def test_the_definitions_equal_what_the_migrations_made(url):
    ledger = Ledger.open(url)
    defined = {
        table.name: table
        for metadata in (tables.METADATA, catalog_tables.METADATA, events.METADATA)
        for table in metadata.sorted_tables
    }
    with ledger.reading() as connection:
        look = inspect(connection)
        assert set(look.get_table_names()) == set(defined)
        for name, table in defined.items():
            found = {
                (c["name"], str(c["type"]), c["nullable"], bool(c["primary_key"]))
                for c in look.get_columns(name)
            }
            dialect = connection.dialect
            wanted = {
                (c.name, c.type.compile(dialect=dialect), c.nullable, c.primary_key)
                for c in table.columns
            }
            assert found == wanted
    ledger.close()


def test_a_workspace_of_version_1_is_upgraded_with_its_records(url):
    old = open_at(url, 1)
    assert versions(old) == [1]
    term = old.take_over(owner())
    first = record(1, 0, term, positions={"shop": "7"})
    old.append(first, manifests={TableId(1): b"list"})
    old.release(term)
    old.close()

    new = Ledger.open(url)
    assert versions(new) == list(range(1, len(MIGRATIONS) + 1))
    assert list(new.records(NO_EPOCH)) == [first]
    assert new.facts().positions == {"shop": "7"}
    assert new.manifest(TableId(1)).body == b"list"
    new.pin("mine", Epoch(1))
    second = full_record(2, 1, new.take_over(owner()))
    new.unpin("mine")
    new.append(second)
    assert list(new.records(NO_EPOCH)) == [first, second]
    new.close()


def test_a_stored_workspace_of_version_1_stays_readable(tmp_path, url):
    """The bytes were written by the first version; neither schema nor format may forget them."""
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.executescript(STORED.read_text())
    connection.close()
    ledger = Ledger.open(url)
    found = list(ledger.records(NO_EPOCH))
    assert [entry.epoch for entry in found] == [10, 20, 30]
    assert found[1] == full_record(20, 10, 1)
    assert found[1].tables[0].schema == SCHEMA_OF_ORDERS
    assert ledger.facts().positions == {"shop": "0/16B3748", "größe": "日本"}
    assert ledger.manifest(TableId(1)).body == b"files at 20"
    ledger.append(record(40, 30, ledger.take_over(owner())))
    ledger.close()


def test_a_workspace_is_not_upgraded_under_a_living_engine(url):
    old = open_at(url, 1)
    term = old.take_over(owner())
    with pytest.raises(WorkspaceInUse):
        Ledger.open(url)
    assert versions(old) == [1]
    old.append(record(1, 0, term))
    Ledger.open(url, force=True).close()
    assert versions(old) == list(range(1, len(MIGRATIONS) + 1))
    old.close()


CRASHING = """
import os, signal, sys
from headwater.ledger.database import Database
from headwater.ledger.migrate import MIGRATIONS, migrate
from headwater.model.epoch import system_clock

def stop_inside(connection):
    MIGRATIONS[1](connection)
    os.kill(os.getpid(), signal.SIGKILL)

database = Database.connect(sys.argv[1])
migrate(database, system_clock, wait_s=15, migrations=(MIGRATIONS[0], stop_inside))
"""


def test_a_crash_between_two_migrations(url):
    done = subprocess.run([sys.executable, "-c", CRASHING, url], check=False)
    assert done.returncode == -signal.SIGKILL
    database = Database.connect(url)
    with database.reading() as connection:
        assert migrating._version(connection) == 1
        assert not inspect(connection).has_table("hw_pin")
    database.close()
    ledger = Ledger.open(url)
    assert versions(ledger) == list(range(1, len(MIGRATIONS) + 1))
    assert ledger.pins() == {}
    ledger.close()


def test_a_migration_that_fails_leaves_no_trace(url):
    def failing(connection):
        MIGRATIONS[1](connection)
        raise OSError("no luck")

    database = Database.connect(url)
    with pytest.raises(OSError, match="no luck"):
        migrate(database, system_clock, wait_s=15, migrations=(MIGRATIONS[0], failing))
    with database.reading() as connection:
        assert not inspect(connection).has_table("hw_pin")
    database.close()
    Ledger.open(url).close()


def test_opening_an_up_to_date_workspace_does_not_wait_for_a_writer(url):
    ledger = Ledger.open(url)
    with ledger.transaction():
        Ledger.open(url).close()
    ledger.close()
