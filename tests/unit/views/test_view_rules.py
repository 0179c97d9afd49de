"""Rules are decided without Spark: what EXPLAIN shows, what strict refuses, what auto picks."""

import subprocess
import sys

import pytest

from headwater.errors import NotSupported
from headwater.model.ids import TableId
from headwater.model.types import BIGINT, DOUBLE, INTEGER, VARCHAR, decimal
from headwater.sql.algebra import JoinKind, Plan
from headwater.views.layout import Layout, RefreshPolicy, Shape, lay_out, view_of
from headwater.views.merging import cannot_merge
from headwater.views.rules import Rule, check_policy, estimate, explain_incremental
from views_build import Builder, query, schema_of

ORDERS = schema_of(("id",), id=BIGINT, customer=INTEGER, amount=decimal(10, 2), weight=DOUBLE)
CUSTOMERS = schema_of(("id",), id=INTEGER, name=VARCHAR)


def laid_out(plan: Plan, policy: RefreshPolicy = RefreshPolicy.AUTO) -> Layout:
    return lay_out(view_of("v", query(plan), policy))


def by_customer(b: Builder, function: str, argument: str, type_):
    orders = b.scan(1, ORDERS)
    names = {stored: name for name, stored in orders.columns}
    call = b.call(orders, function, names[argument], type_)
    return b.aggregate(orders, [names["customer"]], call)


def joined(b: Builder, left_on: str = "customer") -> Plan:
    orders, customers = b.scan(1, ORDERS), b.scan(2, CUSTOMERS)
    names = {stored: name for name, stored in orders.columns}
    left = names.get(left_on, left_on.format(**names))
    return b.join(JoinKind.INNER, orders, customers, [(left, customers.key[0])])


def rules(layout: Layout) -> list[Rule]:
    return [step.rule for step in explain_incremental(layout)]


def test_explain_names_the_rule_of_every_operator():
    b = Builder()
    plan = b.filter(joined(b), "true")
    assert rules(laid_out(plan)) == [Rule.APPLY, Rule.LOOKUP, Rule.APPLY, Rule.APPLY]
    assert rules(laid_out(by_customer(b, "sum", "amount", decimal(20, 2)))) == [
        Rule.MERGE, Rule.APPLY,
    ]  # fmt: skip
    assert rules(laid_out(by_customer(b, "max", "amount", decimal(10, 2))))[0] is Rule.MERGE
    step = explain_incremental(laid_out(by_customer(b, "max", "weight", DOUBLE)))[0]
    assert step.rule is Rule.REGROUP
    assert step.reason == "max of double is not kept"
    assert not step.reads_whole
    opaque = b.opaque([b.scan(1, ORDERS)], "select 1 as x from {0}", [])
    step = explain_incremental(laid_out(b.union(joined(b), tag=True)))[0]
    assert step.rule is Rule.APPLY
    assert opaque.reason == "a test"


def test_a_computed_join_term_costs_a_whole_table():
    b = Builder()
    step = explain_incremental(laid_out(joined(b, "cast({amount} as int)::integer")))[0]
    assert step.reads_whole == {TableId(1)}
    assert "computed" in step.reason


def test_strict_refuses_what_must_be_recomputed():
    b = Builder()
    top = b.top(b.scan(1, ORDERS), [], [], limit=100_000)
    with pytest.raises(NotSupported, match="cannot be kept current") as caught:
        check_policy(laid_out(top, RefreshPolicy.INCREMENTAL_STRICT))
    assert "nothing to divide" in caught.value.detail
    check_policy(laid_out(top))
    check_policy(laid_out(joined(b), RefreshPolicy.INCREMENTAL_STRICT))


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        ("count", "weight", None),
        ("sum", "customer", None),
        ("avg", "amount", None),
        ("sum", "weight", "not exact"),
        ("avg", "id", "not exact"),
        ("min", "customer", None),
        ("max", "weight", "not kept"),
        ("stddev", "weight", "take a row back"),
    ],
)
def test_what_can_be_merged(function, argument, reason):
    call = by_customer(Builder(), function, argument, BIGINT).calls[0]
    found = cannot_merge(call)
    assert found is None if reason is None else reason in (found or "")


def test_layouts():
    b = Builder()
    merged = laid_out(by_customer(b, "sum", "amount", decimal(20, 2)))
    assert merged.shape is Shape.MERGED
    assert len(merged.schemas) == 1
    inner = by_customer(b, "count", "amount", BIGINT)
    having = laid_out(b.filter(inner, "true"))
    assert having.shape is Shape.KEYED
    assert len(having.schemas) == 2
    plain = laid_out(b.filter(inner, "true"), RefreshPolicy.FULL)
    assert len(plain.schemas) == 1
    pieces = b.project(joined(b), x=("1", INTEGER))
    assert laid_out(pieces).shape is Shape.MULTISET


def test_auto_recomputes_when_most_of_a_table_changed():
    layout = laid_out(joined(Builder()))
    size = {TableId(1): 1_000_000, TableId(2): 1000}
    assert estimate(layout, size, {TableId(1): 1000}, 1_000_000).pays
    assert not estimate(layout, size, {TableId(1): 900_000}, 1_000_000).pays


def test_deciding_needs_no_spark():
    program = (
        "import sys\n"
        "import headwater.views.rules, headwater.views.delta, headwater.views.settle\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
