"""What the system tables say of a shop."""

import dataclasses
import datetime as dt
import threading

import duckdb
import pytest

from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import BindError, HeadwaterError, NotSupported
from headwater.model import types as t
from headwater.system import relations
from headwater.system.derived import DERIVED
from headwater.system.facts import (
    BackfillFact,
    ConnectionFact,
    EpochFact,
    EventFact,
    JobFact,
    RateLimitFact,
    SessionFacts,
    SettingFact,
    SinkFact,
)
from headwater.system.system_catalog import SystemCatalog
from system_kit import ORDERS, SNAPSHOT, rows, shop_facts

AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def catalog():
    made = SystemCatalog()
    yield made
    made.close()


@pytest.fixture
def ask(catalog):
    def asked(text, *parameters, **changes):
        return rows(catalog.answer(text, shop_facts(**changes), parameters))

    return asked


@pytest.mark.parametrize("key", relations.known())
def test_every_system_relation_can_be_read(catalog, key):
    relation = relations.known()[key]
    answer = catalog.answer(f"select * from {key}", shop_facts())
    assert [column.name for column in answer.columns] == [c.name for c in relation.columns]
    assert [column.type for column in answer.columns] == [c.type for c in relation.columns]


@pytest.mark.parametrize("key", DERIVED)
def test_every_view_names_columns_that_are_there(key):
    assert DERIVED[key].select(key)
    assert key in relations.known()


def test_relations_and_what_is_hidden(ask):
    assert ask("select relname, relkind from pg_class where oid >= 16384 order by 1") == [
        ("big_orders", "v"),
        ("items", "r"),
        ("items_pkey", "i"),
        ("orders", "r"),
        ("orders_pkey", "i"),
        ("orders_user", "i"),
        ("totals", "m"),
        ("users", "r"),
        ("users_pkey", "i"),
    ]
    assert ask("select name, job_id from rw_catalog.rw_internal_tables") == [("totals_store", 5)]


def test_numbers_lead_from_one_table_to_the_next(ask):
    got = ask(
        "select c.relname, n.nspname, a.attname, t.typname, k.conname, i.relname "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "join pg_constraint k on k.conrelid = c.oid join pg_class i on i.oid = k.conindid "
        "join pg_attribute a on a.attrelid = c.oid and a.attnum = k.conkey[1] "
        "join pg_type t on t.oid = a.atttypid where n.nspname = 'shop'"
    )
    assert got == [("items", "shop", "sku", "varchar", "items_pkey", "items_pkey")]
    assert ask("select oid from pg_class where relname = 'orders'") == [(16388,)]
    assert ask("select id from rw_tables where name = 'orders'") == [(4,)]


def test_numbers_are_unique(ask):
    for table in ("pg_class", "pg_type", "pg_namespace", "pg_constraint", "pg_attrdef"):
        assert ask(f"select oid from {table} group by oid having count(*) > 1") == []


def test_information_schema(ask):
    assert ask(
        "select table_name, table_type, is_insertable_into from information_schema.tables "
        "where table_schema in ('public', 'shop') order by 1"
    ) == [
        ("big_orders", "VIEW", "NO"),
        ("items", "BASE TABLE", "NO"),
        ("orders", "BASE TABLE", "YES"),
        ("totals", "MATERIALIZED VIEW", "NO"),
        ("users", "BASE TABLE", "YES"),
    ]
    assert ask(
        "select column_name, ordinal_position from information_schema.key_column_usage "
        "where table_name = 'orders' order by 2"
    ) == [("id", 1), ("line", 2)]


def test_lists_of_rw_catalog(ask):
    assert ask("select name, relation_type from rw_relations where id < 100 order by id, name") == [
        ("upstream", "source"),
        ("users", "table"),
        ("orders", "table"),
        ("totals", "materialized view"),
        ("big_orders", "view"),
        ("orders_user", "index"),
        ("items", "table"),
    ]
    assert ask("select * from rw_depend order by 1") == [(5, 4), (7, 4), (8, 4)]
    assert ask(
        "select name, data_type, is_primary_key, is_nullable from rw_columns "
        "where relation_id = 4 and position in (1, 4, 7) order by position"
    ) == [
        ("id", "bigint", True, False),
        ("amount", "numeric(12,2)", False, False),
        ("tags", "varchar[]", False, True),
    ]
    assert ask("select initialized_at from rw_tables where name = 'users'") == [
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),)
    ]


def test_live_tables(ask):
    job = JobFact(id=5, statement="CREATE ...", progress="12.3%", initialized_at=AT)
    assert ask(
        "select ddl_id, ddl_statement, progress from rw_ddl_progress", jobs=lambda: [job]
    ) == [(5, "CREATE ...", "12.3%")]
    assert ask("select status from rw_streaming_jobs where id = 5", jobs=lambda: [job]) == [
        ("CREATING",)
    ]
    limits = [RateLimitFact(table_id=4, node="SOURCE", limit=None)]
    assert ask("select table_id, rate_limit from rw_rate_limit", rate_limits=lambda: limits) == [
        (4, "default")
    ]
    fill = BackfillFact(job_id=4, splits=10, backfilled=3, completed=2)
    assert ask("select * from rw_cdc_progress", backfills=lambda: [fill]) == [(4, 10, 3, 2)]
    event = EventFact(id=1, at=AT, epoch=7, kind="fenced", subject="engine", text="gone")
    assert ask("select event_type, info->>'text' from rw_event_logs", events=lambda: [event]) == [
        ("FENCED", "gone")
    ]
    assert ask("select epoch, subject from hw_catalog.events", events=lambda: [event]) == [
        (7, "engine")
    ]
    epoch = EpochFact(epoch=9, committed_at=AT, changes=3)
    assert ask("select epoch, changes from hw_catalog.epochs", epochs=lambda: [epoch]) == [(9, 3)]
    setting = SettingFact(name="barrier_interval_ms", value="250", unit="milliseconds", live=True)
    assert ask("select * from hw_catalog.settings", settings=lambda: [setting]) == [
        ("barrier_interval_ms", "250", "milliseconds", "", True)
    ]
    assert ask("select barrier_interval_ms from rw_databases", settings=lambda: [setting]) == [
        (250,)
    ]
    assert ask("select current_setting('barrier_interval_ms')", settings=lambda: [setting]) == [
        ("250",)
    ]
    sink = SinkFact(id=20, name="out", connector="kafka", definition="CREATE SINK out")
    assert ask("select name, connector from rw_sinks", sinks=lambda: [sink]) == [("out", "KAFKA")]
    mine = ConnectionFact(pid=77, user="root", started_at=AT, state="active", query="select 1")
    assert ask(
        "select state, now() - backend_start > interval '1 day' from pg_stat_activity "
        "where pid = $1",
        77,
        connections=lambda: [mine],
    ) == [("active", True)]
    assert ask("select id, total_key_count from rw_table_stats") == [(3, 2), (4, 1000)]


def test_costly_facts_are_asked_for_only_when_shown(ask):
    asked = []

    def sizes():
        asked.append("sizes")
        return {}

    def refuse():
        raise AssertionError("nobody wants to see this")

    live = dict.fromkeys(
        ("jobs", "events", "epochs", "rate_limits", "sinks", "connections", "backfills"), refuse
    )
    assert ask("select relname from pg_class where relname = 'orders'", sizes=sizes, **live)
    assert ask("select count(*) from information_schema.columns", sizes=sizes, **live)
    assert asked == []
    assert ask("select sum(reltuples) from pg_class", sizes=sizes, **live)
    assert asked == ["sizes"]


def test_a_change_of_the_catalog_is_seen_at_once(ask):
    text = "select count(*) from pg_class where relname in ('orders', 'orders_pkey', 'renamed')"
    assert ask(text) == [(2,)]
    renamed = dataclasses.replace(ORDERS, name="renamed")
    assert ask(text, snapshot=CatalogSnapshot(tables=(renamed,))) == [(1,)]
    assert ask(text, snapshot=CatalogSnapshot()) == [(0,)]
    assert ask("select count(*) from rw_tables", snapshot=CatalogSnapshot()) == [(0,)]
    assert ask(text) == [(2,)]


def test_the_search_path_decides_what_is_visible(ask):
    text = (
        "select pg_table_is_visible(c.oid), c.oid::regclass from pg_class c where relname = 'items'"
    )
    assert ask(text) == [(False, "shop.items")]
    near = SessionFacts(search_path=("shop", "public"))
    assert ask(text, session=near) == [(True, "items")]
    assert ask("select current_schema(), current_schemas(true)", session=near) == [
        ("shop", ["pg_catalog", "shop", "public"])
    ]
    assert ask("select current_schema()", session=SessionFacts(search_path=("gone",))) == [(None,)]


def test_passwords_are_never_shown(catalog):
    assert any("hunter2" in source.options.values() for source in SNAPSHOT.sources)
    for key in relations.known():
        answer = catalog.answer(f"select * from {key}", shop_facts())
        assert "hunter2" not in str(rows(answer)), key
    shown = catalog.answer(
        "select connector_props->'hostname'->>'value' from rw_sources", shop_facts()
    )
    assert rows(shown) == [("db.example",)]


def test_types_that_clients_care_for(catalog):
    described = catalog.describe(
        "select oid, relname, relkind, reloptions, oid::regclass as r, relnatts, relhasindex, "
        "(select indkey from pg_index limit 1) as v, array_agg(oid) over () as l "
        "from pg_class where relname = $1 and oid = any($2) and relnatts > $3 "
        "and oid = $4::regclass",
        shop_facts(),
    )
    assert [(c.name, c.type, c.oid) for c in described.columns] == [
        ("oid", t.INTEGER, 26),
        ("relname", t.VARCHAR, 19),
        ("relkind", t.VARCHAR, 18),
        ("reloptions", t.list_of(t.VARCHAR), 1009),
        ("r", t.VARCHAR, None),
        ("relnatts", t.SMALLINT, None),
        ("relhasindex", t.BOOLEAN, None),
        ("v", t.VARCHAR, None),
        ("l", t.list_of(t.INTEGER), 1028),
    ]
    assert described.parameters == (t.VARCHAR, t.list_of(t.BIGINT), t.SMALLINT, t.VARCHAR)
    assert described.parameter_oids == (19, 1028, 0, 0)


def test_parameters_may_come_as_text(ask):
    assert ask(
        "select attname from pg_attribute where attrelid = $1::regclass and attnum > $2 "
        "and attnotnull = $3 and atttypid = any($4) order by attnum limit $5",
        "orders",
        "1",
        "t",
        "{20,23,1700}",
        "1",
    ) == [("line",)]
    assert ask("select $1, $2::int, $3", "a", "7", None) == [("a", 7, None)]


def test_set_config_is_told_to_the_session(catalog):
    answer = catalog.answer("select set_config('search_path', 'shop', false)", shop_facts())
    assert rows(answer) == [("shop",)]
    assert answer.settings == {"search_path": "shop"}


@pytest.mark.parametrize(
    ("text", "sqlstate", "message", "hint"),
    [
        ("select * from pg_catalog.pg_clas", "42P01", '"pg_catalog.pg_clas" does', '"pg_class"?'),
        ("select relnam from pg_class", "42703", 'column "relnam" does not exist', '"relname"?'),
        ("select c.nothing from pg_class c", "42703", 'column "nothing" does not', ""),
        ("select oid from pg_class, pg_type", "42702", '"oid" is ambiguous', ""),
        ("select 'gone'::regclass", "42P01", 'relation "gone" does not exist', ""),
        ("select 'gone'::regtype", "42704", 'type "gone" does not exist', ""),
        ("select current_setting('gone')", "42704", "unrecognized configuration", ""),
        ("select pg_sleep(1) from pg_class", "42883", "function pg_sleep()", "another statement"),
        ("select read_csv('/etc/passwd') from pg_class", "42883", "read_csv", ""),
        ("select 'x'::int from pg_class", "22P02", "does not fit", ""),
        ("select relname + 1 from pg_class", "0A000", "not supported", ""),
        ("drop table pg_class", "42601", "not a query", ""),
    ],
)
def test_errors_say_what_is_wrong(catalog, text, sqlstate, message, hint):
    with pytest.raises(HeadwaterError) as seen:
        catalog.answer(text, shop_facts())
    assert seen.value.sqlstate == sqlstate
    assert message in seen.value.message
    assert hint in seen.value.hint
    assert rows(catalog.answer("select 1", shop_facts())) == [(1,)]


def test_what_the_database_itself_offers_stays_closed(catalog):
    for text in (
        "select * from duckdb_tables()",
        "select * from '/etc/passwd'",
        "select * from sqlite_master",
        "select * from read_text('/etc/passwd')",
    ):
        with pytest.raises((BindError, NotSupported)):
            catalog.answer(text, shop_facts())
    # And if the rewriting let one through:
    with pytest.raises(duckdb.PermissionException):
        catalog._connection.execute("select * from read_text('/etc/passwd')")


def test_a_query_without_end_is_stopped(catalog):
    endless = (
        "with recursive r(n) as (select 1 union all select n + 1 from r where n > 0) "
        "select count(*) from r, pg_class"
    )
    over = threading.Event()

    def stop():
        # It may not have begun when it is told for the first time.
        while not over.wait(0.3):
            catalog.interrupt()

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(HeadwaterError) as seen:
            catalog.answer(endless, shop_facts())
    finally:
        over.set()
        stopping.join()
    assert seen.value.sqlstate == "57014"


def test_threads_take_turns(catalog):
    failures = []

    def work(user):
        for _ in range(20):
            facts = shop_facts(session=SessionFacts(user=user))
            if (
                rows(catalog.answer("select current_user, count(*) from pg_type", facts))[0][0]
                != user
            ):
                failures.append(user)

    threads = [threading.Thread(target=work, args=(f"user{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
