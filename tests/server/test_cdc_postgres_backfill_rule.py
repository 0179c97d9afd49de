"""Snapshot chunks and the log, merged by the rule, while writers are at work.

The merging here is the least that the rule of `cdc/external_table.py` asks for, on a dictionary. It
shows that splits, chunks, `Seen`, transaction ids and the log of a real server fit together.
"""

import collections
import concurrent.futures
import threading
import time

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_kit import BANK, VERSIONS, Writer, options_of, run, server

from headwater.cdc.external_table import TRANSACTION, SplitOptions
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.cdc.postgres.table import SnapshotHolder
from headwater.model.reserved import CHANGE_TYPE

KEYS = 3000
LARGE = 64 << 20


@pytest.fixture(scope="module", params=VERSIONS)
def clean_server(request):
    with server(request.param) as url:
        yield url


@pytest.fixture
def url(clean_server):
    yield clean_server
    PostgresDatabase(options_of(clean_server)).drop()
    run(clean_server, "DROP TABLE IF EXISTS bank")


class Merger:
    """One table, kept in a dictionary."""

    def __init__(self, database, name):
        self.table = database.open_table(name)
        self.log = database.open_log({name: self.table.schema})
        self.name = name
        self.rows = {}
        self.remembered = {}
        self.lately = []

    def follow(self, at):
        batch = self.log.read(at, max_bytes=LARGE)
        changes = batch.changes.get(self.name)
        self.lately = [*self.lately[-50:], *(changes[TRANSACTION].to_pylist() if changes else [])]
        for each in changes.to_pylist() if changes else []:
            key = each["id"]
            self.remembered.setdefault(key, []).append(each[TRANSACTION])
            match each[CHANGE_TYPE]:
                case "delete":
                    self.rows.pop(key, None)
                case "insert" | "update_postimage":
                    self.rows[key] = (key, each["v"], each["note"])
        return batch.offset

    def merge(self, chunk):
        """The rows of a chunk, unless the log has said something newer of their keys."""
        newer = {
            key
            for key, transactions in self.remembered.items()
            if not all(chunk.seen.holds(pa.array(transactions)).to_pylist())
        }
        for each in chunk.rows.to_pylist():
            if each["id"] not in newer:
                self.rows[each["id"]] = (each["id"], each["v"], each["note"])

    def sees_all(self, chunk, transactions):
        return all(chunk.seen.holds(pa.array(transactions, pa.int64())).to_pylist())


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_equal_both_ways_after_a_backfill_under_writers(url, seed):
    run(
        url,
        BANK,
        f"INSERT INTO bank SELECT i, i, 'old' FROM generate_series(0, {KEYS - 1}, 2) i",
        "ANALYZE bank",
    )
    database = PostgresDatabase(options_of(url))
    writers = [Writer(url, 10 * seed + number, KEYS) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        at = database.prepare(["bank"])
        merger = Merger(database, "bank")
        chunks = skipped = 0
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for split in merger.table.splits(SplitOptions(rows_per_split=400)):
                after = None
                while True:
                    merger.remembered, before = {}, list(merger.lately)
                    reading = pool.submit(
                        merger.table.read_chunk, split, after, max_rows=60, max_bytes=LARGE
                    )
                    at = merger.follow(at)
                    chunk = reading.result()
                    if not merger.sees_all(chunk, before):
                        continue
                    at = merger.follow(at)
                    size = len(merger.rows)
                    merger.merge(chunk)
                    skipped += size + chunk.rows.num_rows > len(merger.rows)
                    chunks += 1
                    if chunk.cursor is None:
                        break
                    after = chunk.cursor
        until(lambda: sum(writer.commits for writer in writers) > 200)
    finally:
        for writer in writers:
            writer.stop()
    high = merger.log.current()
    while at < high:
        at = merger.follow(at)
    expected = {row[0]: row for row in run(url, "SELECT id, v, note FROM bank")}
    merger.log.close()
    merger.table.close()
    assert merger.rows == expected
    assert chunks > 15
    assert skipped, "the log and the chunks met"


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "nobody writes"
        time.sleep(0.02)


def write_without_keys(url, ended, rounds):
    with psycopg.connect(url, autocommit=True) as connection:
        some = "ctid IN (SELECT ctid FROM bank WHERE id = %s LIMIT %s)"
        number = 0
        while not ended.is_set():
            number += 1
            connection.execute("INSERT INTO bank VALUES (%s, 1, 'new')", [number % 50])
            connection.execute(f"UPDATE bank SET v = v + 1 WHERE {some}", [number * 7 % 50, 3])
            connection.execute(f"DELETE FROM bank WHERE {some}", [number * 3 % 50, 1])
            rounds.append(number)


def counted_rows(table, splits):
    """How often each row is in the chunks of a table."""
    counted = collections.Counter()
    for split in splits:
        after = None
        while True:
            chunk = table.read_chunk(split, after, max_rows=300, max_bytes=LARGE)
            counted.update(zip(*chunk.rows.to_pydict().values(), strict=True))
            if chunk.cursor is None:
                break
            after = chunk.cursor
        time.sleep(0.05)
    return counted


def test_a_table_without_a_key_is_a_multiset_of_one_snapshot_and_the_log(url):
    """Changes that the exported snapshot holds are skipped, all others are applied."""
    run(
        url,
        "CREATE TABLE bank (id bigint, v bigint, note text)",
        "ALTER TABLE bank REPLICA IDENTITY FULL",
        "INSERT INTO bank SELECT i % 50, i % 3, 'old' FROM generate_series(1, 4000) i",
    )
    database = PostgresDatabase(options_of(url))
    ended, rounds = threading.Event(), []

    def some_writes():
        upto = len(rounds) + 30
        until(lambda: len(rounds) >= upto)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_without_keys, url, ended, rounds)
        try:
            at = database.prepare(["bank"])
            table = database.open_table("bank")
            some_writes()
            holder = SnapshotHolder(options_of(url))
            frozen = table.at(holder.snapshot)
            counted = counted_rows(frozen, table.splits(SplitOptions(rows_per_split=500)))
            frozen.close()
            holder.close()
            some_writes()
        finally:
            ended.set()
        writing.result()
    log = database.open_log({"bank": table.schema})
    high, applied, held_back = log.current(), 0, 0
    while at < high:
        batch = log.read(at, max_bytes=LARGE)
        at = batch.offset
        changes = batch.changes["bank"]
        held = holder.snapshot.seen.holds(changes[TRANSACTION].combine_chunks()).to_pylist()
        held_back += sum(held)
        applied += len(held) - sum(held)
        for each, skip in zip(changes.to_pylist(), held, strict=True):
            if not skip:
                adds = each[CHANGE_TYPE] in ("insert", "update_postimage")
                counted[each["id"], each["v"], each["note"]] += 1 if adds else -1
    log.close()
    rows = run(url, "SELECT id, v, note, count(*) FROM bank GROUP BY 1, 2, 3")
    assert {row: count for row, count in counted.items() if count} == {
        tuple(row[:3]): row[3] for row in rows
    }
    assert applied > 20
    assert held_back > 20


def test_what_began_before_a_table_was_published_is_missing_in_the_log_and_named(url):
    """Its changes are decoded as of when they were made; a chunk has to see them instead."""
    run(url, "CREATE TABLE first (id int PRIMARY KEY)", BANK)
    try:
        database = PostgresDatabase(options_of(url))
        at = database.prepare(["first"])
        with psycopg.connect(url) as early:
            early.execute("INSERT INTO bank VALUES (1, 1, 'early')")
            [[xid]] = early.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            database.prepare(["first", "bank"])
            assert xid in database.running(), "also when nothing newer has ended"
            run(url, "INSERT INTO first VALUES (1)")
            assert xid in database.running(), "and when something has"
            table = database.open_table("bank")
            [split] = table.splits(SplitOptions())
            blind = table.read_chunk(split, None, max_rows=9, max_bytes=LARGE)
            early.commit()
        seeing = table.read_chunk(split, None, max_rows=9, max_bytes=LARGE)
        log = database.open_log({"bank": table.schema})
        batch = log.read(at, max_bytes=LARGE)
        log.close()
        table.close()
        assert "bank" not in batch.changes
        assert not blind.seen.holds(pa.array([xid]))[0].as_py()
        assert seeing.seen.holds(pa.array([xid]))[0].as_py()
        assert seeing.rows["id"].to_pylist() == [1]
        assert xid not in database.running()
    finally:
        run(url, "DROP TABLE IF EXISTS first")
