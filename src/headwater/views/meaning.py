"""What each operator means: Spark SQL over the SQL of its inputs.

The same text serves whole tables and deltas. Operators that work row by row (filter, project,
generate, union all) and joins with one changed side take extra columns along, which is how the
weight of a delta's row reaches its output.

Promises
    Pure         Texts in, text out. No Spark.
    Exact        One meaning per node, whether the rows come from files or from memory.
"""

import re
from collections.abc import Sequence
from typing import assert_never

from headwater.model.spelling import quoted
from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Filter,
    Generate,
    Join,
    JoinKind,
    Opaque,
    Ordering,
    Output,
    Plan,
    Project,
    Scan,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
)
from headwater.views.spelling import (
    LEFT,
    NOTHING,
    RIGHT,
    both,
    listed,
    names_of,
    null,
    select_list,
)

_INPUT = re.compile(r"\{(\d+)\}")
"""Where an opaque query names one of its inputs."""

_JOINS = {
    JoinKind.INNER: "join",
    JoinKind.LEFT: "left join",
    JoinKind.RIGHT: "right join",
    JoinKind.FULL: "full join",
    JoinKind.SEMI: "left semi join",
    JoinKind.ANTI: "left anti join",
}


def scan_sql(scan: Scan, view: str, extra: Sequence[str] = ()) -> str:
    """A stored relation under the plan's names."""
    pairs = [f"{quoted(stored)} as {quoted(name)}" for name, stored in scan.columns]
    return f"select {', '.join([*pairs, *map(quoted, extra)])} from {view}"


def values_sql(values: Values) -> str:
    """Rows that the query names."""
    outputs = values.outputs
    if not values.rows:
        return f"select {', '.join(null(output) for output in outputs)} where false"
    rows = [
        ", ".join(
            f"cast({cell.text} as {output.type.spark})"
            for cell, output in zip(row, outputs, strict=True)
        )
        for row in values.rows
    ]
    listing = ", ".join(f"({row})" for row in rows)
    return f"select * from values {listing} as {LEFT}({listed(names_of(outputs))})"


def apply(  # noqa: PLR0911  one branch per kind of node
    plan: Plan, inputs: Sequence[str], extra: Sequence[str] = ()
) -> str:
    """A node's rows from its inputs' queries; linear nodes take `extra` columns along."""
    match plan:
        case Filter(predicate=predicate):
            columns = select_list([quoted(name) for name in (*names_of(plan.outputs), *extra)])
            return f"select {columns} from ({inputs[0]}) where {predicate.text}"
        case Project(expressions=expressions):
            terms = [f"{each.expression.text} as {quoted(each.name)}" for each in expressions]
            return f"select {select_list([*terms, *map(quoted, extra)])} from ({inputs[0]})"
        case Generate():
            return _generate_sql(plan, inputs[0], extra)
        case UnionAll():
            branches = [
                f"select {_branch(plan, number, extra)} from ({sql})"
                for number, sql in enumerate(inputs)
            ]
            return " union all ".join(f"({branch})" for branch in branches)
        case Join():
            return join_sql(plan, inputs[0], inputs[1], extra)
        case Aggregate():
            return aggregate_sql(plan, inputs[0])
        case SetOperation():
            word = f"{plan.kind.value}{' all' if plan.all else ''}"
            sides = [
                _by_place(side.outputs, plan.outputs, sql)
                for side, sql in zip((plan.left, plan.right), inputs, strict=True)
            ]
            return f"select * from (({sides[0]}) {word} ({sides[1]}))"
        case WindowFunctions(calls=calls):
            terms = [quoted(name) for name in names_of(plan.input.outputs)]
            terms += [f"{call.expression.text} as {quoted(call.name)}" for call in calls]
            return f"select {', '.join(terms)} from ({inputs[0]})"
        case TopN():
            return _top_sql(plan, inputs[0])
        case Opaque(sql=sql):
            whole = _INPUT.sub(lambda found: f"({inputs[int(found[1])]})", sql)
            return f"select {listed(names_of(plan.outputs))} from ({whole})"
        case Scan() | Values():
            raise AssertionError("a leaf has no inputs")
        case _ as never:
            assert_never(never)


def branch_sql(plan: UnionAll, number: int, sql: str, extra: Sequence[str]) -> str:
    """One input of a union all under the union's names."""
    return f"select {_branch(plan, number, extra)} from ({sql})"


def _branch(plan: UnionAll, number: int, extra: Sequence[str]) -> str:
    untagged = [output for output in plan.outputs if output.name != plan.tag]
    terms = {
        output.name: f"cast({quoted(column)} as {output.type.spark}) as {quoted(output.name)}"
        for output, column in zip(untagged, plan.columns[number], strict=True)
    }
    for output in plan.outputs:
        if output.name == plan.tag:
            terms[output.name] = f"cast({number} as {output.type.spark}) as {quoted(output.name)}"
    return ", ".join([*(terms[output.name] for output in plan.outputs), *map(quoted, extra)])


def join_sql(
    join: Join, left: str, right: str, extra: Sequence[str] = (), *, hint: str = ""
) -> str:
    """The join of two queries; `extra` columns are the ones that a single side brings."""
    sign = "<=>" if join.null_safe else "="
    conditions = [f"({a.text}) {sign} ({b.text})" for a, b in join.on]
    if join.residual is not None:
        conditions.append(join.residual.text)
    columns = listed([*names_of(join.outputs), *extra])
    return (
        f"select {hint} {columns} from ({left}) {LEFT} {_JOINS[join.kind]} ({right}) {RIGHT} "
        f"on {both(conditions)}"
    )


def aggregate_sql(plan: Aggregate, sql: str) -> str:
    """One row per group."""
    calls = [f"{call.expression.text} as {quoted(call.name)}" for call in plan.calls]
    columns = ", ".join([*map(quoted, plan.group), *calls]) or f"count(*) as {NOTHING}"
    grouped = f" group by {listed(plan.group)}" if plan.group else ""
    return f"select {columns} from ({sql}){grouped}"


def order_sql(order: Sequence[Ordering]) -> str:
    """An ORDER BY list with everything said."""
    return ", ".join(
        f"{each.expression.text} {'desc' if each.descending else 'asc'} "
        f"nulls {'first' if each.nulls_first else 'last'}"
        for each in order
    )


def _generate_sql(plan: Generate, sql: str, extra: Sequence[str]) -> str:
    item, place = quoted("_hw_item"), quoted("_hw_place")
    fields = [f"{item}.{quoted(o.name)} as {quoted(o.name)}" for o in plan.generated]
    columns = [
        *map(quoted, names_of(plan.input.outputs)),
        *fields,
        f"cast({place} + 1 as bigint) as {quoted(plan.ordinality)}",
        *map(quoted, extra),
    ]
    outer = "outer " if plan.outer else ""
    return (
        f"select {', '.join(columns)} from ({sql}) lateral view {outer}"
        f"posexplode({plan.expression.text}) {RIGHT} as {place}, {item}"
    )


def _by_place(given: Sequence[Output], wanted: Sequence[Output], sql: str) -> str:
    terms = [
        f"cast({quoted(a.name)} as {b.type.spark}) as {quoted(b.name)}"
        for a, b in zip(given, wanted, strict=True)
    ]
    return f"select {', '.join(terms)} from ({sql})"


def total_order_sql(plan: TopN) -> str:
    """The order of a top-n in which no two different rows tie."""
    # Without a key only equal rows can tie, and of those it does not matter which one stays.
    ties = [
        Ordering(Expression(quoted(name), output.type))
        for output in plan.outputs
        if (name := output.name) in (plan.key or names_of(plan.outputs))
    ]
    return order_sql([*plan.order, *ties])


def _top_sql(plan: TopN, sql: str) -> str:
    columns = select_list([quoted(name) for name in names_of(plan.outputs)])
    total = total_order_sql(plan)
    if not plan.partition and not plan.with_ties:
        limit = f" limit {plan.limit}" if plan.limit is not None else ""
        offset = f" offset {plan.offset}" if plan.offset else ""
        return f"select {columns} from (select * from ({sql}) order by {total}{limit}{offset})"
    within = f"partition by {listed(plan.partition)} " if plan.partition else ""
    place = f"row_number() over ({within}order by {total})"
    wanted = [f"_hw_place > {plan.offset}"]
    ranks = [f"{place} as _hw_place"]
    if plan.limit is not None:
        measure = "_hw_place"
        if plan.with_ties:
            ordered = order_sql(plan.order) or "1"
            ranks.append(f"rank() over ({within}order by {ordered}) as _hw_rank")
            measure = "_hw_rank"
        wanted.append(f"{measure} <= {plan.offset + plan.limit}")
    return f"select {columns} from (select *, {', '.join(ranks)} from ({sql})) where {both(wanted)}"
