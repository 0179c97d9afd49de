"""The rule by which rows and changes of a stream are put together, driven without Spark."""

import random

import psycopg
import pytest
from cdc_postgres_kit import DEBIAN
from cdc_postgres_kit import server as other_server

from cdc_kit import (  # noqa: F401  fixtures
    FILL,
    ORDERS,
    eventually,
    server,
    upstream,
    write_orders,
    writers,
)
from external_source_kit import Applied, Driven, assert_both_ways, postgres_options
from headwater.errors import ConfigError, SchemaError, UserError
from headwater.spark_source.external.source import PostgresSource
from servers import not_available

ROWS = 6000
KINDS = ("insert", "delete", "update_postimage")


def driven(url, table, key, *, exact=True, **more):
    options = {**postgres_options(url, slot__name="plain"), "table.name": table}
    options |= {"since": "snapshot", **{name: str(value) for name, value in more.items()}}

    def reader():
        source = PostgresSource(dict(options))
        return source.streamReader(source.schema())

    return Driven(reader, Applied(None, key, exact=exact))


def _writes(connection, dice):
    class Few(random.Random):
        def randrange(self, start, stop=None):
            return dice.randrange(1, ROWS + 500)

    few = Few(dice.random())
    write_orders(connection, few)


def _wait_for_writes(count, least=15):
    def wait():
        until = count[0] + least
        eventually(lambda: count[0] >= until)

    return wait


def test_every_row_once_and_every_change_once(upstream):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    stream = driven(upstream.url, "orders", ["id"], rows_per_split=250, splits_per_batch=2)
    dice = random.Random(3)
    with writers(upstream, _writes) as count:
        stream.between = _wait_for_writes(count)
        while stream.start is None or stream.start["read"] or stream.start["left"]:
            stream.step()
            if dice.random() < 0.2:
                stream.again()
        inserts, wait = stream.applied.kinds["insert"], _wait_for_writes(count)
        for _ in range(20):
            wait()
            stream.step()
    stream.between = lambda: None
    stream.to_the_end()
    assert_both_ways(stream.applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not stream.applied.wrong, stream.applied.wrong[:3]
    assert min(stream.applied.kinds[kind] for kind in KINDS) > 20
    assert 0 < stream.applied.kinds["insert"] - inserts


@pytest.mark.parametrize("crash", ["kept", "lost"])
def test_a_batch_again_converges(upstream, crash):  # noqa: F811
    """A crash after the end was written: a sink has the batch, or takes it the second time."""
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    stream = driven(
        upstream.url, "orders", ["id"], exact=False, rows_per_split=250, splits_per_batch=2
    )
    dice = random.Random(5)
    with writers(upstream, _writes) as count:
        stream.between = _wait_for_writes(count, 5)
        while stream.start is None or stream.start["read"] or stream.start["left"]:
            stream.step(crash=crash if dice.random() < 0.4 else "")
        for _ in range(10):
            stream.between()
            stream.step(crash=crash if dice.random() < 0.4 else "")
    stream.between = lambda: None
    stream.to_the_end()
    assert stream.replays > 8
    assert_both_ways(stream.applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not stream.applied.wrong, stream.applied.wrong[:3]


KEYS = {
    "composite": (
        "CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b))", ["a", "b"],
        "INSERT INTO t SELECT chr(97 + g % 26), g, 'x' FROM generate_series(1, 400) g",
        "INSERT INTO t VALUES (chr(97 + %(n)s %% 26), %(n)s, 'new')"
        " ON CONFLICT (a, b) DO UPDATE SET v = t.v || '!'",
        "DELETE FROM t WHERE b = %(n)s",
    ),
    "collated": (
        'CREATE TABLE t (a text COLLATE "C" PRIMARY KEY, v text)', ["a"],
        "INSERT INTO t SELECT chr(65 + g % 58) || g, 'x' FROM generate_series(1, 400) g",
        "INSERT INTO t VALUES (chr(65 + %(n)s %% 58) || %(n)s, 'new')"
        " ON CONFLICT (a) DO UPDATE SET v = t.v || '!'",
        "DELETE FROM t WHERE a = chr(65 + %(n)s %% 58) || %(n)s",
    ),
    "of another language": (
        'CREATE TABLE t (a text COLLATE "en-x-icu" PRIMARY KEY, v text)', ["a"],
        "INSERT INTO t SELECT chr(65 + g % 58) || g, 'x' FROM generate_series(1, 400) g",
        "INSERT INTO t VALUES (chr(65 + %(n)s %% 58) || %(n)s, 'new')"
        " ON CONFLICT (a) DO UPDATE SET v = t.v || '!'",
        "DELETE FROM t WHERE a = chr(65 + %(n)s %% 58) || %(n)s",
    ),
    "quoted": (
        'CREATE TABLE "T;1" ("K 1" timestamptz PRIMARY KEY, "v v" text)', ["K 1"],
        """INSERT INTO "T;1" SELECT timestamptz '2024-01-01' + g * interval '1 hour', 'x'
           FROM generate_series(1, 400) g""",
        """INSERT INTO "T;1" VALUES (timestamptz '2024-01-01' + %(n)s * interval '1 hour', 'new')
           ON CONFLICT ("K 1") DO UPDATE SET "v v" = "T;1"."v v" || '!'""",
        """DELETE FROM "T;1"
           WHERE "K 1" = timestamptz '2024-01-01' + %(n)s * interval '1 hour'""",
    ),
}  # fmt: skip


def _mixed(url, kind):
    """A stream of a small table that is written to in the middle of every batch."""
    create, key, fill, put, delete = KEYS[kind]
    name = '"T;1"' if kind == "quoted" else "t"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(create)
        db.execute(fill)
        # Small batches of the log, so that it stays behind what the snapshots hold.
        stream = driven(url, name, key, rows_per_split=20, splits_per_batch=1, bytes_per_batch=1500)
        dice = random.Random(11)

        def write():
            for _ in range(12):
                db.execute(dice.choice((put, put, delete)), {"n": dice.randrange(1, 450)})

        stream.between = write
        for _ in range(60):
            stream.step()
        stream.between = lambda: None
        stream.to_the_end()
        assert stream.start["read"] == stream.start["left"] == []
        assert_both_ways(stream.applied.tuples, db.execute(f"SELECT * FROM {name}").fetchall())
        assert not stream.applied.wrong, stream.applied.wrong[:3]
        assert min(stream.applied.kinds[each] for each in KINDS) > 10


@pytest.mark.parametrize("kind", [kind for kind in KEYS if "language" not in kind])
def test_ranges_follow_the_databases_own_order(upstream, kind):  # noqa: F811
    _mixed(upstream.url, kind)


def test_ranges_follow_the_collation_of_a_column():
    """Of a server that has languages: small and capital letters alternate in their order."""
    if not DEBIAN:
        not_available("no PostgreSQL of the system is installed")
    with other_server(DEBIAN[-1].parent.name) as url:
        _mixed(url, "of another language")


def test_a_transaction_that_the_log_lacks_is_awaited(upstream):  # noqa: F811
    """The table is published while somebody writes to it, by a slot that is there already."""
    upstream.db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    upstream.db.execute("INSERT INTO t VALUES (1, 'before')")
    upstream.db.execute("CREATE PUBLICATION plain FOR TABLE other")
    upstream.rows("SELECT pg_create_logical_replication_slot('plain', 'pgoutput')")
    stream = driven(upstream.url, "t", ["id"])
    with upstream.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO t VALUES (2, 'late')")
        assert stream.step()
        assert not stream.step()
        late.execute("COMMIT")
    stream.to_the_end()
    assert sorted(stream.applied.tuples) == [(1, "before"), (2, "late")]


def test_large_values_that_were_not_sent(upstream):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n int)")
    upstream.db.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    upstream.db.execute(
        "INSERT INTO t SELECT g, repeat(md5(g::text), 300), 0 FROM generate_series(1, 20) g"
    )
    stream = driven(upstream.url, "t", ["id"])
    stream.to_the_end()
    upstream.db.execute("UPDATE t SET n = 1 WHERE id <= 10")
    upstream.db.execute("UPDATE t SET id = 105 WHERE id = 5")
    upstream.db.execute("UPDATE t SET n = 2 WHERE id = 6")
    upstream.db.execute("DELETE FROM t WHERE id = 6")
    stream.to_the_end()
    assert_both_ways(stream.applied.tuples, upstream.rows("SELECT * FROM t"))
    assert not stream.applied.wrong, stream.applied.wrong
    lacking = [row["id"] for row in stream.applied.changes if row["v"] is None]
    # Of a row that is gone by now nothing is known; its delete comes as well.
    assert set(lacking) == {5, 6}
    upstream.db.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    stream.again()
    upstream.db.execute("UPDATE t SET n = 3 WHERE id = 7")
    upstream.db.execute("DELETE FROM t WHERE id = 7")
    before = len(stream.applied.changes)
    stream.to_the_end()
    told = [
        (row["_change_type"], row["n"], row["v"] and len(row["v"]))
        for row in stream.applied.changes[before:]
    ]
    assert told == [
        ("update_preimage", 1, 9600), ("update_postimage", 3, 9600), ("delete", 3, 9600)
    ]  # fmt: skip


def test_only_changes_and_only_some_columns(upstream):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text, hidden text)")
    upstream.db.execute("INSERT INTO t VALUES (1, 'a', 'x')")
    stream = driven(upstream.url, "t", ["id"], since="latest", columns="v,id")
    stream.to_the_end()
    assert not stream.applied.changes
    upstream.db.execute("INSERT INTO t VALUES (2, 'b', 'x')")
    upstream.db.execute("ALTER TABLE t ADD COLUMN late int")
    upstream.db.execute("UPDATE t SET v = 'c', late = 5 WHERE id = 2")
    stream.to_the_end()
    assert stream.applied.tuples == [("c", 2)]
    upstream.db.execute("ALTER TABLE t DROP COLUMN v")
    upstream.db.execute("INSERT INTO t VALUES (3, 'x', 1)")
    with pytest.raises(SchemaError, match='column "v"'):
        stream.to_the_end()


def test_what_a_stream_cannot_say_stops_it(upstream):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    upstream.db.execute("INSERT INTO t VALUES (1)")
    stream = driven(upstream.url, "t", ["id"])
    stream.to_the_end()
    upstream.db.execute("TRUNCATE t")
    with pytest.raises(UserError, match="was truncated"):
        stream.to_the_end()
    skipping = driven(upstream.url, "t", ["id"], truncate="skip")
    skipping.start = stream.start
    skipping.to_the_end()
    other = driven(upstream.url, "t", ["id"])
    other.start = {**stream.start, "table": "public.other"}
    with pytest.raises(UserError, match=r"the checkpoint is of public\.other"):
        other.step()
    other.start = {**stream.start, "v": 99}
    with pytest.raises(UserError, match="format 99"):
        other.step()
    upstream.rows("SELECT pg_drop_replication_slot('plain')")
    with pytest.raises(UserError, match='slot "plain" is gone'):
        stream.to_the_end()
    upstream.db.execute("CREATE TABLE no_key (v int)")
    with pytest.raises(SchemaError, match="has no key"):
        driven(upstream.url, "no_key", []).step()


def test_a_slot_is_named_and_idle_tables_let_the_log_go(upstream):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    upstream.db.execute("CREATE TABLE busy (id int, v text)")
    source = PostgresSource(
        {**postgres_options(upstream.url), "table.name": "t", "since": "latest"}
    )
    with pytest.raises(ConfigError, match=r"needs the option slot\.name"):
        source.streamReader(source.schema())
    stream = driven(upstream.url, "t", ["id"])
    stream.to_the_end()
    query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
    before = upstream.rows(query)[0][0]
    upstream.db.execute(
        "INSERT INTO busy SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g"
    )
    stream.to_the_end()
    assert upstream.rows(query)[0][0] == before, "acknowledged before it was committed"
    stream.reader.commit(stream.start)
    assert upstream.rows(query)[0][0] - before > 16 << 20
    assert not stream.applied.changes
