"""Aggregates: PostgreSQL's result types and treatment of nulls.

    count              bigint                  sum of smallint, integer      bigint
    sum of bigint      decimal(38,0)           sum of decimal(p,s)           decimal(38,s)
    avg of exact       decimal, 16 digits or more after the point            avg of floats: double
    array_agg          keeps nulls, null over nothing; ordered as asked, else by value
    string_agg         skips nulls, null over nothing; ordered as asked, else by value

Where PostgreSQL leaves the order of array_agg or string_agg open, the order of values is taken,
so that the same rows always give the same result.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import COUNT_STATE, SUM_STATE, Ordering
from headwater.sql.expression import collecting, comparison
from headwater.sql.expression.aggregate_parts import (
    Aggregation,
    Parts,
    ordering,
    ordering_text,
)
from headwater.sql.expression.arithmetic import decimal_quotient
from headwater.sql.expression.coercion import DECIMALS, FLOATS, INTEGERS, become, number
from headwater.sql.expression.dates import divide_interval
from headwater.sql.expression.interval_text import interval_from, parts_of
from headwater.sql.expression.translator import Translator, function_name
from headwater.sql.expression.typed import Typed, made


def is_aggregate(node: exp.Expr) -> bool:
    """Whether this node itself is an aggregate call (not one inside a window)."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return is_aggregate(node.this)
    return isinstance(node, exp.Anonymous) and function_name(node) in _AGGREGATES


def aggregate(t: Translator, node: Any) -> Aggregation:
    """An aggregate call in Spark SQL, DISTINCT, FILTER and ORDER BY included."""
    condition = None
    if isinstance(node, exp.Filter):
        condition = t.condition(node.expression.this)
        node = node.this
    order: list[Ordering] = []
    if isinstance(node, exp.WithinGroup):
        order = [ordering(t, each) for each in node.expression.expressions]
        node = node.this
    raw, distinct, star = [], False, False
    for each_item in node.expressions:
        item = each_item
        while isinstance(item, exp.Order | exp.Distinct):
            if isinstance(item, exp.Order):
                order = [ordering(t, each) for each in item.expressions]
                item = item.this
            else:
                distinct = True
                raw.extend(item.expressions[:-1])
                item = item.expressions[-1]
        if isinstance(item, exp.Star):
            star = True
        else:
            raw.append(item)
    parts = Parts(
        name=function_name(node), args=t.all(raw), star=star, distinct=distinct, order=order,
        filter=condition, text=t.text, node=node,
    )  # fmt: skip
    made_ = _AGGREGATES[parts.name](parts)
    columns = made_.value.columns
    for extra in (*parts.args, *([condition] if condition is not None else [])):
        columns |= extra.columns
    for each in order:
        columns |= each.expression.columns
    return Aggregation(
        function=made_.function, value=made_.value.renamed(made_.value.text, columns=columns),
        argument=made_.argument, distinct=distinct, filter=condition, empty=made_.empty,
        ordered=bool(order), finish=made_.finish,
    )  # fmt: skip


_Rule = Callable[[Parts], Aggregation]


def _count(parts: Parts) -> Aggregation:
    if parts.star or not parts.args:
        value = Typed(f"count(*){parts.suffix}", types.BIGINT, nullable=False)
        return Aggregation(function="count", value=value, empty="0L")
    argument = parts.one()
    if argument.known.kind is Kind.NUMERIC and parts.distinct:
        argument = number(argument, parts.text, parts.node)
    body = f"count({parts.quantifier}{argument.text}){parts.suffix}"
    return Aggregation(
        function="count", value=made(body, types.BIGINT, argument, nullable=False),
        argument=argument, empty="0L",
    )  # fmt: skip


def _summed(parts: Parts) -> tuple[Typed, Typed]:
    """The argument as it is added, and the sum."""
    argument = parts.one()
    if argument.type is None:
        parts.text.mistake(f"function {parts.name}(unknown) is not unique", parts.node)
    argument = number(argument, parts.text, parts.node)
    kind = argument.known.kind
    if kind in FLOATS:
        body = f"sum({parts.quantifier}{argument.text}){parts.suffix}"
        if kind is Kind.REAL:
            body = f"cast({body} as float)"
        return argument, made(body, argument.known, argument)
    if kind in (Kind.SMALLINT, Kind.INTEGER):
        body = f"sum({parts.quantifier}cast({argument.text} as bigint)){parts.suffix}"
        return argument, made(body, types.BIGINT, argument)
    if kind is Kind.BIGINT:
        wide = f"cast({argument.text} as decimal(19,0))"
        result = types.decimal(38, 0)
    else:
        wide, result = argument.text, types.decimal(38, argument.known.scale or 0)
    body = f"cast(sum({parts.quantifier}{wide}){parts.suffix} as {result.spark})"
    return argument, made(body, result, argument)


def _sum(parts: Parts) -> Aggregation:
    if len(parts.args) == 1 and parts.args[0].known.kind is Kind.INTERVAL:
        return Aggregation(
            function="sum_interval", value=_interval_sum(parts), argument=parts.args[0]
        )
    argument, value = _summed(parts)
    return Aggregation(function="sum", value=value, argument=argument)


def _interval_sum(parts: Parts) -> Typed:
    value = parts.args[0]
    given = parts_of(value)
    sums = [
        f"sum({parts.quantifier}{part}){parts.suffix}"
        for part in (given.months, given.days, given.micros)
    ]
    return interval_from(*sums, columns=value.columns)


def _avg(parts: Parts) -> Aggregation:
    if len(parts.args) == 1 and parts.args[0].known.kind is Kind.INTERVAL:
        counted = f"nullif(count({parts.args[0].text}){parts.suffix}, 0)"
        mean = divide_interval(
            _interval_sum(parts), Typed(counted, types.BIGINT), parts.text, parts.node
        )
        return Aggregation(function="avg_interval", value=mean, argument=parts.args[0])
    argument, total = _summed(parts)
    if argument.known.kind in FLOATS:
        wide = f"cast({argument.text} as double)"
        body = f"avg({parts.quantifier}{wide}){parts.suffix}"
        return Aggregation(
            function="avg", value=made(body, types.DOUBLE, argument), argument=argument
        )
    count = f"count({parts.quantifier}{argument.text}){parts.suffix}"
    state = Typed(f"cast({SUM_STATE} as {total.known.spark})", total.known)
    return Aggregation(
        function="avg", value=_mean(total, count, parts), argument=argument,
        finish=_mean(state, COUNT_STATE, parts).text,
    )  # fmt: skip


def _mean(total: Typed, count: str, parts: Parts) -> Typed:
    divisor = Typed(f"nullif(cast({count} as decimal(19,0)), 0)", types.decimal(19, 0))
    if total.known.kind is Kind.BIGINT:
        total = made(f"cast({total.text} as decimal(19,0))", types.decimal(19, 0), total)
    return decimal_quotient(total, divisor, parts.text, parts.node)


def _extreme(parts: Parts) -> Aggregation:
    argument = parts.one()
    if argument.type is None:
        argument = become(argument, types.VARCHAR, parts.text, parts.node)
    if argument.known.kind is Kind.NUMERIC:
        argument = number(argument, parts.text, parts.node)
    if argument.known.kind in (Kind.INTERVAL, Kind.LIST):
        form = comparison.ordered(argument, parts.text, parts.node)
        pair = f"struct({form.text} as o, {argument.text} as v)"
        body = f"{parts.name}(if({argument.text} is null, null, {pair})){parts.suffix}.v"
        return Aggregation(
            function=f"{parts.name}_of_form", value=made(body, argument.known, argument),
            argument=argument,
        )  # fmt: skip
    if argument.known.kind in (Kind.BOOLEAN, Kind.JSONB, Kind.UUID, Kind.STRUCT):
        parts.text.mistake(
            f"function {parts.name}({argument.known.postgres}) does not exist or is not supported",
            parts.node,
            sqlstate="42883",
        )
    body = f"{parts.name}({argument.text}){parts.suffix}"
    return Aggregation(
        function=parts.name, value=made(body, argument.known, argument), argument=argument
    )


def _logical(spark: str) -> _Rule:
    def rule(parts: Parts) -> Aggregation:
        argument = comparison.truth(parts.one(), parts.text, parts.node)
        body = f"{spark}({parts.quantifier}{argument.text}){parts.suffix}"
        return Aggregation(
            function=spark, value=made(body, types.BOOLEAN, argument), argument=argument
        )

    return rule


def _bits(parts: Parts) -> Aggregation:
    argument = parts.one()
    if argument.known.kind not in INTEGERS:
        parts.text.mistake(f"{parts.name} needs an integer", parts.node)
    body = f"{parts.name}({parts.quantifier}{argument.text}){parts.suffix}"
    return Aggregation(
        function=parts.name, value=made(body, argument.known, argument), argument=argument
    )


def _spread(spark: str, arguments: int = 1, result: DataType = types.DOUBLE) -> _Rule:
    def rule(parts: Parts) -> Aggregation:
        if len(parts.args) != arguments:
            parts.text.mistake(f"{parts.name} takes {arguments} argument(s)", parts.node)
        exact = arguments == 1 and parts.args[0].known.kind in (*INTEGERS, *DECIMALS)
        values = [become(each, types.DOUBLE, parts.text, parts.node) for each in parts.args]
        inner = ", ".join(value.text for value in values)
        body = f"{spark}({parts.quantifier}{inner}){parts.suffix}"
        if exact:
            # PostgreSQL gives numeric; computed as doubles it agrees to 15 digits.
            body = (
                f"if({body} is null, null, cast(format_string('%.17e', {body}) as decimal(38,18)))"
            )
            return Aggregation(
                function=parts.name, value=made(body, types.decimal(38, 18), *values),
                argument=values[0],
            )  # fmt: skip
        empty = "0L" if result is types.BIGINT else "NULL"
        return Aggregation(
            function=spark, value=made(body, result, *values), argument=values[0], empty=empty
        )

    return rule


def _any(parts: Parts) -> Aggregation:
    """Any value that is not null; the smallest, so that it is always the same one."""
    return _extreme(replace(parts, name="min"))


_AGGREGATES: dict[str, _Rule] = {
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    "min": _extreme,
    "max": _extreme,
    "bool_and": _logical("bool_and"),
    "every": _logical("bool_and"),
    "bool_or": _logical("bool_or"),
    "bit_and": _bits,
    "bit_or": _bits,
    "bit_xor": _bits,
    "stddev": _spread("stddev_samp"),
    "stddev_samp": _spread("stddev_samp"),
    "stddev_pop": _spread("stddev_pop"),
    "variance": _spread("var_samp"),
    "var_samp": _spread("var_samp"),
    "var_pop": _spread("var_pop"),
    "corr": _spread("corr", 2),
    "covar_pop": _spread("covar_pop", 2),
    "covar_samp": _spread("covar_samp", 2),
    "regr_count": _spread("regr_count", 2, types.BIGINT),
    **{
        name: _spread(name, 2)
        for name in (
            "regr_slope",
            "regr_intercept",
            "regr_r2",
            "regr_avgx",
            "regr_avgy",
            "regr_sxx",
            "regr_syy",
            "regr_sxy",
        )
    },
    "any_value": _any,
    "array_agg": collecting.array_agg,
    "string_agg": collecting.string_agg,
    "jsonb_agg": collecting.jsonb_agg,
    "json_agg": collecting.jsonb_agg,
    "jsonb_object_agg": collecting.jsonb_object_agg,
    "json_object_agg": collecting.jsonb_object_agg,
    "percentile_cont": collecting.percentile_cont,
    "percentile_disc": collecting.percentile_disc,
    "mode": collecting.mode,
}

__all__ = ["Aggregation", "aggregate", "is_aggregate", "ordering", "ordering_text"]
