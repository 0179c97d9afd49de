"""`spark.read.format("headwater-postgres")`: rows of real tables, by many tasks, exactly."""

import decimal

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_tables import opened, read_all
from test_cdc_postgres_table import EVERYTHING

from cdc_kit import FILL, ORDERS, eventually, server, upstream  # noqa: F401  fixtures
from external_source_kit import (
    POSTGRES,
    SECRET,
    assert_both_ways,
    postgres_options,
    rows_of,
    tuples,
)
from headwater.spark_source.external.held_snapshot import held_snapshot
from headwater.spark_source.register import register

pytestmark = pytest.mark.timeout(600)
"""Tasks of a fresh session load a lot before they read their first row."""


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def options(upstream):  # noqa: F811
    return postgres_options(upstream.url)


def test_all_rows_by_many_tasks(session, upstream, options):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(30_000))
    rows = rows_of(session, POSTGRES, options, "public.orders", rows_per_split=4000)
    assert rows.rdd.getNumPartitions() >= 7
    assert_both_ways(tuples(rows.toArrow()), upstream.rows("SELECT * FROM orders"))
    total = rows.groupBy().sum("amount").collect()[0][0]
    assert total == upstream.rows("SELECT sum(amount) FROM orders")[0][0]


def test_filters_and_counts_over_one_dataframe(session, upstream, options):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(5_000))
    rows = rows_of(session, POSTGRES, options, "orders", rows_per_split=1000)
    for where in ("id = 17", "id >= 100 AND id < 130", "status = 'new' AND n = 3", "id < 0"):
        found = rows.filter(where).toArrow()
        assert_both_ways(tuples(found), upstream.rows(f"SELECT * FROM orders WHERE {where}"))
    # What one query asks for is not what the next one gets.
    assert rows.count() == 5_000
    upstream.db.execute("DELETE FROM orders WHERE id <= 10")
    assert rows.count() == 4_990


def test_only_some_columns(session, upstream, options):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(100))
    chosen = rows_of(session, POSTGRES, options, "orders", columns="note, n", rows_per_split=30)
    assert chosen.columns == ["note", "n"]
    assert_both_ways(tuples(chosen.toArrow()), upstream.rows("SELECT note, n FROM orders"))
    reader = session.read.format(POSTGRES).options(**options).option("table.name", "orders")
    given = reader.schema("amount decimal(12,2), id bigint").load()
    assert_both_ways(tuples(given.toArrow()), upstream.rows("SELECT amount, id FROM orders"))
    with pytest.raises(Exception, match=r'column "amount" of table "orders" is decimal\(12,2\)'):
        reader.schema("amount double").load().collect()
    with pytest.raises(Exception, match='has no column "nothing"'):
        rows_of(session, POSTGRES, options, "orders", columns="id,nothing").schema  # noqa: B018


def test_every_type_as_the_server_has_it(session, upstream, options):  # noqa: F811
    for statement in EVERYTHING.split(";\n"):
        upstream.db.execute(statement)
    as_null = {**options, "unrepresentable.values": "null"}
    found = rows_of(session, POSTGRES, as_null, "everything", rows_per_split=1).toArrow()
    table = opened(upstream.url, "everything", **{"unrepresentable.values": "null"})
    expected, _ = read_all(table)
    assert found.column_names == expected.column_names
    # Python has no dates before Christ: they are compared by their number.
    assert_both_ways(tuples(_days(found)), tuples(_days(expected)))
    found = found.drop_columns(["d"])
    # And the judge that shares no code: the server's own text.
    row = found.filter(pa.compute.equal(found["Id"], 1)).to_pylist()[0]
    for name in ("n", "n50", "u", "iv", "jb", "tm", "m", "r", "ip"):
        printed = upstream.rows(f'SELECT "{name}"::text FROM everything WHERE "Id" = 1')[0][0]
        if name == "tm":
            assert printed.startswith(row[name].rstrip("0"))
        else:
            assert row[name] == printed
    assert row["n12"] == decimal.Decimal("-0.05")
    assert row["na"] == [decimal.Decimal("1.50"), decimal.Decimal("2.25")]
    with pytest.raises(Exception, match=r'column "n12" of public\.everything'):
        rows_of(session, POSTGRES, options, "everything").toArrow()


def _days(rows):
    return rows.set_column(rows.column_names.index("d"), "d", rows["d"].cast(pa.int32()))


@pytest.mark.parametrize(
    ("create", "fill"),
    [
        ("CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b))",
         "INSERT INTO t SELECT chr(97 + g % 26) || repeat('é', g % 3), g, g::text"
         " FROM generate_series(1, 900) g"),
        ('CREATE TABLE t (k text COLLATE "C" PRIMARY KEY, v int)',
         "INSERT INTO t SELECT chr(65 + g % 58) || g, g FROM generate_series(1, 900) g"),
        ("CREATE TABLE t (k uuid PRIMARY KEY, v int)",
         "INSERT INTO t SELECT gen_random_uuid(), g FROM generate_series(1, 900) g"),
        ("CREATE TABLE t (k timestamptz PRIMARY KEY, v int)",
         "INSERT INTO t SELECT timestamptz '2024-01-01' + g * interval '1 minute', g"
         " FROM generate_series(1, 900) g"),
        ("CREATE TABLE t (v text)", "INSERT INTO t SELECT (g % 50)::text FROM"
         " generate_series(1, 900) g"),
        ("CREATE TABLE t (id int PRIMARY KEY, v text)", "SELECT 1"),
    ],
    ids=["composite", "text", "uuid", "timestamptz", "no key", "empty"],
)  # fmt: skip
def test_keys_of_all_kinds(session, upstream, options, create, fill):  # noqa: F811
    upstream.db.execute(create)
    upstream.db.execute(fill)
    query = "SELECT " + ("k::text, v" if "uuid" in create else "*") + " FROM t"
    for more in ({}, {"consistent": "true"}):
        found = rows_of(session, POSTGRES, options, "t", rows_per_split=100, **more).toArrow()
        assert_both_ways(tuples(found), upstream.rows(query))


def test_quoted_names_and_schemas(session, upstream, options):  # noqa: F811
    upstream.db.execute('CREATE SCHEMA "My Shop"')
    upstream.db.execute(
        'CREATE TABLE "My Shop"."Or""ders.1" ("Id; DROP" int PRIMARY KEY, "Größe" text)'
    )
    upstream.db.execute("""INSERT INTO "My Shop"."Or""ders.1" VALUES (1, 'a''b'), (2, NULL)""")
    name = '"My Shop"."Or""ders.1"'
    found = rows_of(session, POSTGRES, options, name, rows_per_split=1).toArrow()
    assert found.column_names == ["Id; DROP", "Größe"]
    assert_both_ways(tuples(found), upstream.rows(f"SELECT * FROM {name}"))
    in_schema = {**options, "schema.name": "My Shop"}
    assert rows_of(session, POSTGRES, in_schema, '"Or""ders.1"').count() == 2


def test_wide_rows_come_in_pieces(session, upstream, options):  # noqa: F811
    upstream.db.execute("CREATE TABLE wide (id int PRIMARY KEY, v text)")
    upstream.db.execute(
        "INSERT INTO wide SELECT g, repeat(md5(g::text), 40000) FROM generate_series(1, 60) g"
    )
    rows = rows_of(session, POSTGRES, options, "wide").selectExpr("id", "length(v)", "md5(v)")
    query = "SELECT id, length(v), md5(v) FROM wide"
    assert_both_ways(tuples(rows.toArrow()), upstream.rows(query))


MOVE = "UPDATE acc SET n = n - 1 WHERE id = %s; UPDATE acc SET n = n + 1 WHERE id = %s"


def test_a_held_snapshot_is_one_moment_for_all_tasks(session, upstream, options):  # noqa: F811
    upstream.db.execute("CREATE TABLE acc (id int PRIMARY KEY, n int)")
    upstream.db.execute("INSERT INTO acc SELECT g, 10 FROM generate_series(0, 499) g")
    upstream.db.execute("CREATE TABLE copies AS SELECT * FROM acc")
    with held_snapshot(options) as moment:
        before = upstream.rows("SELECT * FROM acc")
        rows = rows_of(session, POSTGRES, options, "acc", rows_per_split=50, snapshot__name=moment)
        assert rows.rdd.getNumPartitions() == 10
        upstream.db.execute("UPDATE acc SET n = n - 1 WHERE id % 2 = 0")
        upstream.db.execute("DELETE FROM copies")
        assert_both_ways(tuples(rows.toArrow()), before)
        # A table without a key as well, by many tasks, and with rows that are gone by now.
        copies = rows_of(session, POSTGRES, options, "copies", snapshot__name=moment)
        assert_both_ways(tuples(copies.toArrow()), before)
    # The server ends the holder's transaction a moment after the connection.
    holding = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'idle in transaction'"
    )
    eventually(lambda: upstream.rows(holding) == [(0,)])
    with pytest.raises(Exception, match="is not held any more"):
        rows.count()


def test_consistent_reads_all_in_one_transaction(session, upstream, options, monkeypatch):  # noqa: F811
    upstream.db.execute("CREATE TABLE acc (id int PRIMARY KEY, pad text)")
    upstream.db.execute(
        "INSERT INTO acc SELECT g, repeat('x', 100) FROM generate_series(1, 200000) g"
    )
    rows = rows_of(session, POSTGRES, options, "acc", consistent="true")
    assert rows.rdd.getNumPartitions() == 1
    with psycopg.connect(upstream.url, autocommit=True) as writer:
        import threading

        stop = threading.Event()

        def move() -> None:
            # The first row becomes the last: without one moment it is missed or doubled.
            while not stop.is_set():
                writer.execute("UPDATE acc SET id = id + 1000000 WHERE id = 1")
                writer.execute("UPDATE acc SET id = id - 1000000 WHERE id = 1000001")

        thread = threading.Thread(target=move)
        thread.start()
        try:
            for _ in range(4):
                assert rows.count() == 200_000
        finally:
            stop.set()
            thread.join()


def test_no_secret_is_shown(session, upstream, options, capfd):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    rows = rows_of(session, POSTGRES, options, "t")
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        rows.explain(mode)
    shown = [repr(rows), rows._jdf.queryExecution().toString(), capfd.readouterr().out]
    wrong = [
        {"port": "1"}, {"database.name": "nowhere"}, {"username": "nobody"}, {"ssl.mode": "odd"},
        {"pasword": SECRET}, {"password.env": "NOT_SET"}, {"table.name": "nothing"},
        {"since": "snapshot"}, {"slot.name": "s"}, {"rows_per_split": "0"}, {"columns": "id,,x"},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            rows_of(session, POSTGRES, options, "t").sparkSession.read.format(POSTGRES).options(
                **{**options, "table.name": "t", **each}
            ).load().collect()
        shown.append(str(caught.value))
        assert "HINT" in str(caught.value) or "DETAIL" in str(caught.value)
    assert not [text for text in shown if SECRET in text]
    assert "Did you mean password" in shown[7]


def test_the_password_may_stand_in_the_environment(session, upstream, tmp_path):  # noqa: F811
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    plain = postgres_options(upstream.url)
    del plain["password"]
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    assert rows_of(session, POSTGRES, {**plain, "password.file": str(file)}, "t").count() == 0
