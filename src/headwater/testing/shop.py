"""A small shop that is being written to: what `make demo` follows.

Orders are placed, paid, sent and cancelled, and every payment also changes the customer's
balance in the same transaction. So at any moment the sum of all balances is the sum of all paid
orders: whoever sees one without the other sees half a transaction.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

CUSTOMERS = 2_000
ORDERS = 60_000

_TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, country text,
    balance numeric(14,2));
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL,
    amount numeric(10,2) NOT NULL, placed timestamptz NOT NULL, note text);
INSERT INTO customers SELECT g, 'customer ' || g, (ARRAY['DE','FR','IT','JP','US'])[1 + g % 5], 0
    FROM generate_series(1, {customers}) g;
INSERT INTO orders SELECT g, 1 + (g * 7919) % {customers}, 'placed', (g % 20000) / 100.0,
    timestamptz '2024-01-01' + g * interval '1 minute', md5(g::text)
    FROM generate_series(1, {orders}) g;
"""


class Shop:
    """The shop's database; `open` lets customers in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.transactions = 0
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_TABLES.format(customers=CUSTOMERS, orders=ORDERS))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the database itself answers."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query).fetchall()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Customers come and go until the end of the block."""
        closing = threading.Event()
        clerk = threading.Thread(target=self._serve, args=(closing,))
        clerk.start()
        try:
            yield
        finally:
            closing.set()
            clerk.join()

    def _serve(self, closing: threading.Event) -> None:
        dice, newest = random.Random(7), ORDERS
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not closing.wait(0.002):
                newest += _transaction(connection, dice, newest)
                self.transactions += 1


def _transaction(connection: Any, dice: random.Random, newest: int) -> int:
    """One customer's visit; how many orders are new."""
    order, kind = dice.randrange(1, newest + 1), dice.random()
    if kind < 0.35:
        connection.execute(
            "INSERT INTO orders VALUES (%s, %s, 'placed', %s, now(), 'by the demo')",
            [newest + 1, dice.randrange(1, CUSTOMERS + 1), dice.randrange(1, 20_000) / 100],
        )
        return 1
    if kind < 0.75:
        with connection.transaction():
            paid = connection.execute(
                "UPDATE orders SET status = 'paid' WHERE id = %s AND status = 'placed'"
                " RETURNING customer, amount",
                [order],
            ).fetchone()
            if paid is not None:
                connection.execute(
                    "UPDATE customers SET balance = balance + %s WHERE id = %s", [paid[1], paid[0]]
                )
    elif kind < 0.9:
        connection.execute("DELETE FROM orders WHERE id = %s AND status = 'placed'", [order])
    else:
        connection.execute(
            "UPDATE orders SET id = -id WHERE id = %s AND status = 'placed'", [order]
        )
    return 0
