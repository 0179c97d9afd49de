"""SQLite's own troubles: no folder, no space, no permission, locks, damage, and its settings."""

import sqlite3
import time

import pytest
from sqlalchemy import event, make_url

from headwater.errors import (
    ConfigError,
    DamagedState,
    LedgerUnavailable,
    StorageUnavailable,
)
from headwater.ledger.database import Database
from headwater.ledger.ledger import Ledger
from headwater.ledger.translation import shown, strike_out
from headwater.model.epoch import NO_EPOCH
from ledger_kit import full_record, in_threads, owner, record


@pytest.fixture
def file(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(file):
    ledger = Ledger.open(f"sqlite:///{file}")
    yield ledger
    ledger.close()


def test_commits_are_forced_to_disk(ledger):
    with ledger.transaction() as connection:
        pragma = connection.exec_driver_sql
        assert pragma("PRAGMA journal_mode").scalar_one() == "wal"
        assert pragma("PRAGMA synchronous").scalar_one() == 2


def test_readers_do_not_wait_for_a_writer_and_do_not_see_its_work(ledger):
    term = ledger.take_over(owner())
    seen = []
    ledger.append(record(1, 0, term), also=lambda _: seen.append(ledger.last_epoch()))
    assert seen == [NO_EPOCH]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(LedgerUnavailable, match="cannot be opened") as refused:
        Ledger.open(f"sqlite:///{tmp_path}/nowhere/ledger.db")
    assert "folder" in refused.value.hint
    assert "nowhere/ledger.db" in refused.value.detail


def test_a_read_only_file(ledger, file):
    term = ledger.take_over(owner())
    ledger.append(record(1, 0, term))
    only_reads = Ledger.open(f"sqlite:///file:{file}?mode=ro&uri=true")
    assert only_reads.last_epoch() == 1
    with pytest.raises(StorageUnavailable, match="cannot be written") as refused:
        only_reads.append(record(2, 1, term))
    assert "writable" in refused.value.hint
    only_reads.close()


def test_a_full_disk_loses_nothing(ledger, file):
    term = ledger.take_over(owner())
    ledger.append(record(1, 0, term))
    ledger.close()

    def shrink(connection, _record):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(ledger.database.engine, "connect", shrink)
    with pytest.raises(StorageUnavailable, match="cannot be written") as refused:
        ledger.append(full_record(2, 1, term), manifests={1: b"x" * 1_000_000})
    assert "space" in refused.value.hint
    assert [found.epoch for found in ledger.records(NO_EPOCH)] == [1]

    event.remove(ledger.database.engine, "connect", shrink)
    ledger.close()
    ledger.append(full_record(2, 1, term), manifests={1: b"x" * 1_000_000})
    assert [found.epoch for found in ledger.records(NO_EPOCH)] == [1, 2]


def test_a_lock_that_another_process_holds(ledger, file, monkeypatch):
    monkeypatch.setattr("headwater.ledger.database._BUSY_TIMEOUT_S", 0.2)
    impatient = Ledger(Database.connect(f"sqlite:///{file}"))
    term = ledger.take_over(owner())
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(LedgerUnavailable, match="busy"):
        impatient.append(record(1, 0, term))
    assert time.monotonic() - began < 60
    assert impatient.last_epoch() == NO_EPOCH
    holder.execute("ROLLBACK")
    impatient.append(record(1, 0, term))
    holder.close()
    impatient.close()


def test_a_file_that_is_no_database(file):
    file.write_bytes(b"something else " * 1000)
    with pytest.raises(DamagedState, match="damaged"):
        Ledger.open(f"sqlite:///{file}")


def test_a_damaged_page(ledger, file):
    term = ledger.take_over(owner())
    for epoch in range(1, 60):
        ledger.append(full_record(epoch, epoch - 1, term))
    ledger.close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'hw_epoch'")
        offset = (page.fetchone()[0] - 1) * 4096
    connection.close()
    content = bytearray(file.read_bytes())
    content[offset : offset + 64] = b"\xff" * 64
    file.write_bytes(content)
    with pytest.raises(DamagedState):
        list(ledger.records(NO_EPOCH))


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "oracle://x/y", "not a url", ""]
)
def test_places_where_a_ledger_cannot_lie(url):
    with pytest.raises(ConfigError):
        Ledger.open(url)


def test_engines_that_start_at_once_on_an_empty_file(file):
    for _ in range(5):
        in_threads(lambda _: Ledger.open(f"sqlite:///{file}").close(), 6)
        for path in file.parent.iterdir():
            path.unlink()


def test_passwords_are_struck_out():
    url = make_url("postgresql+psycopg://me:s3cr3t@host/db?sslpassword=hidden2&application_name=x")
    assert "s3cr3t" not in shown(url)
    assert "hidden2" not in shown(url)
    assert "host/db" in shown(url)
    assert strike_out("no s3cr3t, no hidden2", url) == "no ***, no ***"
