"""Expressions: PostgreSQL's value, type and error against ours, over rows of extremes."""

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from servers import postgres_server
from sql_kit import Pair, differences, expression_cases

DDL = """
create table n (id int primary key, i int, b bigint, s smallint, d numeric(12,3),
    e numeric(20,6), f double precision, r real, bo boolean);
create table x (id int primary key, t varchar, u varchar, p date, q timestamp, z timestamptz,
    l int[], tl varchar[], y bytea, j jsonb);
"""

UTC = datetime.UTC
NUMBERS = [
    (1, 0, 0, 0, Decimal("0.000"), Decimal("0"), 0.0, 0.0, True),
    (2, 7, 7, 7, Decimal("2.500"), Decimal("1.000001"), 2.5, 2.5, False),
    (3, -7, -7, -7, Decimal("-2.500"), Decimal("-0.000001"), -2.5, -2.5, None),
    (4, 2147483647, 9223372036854775807, 32767, Decimal("999999999.999"),
     Decimal("99999999999999.999999"), 1e15, 16777216.0, True),
    (5, -2147483648, -9223372036854775807, -32768, Decimal("-999999999.999"),
     Decimal("-99999999999999.999999"), -1.5e-7, 1.5e-7, False),
    (6, None, None, None, None, None, None, None, None),
    (7, 3, 1234567890123, 12, Decimal("0.005"), Decimal("3.141593"), 3.5, 0.1, True),
    (8, 10, 100, 10, Decimal("1.005"), Decimal("2.718282"), 0.1, 1e10, False),
]  # fmt: skip


def stamp(text: str, *, zone: bool = False) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if zone else moment


def text_row(number: int, texts: tuple[Any, ...], times: tuple[str, str, str], rest: tuple[Any, ...]
             ) -> tuple[Any, ...]:  # fmt: skip
    day, plain, zoned = times
    date = datetime.date.fromisoformat(day)
    return (number, *texts, date, stamp(plain), stamp(zoned, zone=True), *rest)


TEXTS = [
    text_row(
        1, ("hello world", "o"),
        ("2024-02-29", "2024-02-29T13:05:07.123456", "2024-02-29T23:59:59.999999"),
        ([1, 2, 3], ["a", "b"], b"\x00\xff",
         '{"a": 1, "b": "x", "c": [1, 2], "d": null, "e": true}'),
    ),
    text_row(
        2, ("", ""), ("1970-01-01", "1970-01-01T00:00:00", "1970-01-01T00:00:00"),
        ([], [], b"", "{}"),
    ),
    text_row(
        3, ("a,b,,c", ","), ("1999-12-31", "1999-12-31T23:59:59", "1999-12-31T23:59:59"),
        ([None, 5], [None, "z"], b"abc", '{"b": 250}'),
    ),
    (4, None, None, None, None, None, None, None, None, None),
    text_row(
        5, ("Straße 'q' \\ ` %_", "%"),
        ("2023-01-01", "2023-01-01T00:00:00.000005", "2023-06-30T12:30:00"),
        ([7], ["hello"], b"q", '{"a": -17}'),
    ),
    text_row(
        6, ("  trim me  ", "m"),
        ("1960-05-17", "1960-05-17T03:04:05.600000", "1960-05-17T03:04:05.600000"),
        ([3, 1, 2], ["x"], b"zz", '{"a": "7"}'),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def pair(spark: Any) -> Iterator[Pair]:
    with postgres_server() as url:
        found = Pair(spark, url, DDL)
        found.load("n", NUMBERS)
        found.load("x", TEXTS)
        yield found
        found.close()


EXACT = ("equal", "text", "numbers", "times", "arrays", "json")


def chunks(*names: str, size: int = 20) -> list[tuple[str, list[str]]]:
    found = []
    for name in names:
        for table, lines in expression_cases(f"expressions_{name}.sql").items():
            found += [(table, lines[at : at + size]) for at in range(0, len(lines), size)]
    return found


def compare(pair: Pair, table: str, lines: list[str], digits: int) -> list[str]:
    source = f" from {table}" if table else ""
    key = "id, " if table else ""
    text = f"select {key}{', '.join(lines)}{source}"
    try:
        our_types, our_rows = pair.ours(text)
        their_types, their_rows = pair.theirs(text)
    except Exception as problem:
        if len(lines) == 1:
            return [f"{lines[0]}: {type(problem).__name__} {str(problem)[:300]}"]
        return [each for line in lines for each in compare(pair, table, [line], digits)]
    first = 1 if table else 0
    wrong = [
        f"{line}: we say {ours}, PostgreSQL {theirs}"
        for line, ours, theirs in zip(lines, our_types[first:], their_types[first:], strict=True)
        if ours != theirs
    ]
    for place, line in enumerate(lines, first):
        found = differences(
            [(row[0] if table else 0, row[place]) for row in our_rows],
            [(row[0] if table else 0, row[place]) for row in their_rows],
            digits=digits,
        )
        wrong += [f"{line}: {each}" for each in found]
    return wrong


@pytest.mark.parametrize(("table", "lines"), chunks(*EXACT), ids=lambda each: str(each)[:40])
def test_the_same_value_and_type(pair: Pair, table: str, lines: list[str]) -> None:
    assert not (wrong := compare(pair, table, lines, 40)), "\n".join(wrong)


@pytest.mark.parametrize(("table", "lines"), chunks("near"), ids=lambda each: str(each)[:40])
def test_the_same_value_to_fifteen_digits(pair: Pair, table: str, lines: list[str]) -> None:
    assert not (wrong := compare(pair, table, lines, 15)), "\n".join(wrong)


def outcome(run: Any, text: str) -> str:
    """The error of a query, or its first row."""
    try:
        return f"row {run(text)[1][:1]}"
    except Exception as problem:
        return f"error {problem}"


def test_errors_where_postgresql_has_errors(pair: Pair) -> None:
    wrong = []
    for line in expression_cases("expressions_raise.sql")[""]:
        text = f"select {line}"
        theirs, ours = outcome(pair.theirs, text), outcome(pair.ours, text)
        # An error of ours is one of planning or of the row, never that Spark is misunderstood.
        ours_is_meant = not any(
            word in ours for word in ("INTERNAL_ERROR", "PARSE_SYNTAX", "DATATYPE_MISMATCH")
        )
        if not (theirs.startswith("error") and ours.startswith("error") and ours_is_meant):
            wrong.append(f"{line}\n  PostgreSQL: {theirs[:200]}\n  ours: {ours[:200]}")
    assert not wrong, "\n".join(wrong)


def test_the_comparison_sees_a_difference() -> None:
    assert differences([(1, 2)], [(1, 3)])
    assert differences([(1, Decimal("1.0"))], [(1, 1.0)])
    assert differences([(1, None)], [(1, 0)])
    assert not differences([(1, Decimal("1.00"))], [(1, Decimal(1))])
    assert not differences([(math.nan,)], [(math.nan,)])
