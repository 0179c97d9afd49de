"""Catalog functions, casts and operators, each by what PostgreSQL gives for the same shop.

`tests/server/test_system_catalog_postgres.py` asks a real PostgreSQL the same questions.
"""

import pytest

from headwater.system.system_catalog import SystemCatalog
from system_expressions import SAME_AS_POSTGRES
from system_kit import rows, shop_facts


@pytest.fixture(scope="module")
def catalog():
    made = SystemCatalog()
    yield made
    made.close()


@pytest.mark.parametrize("expression", SAME_AS_POSTGRES)
def test_it_is_answered(catalog, expression):
    assert len(rows(catalog.answer(f"select {expression}", shop_facts()))) == 1


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("version()", "PostgreSQL 14.0 (Headwater)"),
        ("current_database()", "dev"),
        ("current_user", "root"),
        ("user", "root"),
        ("current_role", "root"),
        ("pg_backend_pid()", 77),
        ("pg_get_userbyid(10)", "root"),
        ("pg_get_userbyid(99)", "unknown (OID=99)"),
        ("current_setting('server_version_num')", "140000"),
        ("pg_size_pretty(pg_total_relation_size('orders'))", "19 MB"),
        ("pg_relation_size('totals'::regclass)", 0),
        ("pg_relation_size(4)", None),
        ("pg_get_viewdef('big_orders'::regclass, true)",
         "SELECT id, amount FROM orders WHERE amount > 100;"),
        ("pg_get_viewdef('orders'::regclass)", None),
        ("current_setting('TIMEZONE')", "UTC"),
        ("'rw_tables'::regclass", "rw_catalog.rw_tables"),
        ("$1::regclass::oid", 16388),
        ("'root'::regrole::oid", 10),
    ],
)  # fmt: skip
def test_what_only_headwater_knows(catalog, expression, value):
    answer = catalog.answer(f"select {expression}", shop_facts(), ["orders"])
    assert rows(answer) == [(value,)]
