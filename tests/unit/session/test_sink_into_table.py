"""CREATE SINK ... INTO a table: what is refused, and rows that arrive once, without Spark."""

import pytest

import headwater
from headwater.errors import HeadwaterError

SETTINGS = {"barrier_interval_ms": 20, "maintenance_interval_s": 3600.0, "storage_fsync": False}


@pytest.fixture(scope="module")
def hw(tmp_path_factory):
    with headwater.connect(tmp_path_factory.mktemp("into") / "w", settings=SETTINGS) as engine:
        engine.sql("create table a (id bigint primary key, v varchar)")
        engine.sql("create table b (id bigint primary key, v varchar)")
        engine.sql("create table c (id bigint primary key, v varchar)")
        engine.sql("create table plain (v bigint)")
        engine.sql("create table events (v bigint) append only")
        engine.sql("create table kept (id bigint primary key, v varchar) on conflict do nothing")
        engine.sql("create table wide (id bigint primary key, w bigint not null, v varchar(3))")
        engine.sql("create sink chain into b from a")
        yield engine


@pytest.mark.parametrize(
    ("statement", "sqlstate", "message"),
    [
        ("into nothing from a", "42P01", "does not exist"),
        ("into a from nothing", "42P01", "does not exist"),
        ("into a from b", "42P17", "feed itself"),
        ("into a from a", "42P17", "feed itself"),
        ("into c from a with (connector = 'kafka')", "22023", 'option "connector"'),
        ("into c from a with (primary_key = 'v')", "22023", 'option "primary_key"'),
        ("into c from a with (colour = 'red')", "22023", 'option "colour"'),
        ("into c from a with (type = 'append-only')", "22023", "is upsert"),
        ("into plain from events with (type = 'upsert')", "22023", "is append-only"),
        ("into plain from plain", "42P17", "feed itself"),
        ("into plain as select id from a", "22023", "cannot be append-only"),
        ("into kept from a", "0A000", "rule for conflicts"),
        ("into c (id) from a", "42601", "more expressions than target columns"),
        ("into c (id, v) as select id from a", "42601", "more target columns"),
        ("into c (v) as select v from a", "22023", 'no value for column "id"'),
        ("into c (id, id) from a", "42701", "more than once"),
        ("into c (id, nix) from a", "42703", "does not exist"),
        ("into c (v, id) from a", "42804", "is of type"),
        ("into c from a format plain encode json", "22023", "no FORMAT"),
        ("into chain from a", "42809", "not a table that can be written"),
    ],
)
def test_what_cannot_be_is_refused(hw, statement, sqlstate, message):
    before = hw.sql("show sinks").rows()
    with pytest.raises(HeadwaterError) as refused:
        hw.sql(f"create sink s {statement}")
    assert refused.value.sqlstate == sqlstate, refused.value
    assert message in str(refused.value)
    assert hw.sql("show sinks").rows() == before


def test_a_table_that_a_sink_writes_is_not_dropped_under_it(hw):
    with pytest.raises(HeadwaterError) as refused:
        hw.sql("drop table b")
    assert refused.value.sqlstate == "2BP01"
    with pytest.raises(HeadwaterError) as refused:
        hw.sql("alter table b drop column v")
    assert refused.value.sqlstate == "2BP01"


def test_the_statement_is_shown(hw):
    ((_, shown),) = hw.sql("show create sink chain").rows()
    assert shown == 'CREATE SINK "chain" INTO "b" FROM "a" WITH (type = \'upsert\')'


def rows(hw, table):
    stored = hw.stored(table)
    names = [name for name in stored.schema.names if not name.startswith("_")]
    return sorted(tuple(row.values()) for row in stored.rows(hw.visible).select(names).to_pylist())


def test_a_flush_sees_through_a_chain_of_tables(tmp_path):
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        for table in ("a", "b", "c"):
            hw.sql(f"create table {table} (id bigint primary key, v varchar)")
        hw.sql("insert into a values (1, 'one'), (2, 'two')")
        hw.sql("flush")
        hw.sql("create sink ab into b from a")
        hw.sql("create sink bc into c from b")
        hw.sql("insert into a values (3, 'three')")
        hw.sql("update a set v = 'TWO' where id = 2")
        hw.sql("delete from a where id = 1")
        hw.sql("flush")
        assert rows(hw, "a") == rows(hw, "b") == rows(hw, "c") == [(2, "TWO"), (3, "three")]
        # What users write there stays, unless the sink has a row of that key.
        hw.sql("insert into c values (7, 'mine'), (3, 'mine')")
        hw.sql("insert into a values (3, 'theirs')")
        hw.sql("flush")
        assert rows(hw, "c") == [(2, "TWO"), (3, "theirs"), (7, "mine")]
        hw.sql("drop sink bc")
        hw.sql("delete from a")
        hw.sql("flush")
        assert rows(hw, "b") == []
        assert rows(hw, "c") == [(2, "TWO"), (3, "theirs"), (7, "mine")]


def test_statements_that_read_what_they_write_do_not_wait_for_sinks(tmp_path):
    """They hold the lock that the sink needs: who waits there for the sink waits in vain."""
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table a (id bigint primary key, v bigint)")
        hw.sql("create table b (id bigint primary key, v bigint)")
        hw.sql("create sink ab into b from a")
        waited = []
        settle = hw.engine.sinks.through_tables

        async def through_tables(epoch, flush):
            waited.append(epoch)
            return await settle(epoch, flush)

        hw.engine.sinks.through_tables = through_tables
        for number in range(5):
            hw.sql(f"insert into a values ({number}, 0)")
            hw.sql(f"update a set v = v + 1 where id <= {number}")
        hw.sql("delete from a where id = 0")
        hw.sql("flush")
        assert len(waited) == 1, "only FLUSH waits; had it the lock, it would wait for ever"
        assert rows(hw, "b") == rows(hw, "a") == [(1, 4), (2, 3), (3, 2), (4, 1)]


def test_rows_without_a_key_arrive_once_through_restarts(tmp_path):
    written = []
    for life in range(4):
        with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
            if not life:
                hw.sql("create table events (v bigint) append only")
                hw.sql("create table all_of_them (v bigint)")
                hw.sql("create sink s into all_of_them from events")
            for number in range(5):
                written.append((10 * life + number,))
                hw.sql(f"insert into events values ({written[-1][0]})")
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("flush")
        assert rows(hw, "all_of_them") == rows(hw, "events") == sorted(written)


def test_two_sinks_write_one_table(tmp_path):
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        for table in ("north", "south", "all_of_them"):
            hw.sql(f"create table {table} (id bigint primary key, v varchar)")
        hw.sql("create sink n into all_of_them from north")
        hw.sql("create sink s into all_of_them from south")
        hw.sql("insert into north values (1, 'n'), (2, 'n')")
        hw.sql("insert into south values (11, 's'), (12, 's')")
        hw.sql("flush")
        assert rows(hw, "all_of_them") == [(1, "n"), (2, "n"), (11, "s"), (12, "s")]


def test_a_value_that_does_not_fit_stalls_the_sink_alone(tmp_path):
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table a (id bigint primary key, v varchar)")
        hw.sql("create table b (id bigint primary key, v varchar not null)")
        hw.sql("create sink s into b from a")
        hw.sql("insert into a values (1, null)")
        hw.sql("flush")
        state = "select state, reason from hw_catalog.sinks"
        for _ in range(500):
            ((found, reason),) = hw.sql(state).rows()
            if found == "stalled":
                break
            hw.sql("flush")
        assert found == "stalled"
        assert 'null value in column "v"' in reason
        hw.sql("update a set v = 'now' where id = 1")
        hw.sql("insert into b values (5, 'mine')")
        hw.sql("flush")
        assert rows(hw, "b") == [(5, "mine")], "others write on"


def test_a_column_that_the_table_got_later_is_null(tmp_path):
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table a (id bigint primary key, v varchar)")
        hw.sql("create table b (id bigint primary key, v varchar)")
        hw.sql("create sink s into b from a")
        hw.sql("insert into a values (1, 'one')")
        hw.sql("flush")
        hw.sql("alter table b add column more bigint")
        hw.sql("insert into a values (2, 'two')")
        hw.sql("flush")
        assert rows(hw, "b") == [(1, "one", None), (2, "two", None)]
