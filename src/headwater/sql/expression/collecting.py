"""Aggregates that keep all values of a group: lists, texts, jsonb, and ordered sets.

Where PostgreSQL leaves the order of values open, the order of the values themselves is taken, so
that the same rows always give the same result.
"""

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import Ordering
from headwater.sql.expression import comparison
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.aggregate_parts import Aggregation, Parts
from headwater.sql.expression.casting import to_text
from headwater.sql.expression.coercion import NUMBERS, become
from headwater.sql.expression.json_building import to_json
from headwater.sql.expression.typed import Typed, made


def comparator(order: list[Ordering]) -> str:
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


def listed(parts: Parts, value: Typed, condition: str) -> str:
    """All values in order, as a Spark array; `condition` goes into FILTER."""
    order = list(parts.order)
    if value.known.kind not in (Kind.STRUCT, Kind.JSONB):
        order.append(Ordering(comparison.ordered(value, parts.text, parts.node).expression()))
    elif value.known.kind is Kind.JSONB:
        order.append(Ordering(value.expression()))
    keys = ", ".join(f"{each.expression.text} as o{i}" for i, each in enumerate(order))
    collect = "collect_set" if parts.distinct else "collect_list"
    row = f"struct({keys}, {value.text} as v)" if keys else f"struct({value.text} as v)"
    listed = f"{collect}({row}){condition}"
    sorted_ = f"array_sort({listed}, {comparator(order)})" if order else listed
    return f"transform({sorted_}, s -> s.v)"


def array_agg(parts: Parts) -> Aggregation:
    """array_agg: keeps nulls; null over nothing."""
    value = parts.one()
    value = become(value, value.known, parts.text, parts.node)
    body = listed(parts, value, parts.suffix)
    result = types.list_of(value.known)
    text = f"if(count(*){parts.suffix} = 0, null, {body})"
    return Aggregation(function="array_agg", value=made(text, result, value), argument=value)


def string_agg(parts: Parts) -> Aggregation:
    """string_agg: skips nulls; null over nothing."""
    if len(parts.args) != 2:
        parts.text.mistake("string_agg takes two arguments", parts.node, sqlstate="42883")
    value, by = (become(each, types.VARCHAR, parts.text, parts.node) for each in parts.args)
    if value.type is not None and value.type.kind is Kind.BYTEA:
        parts.text.refuse("string_agg of bytea is not supported", parts.node)
    if by.columns:
        parts.text.refuse("the delimiter of string_agg must be a constant", parts.node)
    also = f" and {parts.filter.text}" if parts.filter is not None else ""
    condition = f" filter (where {value.text} is not null{also})"
    body = listed(parts, value, condition)
    text = f"if(count(*){condition} = 0, null, array_join({body}, coalesce({by.text}, '')))"
    return Aggregation(
        function="string_agg", value=made(text, types.VARCHAR, value, by), argument=value
    )


def jsonb_agg(parts: Parts) -> Aggregation:
    """jsonb_agg: nulls become JSON's null; null over nothing."""
    value = to_json(parts.one(), parts.text, parts.node)
    filled = made(f"coalesce({value.text}, 'null')", types.JSONB, value)
    body = jt.array_of(listed(parts, filled, parts.suffix))
    text = f"if(count(*){parts.suffix} = 0, null, {body})"
    return Aggregation(function="jsonb_agg", value=made(text, types.JSONB, value), argument=value)


def jsonb_object_agg(parts: Parts) -> Aggregation:
    """jsonb_object_agg: the last of equal keys counts, by the order asked for."""
    if len(parts.args) != 2:
        parts.text.mistake("jsonb_object_agg takes two arguments", parts.node, sqlstate="42883")
    key = to_text(parts.args[0], parts.text, parts.node)
    value = to_json(parts.args[1], parts.text, parts.node)
    error = "cast(raise_error('field name must not be null') as string)"
    fields = (("k", types.VARCHAR), ("v", types.JSONB))
    pair = made(
        f"named_struct('k', coalesce({key.text}, {error}), 'v', coalesce({value.text}, 'null'))",
        DataType(Kind.STRUCT, fields=fields), key, value,
    )  # fmt: skip
    pairs = listed(parts, pair, parts.suffix)
    last = "filter(a, (w, n) -> not exists(slice(a, n + 2, size(a)), o -> o.k = w.k))"
    body = jt.bound(pairs, "a", jt.object_of(last))
    text = f"if(count(*){parts.suffix} = 0, null, {body})"
    return Aggregation(
        function="jsonb_object_agg", value=made(text, types.JSONB, key, value), argument=value
    )


def _one_order(parts: Parts) -> Ordering:
    if len(parts.order) != 1:
        parts.text.mistake(f"{parts.name} needs WITHIN GROUP (ORDER BY ...)", parts.node)
    return parts.order[0]


def _present(parts: Parts, value: str) -> str:
    also = f" and {parts.filter.text}" if parts.filter is not None else ""
    return f" filter (where {value} is not null{also})"


def percentile_cont(parts: Parts) -> Aggregation:
    """percentile_cont of one fraction or an array of fractions, as doubles."""
    order = _one_order(parts)
    fraction = parts.one()
    if fraction.columns:
        parts.text.refuse(f"{parts.name} needs a constant fraction", parts.node)
    if order.expression.type.kind not in NUMBERS:
        parts.text.refuse(f"{parts.name} is supported for numbers only", parts.node)
    direction = " desc" if order.descending else ""
    value = f"cast({order.expression.text} as double)"

    def one(text: str) -> str:
        ordered = f"order by {value}{direction}"
        return f"percentile_cont({text}) within group ({ordered}){parts.suffix}"

    if fraction.known.kind is Kind.LIST:
        items = fraction.items or ()
        body = f"array({', '.join(one(item.text) for item in items)})"
        body = f"if(count({value}){parts.suffix} = 0, null, {body})"
        typed = Typed(body, types.list_of(types.DOUBLE), order.expression.columns)
    else:
        checked = become(fraction, types.DOUBLE, parts.text, parts.node)
        plain = fraction.text if fraction.type is not None else checked.text
        typed = Typed(one(plain), types.DOUBLE, order.expression.columns)
    return Aggregation(function="percentile_cont", value=typed)


def percentile_disc(parts: Parts) -> Aggregation:
    """percentile_disc: the first value whose place is at least that fraction of all."""
    order, fraction = _one_order(parts), parts.one()
    if fraction.columns:
        parts.text.refuse(f"{parts.name} needs a constant fraction", parts.node)
    type_ = order.expression.type
    values = _sorted_values(parts, order)
    by = become(fraction, types.DOUBLE, parts.text, parts.node)
    place = f"greatest(cast(ceil({by.text} * size(a)) as int), 1)"
    body = jt.bound(values, "a", f"get(a, {place} - 1)")
    typed = Typed(body, type_, order.expression.columns)
    return Aggregation(function="percentile_disc", value=typed)


def _sorted_values(parts: Parts, order: Ordering) -> str:
    text = order.expression.text
    row = f"struct({text} as o0, {text} as v)"
    collected = f"collect_list({row}){_present(parts, text)}"
    return f"transform(array_sort({collected}, {comparator([order])}), s -> s.v)"


def mode(parts: Parts) -> Aggregation:
    """The most frequent value, the first in order of those."""
    order = _one_order(parts)
    if parts.args:
        parts.text.mistake("mode takes no argument", parts.node, sqlstate="42883")
    counted = "transform(array_distinct(a), x -> struct(size(filter(a, y -> y = x)) as c, x as v))"
    best = "aggregate(b, get(b, 0), (m, x) -> if(x.c > m.c, x, m)).v"
    body = jt.bound(_sorted_values(parts, order), "a", jt.bound(counted, "b", best))
    typed = Typed(body, order.expression.type, order.expression.columns)
    return Aggregation(function="mode", value=typed)
