"""The system tables of a shop beside those of a real PostgreSQL with the same shop."""

import re

import psycopg
import pytest

from headwater.model.types import Kind
from headwater.pgwire.oids import oid_of
from headwater.system import relations
from headwater.system.system_catalog import SystemCatalog
from servers import postgres_server
from system_expressions import SAME_AS_POSTGRES
from system_kit import SHOP, recorded, rows, shop_facts

NUMBERED = {
    16387: "users", 16388: "orders", 16389: "totals", 16391: "big_orders", 16392: "orders_user",
    16394: "shop.items",
}  # fmt: skip
TEXT_OIDS = {18, 19, 25, 1042, 1043, 22, 30, 24, 194, 705, 2205, 2206, 2202, 4089, 4096, 2204, 1034}
"""Types of PostgreSQL that are text here."""
NOT_THE_SAME = {
    r"\du": "postgres may replicate",
    r"\dg": "postgres may replicate",
    r"\l": "a cluster has three databases",
    r"\l+": "a cluster has three databases",
    r"\d+": "sizes", r"\dt+": "sizes", r"\dm+": "sizes", r"\di+": "sizes", r"\dv+": "sizes",
    r"\dn": "owners", r"\dn+": "owners", r"\dn pub*": "owners",
    r"\dt *.*": "all system tables", r"\dS": "all system tables",
    r"\dS+ pg_class": "indexes of system tables", r"\d pg_catalog.pg_class": "the same",
    r"\dx": "extensions", r"\dx+": "extensions", r"\dL": "languages", r"\dO": "collations",
    r"\dC": "casts", r"\dF": "text search", r"\dFd": "text search", r"\da": "aggregates",
    r"\do": "operators", r"\dA": "access methods", r"\dA+": "access methods",
    r"\dAc": "operator classes", r"\dAf": "operator classes", r"\dAo": "operator classes",
    r"\dAp": "operator classes", r"\dconfig": "settings", r"\dc": "conversions",
    r"\dd": "descriptions of built-in objects",
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog():
    made = SystemCatalog()
    yield made
    made.close()


@pytest.fixture(scope="module")
def postgres():
    with (
        postgres_server() as url,
        psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection,
    ):
        connection.execute(SHOP)
        yield connection


def plain(value):
    """A value without what differs by name only, and without the layout of view definitions."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str):
        value = re.sub(r"\s+", " ", value.replace("postgres", "root")).strip()
        return value.replace("(amount > (100)::numeric)", "amount > 100::numeric").replace(
            "100::numeric", "100"
        )
    return value


def same_type(ours, theirs: int) -> bool:
    if ours.oid is not None:
        return ours.oid == theirs
    if theirs in TEXT_OIDS:
        return ours.type.kind is Kind.VARCHAR
    return oid_of(ours.type) == theirs


@pytest.mark.parametrize("expression", SAME_AS_POSTGRES)
def test_an_expression_gives_what_postgres_gives(catalog, postgres, expression):
    cursor = postgres.execute(f"select {expression}")
    answer = catalog.answer(f"select {expression}", shop_facts())
    assert [column.name for column in answer.columns] == [each.name for each in cursor.description]
    expected = cursor.fetchall()
    got = rows(answer)
    assert [tuple(map(plain, row)) for row in got] == [tuple(map(plain, row)) for row in expected]


@pytest.mark.parametrize(("label", "text"), recorded("psql"), ids=[a for a, _ in recorded("psql")])
def test_psql_would_show_the_same(catalog, postgres, label, text):
    theirs = text
    for number, name in NUMBERED.items():
        if re.search(rf"\b{number}\b", text):
            [(oid,)] = postgres.execute("select %s::regclass::oid", [name]).fetchall()
            theirs = re.sub(rf"\b{number}\b", str(oid), theirs)
    try:
        cursor = postgres.execute(theirs)
    except psycopg.errors.UndefinedColumn as gone:
        assert re.search("icu|datlastsysoid", str(gone))  # noqa: PT017  a newer server has it not
        return
    answer = catalog.answer(text, shop_facts())
    assert [column.name for column in answer.columns] == [each.name for each in cursor.description]
    command = label.split(" ", 2)[2]
    if command in NOT_THE_SAME or "contype = 'n'" in text:
        # PostgreSQL 18 has a constraint for each column that is not null.
        return
    wrong = [
        (ours, each.type_code)
        for ours, each in zip(answer.columns, cursor.description, strict=True)
        if not same_type(ours, each.type_code) and each.type_code not in (1028, 1009, 1003)
    ]
    assert not wrong
    numbers = {name.rpartition(".")[2] for name in NUMBERED.values()}
    expected = [tuple(map(plain, row)) for row in cursor.fetchall()]
    got = [tuple(map(plain, row)) for row in rows(answer)]
    if expected and expected[0] and set(expected[0]) & numbers and isinstance(expected[0][0], int):
        # What is asked for is the number, which differs.
        expected, got = ([row[1:] for row in each] for each in (expected, got))
    if [each.name for each in cursor.description] == ["oid"]:
        assert len(got) == len(expected)
        return
    assert got == expected


@pytest.mark.parametrize(
    "text",
    [
        "select table_schema, table_name, table_type from information_schema.tables "
        "where table_schema in ('public', 'shop') and table_type <> 'MATERIALIZED VIEW' "
        "order by 1, 2",
        "select * from information_schema.columns where table_name in ('orders', 'users', 'items') "
        "order by table_name, ordinal_position",
        "select * from information_schema.table_constraints where constraint_type = 'PRIMARY KEY' "
        "and table_schema in ('public', 'shop') order by table_name",
        "select * from information_schema.key_column_usage "
        "where table_schema in ('public', 'shop') order by table_name, ordinal_position",
        "select * from information_schema.constraint_column_usage "
        "where constraint_name like '%pkey' order by table_name, column_name",
        "select * from pg_indexes where schemaname in ('public', 'shop') order by indexname",
        "select tablename, tableowner, hasindexes, hasrules, hastriggers, rowsecurity "
        "from pg_tables where schemaname in ('public', 'shop') order by tablename",
        "select * from pg_views where schemaname = 'public'",
        "select matviewname, hasindexes, ispopulated, definition from pg_matviews",
        "select oid, typname, typlen, typbyval, typtype, typcategory, typispreferred, typdelim, "
        "typelem, typarray, typinput, typoutput, typreceive, typsend, typalign, typstorage, "
        "typcollation from pg_type where typname in ('int4', '_int4', 'varchar', 'numeric', "
        "'timestamptz', 'jsonb', 'uuid', 'record', 'oid', 'name', 'char', '_text') order by oid",
        "select c.relname, a.attname, a.attnum, a.attlen, a.atttypid, a.atttypmod, a.attnotnull, "
        "a.atthasdef, a.attbyval, a.attalign, a.attstorage, a.attndims, a.attcollation "
        "from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where a.attnum > 0 and c.relname in ('orders', 'users', 'items', 'totals', 'big_orders', "
        "'orders_user') order by 1, 3",
        "select relname, relkind, relpersistence, relnatts, relhasindex, relhasrules, relchecks, "
        "relispopulated, relreplident, relam from pg_class where relname in ('orders', 'totals', "
        "'big_orders', 'orders_user', 'orders_pkey') order by 1",
        "select c.relname, i.indnatts, i.indnkeyatts, i.indisunique, i.indisprimary, i.indisvalid, "
        "i.indkey, i.indoption, i.indclass, i.indcollation from pg_index i "
        "join pg_class c on c.oid = i.indexrelid where c.relname like '%orders%' order by 1",
        "select conname, contype, condeferrable, convalidated, conkey, conislocal, connoinherit "
        "from pg_constraint where contype = 'p' and conname in ('orders_pkey', 'items_pkey') "
        "order by 1",
        "select objsubid, description from pg_description d join pg_class c on c.oid = d.objoid "
        "and d.classoid = 'pg_class'::regclass where c.relname = 'orders' order by 1",
    ],
)
def test_rows_are_those_of_postgres(catalog, postgres, text):
    cursor = postgres.execute(text)
    answer = catalog.answer(text, shop_facts())
    names = [each.name for each in cursor.description]
    assert [column.name for column in answer.columns] == names
    skipped = {"table_catalog", "constraint_catalog", "udt_catalog", "is_updatable"}
    kept = [place for place, name in enumerate(names) if name not in skipped]

    def shown(found):
        return [tuple(plain(row[place]) for place in kept) for row in found]

    assert shown(rows(answer)) == shown(cursor.fetchall())


def test_columns_of_system_relations_are_those_of_postgres(postgres):
    found: dict[str, list[str]] = {}
    for namespace, relation, column in postgres.execute(
        "select n.nspname, c.relname, a.attname from pg_class c "
        "join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid "
        "where a.attnum > 0 and n.nspname in ('pg_catalog', 'information_schema') "
        "order by c.oid, a.attnum"
    ):
        found.setdefault(f"{namespace}.{relation}", []).append(column)
    older = {"datlastsysoid", "daticulocale", "attcacheoff", "colliculocale"}
    for key, relation in relations.known().items():
        if relation.namespace in ("pg_catalog", "information_schema"):
            names = [column.name for column in relation.columns if column.name not in older]
            assert names == found[key], key
