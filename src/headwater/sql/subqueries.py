"""Subqueries in expressions, as joins.

    as a whole condition    EXISTS, IN                 semi join
                            NOT EXISTS                 anti join
                            NOT IN                     anti join; where nulls are possible its
                                                       condition also holds for "unknown"
    inside an expression    scalar, uncorrelated       joined to its single row
                            scalar, correlated         grouped by the correlation, left join; an
                                                       aggregate over nothing keeps its value
                            EXISTS, IN                 left join with the distinct keys

ANY and ALL are like IN; ARRAY(SELECT ...) is a scalar subquery that collects. A correlation that
is no equality goes through the distinct values of the outer columns (`domain.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.sql.algebra import (
    Aggregate,
    AggregateCall,
    Expression,
    Join,
    JoinKind,
    Named,
    Plan,
    Project,
)
from headwater.sql.block import Block
from headwater.sql.domain import domain_of, within
from headwater.sql.expression import comparison
from headwater.sql.expression.aggregate_parts import Parts
from headwater.sql.expression.collecting import array_agg
from headwater.sql.expression.typed import TRUE, Typed, column, equality_of, made, sameness_of
from headwater.sql.planning import (
    Planning,
    Shape,
    extend,
    joined,
    keep,
    names_of,
    replaced,
    split_equalities,
)
from headwater.sql.scope import Scope, Source


def _query_in(node: Any) -> Any:
    """The query inside parentheses, if that is what a node is."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Subquery):
        return node
    return node if isinstance(node, exp.Query) else None


@dataclass(frozen=True, slots=True)
class _Quantified:
    """`x op ANY (query)` or `x op ALL (query)`; IN is `= ANY`."""

    operator: str
    value: Any
    query: Any
    every: bool = False


_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip


def _quantified(node: Any) -> _Quantified | None:
    if isinstance(node, exp.In):
        if node.args.get("query") is not None:
            return _Quantified("=", node.this, node.args["query"])
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Values):
            return _Quantified("=", node.this, node.expressions[0])
        return None
    operator = _OPERATORS.get(type(node))
    if operator is None:
        return None
    right = node.expression
    if isinstance(right, exp.Any | exp.All):
        query = _query_in(right.this)
        every = isinstance(right, exp.All)
    elif isinstance(right, exp.Anonymous) and str(right.this).lower() in ("all", "some"):
        query = _query_in(right.expressions[0]) if right.expressions else None
        every = str(right.this).lower() == "all"
    else:
        return None
    return None if query is None else _Quantified(operator, node.this, query, every)


def _exists_query(node: Any) -> Any:
    """The query of EXISTS, also when sqlglot takes it for a call."""
    if isinstance(node, exp.Exists):
        return node.this
    if (
        isinstance(node, exp.Anonymous)
        and str(node.this).lower() == "exists"
        and len(node.expressions) == 1
        and isinstance(node.expressions[0], exp.Query | exp.Values)
    ):
        return node.expressions[0]
    return None


def apply_condition(block: Block, node: Any) -> bool:
    """Apply a whole condition that is EXISTS, IN, ANY or ALL, negated or not, as a join."""
    negated = False
    inner = node
    while isinstance(inner, exp.Not | exp.Paren):
        negated ^= isinstance(inner, exp.Not)
        inner = inner.this
    query = _exists_query(inner)
    if query is not None:
        shape = _planned(block, query)
        if shape.always_one:
            block.plan = _filtered_by(block, "false" if negated else "true")
            return True
        _semi(block, shape, [], negated, node)
        return True
    found = _quantified(inner)
    if found is None:
        return False
    values = _row(block, found.value)
    shape = _planned(block, found.query)
    compared = _compared(block, found.operator, values, shape, node)
    if found.every:
        # All hold when none fails; the opposite needs one that surely fails.
        text = f"(not {compared.text})" if negated else f"(not ({compared.text} <=> true))"
        _semi(block, shape, [made(text, types.BOOLEAN, compared)], not negated, node)
        return True
    if negated and any(map(block.planning.is_nullable, [
        *values, *(value for _, value in shape.columns)
    ])):  # fmt: skip
        compared = made(f"({compared.text} or isnull({compared.text}))", types.BOOLEAN, compared)
    _semi(block, shape, [compared], negated, node)
    return True


def _filtered_by(block: Block, text: str) -> Plan:
    from headwater.sql.planning import filtered  # noqa: PLC0415

    return filtered(block.plan, [Typed(text, types.BOOLEAN)])


def _row(block: Block, node: Any) -> list[Typed]:
    translate = block.translator()
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Tuple) or (
        isinstance(node, exp.Anonymous) and str(node.this).lower() == "row"
    ):
        return [translate(each) for each in node.expressions]
    return [translate(node)]


def _compared(block: Block, operator: str, values: list[Typed], shape: Shape, node: Any) -> Typed:
    if len(values) != len(shape.columns):
        block.text.mistake("subquery has a wrong number of columns", node, sqlstate="42601")
    columns = [value for _, value in shape.columns]
    if len(values) == 1:
        return comparison.compare(operator, values[0], columns[0], block.text, node)
    return comparison.rows(operator, values, columns, block.text, node)


def _planned(block: Block, node: Any) -> Shape:
    inner = node
    while isinstance(inner, exp.Subquery) and not inner.args.get("alias"):
        inner = inner.this
    return block.planning.plan_query(inner, _seen_from_inside(block), block.environment)


def _seen_from_inside(block: Block) -> Scope:
    """The names that a subquery may use: after grouping only what is grouped."""
    if block.grouped is None:
        return block.scope
    scope = Scope(block.text, block.scope.outer, plan=lambda: block.plan)
    scope.imported = dict(block.scope.imported)
    known = {**block.grouped.by_text, **block.grouped.functional}
    for source in block.scope.sources:
        columns = [(name, known[value.text]) for name, value in source.columns
                   if value.text in known]  # fmt: skip
        scope.sources.append(Source(source.name, columns, set(source.merged)))
    return scope


def _check(block: Block, plan: Plan, conditions: Sequence[Typed], node: Any) -> None:
    have = block.own() | names_of(plan)
    if any(not condition.columns <= have for condition in conditions):
        block.text.refuse(
            "a subquery that reads a query two levels out is not supported here",
            node,
            hint="Join the tables instead.",
        )


def _split_rows(conditions: Sequence[Typed]) -> list[Typed]:
    return list(conditions)


def _semi(block: Block, shape: Shape, extra: list[Typed], negated: bool, node: Any) -> None:
    conditions = [*shape.correlated, *extra]
    _check(block, shape.plan, conditions, node)
    kind = JoinKind.ANTI if negated else JoinKind.SEMI
    # Computed result columns have to exist in the plan before a join can read them.
    block.plan = joined(block.planning, kind, block.plan, shape.plan, _split_rows(conditions))


def subquery_value(block: Block, node: Any) -> Typed | None:
    """A column that holds a subquery's value, or None if the node is no subquery."""
    query = _exists_query(node)
    if query is not None:
        return _exists(block, query, node)
    found = _quantified(node)
    if found is not None:
        return _held(block, found, node)
    if isinstance(node, exp.Subquery):
        return _scalar(block, node)
    if (
        isinstance(node, exp.Anonymous)
        and str(node.this).lower() == "array"
        and len(node.expressions) == 1
        and isinstance(node.expressions[0], exp.Query | exp.Values)
    ):
        return _array(block, node.expressions[0], node)
    return None


def _keys(
    block: Block, shape: Shape, conditions: Sequence[Typed]
) -> tuple[Plan, list[str], list[Typed], dict[str, str]]:
    """The correlation as columns of the inner plan, and as equalities with these columns.

    Conditions that are no equalities are taken inside by way of a domain; the last result says
    which outer columns then have a column inside.
    """
    plan, planning = shape.plan, block.planning
    pairs, rest = split_equalities(conditions, block.own(), names_of(plan))
    safe, rest = split_equalities(rest, block.own(), names_of(plan), null_safe=True)
    outer = frozenset().union(
        *(each.columns & block.own() for each in rest),
        *(value.columns & block.own() for _, value in shape.columns),
    )
    swaps: dict[str, str] = {}
    again: list[Typed] = []
    group: list[str] = []
    if rest or outer:
        domain = domain_of(planning, block.plan, outer)
        plan = within(planning, plan, domain, rest)
        swaps, again = domain.swaps, domain.equalities(planning)
        group = [name for value in domain.columns.values() for name in value.columns]
    inner = [Typed(right.text, right.type, right.columns) for _, right in (*pairs, *safe)]
    plan, references = extend(planning, plan, [("key", each) for each in inner])
    for place, ((left, _), reference) in enumerate(zip((*pairs, *safe), references, strict=True)):
        compare = equality_of if place < len(pairs) else sameness_of
        again.append(compare(Typed(left.text, left.type, left.columns), reference))
    group = [*(name for each in references for name in each.columns), *group]
    return plan, group, again, swaps


def _marked(block: Block, plan: Plan, group: list[str], conditions: list[Typed]) -> Typed:
    """Join the distinct groups; the value says whether one fits."""
    distinct: Plan = Aggregate(input=plan, group=tuple(dict.fromkeys(group)), calls=())
    fresh, marker = block.planning.column("found", types.BOOLEAN)
    kept = tuple(keep(output) for output in distinct.outputs)
    distinct = Project(
        input=distinct, expressions=(*kept, Named(fresh, TRUE.expression())), key=distinct.key
    )
    block.plan = joined(block.planning, JoinKind.LEFT, block.plan, distinct, conditions)
    return made(f"({marker.text} is not null)", types.BOOLEAN, marker, nullable=False)


def _count(block: Block, plan: Plan, argument: Typed | None = None) -> tuple[Plan, Typed]:
    fresh, reference = block.planning.column("count", types.BIGINT, nullable=False)
    text = f"count({argument.text if argument is not None else '*'})"
    columns = argument.columns if argument is not None else frozenset()
    call = AggregateCall(
        name=fresh, function="count", expression=Expression(text, types.BIGINT, columns),
        argument=argument.expression() if argument is not None else None,
    )  # fmt: skip
    if isinstance(plan, Aggregate) and not plan.group:
        return Aggregate(input=plan.input, group=(), calls=(*plan.calls, call)), reference
    return Aggregate(input=plan, group=(), calls=(call,)), reference


def _beside(block: Block, single: Plan) -> None:
    """Put the columns of a single row beside every row."""
    block.plan = Join(kind=JoinKind.INNER, left=block.plan, right=single, on=(), key=block.plan.key)


def _exists(block: Block, query: Any, node: Any) -> Typed:
    shape = _planned(block, query)
    if shape.always_one:
        return TRUE
    _check(block, shape.plan, shape.correlated, node)
    if not shape.correlated:
        single, count = _count(block, shape.plan)
        _beside(block, single)
        return made(f"({count.text} > 0L)", types.BOOLEAN, count, nullable=False)
    plan, group, conditions, _ = _keys(block, replace(shape, columns=[]), shape.correlated)
    return _marked(block, plan, group, conditions)


def _held(block: Block, found: _Quantified, node: Any) -> Typed:
    """Whether a comparison holds for one or for all rows of a query, as a value."""
    values = _row(block, found.value)
    shape = _planned(block, found.query)
    _check(block, shape.plan, shape.correlated, node)
    compared = _compared(block, found.operator, values, shape, node)
    columns = [value for _, value in shape.columns]
    plain = found.operator == "=" and not found.every and len(values) == 1
    if plain and not any(map(block.planning.is_nullable, [*values, *columns])):
        conditions = [*shape.correlated, compared]
        plan, group, again, _ = _keys(block, replace(shape, columns=[]), conditions)
        return _marked(block, plan, group, again)
    if plain and not shape.correlated:
        return _in_counted(block, found, values, shape, node)
    if found.every:
        compared = made(f"(not {compared.text})", types.BOOLEAN, compared)
    held = _counted(block, shape, compared)
    return made(f"(not {held.text})", types.BOOLEAN, held) if found.every else held


def _in_counted(
    block: Block, found: _Quantified, values: list[Typed], shape: Shape, node: Any
) -> Typed:
    """IN over an uncorrelated query: found by a join, unknown by counting its nulls."""
    columns = [value for _, value in shape.columns]
    single, all_rows = _count(block, shape.plan)
    single, not_null = _count(block, single, columns[0])
    again = _planned(block, found.query)
    equal = _compared(block, "=", values, again, node)
    _beside(block, single)
    plan, group, conditions, _ = _keys(block, replace(again, columns=[]), [equal])
    there = _marked(block, plan, group, conditions)
    body = (
        f"(case when {there.text} then true when {all_rows.text} = 0L then false "
        f"when {values[0].text} is null or {not_null.text} < {all_rows.text} then null "
        "else false end)"
    )
    return made(body, types.BOOLEAN, there, all_rows, not_null, values[0])


def _counted(block: Block, shape: Shape, compared: Typed) -> Typed:
    """Whether a comparison is true for a row: by counting, per row around, how often it is."""
    shape = replace(shape, columns=[("held", compared)])
    plan, group, conditions, swaps = _keys(block, shape, shape.correlated)
    inner = replaced(compared, swaps)
    calls, references = [], []
    for text in (f"count_if({inner.text})", f"count({inner.text})", "count(*)"):
        fresh, reference = block.planning.column("count", types.BIGINT)
        expression = Expression(text, types.BIGINT, inner.columns)
        calls.append(AggregateCall(name=fresh, function="count_if", expression=expression))
        references.append(reference)
    counted = Aggregate(input=plan, group=tuple(dict.fromkeys(group)), calls=tuple(calls))
    if group:
        block.plan = joined(block.planning, JoinKind.LEFT, block.plan, counted, conditions)
    else:
        _beside(block, counted)
    true, known, rows = (reference.text for reference in references)
    body = f"(case when {true} > 0L then true when {known} < {rows} then null else false end)"
    return made(body, types.BOOLEAN, *references)


def _array(block: Block, query: Any, node: Any) -> Typed:
    """ARRAY(SELECT ...): all values in the query's order; empty where there are none."""
    shape = _planned(block, query)
    if len(shape.columns) != 1:
        block.text.mistake("subquery must return only one column", node, sqlstate="42601")
    _check(block, shape.plan, shape.correlated, node)
    plan, group, conditions, swaps = _keys(block, shape, shape.correlated)
    value = replaced(shape.columns[0][1], swaps)
    parts = Parts(
        name="array_agg", args=[value], star=False, distinct=False, order=list(shape.order),
        filter=None, text=block.text, node=node,
    )  # fmt: skip
    collected = array_agg(parts).value
    columns = collected.columns.union(value.columns, *(
        each.expression.columns for each in shape.order))  # fmt: skip
    fresh, reference = block.planning.column("array", collected.known)
    expression = Expression(collected.text, collected.known, columns)
    call = AggregateCall(name=fresh, function="array_agg", expression=expression)
    listed = Aggregate(input=plan, group=tuple(dict.fromkeys(group)), calls=(call,))
    if group:
        block.plan = joined(block.planning, JoinKind.LEFT, block.plan, listed, conditions)
    else:
        _beside(block, listed)
    empty = f"cast(array() as {collected.known.spark})"
    return made(f"coalesce({reference.text}, {empty})", collected.known, reference, nullable=False)


def _single(block: Block, plan: Plan, group: list[str], value: Typed) -> tuple[Plan, Typed]:
    """At most one value per group: a second row is an error."""
    fresh, reference = block.planning.column("value", value.known)
    error = "cast(raise_error('more than one row returned by a subquery used as an expression')"
    text = f"if(count(*) > 1, {error} as {value.known.spark}), any_value({value.text}))"
    call = AggregateCall(
        name=fresh, function="single", argument=value.expression(),
        expression=Expression(text, value.known, value.columns),
    )  # fmt: skip
    return Aggregate(input=plan, group=tuple(dict.fromkeys(group)), calls=(call,)), reference


def _scalar(block: Block, node: Any) -> Typed:
    shape = _planned(block, node)
    if len(shape.columns) != 1:
        block.text.mistake("subquery must return only one column", node, sqlstate="42601")
    value = shape.columns[0][1]
    _check(block, shape.plan, shape.correlated, node)
    if not shape.correlated:
        plan = shape.plan
        if not shape.always_one:
            plan, value = _single(block, plan, [], value)
        _beside(block, plan)
        return value
    if not shape.always_one:
        plan, group, conditions, swaps = _keys(block, shape, shape.correlated)
        plan, value = _single(block, plan, group, replaced(value, swaps))
        block.plan = joined(block.planning, JoinKind.LEFT, block.plan, plan, conditions)
        return value
    block.plan, values = left_with_marker(
        block, block.plan, shape.plan, shape.correlated, [value], shape.empties
    )
    return values[0]


def left_with_marker(  # noqa: PLR0913, PLR0917
    block: Block, left: Plan, right: Plan, conditions: Sequence[Typed], values: list[Typed],
    empties: dict[str, str],
) -> tuple[Plan, list[Typed]]:  # fmt: skip
    """A left join whose missing rows stand for aggregates over nothing."""
    return with_empties(block.planning, left, right, conditions, values, empties)


def with_empties(  # noqa: PLR0913, PLR0917
    planning: Planning, left: Plan, right: Plan, conditions: Sequence[Typed],
    values: list[Typed], empties: dict[str, str],
) -> tuple[Plan, list[Typed]]:  # fmt: skip
    """A left join whose missing rows stand for aggregates over nothing."""
    swaps: dict[str, str] = {}
    used = frozenset().union(*(value.columns for value in values))
    if empties.keys() & used:
        fresh, marker = planning.column("found", types.BOOLEAN)
        kept = tuple(keep(output) for output in right.outputs)
        right = Project(
            input=right, expressions=(*kept, Named(fresh, TRUE.expression())), key=right.key
        )
        swaps = {
            name: f"if({marker.text} is null, {empty}, `{name}`)" for name, empty in empties.items()
        }
    plan = joined(planning, JoinKind.LEFT, left, right, conditions)
    return plan, [replaced(value, swaps) for value in values]


__all__ = ["apply_condition", "column", "left_with_marker", "subquery_value"]
