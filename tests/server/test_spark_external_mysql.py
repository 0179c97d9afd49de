"""`headwater-mysql` for MariaDB and MySQL: rows by many tasks, a stream that converges by key."""

import random
import threading
from decimal import Decimal

import pytest

import mysql_zoo
from external_source_kit import (
    MYSQL,
    Applied,
    Driven,
    assert_both_ways,
    rows_of,
    stream_of,
    tuples,
)
from headwater.spark_source.external.source import MySqlSource
from headwater.spark_source.register import register
from mysql_servers import PASSWORD, SERVERS

pytestmark = pytest.mark.timeout(600)
"""Tasks of a fresh session load a lot before they read their first row."""


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request):
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


def fill(database, name, rows):
    database.run(
        f"DROP TABLE IF EXISTS {name}",
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, amount decimal(12,2), note varchar(100))",
        database="shop",
    )
    for begin in range(0, rows, 1000):
        values = ", ".join(f"({n}, {n}.25, 'n{n}')" for n in range(begin, min(begin + 1000, rows)))
        database.run(f"INSERT INTO {name} VALUES {values}", database="shop")


def test_all_rows_by_many_tasks(session, database):
    fill(database, "orders", 6000)
    options = database.options("shop")
    rows = rows_of(session, MYSQL, options, "orders", rows_per_split=1000)
    assert rows.rdd.getNumPartitions() >= 4
    theirs = database.run("SELECT * FROM orders", database="shop")
    assert_both_ways(tuples(rows.toArrow()), theirs)
    assert_both_ways(
        tuples(rows.filter("id BETWEEN 7 AND 9").toArrow()),
        [row for row in theirs if 7 <= row[0] < 10],
    )
    assert rows.count() == 6000
    chosen = rows_of(session, MYSQL, options, "shop.orders", columns="note", rows_per_split=1000)
    assert_both_ways(tuples(chosen.toArrow()), [row[2:] for row in theirs])


def test_every_type_arrives_exactly(session, database):
    database.run(
        "SET sql_mode = ''", "DROP TABLE IF EXISTS zoo", mysql_zoo.create("zoo"),
        *mysql_zoo.inserts("zoo"), database="shop",
    )  # fmt: skip
    options = database.options("shop", **{"time.mode": "interval"})
    found = rows_of(session, MYSQL, options, "zoo", rows_per_split=1).toArrow().to_pylist()
    expected = mysql_zoo.expected(database.kind)
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert isinstance(next(row["bu"] for row in found if row["bu"]), Decimal)


def test_keys_names_and_nothing(session, database):
    database.run(
        "DROP TABLE IF EXISTS `Odd ``1`, nothing_in",
        "CREATE TABLE `Odd ``1` (a varchar(20) COLLATE utf8mb4_general_ci, `b;` int, v text, "
        "PRIMARY KEY (a, `b;`))",
        "CREATE TABLE nothing_in (id int PRIMARY KEY)",
        database="shop",
    )
    values = ", ".join(f"('{chr(97 + n % 26)}', {n}, REPEAT('é', {n}))" for n in range(300))
    database.run(f"INSERT INTO `Odd ``1` VALUES {values}", database="shop")
    options = database.options("shop")
    found = rows_of(session, MYSQL, options, "Odd `1", rows_per_split=40)
    assert found.rdd.getNumPartitions() > 3
    theirs = database.run("SELECT * FROM `Odd ``1`", database="shop")
    assert_both_ways(tuples(found.toArrow()), theirs)
    assert rows_of(session, MYSQL, options, "nothing_in").count() == 0


def test_what_is_wrong_is_named_without_the_password(session, database):
    fill(database, "orders", 10)
    options = database.options("shop")
    rows = rows_of(session, MYSQL, options, "orders")
    shown = [repr(rows), rows._jdf.queryExecution().toString()]
    for wrong, said in (
        ({"consistent": "true"}, "have no snapshot"), ({"snapshot.name": "x"}, "have no snapshot"),
        ({"port": "1"}, "127.0.0.1"), ({"pasword": "x"}, "Did you mean password"),
        ({"table.name": "nothing"}, "does not exist"), ({"username": "x"}, "x"),
        ({"since": "snapshot"}, "since"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=said) as caught:
            session.read.format(MYSQL).options(
                **{**options, "table.name": "orders", **wrong}
            ).load().collect()
        shown.append(str(caught.value))
    assert not [text for text in shown if PASSWORD in text]


def write(cursor, dice):
    n = dice.randrange(4000)
    kind = dice.random()
    if kind < 0.4:
        cursor.execute(
            "INSERT INTO followed VALUES (%s, 1.5, 'new')"
            " ON DUPLICATE KEY UPDATE amount = amount + 1, note = CONCAT(note, '!')",
            [n],
        )
    elif kind < 0.7:
        cursor.execute(
            "UPDATE followed SET amount = -amount WHERE id BETWEEN %s AND %s", [n, n + 3]
        )
    elif kind < 0.8:
        cursor.execute(
            "UPDATE IGNORE followed SET id = %s WHERE id = %s", [dice.randrange(4000), n]
        )
    else:
        cursor.execute("DELETE FROM followed WHERE id = %s", [n])


@pytest.mark.parametrize("crash", ["", "kept", "lost"])
def test_a_stream_converges_by_key(database, crash):
    fill(database, "followed", 3000)
    options = {**database.options("shop"), "table.name": "followed", "since": "snapshot"}
    options |= {"rows_per_split": "300", "splits_per_batch": "2"}

    def reader():
        source = MySqlSource(dict(options))
        return source.streamReader(source.schema())

    stream = Driven(reader, Applied(None, ["id"], exact=False))
    dice, writes = random.Random(4), random.Random(9)
    with database.connect("shop") as connection, connection.cursor() as cursor:

        def between():
            for _ in range(15):
                write(cursor, writes)

        stream.between = between
        for _ in range(25):
            stream.step(crash=crash if dice.random() < 0.4 else "")
            if dice.random() < 0.2:
                stream.again()
        stream.between = lambda: None
        stream.to_the_end()
    assert stream.start["left"] == stream.start["read"] == []
    theirs = database.run("SELECT * FROM followed", database="shop")
    assert_both_ways(stream.applied.tuples, theirs)
    assert not stream.applied.wrong, stream.applied.wrong[:3]
    assert stream.applied.kinds["update_preimage"] == stream.applied.kinds["update_postimage"] > 10
    assert bool(stream.replays) == bool(crash)


def test_a_stream_of_spark_under_writers(session, database, tmp_path):
    fill(database, "followed", 3000)
    changes = stream_of(
        session, MYSQL, database.options("shop"), "followed", rows_per_split=500, splits_per_batch=2
    )
    applied = Applied(tmp_path / "checkpoint", ["id"], exact=False)
    stop = threading.Event()

    def run():
        dice = random.Random(1)
        with database.connect("shop") as connection, connection.cursor() as cursor:
            while not stop.wait(0.002):
                write(cursor, dice)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        applied.run(changes)
        assert applied.kinds["insert"] >= 2000
        applied.run(changes)
    finally:
        stop.set()
        thread.join()
    applied.run(changes)
    assert_both_ways(applied.tuples, database.run("SELECT * FROM followed", database="shop"))
    assert not applied.wrong, applied.wrong[:3]
    assert applied.numbers == list(range(len(applied.numbers)))
