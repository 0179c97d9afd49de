"""The refresh functions of TPC-H, as SQL that any database of the dialect takes.

    RF1   new_sales    inserts orders, each with one to seven lineitems
    RF2   old_sales    deletes the oldest orders with their lineitems

The generators of TPC-H leave room for this: of every 32 order keys they use the first eight, and
new orders get keys from the second eight. Values follow the specification's rules (prices from the
part, suppliers that stock it, dates that follow each other, status from the dates), so queries
select new rows as often as old ones. Comments are words without a grammar.

Promises
    Repeatable   The same seed and numbers give the same statements, on every machine.
    Apart        Sets with different order numbers never touch each other's rows.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

_FIRST_DAY = date(1992, 1, 1)
_LAST_ORDER_DAY = date(1998, 8, 2)
_TODAY = date(1995, 6, 17)
"""The day that statuses are seen from, as the specification has it."""

_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_WORDS = (
    "special", "requests", "pending", "deposits", "accounts", "quickly", "ironic", "packages",
    "express", "furiously", "sleep", "regular", "carefully", "bold", "theodolites",
)  # fmt: skip

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the tables are."""

    factor: float

    @property
    def orders(self) -> int:
        """Orders at the start, and so the number of the first new one."""
        return round(1_500_000 * self.factor)

    @property
    def refresh(self) -> int:
        """Orders in one set of a refresh function."""
        return max(1, round(1_500 * self.factor))

    @property
    def customers(self) -> int:
        """Customers at the start."""
        return round(150_000 * self.factor)

    @property
    def parts(self) -> int:
        """Parts at the start."""
        return round(200_000 * self.factor)

    @property
    def suppliers(self) -> int:
        """Suppliers at the start."""
        return round(10_000 * self.factor)


def order_key(number: int, *, new: bool = False) -> int:
    """The key of the n-th order that the generator makes, or that RF1 inserts; n from 1."""
    return (number >> 3 << 5) + (number & 7) + (8 if new else 0)


def new_sales(scale: Scale, first: int, count: int, seed: int = 0) -> list[str]:
    """RF1: the statements that insert the new orders `first` to `first + count - 1`."""
    orders: list[Row] = []
    lines: list[Row] = []
    for number in range(first, first + count):
        dice = random.Random(f"{seed} {number}")
        order, its_lines = _sale(dice, scale, order_key(number, new=True))
        orders.append(order)
        lines += its_lines
    return [_insert("orders", orders), _insert("lineitem", lines)]


def old_sales(first: int, count: int) -> list[str]:
    """RF2: the statements that delete the orders `first` to `first + count - 1`."""
    keys = ", ".join(str(order_key(number)) for number in range(first, first + count))
    return [
        f"delete from lineitem where l_orderkey in ({keys})",
        f"delete from orders where o_orderkey in ({keys})",
    ]


def _sale(dice: random.Random, scale: Scale, key: int) -> tuple[Row, list[Row]]:
    day = _FIRST_DAY + timedelta(days=dice.randrange((_LAST_ORDER_DAY - _FIRST_DAY).days + 1))
    lines = [_line(dice, scale, key, number, day) for number in range(1, dice.randint(1, 7) + 1)]
    total = sum((price * (1 - off) * (1 + tax) for price, off, tax in (r[5:8] for r in lines)),
                Decimal(0))  # fmt: skip
    states = {row[9] for row in lines}
    # A third of the customers never order.
    customer = dice.randint(1, scale.customers)
    while customer % 3 == 0:
        customer = dice.randint(1, scale.customers)
    order = (
        key, customer, "P" if len(states) > 1 else states.pop(), round(total, 2), day,
        dice.choice(_PRIORITIES), f"Clerk#{dice.randint(1, 1000):09}", 0, _comment(dice, 79),
    )  # fmt: skip
    return order, lines


def _line(dice: random.Random, scale: Scale, key: int, number: int, ordered: date) -> Row:
    part = dice.randint(1, scale.parts)
    quantity = dice.randint(1, 50)
    shipped = ordered + timedelta(days=dice.randint(1, 121))
    received = shipped + timedelta(days=dice.randint(1, 30))
    return (
        key, part, _supplier(part, dice.randrange(4), scale.suppliers), number, quantity,
        quantity * _retail_price(part), _cents(dice.randint(0, 10)), _cents(dice.randint(0, 8)),
        dice.choice("RA") if received <= _TODAY else "N", "O" if shipped > _TODAY else "F",
        shipped, ordered + timedelta(days=dice.randint(30, 90)), received,
        dice.choice(_INSTRUCTIONS), dice.choice(_MODES), _comment(dice, 44),
    )  # fmt: skip


def _retail_price(part: int) -> Decimal:
    return _cents(90_000 + part // 10 % 20_001 + 100 * (part % 1_000))


def _supplier(part: int, choice: int, suppliers: int) -> int:
    """One of the four suppliers of a part."""
    return (part + choice * (suppliers // 4 + (part - 1) // suppliers)) % suppliers + 1


def _cents(amount: int) -> Decimal:
    return Decimal(amount) / 100


def _comment(dice: random.Random, longest: int) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.randint(2, 6)))[:longest]


def _insert(table: str, rows: Sequence[Row]) -> str:
    shown = ",\n  ".join(f"({', '.join(_literal(value) for value in row)})" for row in rows)
    return f"insert into {table} values\n  {shown}"


def _literal(value: Any) -> str:
    match value:
        case int() | Decimal():
            return str(value)
        case date():
            return f"date '{value}'"
        case _:
            return f"'{value}'"
