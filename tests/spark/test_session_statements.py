"""Statements through a whole engine, as a user would type them."""

from decimal import Decimal

import pytest

import headwater
from engine_kit import CALM
from headwater.errors import HeadwaterError
from views_kit import quick

__all__ = ["quick"]


@pytest.fixture
def hw(tmp_path, quick):
    with headwater.connect(tmp_path, spark=quick, settings=CALM) as opened:
        yield opened


def refused(hw, text, sqlstate, *words):
    with pytest.raises(HeadwaterError) as raised:
        hw.sql(text).rows()
    assert raised.value.sqlstate == sqlstate, raised.value
    for word in words:
        assert word in str(raised.value)


def test_tables_views_and_names(hw):
    assert hw.sql("create table t (id int primary key, g int, v numeric(10,2))").tag == (
        "CREATE TABLE"
    )
    refused(hw, "create table t (id int primary key)", "42P07", "already exists")
    assert hw.sql("create table if not exists t (x int)").notices
    hw.sql("insert into t values (1, 1, 2.5), (2, 1, 3.5), (3, 2, null)")
    hw.sql("create materialized view mv as select g, sum(v) as total, count(*) n from t group by g")
    hw.sql("flush")
    assert sorted(hw.sql("select * from mv").rows()) == [(1, Decimal("6.00"), 2), (2, None, 1)]
    hw.sql("create view pv as select g, n * 10 as ten from mv where n > 1")
    hw.sql("create materialized view top (a, b) as select * from pv")
    assert hw.sql("select a, b from top").rows() == [(1, 20)]
    refused(hw, "drop table t", "2BP01", "mv", "CASCADE")
    refused(hw, "drop view mv", "42809", "materialized view")
    refused(hw, "select * from tt", "42P01", 'Did you mean "t"')
    hw.sql("alter table t rename to renamed")
    hw.sql("alter view pv rename to other")
    refused(hw, "select * from t", "42P01")
    hw.sql("insert into renamed values (4, 2, 1), (5, 2, 1)")
    hw.sql("flush")
    assert sorted(hw.sql("select a, b from top").rows()) == [(1, 20), (2, 30)]
    assert hw.sql("drop table renamed cascade").tag == "DROP TABLE"
    assert hw.sql("show tables").rows() == []
    assert hw.sql("show materialized views").rows() == []
    assert hw.sql("drop table if exists renamed").notices
    refused(hw, "drop table renamed", "42P01")


def test_schemas_and_search_path(hw):
    hw.sql("create schema sales; create schema if not exists sales")
    refused(hw, "create schema sales", "42P06")
    refused(hw, "create table slaes.x (a int)", "3F000", "sales")
    hw.sql("create table sales.x (a int primary key); create table x (b int primary key)")
    hw.sql("insert into sales.x values (1); insert into x values (2); flush")
    assert hw.sql("select * from x").rows() == [(2,)]
    hw.sql("set search_path = sales, public")
    assert hw.sql("select * from x").rows() == [(1,)]
    hw.sql("reset search_path")
    refused(hw, "drop schema sales", "2BP01", "x")
    hw.sql("create materialized view over as select a from sales.x")
    refused(hw, "alter table sales.x set schema public", "42P07")
    hw.sql("drop schema sales cascade")
    assert hw.sql("show schemas").rows()[0] != ("sales",)
    refused(hw, "select * from over", "42P01")


def test_columns_come_and_go(hw):
    hw.sql("create table t (id int primary key, a text); insert into t values (1, 'x'); flush")
    hw.sql("create materialized view everything as select * from t")
    hw.sql("alter table t add column n int default 7")
    hw.sql("insert into t (id, a) values (2, 'y')")
    hw.sql("flush")
    assert sorted(hw.sql("select * from t").rows()) == [(1, "x", 7), (2, "y", 7)]
    assert sorted(hw.sql("select * from everything").rows()) == [(1, "x"), (2, "y")]
    refused(hw, "alter table t add column n int", "42701")
    assert hw.sql("alter table t add column if not exists n int").notices
    refused(hw, "alter table t add column m int not null", "23502")
    refused(hw, "alter table t drop column a", "2BP01", "everything")
    refused(hw, "alter table t drop column id", "0A000")
    hw.sql("alter table t drop column n")
    assert sorted(hw.sql("select * from t").rows()) == [(1, "x"), (2, "y")]


def test_a_table_from_a_query(hw):
    hw.sql("create table t (id int primary key, a text)")
    hw.sql("insert into t values (1, 'x'), (2, 'y')")
    assert hw.sql("create table c as select a, id * 2 as d from t").tag == "SELECT 2"
    assert sorted(hw.sql("select * from c").rows()) == [("x", 2), ("y", 4)]
    hw.sql("insert into c values ('x', 2); flush")
    assert sorted(hw.sql("select * from c").rows()) == [("x", 2), ("x", 2), ("y", 4)]
    refused(hw, "create table bad as select 1 / (id - 1) q from t", "22012")
    refused(hw, "create table bad as select id, id from t", "42701")
    refused(hw, "select * from bad", "42P01")


def test_what_can_be_asked_about_relations(hw):
    hw.sql("create table t (id int primary key, a varchar(5) default 'q')")
    hw.sql("comment on table t is 'mine'; comment on column t.a is 'letter'")
    assert ("a", "varchar", "false", "letter") in hw.sql("describe t").rows()
    assert hw.sql("show columns from t").rows()[0][:4] == ("id", "integer", "false", "true")
    hw.sql("create index i on t (a)")
    assert hw.sql("show indexes from t").rows()[0][:3] == ("i", "t", "a")
    assert hw.sql("show tables like 't%'").rows() == [("t",)]
    assert hw.sql("show create table t").rows()[0][1].startswith("create table t")
    plan = [row[0] for row in hw.sql("explain select a from t where id = 1").rows()]
    assert "Scan" in plan[-1]
    lines = hw.sql("explain create materialized view v as select a, count(*) from t group by a")
    shown = [row[0] for row in lines.rows()]
    assert "merge" in shown[0]
    assert "scan of t" in shown[-2]
    assert "refresh policy: auto" in shown[-1]
    assert hw.sql("select name from rw_catalog.rw_tables").rows() == [("t",)]


def test_settings_of_session_and_system(hw):
    assert hw.sql("set streaming_parallelism = 4").notices
    assert hw.sql("show streaming_parallelism").rows() == [("4",)]
    refused(hw, "set nonsense = 1", "42704")
    hw.sql("alter system set barrier_interval_ms = 1234")
    assert ("barrier_interval_ms", "1234") in [r[:2] for r in hw.sql("show parameters").rows()]
    assert hw.sql("alter system set per_database_isolation = true").notices
    refused(hw, "alter system set barrier_interval_ms = 'soon'", "22023")
    refused(hw, "alter system set nope = 1", "42704")


def test_system_settings_outlive_the_engine(tmp_path, quick):
    with headwater.connect(tmp_path, spark=quick) as hw:
        hw.sql("alter system set barrier_interval_ms = 777")
    with headwater.connect(tmp_path, spark=quick) as hw:
        assert hw.engine.settings.now.barrier_interval_ms == 777
    with headwater.connect(tmp_path, spark=quick, settings={"barrier_interval_ms": 50}) as hw:
        assert hw.engine.settings.now.barrier_interval_ms == 50


def test_transactions(hw):
    hw.sql("create table t (id int primary key); create table u (id int primary key)")
    hw.sql("begin; insert into t values (1); insert into u values (1); rollback; flush")
    assert hw.sql("select count(*) from t").rows() == [(0,)]
    hw.sql("begin; insert into t values (1); savepoint a; insert into t values (2)")
    hw.sql("rollback to a; insert into u values (9); commit; flush")
    assert hw.sql("select id from t union all select id from u order by 1").rows() == [(1,), (9,)]
    refused(hw, "savepoint x", "25P01")


def test_an_older_epoch_can_be_read(hw):
    hw.sql("create table t (id int primary key); insert into t values (1)")
    first = hw.flush()
    hw.sql("insert into t values (2); delete from t where id = 1; flush")
    assert hw.sql(f"select * from t for system_time as of {first}").rows() == [(1,)]
    assert hw.sql("select * from t", epoch=first).rows() == [(1,)]
    assert hw.table("t", first).collect()[0][0] == 1
    assert hw.sql("select * from t").rows() == [(2,)]
    kinds = {(row["_change_type"], row["id"]) for row in hw.changes("t", first).collect()}
    assert kinds == {("insert", 2), ("delete", 1)}
    refused(hw, "select * from t for system_time as of 99999999999999999", "22000")


def test_views_in_the_background(hw):
    hw.sql("create table t (id int primary key); insert into t values (1); flush")
    hw.sql("set background_ddl = true")
    hw.sql("create materialized view m as select count(*) n from t")
    hw.sql("wait")
    assert hw.sql("select * from m").rows() == [(1,)]
    assert hw.sql("show jobs").rows() == []
    hw.sql("create materialized view bad as select 1 / (id - 1) q from t; wait")
    refused(hw, "select * from bad", "42P01")
    events = hw.sql("select text from hw_catalog.events where kind = 'job_failed'")
    assert "division by zero" in events.rows()[0][0]


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("create source s with (connector = 'nope')", "22023"),
        ("create sink s from t with (connector = 'x')", "22023"),
        ("alter table t rename column id to x", "0A000"),
        ("alter materialized view t rename to x", "42809"),
        ("create materialized view m with (refresh_policy = 'odd') as select 1 a", "22023"),
        ("create materialized view m with (speed = 'odd') as select 1 a", "22023"),
        ("create index i on t ((id + 1))", "0A000"),
        ("create materialized view m as select now() n from t", "0A000"),
        ("alter table t set parallelism = 10000", "22023"),
        ("truncate t", "0A000"),
        ("select * from t join pg_class on true", "0A000"),
    ],
)
def test_what_is_refused(hw, text, sqlstate):
    hw.sql("create table t (id int primary key)")
    refused(hw, text, sqlstate)
