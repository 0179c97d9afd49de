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
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.algebra import Ordering
from headwater.sql.expression import comparison
from headwater.sql.expression.arithmetic import decimal_quotient
from headwater.sql.expression.coercion import DECIMALS, FLOATS, INTEGERS, become, number
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import Translator, function_name
from headwater.sql.expression.typed import Typed, made


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """An aggregate call, translated; `empty` is its value over no rows at all."""

    function: str
    value: Typed
    argument: Typed | None = None
    distinct: bool = False
    filter: Typed | None = None
    empty: str = "NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A call taken apart."""

    name: str
    args: list[Typed]
    star: bool
    distinct: bool
    order: list[Ordering]
    filter: Typed | None
    text: Text
    node: Any

    @property
    def suffix(self) -> str:
        """The FILTER clause."""
        return f" filter (where {self.filter.text})" if self.filter is not None else ""

    @property
    def quantifier(self) -> str:
        """DISTINCT, if asked."""
        return "distinct " if self.distinct else ""

    def one(self) -> Typed:
        """The only argument."""
        if len(self.args) != 1:
            self.text.mistake(f"{self.name} takes one argument", self.node, sqlstate="42883")
        return self.args[0]


def ordering(t: Translator, node: Any) -> Ordering:
    """One ORDER BY term: PostgreSQL puts nulls last, and first when descending."""
    value = comparison.ordered(t(node.this), t.text, node)
    descending = bool(node.args.get("desc"))
    return Ordering(value.expression(), descending, bool(node.args.get("nulls_first")))


def ordering_text(order: Ordering) -> str:
    """An ORDER BY term in Spark."""
    direction = "desc" if order.descending else "asc"
    return f"{order.expression.text} {direction} nulls {'first' if order.nulls_first else 'last'}"


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
    parts = _Parts(
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
    )  # fmt: skip


_Rule = Callable[[_Parts], Aggregation]


def _count(parts: _Parts) -> Aggregation:
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


def _summed(parts: _Parts) -> tuple[Typed, Typed]:
    """The argument as it is added, and the sum."""
    argument = parts.one()
    if argument.type is None:
        parts.text.mistake(f"function {parts.name}(unknown) is not unique", parts.node)
    if argument.known.kind is Kind.INTERVAL:
        parts.text.refuse(f"{parts.name} of intervals is not supported", parts.node)
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


def _sum(parts: _Parts) -> Aggregation:
    argument, value = _summed(parts)
    return Aggregation(function="sum", value=value, argument=argument)


def _avg(parts: _Parts) -> Aggregation:
    argument, total = _summed(parts)
    if argument.known.kind in FLOATS:
        wide = f"cast({argument.text} as double)"
        body = f"avg({parts.quantifier}{wide}){parts.suffix}"
        return Aggregation(
            function="avg", value=made(body, types.DOUBLE, argument), argument=argument
        )
    count = f"count({parts.quantifier}{argument.text}){parts.suffix}"
    divisor = Typed(f"nullif(cast({count} as decimal(19,0)), 0)", types.decimal(19, 0))
    if total.known.kind is Kind.BIGINT:
        total = made(f"cast({total.text} as decimal(19,0))", types.decimal(19, 0), total)
    value = decimal_quotient(total, divisor, parts.text, parts.node)
    return Aggregation(function="avg", value=value, argument=argument)


def _extreme(parts: _Parts) -> Aggregation:
    argument = parts.one()
    if argument.type is None:
        argument = become(argument, types.VARCHAR, parts.text, parts.node)
    if argument.known.kind is Kind.NUMERIC:
        argument = number(argument, parts.text, parts.node)
    if argument.known.kind in (
        Kind.BOOLEAN, Kind.JSONB, Kind.UUID, Kind.INTERVAL, Kind.STRUCT, Kind.BYTEA
    ):  # fmt: skip
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
    def rule(parts: _Parts) -> Aggregation:
        argument = comparison.truth(parts.one(), parts.text, parts.node)
        body = f"{spark}({parts.quantifier}{argument.text}){parts.suffix}"
        return Aggregation(
            function=spark, value=made(body, types.BOOLEAN, argument), argument=argument
        )

    return rule


def _bits(parts: _Parts) -> Aggregation:
    argument = parts.one()
    if argument.known.kind not in INTEGERS:
        parts.text.mistake(f"{parts.name} needs an integer", parts.node)
    body = f"{parts.name}({parts.quantifier}{argument.text}){parts.suffix}"
    return Aggregation(
        function=parts.name, value=made(body, argument.known, argument), argument=argument
    )


def _spread(spark: str, arguments: int = 1) -> _Rule:
    def rule(parts: _Parts) -> Aggregation:
        if len(parts.args) != arguments:
            parts.text.mistake(f"{parts.name} takes {arguments} argument(s)", parts.node)
        for argument in parts.args:
            if argument.type is not None and argument.type.kind not in FLOATS and arguments == 1:
                parts.text.refuse(
                    f"{parts.name} of {argument.known.postgres} is not supported",
                    parts.node,
                    hint="Cast it to double precision.",
                )
        values = [become(each, types.DOUBLE, parts.text, parts.node) for each in parts.args]
        inner = ", ".join(value.text for value in values)
        body = f"{spark}({parts.quantifier}{inner}){parts.suffix}"
        return Aggregation(
            function=spark, value=made(body, types.DOUBLE, *values), argument=values[0]
        )

    return rule


def _comparator(order: list[Ordering]) -> str:
    """A comparison of two structs with the fields o0, o1, ..."""
    branches = []
    for place, each in enumerate(order):
        one, two = f"l.o{place}", f"r.o{place}"
        null_one = -1 if each.nulls_first else 1
        less = 1 if each.descending else -1
        branches.append(
            f"when {one} is null and {two} is not null then {null_one} "
            f"when {one} is not null and {two} is null then {-null_one} "
            f"when {one} < {two} then {less} when {one} > {two} then {-less}"
        )
    return f"(l, r) -> case {' '.join(branches)} else 0 end"


def _listed(parts: _Parts, value: Typed, condition: str) -> str:
    """All values in order, as a Spark array; `condition` goes into FILTER."""
    order = list(parts.order)
    if value.known.kind is not Kind.STRUCT:
        order.append(Ordering(comparison.ordered(value, parts.text, parts.node).expression()))
    keys = ", ".join(f"{each.expression.text} as o{i}" for i, each in enumerate(order))
    collect = "collect_set" if parts.distinct else "collect_list"
    row = f"struct({keys}, {value.text} as v)" if keys else f"struct({value.text} as v)"
    listed = f"{collect}({row}){condition}"
    sorted_ = f"array_sort({listed}, {_comparator(order)})" if order else listed
    return f"transform({sorted_}, s -> s.v)"


def _array_agg(parts: _Parts) -> Aggregation:
    value = parts.one()
    value = become(value, value.known, parts.text, parts.node)
    body = _listed(parts, value, parts.suffix)
    result = types.list_of(value.known)
    text = f"if(count(*){parts.suffix} = 0, null, {body})"
    return Aggregation(function="array_agg", value=made(text, result, value), argument=value)


def _string_agg(parts: _Parts) -> Aggregation:
    if len(parts.args) != 2:
        parts.text.mistake("string_agg takes two arguments", parts.node, sqlstate="42883")
    value, by = (become(each, types.VARCHAR, parts.text, parts.node) for each in parts.args)
    if by.columns:
        parts.text.refuse("the delimiter of string_agg must be a constant", parts.node)
    also = f" and {parts.filter.text}" if parts.filter is not None else ""
    condition = f" filter (where {value.text} is not null{also})"
    body = _listed(parts, value, condition)
    text = f"if(count(*){condition} = 0, null, array_join({body}, coalesce({by.text}, '')))"
    return Aggregation(
        function="string_agg", value=made(text, types.VARCHAR, value, by), argument=value
    )


def _percentile(parts: _Parts) -> Aggregation:
    if len(parts.args) != 1 or parts.args[0].columns or len(parts.order) != 1:
        parts.text.refuse(f"{parts.name} needs one constant fraction", parts.node)
    fraction, order = parts.args[0], parts.order[0]
    if order.expression.type.kind not in (*INTEGERS, *DECIMALS, *FLOATS):
        parts.text.refuse(f"{parts.name} is supported for numbers only", parts.node)
    direction = " desc" if order.descending else ""
    value = f"cast({order.expression.text} as double)"
    body = (
        f"percentile_cont({fraction.text}) within group (order by {value}{direction}){parts.suffix}"
    )
    typed = Typed(body, types.DOUBLE, order.expression.columns)
    return Aggregation(function="percentile_cont", value=typed)


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
    "array_agg": _array_agg,
    "string_agg": _string_agg,
    "percentile_cont": _percentile,
}
