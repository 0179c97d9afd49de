"""One shop in several databases: filled, written to all the time, and followed.

A test says what happens to the engine; what the database is like is here.
"""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pymysql

from cdc_kit import FILL, ORDERS, Upstream, write_orders, writers, writing
from mysql_servers import RunningServer

ROWS = 6_000
MARIA_ORDERS = """CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20),
    amount decimal(12,2), note text)"""
_DEADLOCK, _LOCK_TIMEOUT = 1213, 1205


class PostgresShop:
    """Slot and publication are made there, and must be gone when the source is."""

    schema = "public"
    keeps_ours = True

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.rows = upstream.rows
        upstream.db.execute(ORDERS)
        upstream.db.execute(FILL.format(ROWS))
        upstream.db.execute("CREATE TABLE small (id int PRIMARY KEY, n int)")
        upstream.db.execute("INSERT INTO small SELECT g, 0 FROM generate_series(1, 20) g")

    @property
    def source(self) -> str:
        """The statement that creates a source of it."""
        return self._upstream.source()

    @property
    def ours(self) -> list[str]:
        """What of us is there."""
        return self._upstream.ours

    def writers(self) -> "contextlib.AbstractContextManager[list[int]]":
        """Write all the time."""
        return writers(self._upstream, _write_postgres)


def _write_postgres(connection: Any, dice: random.Random) -> None:
    write_orders(connection, dice, most=2 * ROWS)
    connection.execute("UPDATE small SET n = n + 1 WHERE id = %s", [dice.randrange(1, 20)])
    time.sleep(0.002)


class MariaShop:
    """Nothing of us is ever there: a binlog is read, and that is all."""

    schema = "shop"
    keeps_ours = False
    ours: tuple[str, ...] = ()

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
        server.run(MARIA_ORDERS, "CREATE TABLE small (id int PRIMARY KEY, n int)", database="shop")
        with server.connect("shop") as connection, connection.cursor() as cursor:
            orders = [(n, n / 4) for n in range(1, ROWS + 1)]
            cursor.executemany("INSERT INTO orders VALUES (%s, 'new', %s, 'note')", orders)
            cursor.executemany("INSERT INTO small VALUES (%s, 0)", [(n,) for n in range(1, 21)])

    @property
    def source(self) -> str:
        """The statement that creates a source of it."""
        options = {"connector": "mysql-cdc", **self._server.options("shop")}
        said = ", ".join(f"{key} = '{value}'" for key, value in options.items())
        return f"CREATE SOURCE shop WITH ({said})"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What it answers."""
        return self._server.run(query, database="shop")

    @contextlib.contextmanager
    def writers(self) -> Iterator[list[int]]:
        """Write all the time; what the list holds is how often."""
        with writing(lambda: self._server.connect("shop"), self._write, pause=0.005) as count:
            yield count

    @staticmethod
    def _write(connection: Any, dice: random.Random) -> None:
        try:
            write_maria(connection, dice, ROWS)
            with connection.cursor() as cursor:
                cursor.execute("UPDATE small SET n = n + 1 WHERE id = %s", [dice.randrange(1, 20)])
        except pymysql.err.OperationalError as error:
            # One of two that wait for each other is rolled back, as ever.
            if error.args[0] not in (_DEADLOCK, _LOCK_TIMEOUT):
                raise


def write_maria(connection: Any, dice: random.Random, rows: int) -> None:
    """Inserts, updates of several rows, deletes, changed keys."""
    key, kind = dice.randrange(1, 2 * rows), dice.random()
    with connection.cursor() as cursor:
        if kind < 0.4:
            cursor.execute(
                "INSERT INTO orders VALUES (%s, 'in', 1.5, 'x')"
                " ON DUPLICATE KEY UPDATE amount = amount + 1",
                [key],
            )
        elif kind < 0.6:
            cursor.execute("DELETE FROM orders WHERE id = %s", [key])
        elif kind < 0.8:
            cursor.execute(
                "UPDATE orders SET status = 'moved' WHERE id BETWEEN %s AND %s + 3", [key, key]
            )
        else:
            other = dice.randrange(1, 3 * rows)
            cursor.execute("UPDATE IGNORE orders SET id = %s WHERE id = %s", [other, key])
