"""Tables that follow a MariaDB and a MySQL: filled under writers, and the same in the end."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from cdc_kit import eventually, following, stored
from headwater.errors import HeadwaterError
from mysql_servers import SERVERS, RunningServer

pytestmark = pytest.mark.timeout(600)

ORDERS = """CREATE TABLE orders (id bigint unsigned PRIMARY KEY, customer int, status varchar(20),
    amount decimal(12,2), at datetime(6), note text)"""


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop")
        yield running


def _write(database: RunningServer, stop: threading.Event, seed: int) -> None:
    dice = random.Random(seed)
    connection = database.connect("shop")
    connection.autocommit(True)
    with connection.cursor() as cursor:
        while not stop.is_set():
            try:
                _change(cursor, dice)
            except pymysql.err.OperationalError as error:
                # One of two that wait for each other is rolled back, as ever.
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise
    connection.close()


def _change(cursor: Any, dice: random.Random) -> None:
    key, kind = dice.randrange(1, 6_000), dice.random()
    if kind < 0.4:
        cursor.execute(
            "INSERT INTO orders VALUES (%s, 1, 'in', 1.5, now(6), 'ü')"
            " ON DUPLICATE KEY UPDATE amount = amount + 1",
            [key],
        )
    elif kind < 0.7:
        cursor.execute("DELETE FROM orders WHERE id = %s", [key])
    elif kind < 0.9:
        cursor.execute(
            "UPDATE orders SET status = 'moved' WHERE id BETWEEN %s AND %s + 3", [key, key]
        )
    else:
        cursor.execute(
            "UPDATE IGNORE orders SET id = %s WHERE id = %s", [dice.randrange(1, 9_000), key]
        )


def test_filled_under_writers_and_over_a_restart(database, tmp_path):
    database.run("DROP TABLE IF EXISTS orders", ORDERS, database="shop")
    connection = database.connect("shop")
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO orders VALUES (%s, %s, 'new', %s, '2024-01-02 03:04:05.000006', 'note')",
            [(n, n % 100, n / 4) for n in range(1, 5_001)],
        )
    connection.commit()
    connection.close()
    said = ", ".join(f"{k} = '{v}'" for k, v in database.options("shop").items())
    stop = threading.Event()
    threads = [threading.Thread(target=_write, args=(database, stop, seed)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        with following(tmp_path / "w") as hw:
            hw.sql(f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})")
            hw.sql(
                "CREATE TABLE orders (*) FROM shop TABLE 'shop.orders' WITH"
                " (backfill.num_rows_per_split = '500', backfill_rate_limit = '1000')"
            )
            eventually(lambda: hw.stored("orders").view().rows > 1_000)
        with following(tmp_path / "w") as hw:
            hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with following(tmp_path / "w") as hw:
        theirs = sorted(database.run("SELECT * FROM orders", database="shop"))

        def is_same():
            hw.sql("FLUSH")
            return [(int(row[0]), *row[1:]) for row in stored(hw, "orders")] == theirs

        eventually(is_same)
        database.run("TRUNCATE TABLE orders", database="shop")
        theirs = []
        eventually(is_same)
        hw.sql("DROP SOURCE shop CASCADE")


def test_what_is_wrong_is_named(database, tmp_path):
    database.run("CREATE TABLE IF NOT EXISTS keyless (n int)", database="shop")
    options = database.options("shop")
    said = ", ".join(f"{k} = '{v}'" for k, v in options.items())
    with following(tmp_path / "w") as hw:
        with pytest.raises(HeadwaterError, match="does not exist"):
            hw.sql(f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said}, hots = 'x')")
        hw.sql(f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})")
        with pytest.raises(HeadwaterError, match="key"):
            hw.sql("CREATE TABLE k (*) FROM shop TABLE 'shop.keyless'")
        with pytest.raises(HeadwaterError, match="missing"):
            hw.sql("CREATE TABLE k (*) FROM shop TABLE 'shop.missing'")
