"""A plan as a text tree, for EXPLAIN and for golden files."""

from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Filter,
    Generate,
    Join,
    Opaque,
    Ordering,
    Plan,
    Project,
    Query,
    Scan,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
    inputs_of,
)


def explain_plan(query: Query) -> str:
    """The tree, one node per line, inputs below; each node says its key."""
    shown = ", ".join(name if name == ref else f"{name} = {ref}" for name, ref in query.visible)
    lines = [f"Query [{shown}]"]
    if query.order:
        lines[0] += f" order by {_orders(query.order)}"
    if query.limit is not None:
        lines[0] += f" limit {query.limit}"
    if query.offset:
        lines[0] += f" offset {query.offset}"
    _lines(query.plan, 1, lines)
    return "\n".join(lines)


def _lines(plan: Plan, depth: int, lines: list[str]) -> None:
    key = f"  key ({', '.join(plan.key)})" if plan.key else "  no key"
    lines.append(f"{'  ' * depth}{_head(plan)}{key}")
    for each in inputs_of(plan):
        _lines(each, depth + 1, lines)


def _plain(expression: Expression) -> str:
    return expression.text.replace("`", "")


def _orders(order: tuple[Ordering, ...]) -> str:
    return ", ".join(
        f"{_plain(each.expression)} {'desc' if each.descending else 'asc'} nulls "
        f"{'first' if each.nulls_first else 'last'}"
        for each in order
    )


def _head(plan: Plan) -> str:  # noqa: PLR0911
    match plan:
        case Scan(table=table, columns=columns):
            return f"Scan {table} [{', '.join(stored for _, stored in columns)}]"
        case Values(rows=rows):
            return f"Values {len(rows)} row(s)"
        case Filter(predicate=predicate):
            return f"Filter {_plain(predicate)}"
        case Project(expressions=expressions):
            parts = [
                each.name if _plain(each.expression) == each.name
                else f"{each.name} = {_plain(each.expression)}"
                for each in expressions
            ]  # fmt: skip
            return f"Project [{', '.join(parts)}]"
        case Join():
            return _join(plan)
        case Aggregate(group=group, calls=calls):
            parts = [f"{call.name} = {_plain(call.expression)}" for call in calls]
            return f"Aggregate by ({', '.join(group)}) [{', '.join(parts)}]"
        case UnionAll(tag=tag):
            return f"UnionAll tag {tag}" if tag else "UnionAll"
        case SetOperation(kind=kind, all=every):
            return f"{kind.value.capitalize()}{' all' if every else ''}"
        case WindowFunctions(partition=partition, calls=named):
            parts = [f"{call.name} = {_plain(call.expression)}" for call in named]
            return f"Window by ({', '.join(partition)}) [{', '.join(parts)}]"
        case TopN():
            ties = " with ties" if plan.with_ties else ""
            by = f" by ({', '.join(plan.partition)})" if plan.partition else ""
            skip = f" offset {plan.offset}" if plan.offset else ""
            return f"TopN {plan.limit}{skip}{ties}{by} order by {_orders(plan.order)}"
        case Generate(expression=expression, outer=outer):
            return f"Generate{' outer' if outer else ''} {_plain(expression)}"
        case Opaque(reason=reason):
            return f"Opaque: {reason}"


def _join(plan: Join) -> str:
    operator = " <=> " if plan.null_safe else " = "
    terms = [f"{_plain(left)}{operator}{_plain(right)}" for left, right in plan.on]
    text = f"Join {plan.kind.value} on {' and '.join(terms) or 'true'}"
    return f"{text} where {_plain(plan.residual)}" if plan.residual is not None else text
