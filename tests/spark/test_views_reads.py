"""How much an epoch of few changes reads, and that it needs no Spark job."""

from decimal import Decimal
from random import Random

import pytest

from headwater.model.ids import TableId
from headwater.model.types import BIGINT, INTEGER, VARCHAR, decimal
from headwater.sql.algebra import JoinKind
from headwater.testing.oracle import key_of
from views_build import Builder, names_of, schema_of
from views_kit import World, quick

__all__ = ["quick"]

MONEY = decimal(10, 2)
LINES = schema_of(("id",), id=INTEGER, of=INTEGER, amount=INTEGER, price=MONEY, note=VARCHAR)
ORDERS = schema_of(("id",), id=INTEGER, name=VARCHAR, kind=INTEGER)
ORDER_COUNT, LINES_EACH, MUCH = 40, 3, 100


def stem(plan, name):
    return next(each for each in names_of(plan) if each.rstrip("0123456789") == f"{name}_")


def large_orders(b: Builder):
    """Orders with a sum of amounts over a bound, and each one's total: TPC-H q18 in small."""
    lines, orders, counted = b.scan(1, LINES), b.scan(2, ORDERS), b.scan(1, LINES)
    amount = b.call(counted, "sum", stem(counted, "amount"), BIGINT)
    sums = b.aggregate(counted, [stem(counted, "of")], amount)
    over = b.filter(sums, f"{amount.name} > {MUCH}")
    on = [(stem(orders, "id"), stem(lines, "of"))]
    met = b.join(JoinKind.INNER, orders, lines, on)
    kept = b.join(JoinKind.SEMI, met, over, [(stem(orders, "id"), stem(counted, "of"))])
    price = b.call(kept, "sum", stem(lines, "price"), decimal(20, 2))
    return b.aggregate(kept, [stem(orders, "id"), stem(orders, "name")], price)


def some_kinds(b: Builder):
    """Lines of one kind of order."""
    lines, orders = b.scan(1, LINES), b.scan(2, ORDERS)
    dear = b.filter(lines, f"{stem(lines, 'amount')} > {MUCH}")
    return b.join(JoinKind.INNER, dear, orders, [(stem(lines, "of"), stem(orders, "id"))])


def line(number, amount):
    price = Decimal(number).quantize(Decimal("0.01"))
    order = number // LINES_EACH
    return {"id": number, "of": order, "amount": amount, "price": price, "note": ""}


@pytest.fixture
def world(quick):
    made = World(quick, {1: LINES, 2: ORDERS})
    random = Random("reads")
    made.put(2, [{"id": n, "name": f"o{n}", "kind": n % 3} for n in range(ORDER_COUNT)])
    made.put(1, [line(n, random.randrange(1, 9)) for n in range(ORDER_COUNT * LINES_EACH)])
    return made


def with_lines(world, **changed):
    """The tables with the first line of each of twenty orders changed."""
    lines = dict(world.tables[TableId(1)])
    for order in range(20):
        row = {**lines[key_of({"id": order * LINES_EACH}, ("id",))]}
        row.update({name: change(order, row[name]) for name, change in changed.items()})
        lines[key_of(row, ("id",))] = row
    return {**world.tables, TableId(1): lines}


def test_a_semijoin_reads_the_groups_whose_truth_changed(world):
    world.add(large_orders(Builder()))
    world.fill()
    still = world.step(with_lines(world, amount=lambda _, old: old + 1))
    assert still.jobs == 0
    assert not still.read_whole
    # The twenty sums, and the order of each changed line; no line, since no order became large.
    assert still.rows_looked_up <= 40
    crossed = world.step(with_lines(world, amount=lambda order, old: old + MUCH * (order == 7)))
    assert crossed.jobs == 0
    assert len(world.stores[0][0]) == 1
    back = world.step(with_lines(world, amount=lambda order, old: old - MUCH * (order == 7)))
    assert back.jobs == 0
    assert not world.stores[0][0]


def test_a_join_looks_up_what_its_filter_leaves(world):
    world.add(some_kinds(Builder()))
    world.fill()
    report = world.step(with_lines(world, amount=lambda n, old: old + 1 + MUCH * (n in (3, 4))))
    assert (report.jobs, report.rows_looked_up) == (0, 2)
    assert len(world.stores[0][0]) == 2


def extremes(b: Builder):
    lines = b.scan(1, LINES)
    amount = stem(lines, "amount")
    calls = [b.call(lines, function, amount, INTEGER) for function in ("min", "max")]
    return b.aggregate(lines, [stem(lines, "of")], *calls)


def test_a_max_is_read_again_only_when_nobody_is_known_to_have_it(world):
    world.add(extremes(Builder()))
    world.fill()
    rose = world.step(with_lines(world, amount=lambda _, old: old + 20))
    assert (rose.jobs, rose.read_whole) == (0, frozenset())
    fell = world.step(with_lines(world, amount=lambda _, old: old - 20))
    # The states, and the rows of the groups that have lost their largest.
    assert fell.rows_looked_up >= 20 + 20 * LINES_EACH
    assert (fell.jobs, fell.read_whole) == (0, frozenset())
    # From then on it is known how many have the largest, and a tie is no doubt.
    twice = {
        **world.tables,
        TableId(1): {
            key: {**row, "amount": 50} for key, row in world.tables[TableId(1)].items()
        },
    }  # fmt: skip
    world.step(twice)
    left = world.step(with_lines(world, amount=lambda _, old: old + 1))
    assert left.rows_looked_up <= 20
    again = world.step(with_lines(world, amount=lambda _, old: old - 2))
    assert again.rows_looked_up <= 20 + 20 * LINES_EACH


def test_columns_that_a_view_does_not_read_touch_nothing(world):
    b = Builder()
    scan = b.scan(1, LINES)
    lines = b.project(scan, ["i"], i=(stem(scan, "id"), INTEGER), o=(stem(scan, "of"), INTEGER))
    orders = b.scan(2, ORDERS)
    world.add(b.join(JoinKind.INNER, lines, orders, [("o", stem(orders, "id"))]))
    world.fill()
    report = world.step(with_lines(world, note=lambda order, _: f"note {order}"))
    assert (report.jobs, report.rows_looked_up) == (0, 0)
    assert all(chunk.num_rows == 0 for view in report.views for chunk in view.stores.values())


def test_a_group_whose_rows_come_and_go_at_once_keeps_its_state(world):
    b = Builder()
    scan = b.scan(1, LINES)
    columns = {name: (stem(scan, name), INTEGER) for name in ("id", "of", "amount")}
    lines = b.project(scan, ["id"], **columns)
    world.add(b.aggregate(lines, ["of"], b.call(lines, "sum", "amount", BIGINT)))
    world.fill()
    report = world.step(with_lines(world, note=lambda order, _: f"note {order}"))
    assert report.jobs == 0
    assert len(world.stores[0][0]) == ORDER_COUNT
