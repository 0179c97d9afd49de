"""What is read whole, and what `auto` makes of it, for views as SQL plans them."""

import pytest

from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.sql.statement import Select
from headwater.views.layout import Layout, lay_out, view_of
from headwater.views.rules import Rule, Step, estimate, explain_incremental
from sql_kit import relations_of

TABLES = """
create table orders (id bigint primary key, customer int, amount numeric(10,2), size int);
create table customers (id int primary key, name varchar);
"""
RELATIONS = relations_of(TABLES)
ORDERS = RELATIONS._found["public", "orders"].id
CUSTOMERS = RELATIONS._found["public", "customers"].id
ROWS = {ORDERS: 1_000_000, CUSTOMERS: 10_000}
TOTALS = "select customer, sum(amount) as total from orders group by customer"


def laid_out(text: str) -> Layout:
    statement = parse_one(text)
    assert isinstance(statement, Select)
    return lay_out(view_of("v", plan_query(statement.query, text, RELATIONS, for_view=True)))


def top(text: str) -> Step:
    return explain_incremental(laid_out(text))[0]


def pays(text: str, changed: int) -> bool:
    return estimate(laid_out(text), ROWS, {ORDERS: changed}, 100).pays


def test_the_best_groups_come_from_the_stored_groups():
    text = f"{TOTALS} order by total desc limit 100000"
    step = top(text)
    assert step.rule is Rule.WHOLE
    assert not step.reads_whole
    assert step.reads_groups == {ORDERS}
    assert pays(text, 1_000)
    assert not pays(text, 800_000)


def test_very_many_best_rows_of_a_table_cost_the_table():
    text = "select id, amount from orders order by amount desc limit 100000"
    assert top(text).reads_whole == {ORDERS}
    assert not pays(text, 1_000)


@pytest.mark.parametrize("text", ["select id, amount as total from orders", TOTALS])
def test_a_few_best_rows_are_kept(text):
    step = top(f"{text} order by total desc limit 10")
    assert step.rule is Rule.FIRST
    assert not step.reads_whole
    assert not step.reads_groups
    assert pays(f"{text} order by total desc limit 10", 1_000)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (f"select * from ({TOTALS}) t join (select sum(size) as n from orders) u on total > n", 1),
        (f"select * from ({TOTALS}) t join customers c on c.id = t.customer", 0),
    ],
)
def test_a_join_that_cannot_search_stored_groups_reads_them_all(text, groups):
    joins = [s for s in explain_incremental(laid_out(text)) if s.operator == "inner join"]
    assert [len(step.reads_groups) for step in joins] == [groups]
    assert not joins[0].reads_whole


def test_a_side_that_did_not_change_makes_nobody_read_the_other():
    text = "select o.id, name from orders o join customers c on o.customer % 100 = c.id"
    layout = laid_out(text)
    assert explain_incremental(layout)[1].reads_whole == {ORDERS}
    few = estimate(layout, ROWS, {ORDERS: 1_000}, 1_000_000)
    assert few.pays
    assert few.incremental < 100_000
    assert estimate(layout, ROWS, {CUSTOMERS: 1}, 1_000_000).incremental > 1_000_000
