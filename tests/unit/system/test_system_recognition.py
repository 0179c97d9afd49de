"""Which statements are for the system tables."""

import pytest

from headwater.errors import NotSupported
from headwater.sql.parse import parse_one
from headwater.system.recognise import reads_only_system


@pytest.mark.parametrize(
    "text",
    [
        "select * from pg_class",
        "select 1 from pg_catalog.pg_class c, information_schema.tables t",
        "select * from rw_catalog.rw_tables union all select * from rw_tables",
        "with t as (select oid from pg_type) select * from t where oid in (select 1 from pg_class)",
        "select (select count(*) from pg_index)",
        "table pg_namespace",
        "select * from pg_catalog.no_such_table",
        "select * from pg_show_all_settings()",
        "select version()",
        "select pg_catalog.version()",
        "select current_schema, current_user, session_user",
        "select current_schema()",
        "select 'orders'::regclass::oid",
        "select current_setting('TimeZone') as zone",
        "select pg_catalog.set_config('search_path', '', false)",
        "select 1",
        "select 1 as one, 'x', null, true",
    ],
)
def test_for_the_system_tables(text):
    assert reads_only_system(parse_one(text).query)


@pytest.mark.parametrize(
    "text",
    [
        "select * from orders",
        "select 1 + 1",
        "select lower('X')",
        "select now()",
        "select sum(x) from (values (1)) v(x)",
        "with pg_class as (select 1 as a) select a from pg_class",
        "select * from generate_series(1, 3)",
        "select * from shop.pg_class",
        "select my_function(version())",
        "select count(*) from orders where current_user = 'root'",
    ],
)
def test_for_somebody_else(text):
    assert not reads_only_system(parse_one(text).query)


@pytest.mark.parametrize(
    "text",
    [
        "select * from orders, pg_class",
        "select * from orders where id in (select oid from pg_catalog.pg_class)",
        "select * from rw_tables join orders on true",
    ],
)
def test_a_mixture_is_refused(text):
    with pytest.raises(
        NotSupported, match='cannot read system tables and "orders" at once'
    ) as seen:
        reads_only_system(parse_one(text).query)
    assert seen.value.sqlstate == "0A000"
    assert seen.value.hint
