"""What a log says besides rows: schemas that change, tables that vanish, positions lost."""

import dataclasses

import pytest
from cdc_postgres_kit import VERSIONS, run, server
from cdc_postgres_source import LARGE, Source, clean, shown

from headwater.cdc.external_table import LogEventKind
from headwater.cdc.postgres import log as log_module
from headwater.cdc.postgres.slot import ServerIdentity
from headwater.errors import UserError
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


def test_a_new_column_is_an_event_before_its_first_change(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    source = Source(fresh, "t")
    run(
        fresh,
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t ADD b text DEFAULT 'd'",
        "INSERT INTO t VALUES (2, 2, 'two')",
        "INSERT INTO t VALUES (3, 3, 'three')",
    )
    first = source.read()
    assert (shown(first), first.events, first.more) == ([("insert", 1, 1)], (), True)
    at = source.at
    second = source.read()
    [event] = second.events
    assert (event.kind, event.table) == (LogEventKind.SCHEMA, "t")
    assert [(each.column.name, each.upstream_type) for each in event.schema.columns] == [
        ("id", "integer"), ("a", "integer"), ("b", "text"),
    ]  # fmt: skip
    assert event.schema.key == ("id",)
    assert event.seq <= second.changes["t"][SEQ][0].as_py()
    assert shown(second)[0] == ("insert", 2, 2, "two")
    # Reading again from before says it again; a log that knows the column does not.
    again = source.log.read(at, max_bytes=LARGE)
    assert again.events == second.events
    told = source.reopened({"t": event.schema}).read(at, max_bytes=LARGE)
    assert told.events == ()
    # The slot still stands before the change: older descriptions come again, and cut nothing.
    run(fresh, "INSERT INTO t VALUES (4, 4, 'four')", "INSERT INTO t VALUES (5, 5, 'five')")
    rest = source.read()
    assert [row[1] for row in shown(rest)] == [3, 4, 5]
    assert (rest.events, rest.more) == ((), False)


def test_ddl_in_the_middle_of_a_transaction(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    source = Source(fresh, "t")
    run(
        fresh,
        "BEGIN; INSERT INTO t VALUES (1, 1); ALTER TABLE t ADD b text;"
        "INSERT INTO t VALUES (2, 2, 'x'); ALTER TABLE t ALTER a TYPE bigint;"
        "INSERT INTO t VALUES (3, 5000000000, 'y'); COMMIT",
    )
    batch = source.read()
    assert shown(batch)[-1] == ("insert", 3, 5_000_000_000, "y")
    assert shown(batch)[0][:2] == ("insert", 1)
    assert {event.kind for event in batch.events} == {LogEventKind.SCHEMA}
    assert batch.events[-1].schema.schema["a"].type.postgres == "bigint"


def test_renamed_and_dropped_columns_are_events(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    source = Source(fresh, "t")
    run(
        fresh,
        "ALTER TABLE t RENAME id TO key",
        "ALTER TABLE t DROP a",
        "INSERT INTO t VALUES (1, 2)",
    )
    batch = source.read()
    [event] = batch.events
    assert [each.column.name for each in event.schema.columns] == ["key", "b"]
    assert event.schema.key == ("key",)
    run(fresh, "UPDATE t SET key = 5")
    assert source.rows() == [("delete", 1, None), ("insert", 5, 2)]


def test_truncate_and_drop_are_events(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    source = Source(fresh, "t", "u")
    run(fresh, "INSERT INTO t VALUES (1)", "TRUNCATE t", "INSERT INTO t VALUES (2)")
    batch = source.read()
    [event] = batch.events
    first, last = batch.changes["t"][SEQ].to_pylist()
    assert event.kind is LogEventKind.TRUNCATE
    assert first < event.seq <= last
    run(fresh, "DROP TABLE u")
    source.now += 60
    [event] = source.read().events
    assert (event.kind, event.table) == (LogEventKind.DROP, "u")
    run(fresh, "INSERT INTO t VALUES (3)")
    source.now += 60
    assert source.rows() == [("insert", 3)], "the others go on, and it is said once"


def test_a_table_keeps_its_changes_when_it_gets_another_name(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    run(fresh, "INSERT INTO t VALUES (1)")
    assert source.rows() == [("insert", 1)]
    # The slot moves on, so that the old name does not come again.
    run(fresh, f"SELECT pg_replication_slot_advance('headwater_test', '{source.at}')")
    run(fresh, "ALTER TABLE t RENAME TO t2", "INSERT INTO t2 VALUES (2)")
    assert source.rows() == [("insert", 2)], "until somebody notices and decides"


def test_a_table_that_leaves_the_publication_or_its_name_is_noticed(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    source.read()
    run(fresh, "ALTER PUBLICATION headwater_test DROP TABLE t", "INSERT INTO t VALUES (1)")
    source.now += 60
    with pytest.raises(UserError, match='no longer in publication "headwater_test"'):
        source.read()
    run(fresh, "ALTER PUBLICATION headwater_test ADD TABLE t", "ALTER TABLE t RENAME TO t2")
    source.now += 60
    with pytest.raises(UserError, match=r"another name now: public\.t2"):
        source.read()


def test_a_lost_position_stops_loudly_with_the_remedy(fresh):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    run(fresh, "INSERT INTO t VALUES (1)")
    end = source.log.current()
    run(fresh, f"SELECT pg_replication_slot_advance('headwater_test', '{end}')")
    with pytest.raises(UserError, match="moved past our position") as caught:
        source.read()
    assert "create the source and its tables again" in caught.value.hint
    identity = source.database.identity()
    assert source.reopened(identity=identity).read(end, max_bytes=LARGE).changes == {}
    for wrong, word in (
        (ServerIdentity("1", identity.timeline), "another server"),
        (ServerIdentity(identity.system, "00000009"), "promoted"),
    ):
        with pytest.raises(UserError, match=word):
            source.reopened(identity=wrong).read(end, max_bytes=LARGE)
    run(fresh, "SELECT pg_drop_replication_slot('headwater_test')")
    for question in (source.read, lambda: source.log.read(end, max_bytes=LARGE)):
        with pytest.raises(UserError, match='"headwater_test" is gone'):
            question()


def test_a_server_that_changes_while_we_read_is_noticed(fresh, monkeypatch):
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(fresh, "t")
    source.read()
    ask = log_module.read_status

    def promoted(*arguments):
        status = ask(*arguments)
        timeline = ServerIdentity(status.identity.system, "00000002")
        return dataclasses.replace(status, identity=timeline)

    monkeypatch.setattr(log_module, "read_status", promoted)
    with pytest.raises(UserError, match="a server that was promoted"):
        source.read()


def test_log_that_the_server_threw_away_is_lost_loudly():
    limits = ("max_slot_wal_keep_size=16MB", "max_wal_size=32MB", "min_wal_size=32MB")
    with server("wheel", *limits) as url:
        run(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE noise (x text)")
        source = Source(url, "t")
        for _ in range(3):
            run(url, "INSERT INTO noise SELECT repeat('z', 500) FROM generate_series(1, 60000)")
            run(url, "SELECT pg_switch_wal()", "CHECKPOINT")
        with pytest.raises(UserError, match='threw away the log that slot "headwater_test"') as it:
            source.read()
        assert "max_slot_wal_keep_size" in it.value.hint
        with pytest.raises(UserError, match="threw away"):
            source.database.prepare(["t"])
        source.database.drop()
        assert run(url, "SELECT slot_name FROM pg_replication_slots") == []
