"""The change log of real PostgreSQL servers: changes, values, places and bounds."""

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_kit import VERSIONS, options_of, run, server
from cdc_postgres_source import LARGE, OWN, Source, clean, shown

from headwater.cdc.external_table import TRANSACTION, UNCHANGED, SplitOptions
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.log import PostgresLog
from headwater.errors import SchemaError, SourceUnavailable
from headwater.model.reserved import SEQ


@pytest.fixture(scope="module", params=VERSIONS)
def url(request):
    with server(request.param) as url:
        yield url


@pytest.fixture
def fresh(url):
    clean(url)
    yield url
    clean(url)


@pytest.mark.parametrize("extra", ["", ", span interval"], ids=["binary", "text"])
def test_every_kind_of_change_arrives_in_order(fresh, extra):
    """An interval has no binary kernel, so it turns the whole log to text."""
    run(fresh, f"CREATE TABLE t (id bigint PRIMARY KEY, n numeric(9,2), s text{extra})")
    source = Source(fresh, "t")
    run(
        fresh,
        "INSERT INTO t VALUES (1, 1.5, 'one'), (2, NULL, NULL)",
        "UPDATE t SET n = 2.25 WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 2",
        "DELETE FROM t WHERE id = 1",
    )
    rows = [row[:4] for row in source.rows()]
    assert [(kind, key, n and str(n), s) for kind, key, n, s in rows] == [
        ("insert", 1, "1.50", "one"),
        ("insert", 2, None, None),
        ("update_preimage", 1, None, None),
        ("update_postimage", 1, "2.25", "one"),
        ("delete", 2, None, None),
        ("insert", 3, None, None),
        ("delete", 1, None, None),
    ]
    assert source.rows() == []


def test_rolled_back_nested_and_prepared_transactions(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    with psycopg.connect(fresh) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.rollback()
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("SAVEPOINT a")
        connection.execute("INSERT INTO t VALUES (3)")
        connection.execute("ROLLBACK TO a")
        connection.execute("SAVEPOINT b")
        connection.execute("INSERT INTO t VALUES (4)")
        (xid,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        connection.commit()
    run(fresh, "BEGIN; INSERT INTO t VALUES (5); PREPARE TRANSACTION 'later'")
    batch = source.read()
    assert shown(batch) == [("insert", 2), ("insert", 4)]
    assert batch.changes["t"][TRANSACTION].to_pylist() == [xid, xid]
    run(fresh, "COMMIT PREPARED 'later'")
    assert source.rows() == [("insert", 5)]


VALUES = """(1, true, -32768, 2147483647, 1.5, '-Infinity',
    123456789012345678901234567890.5000, -0.05,
    -9999999999999999999999999999.9999999999, 'q"\\{,} e', 'x', 'ab', '\\x00ff', '0044-03-15 BC',
    '23:59:59.120', '1969-12-31 23:59:59.999999', '9999-12-31 23:59:59.999+00', '{"a":  1}',
    '{"b": [1, null]}', '00112233-4455-6677-8899-aabbccddeeff', 'it''s ok', 1.5, '{1,NULL,3}',
    '{"a,b",NULL,"NULL","\\"q\\\\",""}', '{1.5,2.25}', '{sad,NULL}', 4294967295, '{}'"""
COLUMNS = """id bigint PRIMARY KEY, b boolean, i2 smallint, i4 integer, f4 real,
    f8 double precision, n numeric, n12 numeric(12,2), n38 numeric(38,10), t text, v varchar(20),
    c char(5), by bytea, d date, tm time, ts timestamp, tsz timestamptz(3), j json, jb jsonb,
    u uuid, m mood, p price, ia int[], ta text[], na numeric(6,2)[], ma mood[], o oid,
    tsa timestamptz[]"""
SPELLED = (
    ", iv interval, tz timetz, r pair, ir int4range, ip inet, cash money, bits varbit, pa pair[],"
    ' host inet, hosts inet[], r0 pair, ch "char", pt point[]'
)
SPELLED_VALUES = """, '1 year 2 mons -3 days 04:05:06.7', '12:00+05:30', ROW(1, 'x,y'), '[1,5)',
    '10.0.0.1/8', 12.34, B'101', ARRAY[ROW(1,'q')::pair], '10.0.0.1', '{10.0.0.1,::1/64}',
    ROW(NULL, NULL), 'z',
    '{"(1,2)","(3,4)"}'"""


@pytest.mark.parametrize("spelled", [False, True], ids=["binary", "text"])
def test_the_log_and_the_snapshot_have_the_same_values(fresh, spelled):
    """Column by column, for every type that has one form here and two ways to arrive."""
    run(
        fresh,
        "DROP TYPE IF EXISTS mood, price, pair CASCADE",
        "CREATE TYPE mood AS ENUM ('sad', 'it''s ok')",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE TYPE pair AS (a int, b text)",
        f"CREATE TABLE t ({COLUMNS}{SPELLED if spelled else ''})",
    )
    source = Source(fresh, "t")
    values = VALUES + (SPELLED_VALUES if spelled else "") + ")"
    run(fresh, f"INSERT INTO t VALUES {values}", "INSERT INTO t (id) VALUES (2)")
    batch = source.read()
    logged = batch.changes["t"].drop_columns(list(OWN))
    table = source.database.open_table("t")
    [split] = table.splits(SplitOptions())
    chunk = table.read_chunk(split, None, max_rows=10, max_bytes=LARGE)
    assert source.log._binary is (not spelled), "the faster form where it can be, and only there"
    assert logged.schema == chunk.rows.schema == pa.schema(table.schema.schema.arrow)
    for name in logged.column_names:
        assert logged[name].combine_chunks() == chunk.rows[name].combine_chunks(), name
    assert not chunk.rows["tsa"][0].as_py()


def test_unchanged_toast_values_are_marked_and_filled_where_the_old_row_is_sent(fresh):
    run(
        fresh,
        "CREATE TABLE t (id int PRIMARY KEY, long text, n int)",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('x', 10000), 0)",
    )
    source = Source(fresh, "t")
    run(fresh, "UPDATE t SET n = 1", "UPDATE t SET id = 2")
    batch = source.read()
    assert batch.changes["t"][UNCHANGED].to_pylist() == [0, 0b10, 0, 0b10]
    assert [row[:2] + row[3:] for row in shown(batch)] == [
        ("update_preimage", 1, None), ("update_postimage", 1, 1),
        ("delete", 1, None), ("insert", 2, 1),
    ]  # fmt: skip
    run(fresh, "ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 2")
    batch = source.read()
    assert batch.changes["t"][UNCHANGED].to_pylist() == [0, 0]
    assert [len(value) for value in batch.changes["t"]["long"].to_pylist()] == [10000, 10000]


def test_replica_identities_of_each_kind(fresh):
    run(
        fresh,
        "CREATE TABLE by_index (a int NOT NULL, b text NOT NULL, c int PRIMARY KEY)",
        "CREATE UNIQUE INDEX ab ON by_index (b, a)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX ab",
        "CREATE TABLE bare (a int, b text)",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
    )
    source = Source(fresh, "by_index", "bare")
    assert source.schemas["by_index"].key == ("b", "a")
    assert source.schemas["bare"].key == ()
    run(
        fresh,
        "INSERT INTO by_index VALUES (1, 'x', 10)",
        "UPDATE by_index SET c = 11",
        "UPDATE by_index SET b = 'y'",
        "DELETE FROM by_index",
        "INSERT INTO bare VALUES (1, 'p'), (1, 'p')",
        "UPDATE bare SET b = 'q' WHERE ctid = '(0,1)'",
        "DELETE FROM bare WHERE b = 'p'",
    )
    batch = source.read()
    assert shown(batch, "by_index") == [
        ("insert", 1, "x", 10),
        ("update_preimage", 1, "x", None), ("update_postimage", 1, "x", 11),
        ("delete", 1, "x", None), ("insert", 1, "y", 11),
        ("delete", 1, "y", None),
    ]  # fmt: skip
    assert shown(batch, "bare") == [
        ("insert", 1, "p"), ("insert", 1, "p"),
        ("update_preimage", 1, "p"), ("update_postimage", 1, "q"),
        ("delete", 1, "p"),
    ]  # fmt: skip


def test_partitions_speak_under_the_name_of_their_root(fresh):
    run(
        fresh,
        "CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )
    source = Source(fresh, "t")
    run(fresh, "INSERT INTO t VALUES (1), (11)", "UPDATE t SET k = 12 WHERE k = 1")
    assert source.rows() == [("insert", 1), ("insert", 11), ("delete", 1), ("insert", 12)]


def test_quoted_names_and_other_tables(fresh):
    run(
        fresh,
        'CREATE SCHEMA "Odd"',
        'CREATE TABLE "Odd"."T.x" ("K ey" int PRIMARY KEY)',
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    name = '"Odd"."T.x"'
    source = Source(fresh, name)
    run(fresh, "INSERT INTO other VALUES (1)", f"INSERT INTO {name} VALUES (7)")
    assert source.rows(name) == [("insert", 7)]
    run(fresh, 'DROP SCHEMA "Odd" CASCADE')


def test_one_order_over_all_tables_and_whole_transactions(fresh):
    run(fresh, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    source = Source(fresh, "a", "b")
    run(
        fresh,
        "BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1);"
        "INSERT INTO a VALUES (2); COMMIT",
    )
    batch = source.read()
    a, b = batch.changes["a"], batch.changes["b"]
    assert a[SEQ][0].as_py() < b[SEQ][0].as_py() < a[SEQ][1].as_py()
    assert len({*a[TRANSACTION].to_pylist(), *b[TRANSACTION].to_pylist()}) == 1


def test_batches_are_bounded_whole_and_repeatable(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, pad text)")
    source = Source(fresh, "t")
    for begin in range(0, 6000, 500):
        run(
            fresh,
            "INSERT INTO t SELECT i, repeat('x', 100)"
            f" FROM generate_series({begin}, {begin + 499}) i",
        )
    seen, steps = [], 0
    while True:
        before = source.at
        batch = source.read(max_bytes=50_000)
        again = source.reopened().read(before, max_bytes=50_000)
        least = min(len(shown(again)), len(shown(batch)))
        assert least >= 500
        assert shown(again)[:least] == shown(batch)[:least]
        counts = len(shown(batch))
        assert counts % 500 == 0, "transactions stay whole"
        assert counts <= 500, "and a batch is bounded"
        seen += [row[1] for row in shown(batch)]
        steps += 1
        if not batch.more:
            break
    assert seen == list(range(6000))
    assert steps >= 12
    everything = source.reopened().read(source.start, max_bytes=LARGE)
    assert [row[1] for row in shown(everything)] == list(range(6000))


def test_a_transaction_larger_than_the_bound_comes_whole_and_alone(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, pad text)")
    source = Source(fresh, "t")
    run(
        fresh,
        "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i",
        *(
            f"INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series({i}, {i + 99}) i"
            for i in range(20_001, 22_001, 100)
        ),
    )
    first = source.read(max_bytes=100_000)
    assert first.changes["t"].num_rows >= 20_000
    assert first.more
    total = first.changes["t"].num_rows + len(source.rows())
    assert total == 22_000


def test_the_place_moves_on_while_our_tables_are_idle(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE noise (x text)")
    source = Source(fresh, "t")
    for _ in range(3):
        run(fresh, "INSERT INTO noise SELECT repeat('z', 100) FROM generate_series(1, 40000)")
    held = source.database.survey(None).retained_bytes
    batch = source.read()
    assert batch.changes == {}
    assert batch.offset.lsn - source.start.lsn > 10_000_000
    source.log.acknowledge(batch.offset)
    [[confirmed]] = run(fresh, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    assert PostgresOffset.of(confirmed) == batch.offset
    run(fresh, "CHECKPOINT", "INSERT INTO noise VALUES ('')")
    run(fresh, "INSERT INTO t VALUES (1)")
    assert source.rows() == [("insert", 1)]
    assert source.log.current() >= source.at
    source.log.acknowledge(source.at)
    source.log.acknowledge(source.start)
    assert source.database.survey(None).retained_bytes is not None
    assert held > 10_000_000


def test_acknowledging_moves_the_slot_only_now_and_then(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
    before = run(fresh, confirmed)
    run(fresh, "INSERT INTO t VALUES (1)")
    assert source.rows() == [("insert", 1)]
    source.log.acknowledge(source.at)
    assert run(fresh, confirmed) == before
    source.now += 11
    source.log.acknowledge(source.at)
    assert run(fresh, confirmed) != before
    assert source.rows() == []


def test_a_finished_peek_of_another_session_holds_nothing(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    run(fresh, "INSERT INTO t VALUES (1)")
    with psycopg.connect(fresh) as other:
        other.execute(
            "DECLARE c CURSOR FOR SELECT * FROM pg_logical_slot_peek_binary_changes("
            "'headwater_test', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'headwater_test')"
        )
        other.execute("FETCH 1 FROM c")
        assert source.rows() == [("insert", 1)]
    run(fresh, "INSERT INTO t VALUES (2)")
    assert source.rows() == [("insert", 2)]


def test_the_connection_may_break_at_any_time(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    source.read()
    run(
        fresh,
        "INSERT INTO t VALUES (1)",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'headwater'",
    )
    with pytest.raises(SourceUnavailable):
        source.read()
    assert source.rows() == [("insert", 1)]


def test_bytes_that_are_no_utf8_are_refused_by_name(fresh):
    run(
        fresh,
        "CREATE DATABASE loose ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    loose = fresh.rsplit("/", 1)[0] + "/loose"
    try:
        run(loose, "CREATE TABLE t (id int PRIMARY KEY, name text)")
        source = Source(loose, "t")
        run(
            loose,
            "SET client_encoding = 'SQL_ASCII'; INSERT INTO t VALUES (1, 'ok'), (2, E'caf\\351')",
        )
        with pytest.raises(SchemaError, match='column "name" of t'):
            source.read()
        lenient = options_of(loose, unrepresentable_values="null")
        log = PostgresLog(lenient, source.schemas)
        assert shown(log.read(source.start, max_bytes=LARGE)) == [
            ("insert", 1, "ok"), ("insert", 2, None),
        ]  # fmt: skip
        log.close()
        source.log.close()
        source.database.drop()
    finally:
        run(fresh, "DROP DATABASE loose WITH (FORCE)")
