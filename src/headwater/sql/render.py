"""A plan as one Spark SQL text.

This is the batch meaning of a plan: what a SELECT runs, and what incremental results are
compared with. Stored relations are named by the caller, for example as temporary views.
"""

from collections.abc import Callable

from headwater.model.ids import TableId
from headwater.sql.algebra import (
    Aggregate,
    Filter,
    Generate,
    Join,
    JoinKind,
    Opaque,
    Ordering,
    Output,
    Plan,
    Project,
    Query,
    Scan,
    SetKind,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
)
from headwater.sql.expression.aggregates import ordering_text

TableText = Callable[[TableId], str]


def render_query(query: Query, table: TableText) -> str:
    """The user's columns in order, under their names (numbered where names repeat)."""
    seen: dict[str, int] = {}
    columns = []
    for shown, name in query.visible:
        seen[shown] = seen.get(shown, 0) + 1
        unique = shown if seen[shown] == 1 else f"{shown}_{seen[shown]}"
        columns.append(f"`{name}` as `{unique.replace('`', '``')}`")
    text = f"select * from {render(query.plan, table)}"
    if query.order:
        text += " order by " + ", ".join(map(ordering_text, query.order))
    if query.limit is not None:
        text += f" limit {query.limit}"
    if query.offset:
        text += f" offset {query.offset}"
    if query.order:
        # The order must outlive the last projection, which may drop what it reads.
        order = ", ".join(map(ordering_text, query.order))
        return f"select {', '.join(columns)} from ({text}) order by {order}"
    return f"select {', '.join(columns)} from ({text})"


def render(plan: Plan, table: TableText) -> str:  # noqa: PLR0911
    """A plan as a subquery in parentheses."""
    match plan:
        case Scan(columns=columns):
            names = ", ".join(f"`{stored}` as `{name}`" for name, stored in columns)
            return f"(select {names} from {table(plan.table)})"
        case Values():
            return _values(plan)
        case Filter(input=inner, predicate=predicate):
            return f"(select * from {render(inner, table)} where {predicate.text})"
        case Project(input=inner, expressions=expressions):
            names = ", ".join(f"{each.expression.text} as `{each.name}`" for each in expressions)
            return f"(select {names} from {render(inner, table)})"
        case Join():
            return _join(plan, table)
        case Aggregate():
            return _aggregate(plan, table)
        case UnionAll():
            return _union(plan, table)
        case SetOperation():
            return _set_operation(plan, table)
        case WindowFunctions(input=inner, calls=calls):
            names = ", ".join(f"{call.expression.text} as `{call.name}`" for call in calls)
            return f"(select *, {names} from {render(inner, table)})"
        case TopN():
            return _top(plan, table)
        case Generate():
            return _generate(plan, table)
        case Opaque(inputs=inputs, sql=sql):
            return f"({sql.format(*(render(each, table) for each in inputs))})"


def _names(outputs: tuple[Output, ...]) -> str:
    return ", ".join(f"`{output.name}`" for output in outputs)


def _values(plan: Values) -> str:
    if not plan.rows:
        nulls = ", ".join(
            f"cast(NULL as {each.type.spark}) as `{each.name}`" for each in plan.outputs
        )
        return f"(select {nulls} where false)"
    rows = ", ".join(f"({', '.join(cell.text for cell in row)})" for row in plan.rows)
    return f"(select * from values {rows} as v({_names(plan.outputs)}))"


_JOINS = {
    JoinKind.INNER: "join",
    JoinKind.LEFT: "left join",
    JoinKind.RIGHT: "right join",
    JoinKind.FULL: "full join",
    JoinKind.SEMI: "left semi join",
    JoinKind.ANTI: "left anti join",
}


def _join(plan: Join, table: TableText) -> str:
    operator = "<=>" if plan.null_safe else "="
    terms = [f"({left.text} {operator} {right.text})" for left, right in plan.on]
    if plan.residual is not None:
        terms.append(plan.residual.text)
    condition = " and ".join(terms) or "true"
    return (
        f"(select {_names(plan.outputs)} from {render(plan.left, table)} as l "
        f"{_JOINS[plan.kind]} {render(plan.right, table)} as r on {condition})"
    )


def _aggregate(plan: Aggregate, table: TableText) -> str:
    group = [f"`{name}`" for name in plan.group]
    calls = [f"{call.expression.text} as `{call.name}`" for call in plan.calls]
    inner = render(plan.input, table)
    if not group and not calls:
        return f"(select 1 as one from (select count(*) from {inner}))"
    tail = f" group by {', '.join(group)}" if group else ""
    return f"(select {', '.join([*group, *calls])} from {inner}{tail})"


def _union(plan: UnionAll, table: TableText) -> str:
    parts = []
    outputs = [output for output in plan.outputs if output.name != plan.tag]
    for place, (each, names) in enumerate(zip(plan.inputs, plan.columns, strict=True)):
        columns = [
            f"`{name}` as `{output.name}`" for name, output in zip(names, outputs, strict=True)
        ]
        if plan.tag is not None:
            columns.append(f"{place} as `{plan.tag}`")
        parts.append(f"select {', '.join(columns)} from {render(each, table)}")
    return f"({' union all '.join(parts)})"


def _set_operation(plan: SetOperation, table: TableText) -> str:
    word = "intersect" if plan.kind is SetKind.INTERSECT else "except"
    every = " all" if plan.all else ""
    sides = []
    for side in (plan.left, plan.right):
        columns = [
            f"`{given.name}` as `{output.name}`"
            for given, output in zip(side.outputs, plan.outputs, strict=True)
        ]
        sides.append(f"select {', '.join(columns)} from {render(side, table)}")
    return f"({sides[0]} {word}{every} {sides[1]})"


def _top(plan: TopN, table: TableText) -> str:
    outputs = {output.name: output for output in plan.outputs}
    order = [ordering_text(each) for each in plan.order]
    ties = [] if plan.with_ties else [f"`{name}` asc nulls last" for name in plan.key]
    window = ""
    if plan.partition:
        window = "partition by " + ", ".join(f"`{name}`" for name in plan.partition) + " "
    window += "order by " + ", ".join([*order, *ties] or ["1"])
    function = "rank" if plan.with_ties else "row_number"
    place = f"{function}() over ({window})"
    bounds = [f"place > {plan.offset}"] if plan.offset else []
    if plan.limit is not None:
        bounds.append(f"place <= {plan.limit + plan.offset}")
    where = f" where {' and '.join(bounds)}" if bounds else ""
    inner = f"(select *, {place} as place from {render(plan.input, table)})"
    return f"(select {_names(tuple(outputs.values()))} from {inner}{where})"


def _generate(plan: Generate, table: TableText) -> str:
    fields = ", ".join(f"element.`{each.name}` as `{each.name}`" for each in plan.generated)
    outer = "outer " if plan.outer else ""
    return (
        f"(select {_names(plan.input.outputs)}, {fields}, "
        f"cast(place + 1 as bigint) as `{plan.ordinality}` from {render(plan.input, table)} "
        f"lateral view {outer}posexplode({plan.expression.text}) as place, element)"
    )


__all__ = ["Ordering", "render", "render_query"]
