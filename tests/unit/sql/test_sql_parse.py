"""Statements: what each text becomes."""

import pytest

from headwater.model import types
from headwater.sql import statement as s
from headwater.sql.parse import parse, parse_expression, parse_one
from headwater.sql.sink_format import SinkFormat

NAME = s.ObjectName


def test_a_table_with_everything():
    table = parse_one(
        """create table if not exists S."T" (
            id bigint primary key, name varchar(10) not null default 'x',
            price numeric(10, 2), total double precision as (price * 2),
            tags text[], place struct<x int, y struct<z varchar>>, seen timestamptz
        ) append only on conflict do update if not null with (a.b = 'c', n = 3)"""
    )
    assert isinstance(table, s.CreateTable)
    assert table.name == NAME("T", "s")
    assert table.key == ("id",)
    assert table.append_only
    assert table.if_not_exists
    assert table.conflict is s.Conflict.UPDATE_IF_NOT_NULL
    assert table.options == (("a.b", "c"), ("n", "3"))
    by_name = {column.name: column for column in table.columns}
    assert by_name["id"].type == types.BIGINT
    assert not by_name["id"].nullable
    assert (by_name["name"].length, by_name["name"].nullable) == (10, False)
    assert by_name["name"].default.sql() == "'x'"
    assert by_name["price"].type == types.decimal(10, 2)
    assert by_name["total"].generated is not None
    assert by_name["tags"].type == types.list_of(types.VARCHAR)
    assert by_name["place"].type.spark == "struct<`x`:int,`y`:struct<`z`:string>>"
    assert by_name["seen"].type == types.TIMESTAMPTZ


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("int", types.INTEGER), ("int2", types.SMALLINT), ("int8", types.BIGINT),
        ("float4", types.REAL), ("float", types.DOUBLE), ("double", types.DOUBLE),
        ("double precision", types.DOUBLE), ("numeric", types.NUMERIC),
        ("decimal(5)", types.decimal(5, 0)), ("numeric(50,2)", types.NUMERIC),
        ("character varying(3)", types.VARCHAR), ("char(3)", types.VARCHAR),
        ("string", types.VARCHAR), ("text", types.VARCHAR), ("bool", types.BOOLEAN),
        ("timestamp without time zone", types.TIMESTAMP),
        ("timestamp with time zone", types.TIMESTAMPTZ), ("timestamp(6)", types.TIMESTAMP),
        ("time", types.TIME), ("interval", types.INTERVAL), ("json", types.JSONB),
        ("uuid", types.UUID), ("bytea", types.BYTEA), ("int[]", types.list_of(types.INTEGER)),
        ("int[][]", types.list_of(types.list_of(types.INTEGER))),
        ("int array", types.list_of(types.INTEGER)),
    ],
)  # fmt: skip
def test_type_names(name, type_):
    assert parse_one(f"create table t (a {name}, primary key (a))").columns[0].type == type_


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("create or replace materialized view m as select 1", s.CreateMaterializedView,
         {"or_replace": True}),
        ("create view v (a, b) as select 1, 2", s.CreateView, {"columns": ("a", "b")}),
        ("create index i on t (a, b desc) include (c)", s.CreateIndex, {"include": ("c",)}),
        ("create source x with (connector = 'postgres-cdc', slot.name = 's')", s.CreateSource,
         {"options": (("connector", "postgres-cdc"), ("slot.name", "s"))}),
        ("create table c (*) include timestamp as ts from src table 'public.t'", s.CreateTable,
         {"source": NAME("src"), "upstream": "public.t", "all_columns": True,
          "includes": (s.Include("timestamp", "ts", 27),)}),
        ("create sink k from t with (connector = 'kafka') format upsert encode json", s.CreateSink,
         {"from_relation": NAME("t"), "format": SinkFormat(format="upsert", encode="json")}),
        ("create sink k into u as select 1 with (type = 'upsert')", s.CreateSink,
         {"into": NAME("u")}),
        ("create schema if not exists z", s.CreateSchema, {"name": "z", "if_not_exists": True}),
        ("drop materialized view if exists a, b.c cascade", s.Drop,
         {"kind": s.ObjectKind.MATERIALIZED_VIEW, "names": (NAME("a"), NAME("c", "b")),
          "cascade": True}),
        ("drop schema z", s.Drop, {"kind": s.ObjectKind.SCHEMA}),
        ("alter table t rename to u", s.Rename, {"new_name": "u"}),
        ("alter materialized view a.m swap with n", s.SwapWith,
         {"name": NAME("m", "a"), "other": NAME("n")}),
        ("alter table t rename column a to b", s.RenameColumn, {"column": "a", "new_name": "b"}),
        ("alter table t add column if not exists a int default 3", s.AddColumn,
         {"if_not_exists": True}),
        ("alter table t drop column a cascade", s.DropColumn, {"column": "a", "cascade": True}),
        ("alter view v set schema z", s.SetSchema, {"schema": "z"}),
        ("alter table t owner to root", s.SetOwner, {"owner": "root"}),
        ("alter table t set backfill_rate_limit = default", s.AlterSetting,
         {"setting": "backfill_rate_limit", "value": None}),
        ("alter materialized view m set parallelism to 4 deferred", s.AlterSetting,
         {"value": "4", "deferred": True}),
        ("alter system set barrier_interval_ms to 100", s.AlterSetting,
         {"kind": s.ObjectKind.SYSTEM, "value": "100"}),
        ("create sink k as with x as (select 1 as a) select a from x with (connector = 'blackhole')"
         " format plain encode avro (schema.registry = 'http://r')", s.CreateSink,
         {"query_text": "with x as (select 1 as a) select a from x",
          "format": SinkFormat(
              format="plain", encode="avro", options=(("schema.registry", "http://r"),))}),
        ("alter sink k rewind to epoch 12", s.RewindSink, {"epoch": 12, "timestamp": None}),
        ("alter sink k rewind to timestamp '2026-01-31 00:00:00'", s.RewindSink,
         {"epoch": None, "timestamp": "2026-01-31 00:00:00"}),
        ("alter sink k set (a = 'b')", s.AlterOptions, {"options": (("a", "b"),)}),
        ("alter sink k connector with (a = 'b')", s.AlterOptions, {"options": (("a", "b"),)}),
        ("comment on column t.a is 'x'", s.Comment, {"column": "a", "comment": "x"}),
        ("comment on table t is null", s.Comment, {"comment": None}),
        ("show tables like 'a%'", s.Show, {"what": "tables", "like": "a%"}),
        ("show materialized views from z", s.Show,
         {"what": "materialized views", "name": NAME("z")}),
        ("show columns from t", s.Show, {"what": "columns", "name": NAME("t")}),
        ("show jobs", s.Show, {"what": "jobs"}),
        ("show create table t", s.ShowCreate, {"kind": s.ObjectKind.TABLE}),
        ("show search_path", s.ShowVariable, {"name": "search_path"}),
        ("show all", s.ShowVariable, {"name": "all"}),
        ("describe t", s.Describe, {"name": NAME("t")}),
        ("set background_ddl = true", s.SetVariable, {"name": "background_ddl", "value": "true"}),
        ("set search_path to a, 'b'", s.SetVariable, {"value": "a, b"}),
        ("set x to default", s.SetVariable, {"value": None}),
        ("set source_rate_limit = -1", s.SetVariable, {"value": "-1"}),
        ("set time zone 'UTC'", s.SetVariable, {"name": "timezone", "value": "UTC"}),
        ("reset all", s.ResetVariable, {"name": "all"}),
        ("flush", s.Flush, {}),
        ("wait", s.Wait, {"kind": None}),
        ("wait table t", s.Wait, {"kind": s.ObjectKind.TABLE, "name": NAME("t")}),
        ("recover", s.Recover, {}),
        ("cancel jobs 1, 2", s.CancelJobs, {"jobs": (1, 2)}),
        ("begin isolation level serializable, read only", s.Transaction,
         {"verb": s.TransactionVerb.BEGIN}),
        ("end", s.Transaction, {"verb": s.TransactionVerb.COMMIT}),
        ("discard all", s.Discard, {"verb": "discard", "name": "all"}),
        ("deallocate prepare p1", s.Discard, {"verb": "deallocate", "name": "p1"}),
        ("values (1), (2)", s.Select, {}),
        ("(select 1) union all (select 2)", s.Select, {}),
        ("table t", s.Select, {}),
    ],
)  # fmt: skip
def test_statements(text, kind, fields):
    statement = parse_one(text)
    assert type(statement) is kind
    for name, value in fields.items():
        assert getattr(statement, name) == value, name


def test_data_changes():
    insert = parse_one("insert into t (a, B) select x, y from u join v on u.i = v.i returning a, *")
    assert (insert.table, insert.columns) == (NAME("t"), ("a", "b"))
    assert "JOIN" in insert.query.sql()
    assert [each.sql() for each in insert.returning] == ["a", "*"]
    assert parse_one("insert into t default values").query is None
    update = parse_one(
        "update t as x set a = a + 1, b = default, (c, d) = (1, default) where a > 1"
    )
    assert update.alias == "x"
    assert [(name, value and value.sql()) for name, value in update.assignments] == [
        ("a", "a + 1"), ("b", None), ("c", "1"), ("d", None),
    ]  # fmt: skip
    assert update.where.sql() == "a > 1"
    delete = parse_one("delete from t where a in (select 1) returning b")
    assert delete.where is not None
    assert len(delete.returning) == 1


@pytest.mark.parametrize(
    "value",
    [
        "CASE WHEN i IS DISTINCT FROM j THEN k ELSE l END",
        "i IS DISTINCT FROM j",
        "i IS NOT DISTINCT FROM j",
        "CASE WHEN i IN (1, 2) THEN 1 END + (SELECT max(j) FROM u)",
        "u.end",
    ],
)
def test_a_value_set_may_hold_words_that_begin_clauses(value):
    (update,) = parse(f"UPDATE t SET a = {value}, b = 2 WHERE c RETURNING d")
    assert isinstance(update, s.Update)
    (_, first), (_, second) = update.assignments
    assert [tree and tree.sql().lower() for tree in (first, second, update.where)] == [
        value.lower(),
        "2",
        "c",
    ]


def test_explain_holds_a_statement():
    explain = parse_one("explain (verbose, format json) create materialized view m as select 1")
    assert explain.options == (("verbose", "true"), ("format", "json"))
    assert isinstance(explain.statement, s.CreateMaterializedView)
    assert explain.statement.text == "create materialized view m as select 1"
    assert parse_one("explain incremental select 1").options == (("incremental", "true"),)


def test_statements_know_their_places():
    text = "select 1;\n\n  select 'a;b' -- ;\n; /* ; */ flush;"
    statements = parse(text)
    assert [each.text for each in statements] == ["select 1", "select 'a;b'", "flush"]
    assert [each.place.line for each in statements] == [1, 3, 4]
    assert parse("") == []
    assert parse(" ; ; -- nothing\n") == []


def test_quoted_names_keep_their_case():
    assert parse_one('drop table "Mixed Case".Plain').names == (NAME("plain", "Mixed Case"),)


def test_an_expression_alone():
    assert parse_expression("a + 1").sql() == "a + 1"
