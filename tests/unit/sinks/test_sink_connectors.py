"""Connectors by name, the sink that keeps nothing, and the sink that a user writes."""

import contextlib
import pickle
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headwater.errors import ConfigError, UserError
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.sinks import connectors
from headwater.sinks.connectors import CONNECTORS, find_sink, make_sink
from headwater.sinks.sink import SinkKind, StagedSink, TransactionalSink
from headwater.testing.sink_kit import run_all
from headwater.testing.sink_rows import History, new_spec
from sink_targets import Case, FileSink, TableSink


def spec(**options):
    return replace(new_spec("mine", SinkKind.UPSERT), options=options)


def test_a_wrong_name_says_what_there_is():
    with pytest.raises(ConfigError, match='no sink connector "kafak"') as raised:
        find_sink("kafak")
    assert raised.value.hint == 'Did you mean "kafka"?'
    with pytest.raises(ConfigError) as raised:
        find_sink("xyzzy")
    assert all(name in raised.value.hint for name in ("jdbc", "iceberg", "webhook"))


def test_a_jdbc_url_says_which_database():
    given = {"jdbc.url": "jdbc:oracle:thin:secret@h", "table.name": "t"}
    with pytest.raises(ConfigError) as raised:
        make_sink("jdbc", spec(**given))
    assert "secret" not in str(raised.value)
    for url, kind in (("jdbc:postgresql://h/d", "Postgres"), ("jdbc:mariadb://h/d", "MySql")):
        sink = make_sink("JDBC", spec(**{"jdbc.url": f"{url}?user=u", "table.name": "t"}))
        assert kind in type(sink).__name__


def test_a_connector_that_cannot_be_imported_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "headwater.sinks.blackhole", None)
    with pytest.raises(ConfigError, match="cannot be loaded") as raised:
        find_sink("blackhole")
    assert "blackhole" in raised.value.detail


def test_others_may_bring_connectors(monkeypatch):
    class Point:
        name = "theirs"

        def load(self):
            return TableSink

    monkeypatch.setattr(connectors, "entry_points", lambda group: [Point()])
    assert find_sink("theirs") is TableSink
    assert "theirs" not in CONNECTORS


def test_a_blackhole_counts():
    sink = find_sink("blackhole")(spec())
    assert isinstance(sink, TransactionalSink)
    owed = History(spec(), Random(1)).next(Term(1), changes=30)
    sink.deliver(owed.delivery, [batch for part in owed.parts(3) for batch in part])
    assert (sink.rows, sink.deliveries, sink.begin(Term(1))) == (31, 1, 0)
    with pytest.raises(ConfigError, match="no option"):
        find_sink("blackhole")(spec(speed="high"))


class Staging(FileSink):
    """As a user writes it: made of its spec, with options of its own."""

    def __init__(self, spec):
        super().__init__(spec, Path(spec.options["folder"]))
        self.unpicklable = contextlib.closing(sqlite3.connect(":memory:"))


class Delivering(TableSink):
    def __init__(self, spec):
        super().__init__(spec, Path(spec.options["folder"]))


class Minimal:
    def __init__(self, spec):
        self.options = spec.options

    def prepare(self, delivery, part, rows):
        return self.options["answer"] if part else b"ok"

    def commit(self, delivery, receipts):
        raise ValueError("no room")


class Neither:
    def prepare(self, delivery, part, rows):
        pass


@pytest.mark.parametrize("name", ["Staging", "Delivering"])
def test_a_class_of_the_users_passes_the_kit(name, tmp_path):
    class PythonCase(Case):
        def make(self, spec):
            options = {"class": f"{__name__}:{name}", "folder": str(tmp_path)}
            return find_sink("python")(replace(spec, options=options))

    run_all(PythonCase(None, tmp_path, SinkKind.UPSERT))


def test_what_a_class_leaves_out_and_what_it_does_wrong():
    sink = find_sink("python")(spec(**{"class": f"{__name__}:Minimal", "answer": "text"}))
    sink = pickle.loads(pickle.dumps(sink))
    assert isinstance(sink, StagedSink)
    sink.check()
    sink.drop()
    assert sink.begin(Term(1)) == 0
    delivery = History(spec(), Random(1)).next(Term(1)).delivery
    sink.abort(delivery, [])
    assert sink.prepare(delivery, 0, []) == b"ok"
    with pytest.raises(UserError, match='of sink "mine" failed in prepare') as raised:
        sink.prepare(delivery, 1, [])
    assert "returned str, not bytes" in raised.value.detail
    with pytest.raises(UserError, match="failed in commit") as raised:
        sink.commit(delivery, [b"ok"])
    assert "ValueError: no room" in raised.value.detail
    assert delivery.epoch > Epoch(0)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("", 'needs the option "class"'),
        ("nonsense", "does not name a class"),
        ("no.such.module:Sink", "cannot be imported"),
        ("json:Sink", "module json has no Sink"),
        ("json:dumps", "is not a class"),
        (f"{__name__}:Neither", "has no commit"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_the_reason(place, complaint):
    with pytest.raises(ConfigError, match=complaint):
        find_sink("python")(spec(**{"class": place}))
