"""Sinks into real MariaDB and MySQL: the contract, every type, other tables, what breaks."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pymysql
import pytest

from headwater.errors import ConfigError, Fenced, SchemaError, SinkUnavailable, UserError
from headwater.model.epoch import NO_EPOCH
from headwater.model.schema import Column
from headwater.model.types import BIGINT, DATE, DOUBLE, NUMERIC, TIMESTAMP, VARCHAR, decimal
from headwater.sinks.jdbc import jdbc_sink
from headwater.sinks.mysql import sink as mysql_module
from headwater.sinks.mysql.connecting import Session
from headwater.sinks.mysql.sink import mysql_sink
from headwater.sinks.sink import SinkKind
from headwater.testing.sink_kit import CHECKS, run_check
from mysql_servers import SERVERS
from sql_sink_kit import (
    DELETE,
    EVERY_COLUMN,
    EVERY_ROW,
    INSERT,
    KILLED_CHILD,
    MySqlYard,
    batch_of,
    bring,
    delivery_of,
    spec_of,
    started,
)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def mariadb():
    with SERVERS["mariadb"]() as running:
        running.run("SET GLOBAL local_infile = 1")
        yield MySqlYard(running)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def yard(request):
    if request.param == "mariadb":
        yield request.getfixturevalue("mariadb")
        return
    with SERVERS["mysql"]("--local-infile=ON") as running:
        yield MySqlYard(running)


@pytest.fixture(params=["LOAD DATA", "INSERT"])
def way(request, monkeypatch):
    if request.param == "INSERT":
        made = Session.__init__

        def without_files(self, target):
            made(self, target)
            self.takes_files = False

        monkeypatch.setattr(Session, "__init__", without_files)
    return request.param


class Case:
    def __init__(self, yard, kind):
        self.yard, self.kind = yard, kind

    def make(self, spec):
        return mysql_sink(replace(spec, options=self.yard.options(spec.ident)))

    def rows(self, spec):
        return self.yard.run(f"SELECT id, name, quantity FROM {spec.ident}")

    def stop_target(self):
        self.yard.stop()

    def start_target(self):
        self.yard.server.start()


@pytest.mark.parametrize("kind", [SinkKind.UPSERT, SinkKind.APPEND_ONLY])
@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_of_sinks(mariadb, check, kind):
    run_check(Case(mariadb, kind), check)


# -- values


def test_every_type_comes_back_exactly(yard, way):
    table = f"all_types_{way[:4].lower()}"
    spec = spec_of(table, yard.options(table), columns=EVERY_COLUMN)
    sink = started(mysql_sink, spec)
    for epoch, new in ((1, True), (2, False)):
        # First straight into the table, then through the temporary one: the same keys again.
        bring(sink, spec, epoch, *((INSERT, *row) for row in EVERY_ROW), new=new)
        shown = [f"`{c.name}` * 1e0" if c.name == "float4" else f"`{c.name}`" for c in EVERY_COLUMN]
        found = yard.run(f"SELECT {', '.join(shown)} FROM {table} ORDER BY id")
        for row, expected in zip(found, EVERY_ROW, strict=True):
            for column, ours, theirs in zip(EVERY_COLUMN, expected, row, strict=True):
                assert _as_read(column.name, ours) == _plain(column.name, theirs), column.name
    sink.close()


_JSON = {"doc", "tags", "numbers", "grid", "pair"}


def _time(value):
    hours, minutes, seconds = value.split(":")
    return timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))


_READ = {
    "float4": lambda value: pa.scalar(value, pa.float32()).as_py(),
    "any_number": Decimal,
    "clock": _time,
    "instant": lambda value: value.replace(tzinfo=None),
    "doc": json.loads,
    "numbers": lambda value: [each and str(each.quantize(Decimal("0.001"))) for each in value],
}


def _as_read(name, value):
    return None if value is None else _READ.get(name, lambda same: same)(value)


def _plain(name, value):
    if value is not None and name in _JSON:
        return json.loads(value)
    return bool(value) if name == "flag" and value is not None else value


def test_what_has_no_place_there_is_named(yard, way):
    table = f"no_place_{way[:4].lower()}"
    columns = [Column("id", BIGINT), Column("f", DOUBLE), Column("n", NUMERIC), Column("d", DATE),
               Column("t", TIMESTAMP), Column("w", VARCHAR)]  # fmt: skip
    spec = spec_of(table, yard.options(table), columns=columns)
    fine = (1, 1.5, "1", date(2024, 1, 1), datetime.fromisoformat("2024-01-01"), "w")
    yard.run(
        f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, f DOUBLE NOT NULL, n DECIMAL(10,2), d DATE, "
        "t DATETIME(6), w VARCHAR(5) CHARACTER SET latin1)"
    )
    sink = started(mysql_sink, spec)
    cases = {
        "f": [float("nan"), float("inf"), None],
        "n": ["1.005", "123456789.00", "NaN"],
        "w": ["longer", "漢"],
    }
    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    for new in (True, False):
        for column, values in cases.items():
            place = [c.name for c in columns].index(column)
            for value in values:
                bad = (INSERT, 7, *fine[1:place], value, *fine[place + 1 :])
                batches = [batch_of(spec, (INSERT, *fine)), batch_of(spec, bad)]
                with pytest.raises(UserError) as caught:
                    sink.deliver(delivery_of(spec, 1, rows=2, new=new), iter(batches))
                assert "(id) = (7)" in str(caught.value), value
                assert f'"{column}"' in str(caught.value), value
                assert yard.run(f"SELECT * FROM {table}") == []
        late = batch_of(spec, (INSERT, *fine)).set_column(4, "d", far)
        with pytest.raises(SchemaError, match='"d"'):
            sink.deliver(delivery_of(spec, 1, new=new), [late])
    bring(sink, spec, 1, (INSERT, *fine))
    assert len(yard.run(f"SELECT * FROM {table}")) == 1
    sink.close()


def test_keys_that_differ_in_case_and_spaces_are_different(yard):
    columns = [Column("k", VARCHAR), Column("n", decimal(5, 1)), Column("v", VARCHAR)]
    spec = spec_of("exact_keys", yard.options("exact_keys"), columns=columns, key=("k", "n"))
    sink = started(mysql_sink, spec)
    keys = ["a", "A", "a ", "ä", "", " "]
    rows = [(INSERT, key, Decimal("1.5"), f"<{key}>") for key in keys]
    bring(sink, spec, 1, *rows, new=True)
    bring(sink, spec, 2, *rows)
    assert sorted(yard.run("SELECT k, v FROM exact_keys")) == sorted((k, f"<{k}>") for k in keys)
    bring(sink, spec, 3, (DELETE, "a", Decimal("1.5"), None))
    assert {k for (k,) in yard.run("SELECT k FROM exact_keys")} == set(keys) - {"a"}
    sink.close()
    yard.run("CREATE TABLE blurred (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n "
             "DECIMAL(5,1), v TEXT)")  # fmt: skip
    blurred = mysql_sink(spec_of("blurred", yard.options("blurred"), columns=columns, key=("k",)))
    with pytest.raises(SchemaError, match="takes different texts as equal") as caught:
        blurred.check()
    yard.run(caught.value.hint)
    blurred.check()
    blurred.close()


# -- changes


def test_deletes_updates_and_keys_that_move(yard, way):
    table = f"moves_{way[:4].lower()}"
    spec = spec_of(table, yard.options(table))
    sink = started(mysql_sink, spec)
    bring(sink, spec, 1, *((INSERT, n, f"n{n}", n) for n in range(5)), new=True)
    bring(
        sink, spec, 2,
        (DELETE, 0, None, None), (DELETE, 1, "n1", 1), (DELETE, 77, None, None),
        (INSERT, 10, "n1", 1), (INSERT, 2, None, 22), (INSERT, 3, "n3", 3),
    )  # fmt: skip
    expected = [(2, None, 22), (3, "n3", 3), (4, "n4", 4), (10, "n1", 1)]
    assert yard.rows(table) == expected
    # What was thought new is there already: it is replaced.
    flowing = iter([batch_of(spec, (INSERT, n, "new", n)) for n in (3, 20)])
    sink.deliver(delivery_of(spec, 3, after=2, rows=2, new=True), flowing)
    assert yard.rows(table) == [expected[0], (3, "new", 3), *expected[2:], (20, "new", 20)]
    sink.close()


def test_a_row_in_the_way_by_another_unique_key_is_not_overwritten(mariadb):
    mariadb.run("CREATE TABLE two_keys (id BIGINT PRIMARY KEY, name VARCHAR(20) UNIQUE, "
                "quantity INT)")  # fmt: skip
    spec = spec_of("two_keys", mariadb.options("two_keys"))
    sink = started(mysql_sink, spec)
    bring(sink, spec, 1, (INSERT, 1, "a", 1), (INSERT, 2, "b", 2))
    with pytest.raises(UserError, match="Duplicate entry 'a'"):
        bring(sink, spec, 2, (INSERT, 3, "a", 3))
    # Two rows that swap what is unique are no conflict.
    bring(sink, spec, 2, (INSERT, 1, "b", 1), (INSERT, 2, "a", 2))
    assert mariadb.rows("two_keys") == [(1, "b", 1), (2, "a", 2)]
    sink.close()


def test_an_append_only_sink_says_which_key_is_there(mariadb, way):
    table = f"appended_{way[:4].lower()}"
    mariadb.run(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name LONGTEXT, quantity INT)")
    spec = spec_of(table, mariadb.options(table), kind=SinkKind.APPEND_ONLY)
    sink = started(mysql_sink, spec)
    bring(sink, spec, 1, *((INSERT, n, "x" * 400, n) for n in range(5000)))
    with pytest.raises(UserError, match="Duplicate entry '4999'") as caught:
        bring(sink, spec, 2, *((INSERT, n, "y" * 400, n) for n in range(9999, 4998, -1)))
    assert "upsert" in caught.value.hint
    assert mariadb.run(f"SELECT count(*), min(name), max(name) FROM {table}") == [
        (5000, "x" * 400, "x" * 400)
    ]
    sink.close()


def test_a_server_without_local_infile_is_written_to_by_insert(mariadb, caplog):
    mariadb.run("SET GLOBAL local_infile = 0")
    try:
        spec = spec_of("no_files", mariadb.options("no_files"))
        sink = started(mysql_sink, spec)
        with caplog.at_level(logging.WARNING):
            bring(sink, spec, 1, *((INSERT, n, "O'Brien\\\n\0", n) for n in range(2000)))
        assert "local_infile is off" in caplog.text
        assert mariadb.rows("no_files") == [(n, "O'Brien\\\n\0", n) for n in range(2000)]
        sink.close()
    finally:
        mariadb.run("SET GLOBAL local_infile = 1")


# -- exactly once


def test_begin_waits_for_a_delivery_and_ends_one_that_does_not_move(yard, monkeypatch):
    monkeypatch.setattr(mysql_module, "_TAKEOVER_S", 1)
    spec = spec_of("frozen", yard.options("frozen"))
    old, new = started(mysql_sink, spec), mysql_sink(spec)
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
    assert yard.rows("frozen") == [(1, "a", 1), (2, "b", 2)]
    old.close()
    new.close()


def _kill(yard, name):
    [(holder,)] = yard.run(f"SELECT IS_USED_LOCK('headwater sink {name}')")
    yard.kill({holder})


def test_a_session_that_is_killed_in_the_middle_leaves_nothing(mariadb):
    spec = spec_of("killed", mariadb.options("killed"))
    sink = started(mysql_sink, spec)

    def rows():
        yield batch_of(spec, *((INSERT, n, "x" * 50, n) for n in range(1000)))
        _kill(mariadb, "killed")
        yield from (batch_of(spec, (INSERT, n, "y", n)) for n in range(1000, 1100))

    for new in (True, False):
        with pytest.raises(SinkUnavailable):
            sink.deliver(delivery_of(spec, 1, rows=1100, new=new), rows())
        assert mariadb.rows("killed") == []
    assert sink.begin(1) == NO_EPOCH
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    # A connection that goes while nothing is under way is simply made again.
    mariadb.kill(mariadb.others())
    bring(sink, spec, 2, (INSERT, 2, "b", 2))
    assert mariadb.rows("killed") == [(1, "a", 1), (2, "b", 2)]
    sink.close()


def test_a_commit_whose_answer_is_lost_is_not_written_twice(mariadb, monkeypatch):
    spec = spec_of("unknown", mariadb.options("unknown"), kind=SinkKind.APPEND_ONLY)
    sink = started(mysql_sink, spec)
    execute = Session.execute

    def lost(self, statement, values=()):
        answer = execute(self, statement, values)
        if statement == "COMMIT":
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Session, "execute", lost)
        with pytest.raises(SinkUnavailable):
            bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert sink.begin(2) == 1
    bring(sink, spec, 1, (INSERT, 1, "a", 1), term=2)
    assert mariadb.rows("unknown") == [(1, "a", 1)]
    sink.close()


def test_an_engine_that_is_killed_in_the_middle_leaves_nothing(mariadb):
    options = mariadb.options("child")
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED_CHILD.format(room="mysql", options=options)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    spec = spec_of("child", options, kind=SinkKind.APPEND_ONLY)
    sink = mysql_sink(spec)
    assert sink.begin(2) == NO_EPOCH
    assert mariadb.rows("child") == []
    bring(sink, spec, 1, *((INSERT, n, "child", n) for n in range(100)), term=2)
    assert mariadb.rows("child") == [(n, "child", n) for n in range(100)]
    sink.close()


# -- what is wrong


def test_tables_that_do_not_fit_are_said_with_what_mends_them(yard):
    wrong = {
        "id BIGINT PRIMARY KEY, name LONGTEXT": "quantity",
        "id BIGINT PRIMARY KEY, name LONGTEXT, quantity SMALLINT": "quantity",
        "id BIGINT PRIMARY KEY, name CHAR(5), quantity INT": "name",
        "id BIGINT, name LONGTEXT, quantity INT": "unique key",
        "id BIGINT PRIMARY KEY, name LONGTEXT, quantity INT UNSIGNED": "quantity",
        "id BIGINT PRIMARY KEY, name LONGTEXT, quantity INT, more INT NOT NULL": "more",
        "id BIGINT PRIMARY KEY, name LONGTEXT, quantity INT) ENGINE = (MyISAM": "no transactions",
    }
    for number, (columns, about) in enumerate(wrong.items()):
        table = f"wrong_{number}"
        statement = f"CREATE TABLE {table} ({columns})".replace("= (MyISAM)", "= MyISAM")
        yard.run(statement)
        spec = spec_of(table, yard.options(table))
        sink = mysql_sink(spec)
        with pytest.raises(UserError, match=about) as caught:
            sink.check()
        yard.run(caught.value.hint)
        sink.check()
        sink.begin(1)
        bring(sink, spec, 1, (INSERT, 1, "a", 100_000))
        assert yard.rows(table) == [(1, "a", 100_000)]
        sink.close()


def test_a_missing_table_is_created_only_where_that_is_wanted(mariadb):
    spec = spec_of("absent", mariadb.options("absent", create_table="false"))
    sink = mysql_sink(spec)
    with pytest.raises(UserError, match="absent") as caught:
        sink.check()
    mariadb.run(caught.value.hint)
    sink.check()
    mariadb.run("CREATE VIEW a_view AS SELECT * FROM absent")
    with pytest.raises(UserError, match="no table"):
        mysql_sink(spec_of("v", mariadb.options("a_view"))).check()
    sink.begin(1)
    mariadb.run("DROP VIEW a_view", "DROP TABLE absent")
    for new in (True, False):
        with pytest.raises(UserError):
            bring(sink, spec, 1, (INSERT, 1, "a", 1), new=new)
    mariadb.run(caught.value.hint)
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert mariadb.rows("absent") == [(1, "a", 1)]
    sink.close()


def test_who_may_not_is_told_so_and_no_password_is_shown(yard):
    yard.run(
        "CREATE USER guest@'%' IDENTIFIED BY 'wonderland-77'",
        "CREATE TABLE guarded (id BIGINT PRIMARY KEY, name LONGTEXT, quantity INT)",
        "GRANT SELECT ON shop.* TO guest@'%'",
    )
    secret = {"user": "guest", "password": "wonderland-77", "ssl_mode": "preferred"}
    spec = spec_of("guarded", yard.options("guarded", **secret))
    sink = mysql_sink(spec)
    with pytest.raises(UserError, match="guest") as caught:
        sink.check()
    yard.run(caught.value.hint)
    sink.close()
    sink.check()
    assert sink.begin(1) == NO_EPOCH
    wrong = mysql_sink(spec_of("g", {**spec.options, "password": "looking-glass-9"}))
    with pytest.raises(UserError, match="does not let user") as refused:
        wrong.check()
    for shown in (repr(sink.__dict__), repr(spec), str(caught.value), str(refused.value)):
        assert "wonderland" not in shown
        assert "looking" not in shown
    sink.close()


def test_options_that_are_wrong_and_servers_that_are_not_there(mariadb):
    good = mariadb.options("t")
    with pytest.raises(ConfigError, match='no option "tabel"'):
        mysql_sink(spec_of("o", {**good, "tabel": "x"}))
    with pytest.raises(ConfigError, match="primary key not defined"):
        mysql_sink(spec_of("o", good, key=()))
    with pytest.raises(UserError, match="no database"):
        mysql_sink(spec_of("o", {**good, "database": "nowhere"})).check()
    for away in ({"port": "1"}, {"host": "nowhere.invalid"}):
        with pytest.raises(SinkUnavailable, match="cannot be used now"):
            mysql_sink(spec_of("o", {**good, **away, "connect.timeout": "2"})).check()


def test_the_last_sink_takes_the_table_of_progress_with_it(mariadb):
    mariadb.run("CREATE DATABASE ours")
    sinks = [
        started(mysql_sink, spec_of(name, mariadb.options(name, progress_database="ours")))
        for name in ("drop_a", "drop_b")
    ]
    sinks[0].drop()
    assert mariadb.run("SELECT sink FROM ours.headwater_sink_progress") == [("drop_b",)]
    sinks[1].drop()
    assert not mariadb.run("SHOW TABLES FROM ours")
    for sink in sinks:
        sink.drop()
        sink.close()


def test_a_jdbc_url_leads_to_the_same_table(mariadb):
    url = f"jdbc:mariadb://127.0.0.1:{mariadb.server.port}/shop?user=root&useSSL=false"
    spec = spec_of("by_url", {"jdbc.url": url, "table.name": "by_url"})
    sink = started(jdbc_sink, spec)
    bring(sink, spec, 1, (INSERT, 1, "a", 1))
    assert mariadb.rows("by_url") == [(1, "a", 1)]
    sink.close()
