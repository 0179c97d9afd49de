"""Random aggregates, and what stands after GROUP BY."""

from collections.abc import Callable, Sequence
from random import Random

from headwater.testing.fuzz.expressions import Expressions, Value

_COMPARABLE = ("int", "dec", "numeric", "float", "text", "date", "ts", "tstz", "time")


def aggregates(e: Expressions, count: int) -> list[Value]:
    """Some aggregate calls, sometimes with DISTINCT or FILTER."""
    found = []
    for _ in range(count):
        call = e.random.choice(_CALLS)(e)
        if e.random.random() < 0.15:
            sql = f"{call.sql} FILTER (WHERE {e.condition(1)})"
            # The filter belongs to the innermost call, where something is wrapped around it.
            call = Value(sql, call.family, call.tame) if call.sql.endswith(")") else call
        found.append(call)
    return found


def grouping(random: Random, keys: Sequence[str]) -> str:
    """The GROUP BY clause of some keys."""
    if not keys:
        return ""
    listed = ", ".join(keys)
    style = random.random()
    if style < 0.80:
        return f" GROUP BY {listed}"
    if style < 0.88:
        return f" GROUP BY ROLLUP ({listed})"
    if style < 0.94:
        return f" GROUP BY CUBE ({listed})"
    sets = ", ".join(f"({key})" for key in keys)
    return f" GROUP BY GROUPING SETS (({listed}), {sets}, ())"


def _count(e: Expressions) -> Value:
    text = e.random.choice(("count(*)", f"count({e.any(1).sql})"))
    return Value(text, "int")


def _count_distinct(e: Expressions) -> Value:
    return Value(f"count(DISTINCT {e.ordered(0).sql})", "int")


def _sum(e: Expressions) -> Value:
    return Value(f"sum({e.small(1)})", "int")


def _sum_exact(e: Expressions) -> Value:
    column = e.column("dec", "int")
    if column is None:
        return _sum(e)
    word = e.random.choice(("", "", "DISTINCT "))
    # Sums of bigint are numeric, which computes on as a decimal does.
    return Value(f"sum({word}{column.sql})", "dec")


def _sum_float(e: Expressions) -> Value:
    value = e.of("float", 1)
    if not value.tame:
        return _sum_exact(e)
    return Value(f"{e.random.choice(('sum', 'avg'))}({value.sql})", "float")


def _avg(e: Expressions) -> Value:
    return Value(f"avg({e.random.choice((e.small(1), e.of('dec', 1).sql))})", "dec")


def _extreme(e: Expressions) -> Value:
    column = e.column(*_COMPARABLE)
    if column is None:
        return _count(e)
    return Value(f"{e.random.choice(('min', 'max'))}({column.sql})", column.family, column.tame)


def _spread(e: Expressions) -> Value:
    # Small numbers, and rounded: the last digits depend on the order of the rows.
    name = e.random.choice(("stddev", "stddev_pop"))
    return Value(f"round({name}({e.of('int', 0).sql} % 100), 4) + 0", "dec")


def _logical(e: Expressions) -> Value:
    return Value(f"{e.random.choice(('bool_and', 'bool_or'))}({e.condition(1)})", "bool")


def _text(e: Expressions) -> Value:
    value = e.of("text", 1).sql
    word = e.random.choice(("", "DISTINCT "))
    direction = e.random.choice(("", " DESC"))
    return Value(f"string_agg({word}{value}, '|' ORDER BY {value}{direction})", "text")


def _array(e: Expressions) -> Value:
    family = e.random.choice(("int", "text"))
    value = e.of(family, 1).sql
    word = e.random.choice(("", "DISTINCT "))
    direction = e.random.choice(("", " DESC NULLS LAST"))
    return Value(f"array_agg({word}{value} ORDER BY {value}{direction})", f"{family}s")


_CALLS: "Sequence[Callable[[Expressions], Value]]" = (
    _count, _count, _count_distinct, _sum, _sum_exact, _sum_exact, _sum_float, _avg, _extreme,
    _extreme, _spread, _logical, _text, _array,
)  # fmt: skip
