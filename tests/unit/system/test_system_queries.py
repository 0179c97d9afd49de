"""The texts that clients send are answered, described as they are answered, and fast."""

import pytest

from headwater.sql.parse import parse_one
from headwater.system.recognise import reads_only_system
from headwater.system.system_catalog import SystemCatalog
from system_kit import recorded, rows, shop_facts

QUERIES = [*recorded("psql"), *recorded("tools")]


@pytest.fixture(scope="module")
def catalog():
    made = SystemCatalog()
    yield made
    made.close()


@pytest.mark.parametrize(("label", "text"), QUERIES, ids=[label for label, _ in QUERIES])
def test_a_recorded_query_is_answered_as_it_is_described(catalog, label, text):
    query = parse_one(text).query
    assert reads_only_system(query)
    answer = catalog.answer(query, shop_facts())
    described = catalog.describe(query, shop_facts())
    assert described.columns == answer.columns
    assert answer.table.column_names == [column.name for column in answer.columns]
    for field, column in zip(answer.table.schema, answer.columns, strict=True):
        assert field.type == column.type.arrow


EXPECTED = {
    "Rails primary key": [("id",), ("line",)],
    "Metabase tables": [
        ("public", "totals", "MATERIALIZED VIEW", None, None),
        ("public", "orders", "TABLE", "what was ordered", 1000),
        ("public", "users", "TABLE", None, 2),
        ("public", "big_orders", "VIEW", None, None),
    ],
    "Grafana tables": [("orders",), ("users",)],
    "Grafana version": [(1400,)],
    "Tableau row counts": [("orders", 1000)],
    "sizes by hand": [("19 MB", "8192 bytes")],
    "dbt dependencies": [
        ("public", "big_orders", "public", "orders"),
        ("public", "totals", "public", "orders"),
    ],
    "RisingWave parallelism": [
        ("items", "FIXED(1)"),
        ("orders", "FIXED(1)"),
        ("totals", "FIXED(1)"),
        ("users", "FIXED(1)"),
    ],
}


@pytest.mark.parametrize("label", EXPECTED)
def test_what_tools_get_to_see(catalog, label):
    got = rows(catalog.answer(dict(QUERIES)[label], shop_facts()))
    in_order = label not in ("Grafana tables",)
    assert (got if in_order else sorted(got)) == EXPECTED[label]


def test_django_sees_indexes_with_their_columns(catalog):
    got = rows(catalog.answer(dict(QUERIES)["Django indexes"], shop_facts()))
    assert sorted((row[0], row[1], row[2], row[3]) for row in got) == [
        ("orders_pkey", ["id", "line"], True, True),
        ("orders_user", ["user_id", "amount"], False, False),
    ]
