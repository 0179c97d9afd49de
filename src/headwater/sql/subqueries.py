"""Subqueries in expressions, as joins.

    as a whole condition    EXISTS, IN                 semi join
                            NOT EXISTS                 anti join
                            NOT IN                     anti join; where nulls are possible its
                                                       condition also holds for "unknown"
    inside an expression    scalar, uncorrelated       joined to its single row
                            scalar, correlated         grouped by the correlation, left join; an
                                                       aggregate over nothing keeps its value
                            EXISTS, IN                 left join with the distinct keys

Correlation must be by equality where the subquery is grouped or gives one value; EXISTS and IN
as whole conditions take any condition.
"""

from collections.abc import Sequence
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
from headwater.sql.expression import comparison
from headwater.sql.expression.typed import TRUE, Typed, column, equality_of, made
from headwater.sql.planning import (
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


def _in_query(node: Any) -> tuple[Any, Any] | None:
    """The value and the query of `x IN (SELECT ...)` and `x = ANY (SELECT ...)`."""
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return node.this, node.args["query"]
    if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
        query = _query_in(node.expression.this)
        if query is not None:
            return node.this, query
    return None


def apply_condition(block: Block, node: Any) -> bool:
    """Apply a whole condition that is EXISTS or IN, negated or not, as a join."""
    negated = False
    inner = node
    while isinstance(inner, exp.Not | exp.Paren):
        negated ^= isinstance(inner, exp.Not)
        inner = inner.this
    if isinstance(inner, exp.NEQ) and isinstance(inner.expression, exp.Anonymous):
        return False
    if isinstance(inner, exp.Exists):
        shape = _planned(block, inner.this)
        if shape.always_one:
            block.plan = _filtered_by(block, "false" if negated else "true")
            return True
        _semi(block, shape, [], negated, node)
        return True
    pair = _in_query(inner)
    if pair is None:
        return False
    values = _row(block, pair[0])
    shape = _planned(block, pair[1])
    equal = _equal(block, values, shape, node)
    if negated and any(map(block.planning.is_nullable, [
        *values, *(value for _, value in shape.columns)
    ])):  # fmt: skip
        equal = made(f"({equal.text} or isnull({equal.text}))", types.BOOLEAN, equal)
    _semi(block, shape, [equal], negated, node)
    return True


def _filtered_by(block: Block, text: str) -> Plan:
    from headwater.sql.planning import filtered  # noqa: PLC0415

    return filtered(block.plan, [Typed(text, types.BOOLEAN)])


def _row(block: Block, node: Any) -> list[Typed]:
    translate = block.translator()
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Tuple):
        return [translate(each) for each in node.expressions]
    return [translate(node)]


def _equal(block: Block, values: list[Typed], shape: Shape, node: Any) -> Typed:
    if len(values) != len(shape.columns):
        block.text.mistake("subquery has a wrong number of columns", node, sqlstate="42601")
    columns = [value for _, value in shape.columns]
    if len(values) == 1:
        return comparison.compare("=", values[0], columns[0], block.text, node)
    return comparison.rows("=", values, columns, block.text, node)


def _planned(block: Block, node: Any) -> Shape:
    inner = node
    while isinstance(inner, exp.Subquery) and not inner.args.get("alias"):
        inner = inner.this
    return block.planning.plan_query(inner, _seen_from_inside(block), block.environment)


def _seen_from_inside(block: Block) -> Scope:
    """The names that a subquery may use: after grouping only what is grouped."""
    if block.grouped is None:
        return block.scope
    scope = Scope(block.text, block.scope.outer)
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
    if isinstance(node, exp.Exists):
        return _exists(block, node)
    pair = _in_query(node)
    if pair is not None:
        return _is_in(block, pair, node)
    if isinstance(node, exp.Subquery):
        return _scalar(block, node)
    if (
        isinstance(node, exp.Anonymous)
        and node.expressions
        and (isinstance(node.expressions[0], exp.Select) and str(node.this).lower() == "array")
    ):
        block.text.refuse("ARRAY(SELECT ...) is not supported", node, hint="Use array_agg.")
    if isinstance(node, exp.Any) and _query_in(node.this) is not None:
        block.text.refuse("only = ANY (SELECT ...) is supported", node)
    return None


def _keys(
    block: Block, shape: Shape, conditions: Sequence[Typed], node: Any
) -> tuple[Plan, list[str], list[Typed]]:
    """The inner sides of equalities as columns, and the equalities over these columns."""
    pairs, rest = split_equalities(conditions, block.own(), names_of(shape.plan))
    if rest:
        block.text.refuse(
            "a subquery here may be correlated by equality only",
            node,
            hint="Join the tables, or use EXISTS as a condition of its own.",
        )
    inner = [Typed(right.text, right.type, right.columns) for _, right in pairs]
    plan, references = extend(block.planning, shape.plan, [("key", each) for each in inner])
    again = [
        equality_of(Typed(left.text, left.type, left.columns), reference)
        for (left, _), reference in zip(pairs, references, strict=True)
    ]  # fmt: skip
    return plan, [name for each in references for name in each.columns], again


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


def _exists(block: Block, node: Any) -> Typed:
    shape = _planned(block, node.this)
    if shape.always_one:
        return TRUE
    _check(block, shape.plan, shape.correlated, node)
    if not shape.correlated:
        single, count = _count(block, shape.plan)
        _beside(block, single)
        return made(f"({count.text} > 0L)", types.BOOLEAN, count, nullable=False)
    plan, group, conditions = _keys(block, shape, shape.correlated, node)
    return _marked(block, plan, group, conditions)


def _is_in(block: Block, pair: tuple[Any, Any], node: Any) -> Typed:
    values = _row(block, pair[0])
    shape = _planned(block, pair[1])
    _check(block, shape.plan, shape.correlated, node)
    equal = _equal(block, values, shape, node)
    columns = [value for _, value in shape.columns]
    nullable = any(map(block.planning.is_nullable, [*values, *columns]))
    if len(values) > 1 or (nullable and shape.correlated):
        block.text.refuse("this IN (SELECT ...) is only supported as a condition of its own", node)
    counts: list[Typed] = []
    if nullable:
        single, all_rows = _count(block, shape.plan)
        single, not_null = _count(block, single, columns[0])
        counts = [all_rows, not_null]
        again = _planned(block, pair[1])
        equal = _equal(block, values, again, node)
        _beside(block, single)
        shape = again
    plan, group, conditions = _keys(block, shape, [*shape.correlated, equal], node)
    found = _marked(block, plan, group, conditions)
    if not nullable:
        return found
    all_rows, not_null = counts
    body = (
        f"(case when {found.text} then true when {all_rows.text} = 0L then false "
        f"when {values[0].text} is null or {not_null.text} < {all_rows.text} then null "
        "else false end)"
    )
    return made(body, types.BOOLEAN, found, all_rows, not_null, values[0])


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
        if not value.columns <= names_of(shape.plan):
            block.text.refuse("this correlated subquery is not supported", node)
        plan, group, conditions = _keys(block, shape, shape.correlated, node)
        plan, value = _single(block, plan, group, value)
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
    swaps: dict[str, str] = {}
    used = frozenset().union(*(value.columns for value in values))
    if empties.keys() & used:
        fresh, marker = block.planning.column("found", types.BOOLEAN)
        kept = tuple(keep(output) for output in right.outputs)
        right = Project(
            input=right, expressions=(*kept, Named(fresh, TRUE.expression())), key=right.key
        )
        swaps = {
            name: f"if({marker.text} is null, {empty}, `{name}`)" for name, empty in empties.items()
        }
    plan = joined(block.planning, JoinKind.LEFT, left, right, conditions)
    return plan, [replaced(value, swaps) for value in values]


__all__ = ["apply_condition", "column", "left_with_marker", "subquery_value"]
