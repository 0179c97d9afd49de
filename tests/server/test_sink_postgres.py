"""Sinks into a real PostgreSQL: the contract, every type, other tables, and what breaks."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from headwater.errors import (
    BrokenInvariant,
    ConfigError,
    Fenced,
    SchemaError,
    SinkUnavailable,
    UserError,
)
from headwater.model.epoch import NO_EPOCH
from headwater.model.schema import Column
from headwater.model.types import BIGINT, DATE, DOUBLE, NUMERIC, REAL, TIMESTAMP
from headwater.sinks.jdbc import jdbc_sink
from headwater.sinks.postgres.sink import postgres_sink
from headwater.sinks.sink import SinkKind
from headwater.testing.sink_kit import CHECKS, run_check
from sql_sink_kit import (
    DELETE,
    EVERY_COLUMN,
    EVERY_ROW,
    INSERT,
    KILLED_CHILD,
    batch_of,
    bring,
    delivery_of,
    restartable_postgres,
    spec_of,
    started,
)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server():
    with restartable_postgres() as running:
        yield running


class Case:
    def __init__(self, server, kind):
        self.server, self.kind = server, kind

    def make(self, spec):
        return postgres_sink(replace(spec, options=self.server.options(spec.ident)))

    def rows(self, spec):
        return self.server.run(f"SELECT id, name, quantity FROM {spec.ident}")

    def stop_target(self):
        self.server.stop()

    def start_target(self):
        self.server.start()


@pytest.mark.parametrize("kind", [SinkKind.UPSERT, SinkKind.APPEND_ONLY])
@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_of_sinks(server, check, kind):
    run_check(Case(server, kind), check)


# -- values


def test_every_type_comes_back_exactly(server):
    spec = spec_of("all_types", server.options("all_types"), columns=EVERY_COLUMN)
    sink = started(postgres_sink, spec)
    ways = {1: {"new": True}, 2: {"new": False}}
    for epoch, way in ways.items():
        # First straight into the table, then through the temporary one: the same keys again.
        bring(sink, spec, epoch, *((INSERT, *row) for row in EVERY_ROW), **way)
        texts = {"any_number", "clock", "span", "ident"}
        shown = [f'"{c.name}"::text' if c.name in texts else f'"{c.name}"' for c in EVERY_COLUMN]
        found = server.run(f"SELECT {', '.join(shown)} FROM all_types ORDER BY id")
        for row, expected in zip(found, EVERY_ROW, strict=True):
            for column, ours, theirs in zip(EVERY_COLUMN, expected, row, strict=True):
                assert _as_read(column.name, ours) == theirs, column.name
    types = dict(
        server.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'all_types'::regclass AND attnum > 0"
        )
    )
    assert types["wide"] == "numeric(38,10)"
    assert (types["tags"], types["numbers"], types["grid"]) == (
        "character varying[]",
        "numeric(10,3)[]",
        "jsonb",
    )
    sink.close()


def _as_read(name, value):
    if value is None:
        return None
    if name == "float4":
        return pytest.approx(value, rel=1e-7)
    if name == "doc":
        return json.loads(value)
    if name == "span":
        return {"00:00:00": "00:00:00"}.get(value, "1 year 2 mons -3 days +04:05:06.789")
    return value


def test_numbers_at_the_edges_and_times_that_python_does_not_have(server):
    columns = [Column("id", BIGINT), Column("f", DOUBLE), Column("r", REAL), Column("n", NUMERIC),
               Column("d", DATE), Column("t", TIMESTAMP)]  # fmt: skip
    spec = spec_of("edges", server.options("edges"), columns=columns)
    sink = started(postgres_sink, spec)
    huge = "9" * 400 + "." + "8" * 300
    micros = [-(2**62) // 30, 2**63 - 1 - 10**15, 0, 0]
    arrays = [
        pa.array([1] * 4, pa.int8()),
        pa.array([1, 2, 3, 4], pa.int64()),
        pa.array([float("nan"), float("inf"), float("-inf"), -0.0], pa.float64()),
        pa.array([float("nan"), float("inf"), 1e-45, -0.0], pa.float32()),
        pa.array(["NaN", huge, "-0.000", "Infinity"]),
        pa.array([-1_000_000, 10_000_000, 0, None], pa.int32()).cast(pa.date32()),
        pa.array(micros, pa.int64()).cast(pa.timestamp("us")),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=spec.arrow)
    sink.deliver(delivery_of(spec, 1, rows=4), [batch])
    found = server.run(
        "SELECT f::text, r::text, n::text, d - date '1970-01-01', "
        "(extract(epoch from t) * 1000000)::bigint FROM edges ORDER BY id"
    )
    assert found == [
        ("NaN", "NaN", "NaN", -1_000_000, micros[0]),
        ("Infinity", "Infinity", huge, 10_000_000, micros[1]),
        ("-Infinity", "1e-45", "0.000", 0, 0),
        ("-0", "-0", "Infinity", None, 0),
    ]
    sink.close()


# -- changes


def _rows(server, table):
    return sorted(server.run(f"SELECT id, name, quantity FROM {table}"))


def test_deletes_updates_and_keys_that_move(server):
    spec = spec_of("moves", server.options("moves"))
    sink = started(postgres_sink, spec)
    bring(sink, spec, 1, *((INSERT, n, f"n{n}", n) for n in range(5)), new=True)
    bring(
        sink, spec, 2,
        (DELETE, 0, None, None), (DELETE, 1, "n1", 1), (DELETE, 77, None, None),
        (INSERT, 10, "n1", 1), (INSERT, 2, None, 22), (INSERT, 3, "n3", 3),
    )  # fmt: skip
    assert _rows(server, "moves") == [(2, None, 22), (3, "n3", 3), (4, "n4", 4), (10, "n1", 1)]
    bring(sink, spec, 3, (DELETE, 10, None, None))
    assert _rows(server, "moves") == [(2, None, 22), (3, "n3", 3), (4, "n4", 4)]
    sink.close()


def test_rows_that_were_thought_new_replace_what_is_there(server):
    spec = spec_of("surprise", server.options("surprise"))
    sink = started(postgres_sink, spec)
    server.run("INSERT INTO surprise VALUES (2, 'there', 0), (9, 'stays', 9)")
    flowing = iter([batch_of(spec, (INSERT, n, "new", n)) for n in range(4)])
    sink.deliver(delivery_of(spec, 1, rows=4, new=True), flowing)
    assert _rows(server, "surprise") == [(n, "new", n) for n in range(4)] + [(9, "stays", 9)]
    sink.close()


def test_an_append_only_sink_says_which_key_is_there(server):
    spec = spec_of("appended", server.options("appended"), kind=SinkKind.APPEND_ONLY)
    server.run("CREATE TABLE appended (id bigint PRIMARY KEY, name text, quantity int)")
    sink = started(postgres_sink, spec)
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    with pytest.raises(UserError, match=r"\(id\)=\(1\)") as caught:
        bring(sink, spec, 2, (INSERT, 2, "b", 2), (INSERT, 1, "c", 3))
    assert caught.value.sqlstate == "23505"
    assert _rows(server, "appended") == [(1, "a", 1)]
    server.run("DELETE FROM appended")
    bring(sink, spec, 2, (INSERT, 2, "b", 2), (INSERT, 1, "c", 3))
    assert _rows(server, "appended") == [(1, "c", 3), (2, "b", 2)]
    sink.close()


def test_a_table_of_only_a_key_and_one_with_columns_of_others(server):
    spec = spec_of("only_key", server.options("only_key"), columns=[Column("id", BIGINT)])
    sink = started(postgres_sink, spec)
    for epoch in (1, 2):
        bring(sink, spec, epoch, (INSERT, 1), (INSERT, 2))
    assert sorted(server.run("SELECT * FROM only_key")) == [(1,), (2,)]
    sink.close()
    server.run(
        'CREATE SCHEMA "other\'s"',
        'CREATE TABLE "other\'s"."My ""table""" (extra int DEFAULT 5, quantity bigint, id numeric '
        "UNIQUE, name varchar(10))",
    )
    wider = spec_of("wider", server.options('My "table"', schema="other's"))
    sink = started(postgres_sink, wider)
    bring(sink, wider, 1, (INSERT, 1, "a", 1))
    server.run('UPDATE "other\'s"."My ""table""" SET extra = 6')
    bring(sink, wider, 2, (INSERT, 1, "b", 2))
    assert server.run('SELECT * FROM "other\'s"."My ""table"""') == [(6, 2, Decimal(1), "b")]
    with pytest.raises(SchemaError, match=r"\(id\) = \(3\)") as caught:
        bring(sink, wider, 3, (INSERT, 2, "fits", 2), (INSERT, 3, "far too long a name", 3))
    assert "name" in str(caught.value)
    sink.close()


# -- exactly once


def test_begin_waits_for_a_delivery_and_ends_one_that_does_not_move(server, monkeypatch):
    from headwater.sinks.postgres import sink as module

    monkeypatch.setattr(module, "_TAKEOVER_S", 1)
    spec = spec_of("frozen", server.options("frozen"))
    old, new = started(postgres_sink, spec), postgres_sink(spec)
    bring(old, spec, 1, (INSERT, 1, "a", 1))
    thawed, frozen, failed = threading.Event(), threading.Event(), []

    def rows():
        yield batch_of(spec, (INSERT, 2, "zombie", 2))
        frozen.set()
        thawed.wait(120)
        yield batch_of(spec, (INSERT, 3, "zombie", 3))

    def deliver():
        try:
            old.deliver(delivery_of(spec, 2, after=1, rows=2), rows())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert frozen.wait(60)
    assert new.begin(2) == 1
    thawed.set()
    thread.join(60)
    assert isinstance(failed[0], SinkUnavailable)
    with pytest.raises(Fenced):
        bring(old, spec, 2, (INSERT, 2, "zombie", 2))
    bring(new, spec, 2, (INSERT, 2, "b", 2), term=2)
    assert _rows(server, "frozen") == [(1, "a", 1), (2, "b", 2)]
    old.close()
    new.close()


def test_a_session_that_is_killed_in_the_middle_leaves_nothing(server):
    spec = spec_of("killed", server.options("killed"))
    sink = started(postgres_sink, spec)

    def rows():
        yield batch_of(spec, *((INSERT, n, "x" * 50, n) for n in range(1000)))
        server.run(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE application_name = 'headwater sink killed'"
        )
        yield from (batch_of(spec, (INSERT, n, "y", n)) for n in range(1000, 2000))

    for new in (True, False):
        with pytest.raises(SinkUnavailable):
            sink.deliver(delivery_of(spec, 1, rows=2000, new=new), rows())
        assert _rows(server, "killed") == []
    assert sink.begin(1) == NO_EPOCH
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    # A connection that goes while nothing is under way is simply made again.
    server.run(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name = 'headwater sink killed'"
    )
    bring(sink, spec, 2, (INSERT, 2, "b", 2))
    assert _rows(server, "killed") == [(1, "a", 1), (2, "b", 2)]
    sink.close()


def test_a_commit_whose_answer_is_lost_is_not_written_twice(server, monkeypatch):
    spec = spec_of("unknown", server.options("unknown"), kind=SinkKind.APPEND_ONLY)
    sink = started(postgres_sink, spec)
    execute = psycopg.Cursor.execute

    def lost(self, query, *arguments, **named):
        answer = execute(self, query, *arguments, **named)
        if query == "COMMIT":
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", lost)
        with pytest.raises(SinkUnavailable):
            bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert sink.begin(2) == 1
    bring(sink, spec, 1, (INSERT, 1, "a", 1), term=2)
    assert _rows(server, "unknown") == [(1, "a", 1)]
    sink.close()


def test_an_engine_that_is_killed_in_the_middle_leaves_nothing(server):
    options = server.options("child")
    script = KILLED_CHILD.format(room="postgres", options=options)
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    spec = spec_of("child", options, kind=SinkKind.APPEND_ONLY)
    sink = postgres_sink(spec)
    assert sink.begin(2) == NO_EPOCH
    assert _rows(server, "child") == []
    bring(sink, spec, 1, *((INSERT, n, "child", n) for n in range(100)), term=2)
    assert _rows(server, "child") == [(n, "child", n) for n in range(100)]
    sink.close()


def test_a_delivery_that_overlaps_is_refused_and_an_empty_one_leaves_its_trace(server):
    spec = spec_of("overlap", server.options("overlap"))
    sink = started(postgres_sink, spec)
    bring(sink, spec, 5, after=0)
    assert sink.begin(1) == 5
    with pytest.raises(BrokenInvariant, match="overlaps"):
        bring(sink, spec, 7, (INSERT, 1, "a", 1), after=3)
    assert _rows(server, "overlap") == []
    server.run("DELETE FROM headwater_sink_progress WHERE sink = 'overlap'")
    with pytest.raises(UserError, match="progress of sink overlap is gone") as caught:
        bring(sink, spec, 6, (INSERT, 1, "a", 1))
    server.run(caught.value.hint.partition(": ")[2].rstrip("."))
    bring(sink, spec, 6, (INSERT, 1, "a", 1))
    assert _rows(server, "overlap") == [(1, "a", 1)]
    sink.close()


# -- what is wrong


def test_tables_that_do_not_fit_are_said_with_what_mends_them(server):
    wrong = {
        "id bigint PRIMARY KEY, name text": "quantity",
        "id bigint PRIMARY KEY, name text, quantity smallint": "quantity",
        "id bigint PRIMARY KEY, name char(5), quantity int": "name",
        "id bigint, name text, quantity int": "unique key",
        "id bigint PRIMARY KEY, name text, quantity int, more int NOT NULL": "more",
    }
    for number, (columns, about) in enumerate(wrong.items()):
        table = f"wrong_{number}"
        server.run(f"CREATE TABLE {table} ({columns})")
        spec = spec_of(table, server.options(table))
        sink = postgres_sink(spec)
        with pytest.raises(UserError, match=about) as caught:
            sink.check()
        server.run(caught.value.hint)
        sink.check()
        sink.begin(1)
        bring(sink, spec, 1, (INSERT, 1, "a", 100_000))
        assert _rows(server, table)[0][0] == 1
        sink.close()


def test_a_missing_table_is_created_only_where_that_is_wanted(server):
    spec = spec_of("absent", server.options("absent", create_table="false"))
    sink = postgres_sink(spec)
    with pytest.raises(UserError, match="absent") as caught:
        sink.check()
    server.run(caught.value.hint)
    sink.check()
    server.run("CREATE VIEW a_view AS SELECT * FROM absent")
    with pytest.raises(UserError, match="no table"):
        postgres_sink(spec_of("v", server.options("a_view"))).check()
    sink.begin(1)
    server.run("DROP VIEW a_view", "DROP TABLE absent")
    with pytest.raises(UserError, match="absent"):
        bring(sink, spec, 1, (INSERT, 1, "a", 1))
    server.run(caught.value.hint)
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert _rows(server, "absent") == [(1, "a", 1)]
    sink.close()


def test_bad_values_are_named_by_column_and_key(server):
    server.run(
        "CREATE TABLE picky (id bigint PRIMARY KEY, name text NOT NULL, "
        "quantity int CHECK (quantity < 10))"
    )
    spec = spec_of("picky", server.options("picky"))
    sink = started(postgres_sink, spec)
    cases = [
        ((INSERT, 7, "zero\0byte", 1), r"(id) = (7)", "name"),
        ((INSERT, 8, None, 1), "8", "name"),
        ((INSERT, 9, "a", 11), "9", "quantity"),
        ((INSERT, None, "a", 1), "(id) = (None)", "id"),
    ]
    for new in (True, False):
        for row, key, column in cases:
            batches = [batch_of(spec, (INSERT, 1, "fine", 1)), batch_of(spec, row)]
            with pytest.raises(UserError) as caught:
                sink.deliver(delivery_of(spec, 1, rows=2, new=new), iter(batches))
            assert key in str(caught.value)
            assert column in str(caught.value)
            assert _rows(server, "picky") == []
    bring(sink, spec, 1, (INSERT, 1, "fine", 1))
    sink.close()


def test_who_may_not_is_told_so_and_no_password_is_shown(server):
    server.run(
        "CREATE ROLE guest LOGIN PASSWORD 'wonderland-77'",
        "REVOKE TEMPORARY ON DATABASE postgres FROM public",
        "CREATE TABLE guarded (id bigint PRIMARY KEY, name text, quantity int)",
    )
    secret = {"user": "guest", "password": "wonderland-77"}
    spec = spec_of("guarded", server.options("guarded", **secret))
    sink = postgres_sink(spec)
    for about in ("guarded", "headwater_sink_progress", "temporary"):
        with pytest.raises(UserError, match="guest") as caught:
            sink.check()
        assert about in caught.value.message
        server.run(caught.value.hint)
    sink.check()
    assert sink.begin(1) == NO_EPOCH
    for shown in (repr(sink), repr(spec), str(caught.value), repr(sink.__dict__)):
        assert "wonderland" not in shown
    sink.close()


def test_options_that_are_wrong_and_servers_that_are_not_there(server):
    good = server.options("t")
    with pytest.raises(ConfigError, match='no option "tabel"') as caught:
        postgres_sink(spec_of("o", {**good, "tabel": "x"}))
    assert "table" in caught.value.hint
    with pytest.raises(ConfigError, match="primary key not defined"):
        postgres_sink(spec_of("o", good, key=()))
    with pytest.raises(ConfigError, match="append-only and upsert"):
        postgres_sink(spec_of("o", good, kind=SinkKind.RETRACT))
    with pytest.raises(UserError, match="no database") as caught:
        postgres_sink(spec_of("o", {**good, "database": "nowhere"})).check()
    assert caught.value.sqlstate == "3D000"
    with pytest.raises(UserError, match="not let user"):
        postgres_sink(spec_of("o", {**good, "user": "nobody_known"})).check()
    for away in ({"port": "1"}, {"host": "nowhere.invalid"}):
        with pytest.raises(SinkUnavailable, match="cannot be used now"):
            postgres_sink(spec_of("o", {**good, **away, "connect.timeout": "2"})).check()


def test_the_last_sink_takes_the_table_of_progress_with_it(server):
    options = {"progress.schema": "ours"}
    server.run("CREATE SCHEMA ours")
    sinks = [
        started(postgres_sink, spec_of(name, {**server.options(name), **options}))
        for name in ("drop_a", "drop_b")
    ]
    sinks[0].drop()
    assert server.run("SELECT sink FROM ours.headwater_sink_progress") == [("drop_b",)]
    sinks[1].drop()
    assert server.run("SELECT to_regclass('ours.headwater_sink_progress')") == [(None,)]
    for sink in sinks:
        sink.drop()
        sink.close()


def test_a_jdbc_url_leads_to_the_same_table(server):
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=postgres&sslmode=disable"
    options = {"jdbc.url": url, "table.name": "by_url", "schema.name": "public"}
    spec = spec_of("by_url", options)
    sink = started(jdbc_sink, spec)
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert _rows(server, "by_url") == [(1, "a", 1)]
    sink.close()
