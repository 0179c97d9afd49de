"""Queries: our plan on Spark against PostgreSQL, rows compared in both directions.

Each query runs twice: as a SELECT, and planned for a view (LIMIT as a node of the plan).
"""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from headwater.errors import ParseError
from headwater.sql.algebra import Plan, inputs_of
from headwater.views.recompute import typed_sql
from servers import postgres_server
from sql_kit import Pair, differences, plain, query_cases

DDL = """
create table t (a int primary key, b varchar, c numeric(10,2), d date, e int[], f double precision);
create table u (a int, k int, x bigint, s varchar, ts timestamp, primary key (a, k));
create table v (id int primary key, a int, b varchar);
create table empty (a int primary key, b varchar);
"""


def rows_t() -> list[tuple[Any, ...]]:
    import datetime

    names = ["red", "green", None, "blue", "red", ""]
    return [
        (
            number,
            names[number % 6],
            None if number % 7 == 3 else Decimal(number * 37 % 100) / 4,
            None if number % 11 == 5 else datetime.date(2024, 1, 1 + number % 28),
            None if number % 9 == 4 else [number, number % 3, None][: number % 4],
            None if number % 10 == 9 else number / 8,
        )
        for number in range(1, 41)
    ]


def rows_u() -> list[tuple[Any, ...]]:
    import datetime

    start = datetime.datetime.fromisoformat("2024-03-01T00:00:00")
    return [
        (
            a,
            k,
            None if (a + k) % 5 == 0 else (a * 7 + k * 3) % 13,
            None if a % 4 == 0 else f"s{k}",
            start + datetime.timedelta(minutes=a * 17 + k * 5),
        )
        for a in range(0, 50, 2)
        for k in range(a % 6)
    ]


def rows_v() -> list[tuple[Any, ...]]:
    return [(number, None if number % 5 == 0 else number % 9, "red" if number % 2 else None)
            for number in range(1, 31)]  # fmt: skip


@pytest.fixture(scope="module")
def pair(spark: Any) -> Iterator[Pair]:
    with postgres_server() as url:
        found = Pair(spark, url, DDL)
        found.load("t", rows_t())
        found.load("u", rows_u())
        found.load("v", rows_v())
        found.load("empty", [])
        yield found
        found.close()


def check_view(pair: Pair, text: str, their_rows: list[tuple[Any, ...]]) -> None:
    """A view of it has these rows, and the key that its plan promises is one."""
    query = pair.plan(text, for_view=True)
    assert not query.order
    assert query.limit is None
    found = [row.asDict() for row in pair.spark.sql(typed_sql(query.plan, pair.names)).collect()]
    rows = [tuple(row[name] for _, name in query.visible) for row in found]
    assert not (wrong := differences(rows, their_rows, digits=15)), "\n".join(wrong)
    if key := query.plan.key:
        keys = Counter(plain(tuple(row[name] for name in key)) for row in found)
        assert set(keys.values()) <= {1}, f"{key} is no key of {text}"


def check_columns(plan: Plan) -> None:
    """Every column that a node reads is given by its inputs."""
    given = {output.name for each in inputs_of(plan) for output in each.outputs}
    for name in ("predicate", "residual"):
        expression = getattr(plan, name, None)
        if expression is not None:
            assert expression.columns <= given, (plan, expression.columns - given)
    assert set(plan.key) <= {output.name for output in plan.outputs}, plan
    for each in inputs_of(plan):
        check_columns(each)


@pytest.mark.parametrize(
    "text",
    [text for name in ("queries.sql", "queries_more.sql") for text, _ in query_cases(name)],
    ids=lambda text: " ".join(text.split())[:70],
)
def test_the_same_rows(pair: Pair, text: str) -> None:
    their_types, their_rows = pair.theirs(text)
    our_types, our_rows = pair.ours(text)
    assert our_types == their_types
    assert not (wrong := differences(our_rows, their_rows, digits=15)), "\n".join(wrong)
    if "order by 1" in text.rpartition(")")[2]:  # the outermost order, not a subquery's
        assert [str(row[0]) for row in our_rows] == [str(row[0]) for row in their_rows]
    check_columns(pair.plan(text, for_view=True).plan)
    check_view(pair, text, their_rows)


@pytest.mark.parametrize(("text", "state"), query_cases("queries_refused.sql"))
def test_refused_with_a_reason(pair: Pair, text: str, state: str) -> None:
    with pytest.raises(ParseError) as caught:
        pair.plan(text, for_view=True)
    assert caught.value.sqlstate == state, caught.value
