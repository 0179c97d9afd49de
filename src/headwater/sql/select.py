"""One SELECT, from FROM to LIMIT."""

from dataclasses import replace
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.sql.algebra import (
    Aggregate,
    Filter,
    Named,
    Ordering,
    Plan,
    Project,
    TopN,
    WindowFunctions,
)
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier
from headwater.sql.domain import outer_domain, within
from headwater.sql.expression.aggregates import is_aggregate, ordering
from headwater.sql.expression.comparison import equal_form, ordered
from headwater.sql.expression.typed import Typed, equality_of, sameness_of
from headwater.sql.from_clause import assembled, conjuncts, read_from
from headwater.sql.grouping import apply_grouping, find_aggregates, grouping_sets
from headwater.sql.nested import import_outer
from headwater.sql.planning import (
    Environment,
    Planning,
    Shape,
    extend,
    filtered,
    is_column,
    keep,
    names_of,
    split_equalities,
)
from headwater.sql.scope import Scope
from headwater.sql.select_clauses import default_name, limits, order_target
from headwater.sql.set_functions import in_select_list
from headwater.sql.subqueries import apply_condition


def plan_select(
    planning: Planning, node: Any, outer: Scope | None, environment: Environment
) -> Shape:
    """The plan of one SELECT; LIMIT and ORDER BY are left to `finish`."""
    for clause in ("into", "cluster", "sort", "distribute", "match", "qualify", "locks"):
        if node.args.get(clause):
            planning.text.refuse(f"{clause.upper()} is not supported", node)
    block = Block(planning, Scope(planning.text, outer), environment, None)  # type: ignore[arg-type]
    pool = read_from(block, node)
    import_outer(block, pool, node)
    for window in node.args.get("windows") or []:
        block.named_windows[identifier(window.this)] = window
    _where(block, pool, node.args.get("where"))
    keys = _correlation_keys(block, node)
    items = _listed(block, node)
    empties = _group(block, node, items, keys)
    always_one = block.grouped is not None and _no_groups(node)
    if node.args.get("having") is not None:
        _having(block, node, always_one and bool(block.correlated))
        always_one = False
    block.windows_allowed = True
    return _result(block, node, items, keys, always_one, empties)


def _where(block: Block, pool: Any, where: Any) -> None:
    block.plan = pool.items[0]
    parts = conjuncts(where.this) if where is not None else []
    later = list(block.later)
    for part in parts:
        if part.find(exp.Query, exp.Exists, exp.Values):
            later.append(part)
            continue
        _limit_ranks(block, pool, part)
        condition = block.translator().condition(part)
        own = frozenset().union(*(names_of(item) for item in pool.items))
        if condition.columns <= own:
            pool.conditions.append(condition)
        else:
            block.correlated.append(condition)
    block.plan = assembled(block.planning, pool)
    for part in later:
        if not apply_condition(block, part):
            condition = block.translator().condition(part)
            if block.outer_columns(condition):
                block.correlated.append(condition)
            else:
                block.plan = filtered(block.plan, [condition])


def _limit_ranks(block: Block, pool: Any, part: Any) -> None:
    """`rn <= n` over a row_number: put a top-n below the window function."""
    if not isinstance(part, exp.LTE | exp.LT | exp.EQ) or not isinstance(part.this, exp.Column):
        return
    if not isinstance(part.expression, exp.Literal) or not str(part.expression.this).isdigit():
        return
    limit = int(part.expression.this) - (1 if isinstance(part, exp.LT) else 0)
    name = is_column(block.scope.find(part.this))
    if name is None or name not in block.planning.ranked or limit < 1:
        return
    if isinstance(part, exp.EQ) and limit != 1:
        return
    for place, item in enumerate(pool.items):
        if name in names_of(item):
            pool.items[place] = _with_top(block, item, name, limit)


def _with_top(block: Block, plan: Plan, name: str, limit: int) -> Plan:
    match plan:
        case Project() | Filter():
            if isinstance(plan, Filter):
                return plan
            return replace(plan, input=_with_top(block, plan.input, name, limit))
        case WindowFunctions(calls=(call,)) if call.name == name:
            ranked = block.planning.ranked[name]
            top = TopN(
                input=plan.input, partition=ranked.partition, order=ranked.order, limit=limit,
                with_ties=ranked.with_ties,
            )  # fmt: skip
            return replace(plan, input=top)
        case _:
            return plan


def _aggregated(node: Any) -> bool:
    return node.args.get("group") is not None or bool(find_aggregates(_late_nodes(node)))


def _late_nodes(node: Any) -> list[Any]:
    order = node.args.get("order")
    having = node.args.get("having")
    return [
        *node.expressions,
        *([having.this] if having is not None else []),
        *(order.expressions if order is not None else []),
    ]


def _no_groups(node: Any) -> bool:
    group = node.args.get("group")
    return group is None or not (
        group.expressions
        or any(group.args.get(each) for each in ("grouping_sets", "rollup", "cube"))
    )


def _correlation_keys(block: Block, node: Any) -> list[Typed]:
    """Turn correlated equalities into columns, where the rows are folded or cut afterwards."""
    cut = node.args.get("limit") or node.args.get("offset") or node.args.get("distinct")
    if not block.correlated or not (_aggregated(node) or cut):
        return []
    outer = frozenset().union(*(block.outer_columns(each) for each in block.correlated))
    pairs, rest = split_equalities(block.correlated, outer, block.own())
    safe, rest = split_equalities(rest, outer, block.own(), null_safe=True)
    domain = None
    if rest:
        names = frozenset().union(*(block.outer_columns(each) for each in rest))
        domain = outer_domain(block.planning, block.scope.outer, names, block.text)
        block.plan = within(block.planning, block.plan, domain, rest)
    inner = [Typed(right.text, right.type, right.columns) for _, right in (*pairs, *safe)]
    block.plan, references = extend(block.planning, block.plan, [("key", each) for each in inner])
    block.correlated = [
        (equality_of if place < len(pairs) else sameness_of)(
            Typed(left.text, left.type, left.columns), reference
        )
        for place, ((left, _), reference) in enumerate(
            zip((*pairs, *safe), references, strict=True)
        )
    ]
    if domain is not None:
        block.correlated += domain.equalities(block.planning)
        references += list(domain.columns.values())
    return references


def _listed(block: Block, node: Any) -> list[tuple[str, Any]]:
    """The select list with stars written out; a value stands for a column of a star."""
    items: list[tuple[str, Any]] = []
    for item in node.expressions:
        if isinstance(item, exp.Star):
            if item.args.get("except_") or item.args.get("replace"):
                block.text.refuse("* EXCEPT is not supported", item)
            if not block.scope.sources:
                block.text.mistake("SELECT * with no tables specified is not valid", item)
            items += block.scope.star(None, item)
        elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            items += block.scope.star(identifier(item.args["table"]), item)
        elif isinstance(item, exp.Alias):
            items.append((identifier(item.args["alias"]), item.this))
        else:
            items.append((default_name(item), item))
    return items


def _resolver(block: Block, items: list[tuple[str, Any]]) -> Any:
    """GROUP BY 1 and GROUP BY alias."""

    def resolve(node: Any) -> Any:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Literal) and not node.args.get("is_string"):
            place = int(node.this)
            if not 1 <= place <= len(items):
                block.text.mistake(
                    f"GROUP BY position {place} is not in select list", node, sqlstate="42P10"
                )
            return items[place - 1][1]
        if isinstance(node, exp.Column) and node.args.get("table") is None:
            name = identifier(node.this)
            known = {shown for source in block.scope.sources for shown, _ in source.columns}
            aliased = [value for shown, value in items if shown == name]
            if name not in known and aliased and not isinstance(aliased[0], Typed):
                return aliased[0]
        return node

    return resolve


def _group(
    block: Block, node: Any, items: list[tuple[str, Any]], keys: list[Typed]
) -> dict[str, str]:
    group = node.args.get("group")
    if not _aggregated(node):
        return {}
    nodes: list[Any] = []
    sets: list[list[int]] = [[]]
    if group is not None:
        if group.args.get("all"):
            block.text.refuse("GROUP BY ALL is not supported", group)
        nodes, sets = grouping_sets(block, group, _resolver(block, items))
        for each in nodes:
            if isinstance(each, Typed):
                block.text.refuse("GROUP BY of a column of * by its place", group)
    calls = find_aggregates([
        *(value for _, value in items if not isinstance(value, Typed)),
        *_late_nodes(node)[len(node.expressions):],
    ])  # fmt: skip
    for call in calls:
        inside = call.this if isinstance(call, exp.Filter) else call
        if find_aggregates(list(inside.iter_expressions())) and not isinstance(
            inside, exp.WithinGroup
        ):
            block.text.mistake("aggregate function calls cannot be nested", call, sqlstate="42803")
    return apply_grouping(block, nodes, sets, calls, keys, _named(block, node, items))


def _named(block: Block, node: Any, items: list[tuple[str, Any]]) -> set[str]:
    """The columns that are named outside of aggregates and subqueries, as texts."""
    found = {value.text for _, value in items if isinstance(value, Typed)}
    roots = [value for _, value in items if not isinstance(value, Typed)]
    stack = [*roots, *_late_nodes(node)[len(node.expressions) :]]
    known = {name for source in block.scope.sources for name, _ in source.columns}
    while stack:
        each = stack.pop()
        if is_aggregate(each) or isinstance(each, exp.Query | exp.Subquery):
            continue
        if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
            if identifier(each.this) in known:
                found.add(block.scope.find(each).text)
            continue
        stack.extend(each.iter_expressions())
    return found


def _having(block: Block, node: Any, correlated: bool) -> None:
    if correlated:
        block.text.refuse("HAVING in a correlated subquery is not supported", node)
    if block.grouped is None:
        block.text.mistake("HAVING needs a grouped query", node, sqlstate="42803")
    for part in conjuncts(node.args["having"].this):
        if not apply_condition(block, part):
            condition = block.translator().condition(part)
            block.plan = filtered(block.plan, [condition])


def _result(  # noqa: PLR0913, PLR0917
    block: Block, node: Any, items: list[tuple[str, Any]], keys: list[Typed], always_one: bool,
    empties: dict[str, str],
) -> Shape:  # fmt: skip
    in_select_list(block, [item for _, item in items if not isinstance(item, Typed)])
    translate = block.translator()
    values: list[tuple[str, Typed]] = []
    for name, item in items:
        value = item if isinstance(item, Typed) else translate(item)
        if isinstance(item, Typed) and block.grouped is not None:
            value = block.grouped.by_text.get(value.text) or block.grouped.functional.get(
                value.text
            )  # type: ignore[assignment]
            if value is None:
                block.text.mistake(
                    f'column "{name}" must appear in the GROUP BY clause', node, sqlstate="42803"
                )
        if value.type is None:
            from headwater.sql.expression.coercion import become  # noqa: PLC0415

            value = become(value, types.VARCHAR, block.text, item)
        values.append((name, value))
    order = _order(block, node, items, values)
    distinct = node.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        _distinct_on(block, distinct.args["on"], order, keys, translate)
        distinct = None
    extra = [(f"order_{place}", each) for place, each in enumerate(order)]
    if always_one and block.correlated:
        shape = _left_to_the_caller(block, values)
    else:
        shape = _projected(block, values, extra, keys, bool(distinct))
    shape.always_one = always_one
    shape.empties = empties
    return _limited(block, node, shape, keys)


def _left_to_the_caller(block: Block, values: list[tuple[str, Typed]]) -> Shape:
    """Expressions over aggregates of a correlated subquery are computed after the join.

    Only there is known which rows found nothing, and what the aggregates are over nothing.
    """
    return Shape(block.plan, values, list(block.correlated))


def _order(
    block: Block, node: Any, items: list[tuple[str, Any]], values: list[tuple[str, Typed]]
) -> list[Ordering]:
    clause = node.args.get("order")
    if clause is None:
        return []
    found = []
    for term in clause.expressions:
        target = term.this
        chosen = order_target(block, target, values)
        if chosen is not None:
            value = ordered(chosen, block.text, term)
            found.append(
                Ordering(
                    value.expression(), bool(term.args.get("desc")),
                    bool(term.args.get("nulls_first")),
                )
            )  # fmt: skip
        else:
            found.append(ordering(block.translator(), term))
    del items
    return found


def _distinct_on(
    block: Block, on: Any, order: list[Ordering], keys: list[Typed], translate: Any
) -> None:
    nodes = on.expressions if isinstance(on, exp.Tuple) else [on]
    values = [equal_form(translate(each), block.text, each) for each in nodes]
    block.plan, references = extend(block.planning, block.plan, [("on", each) for each in values])
    partition = [name for each in (*keys, *references) if (name := is_column(each))]
    block.plan = TopN(
        input=block.plan, partition=tuple(dict.fromkeys(partition)), order=tuple(order), limit=1
    )


def _projected(
    block: Block, values: list[tuple[str, Typed]], extra: list[tuple[str, Ordering]],
    keys: list[Typed], distinct: bool,
) -> Shape:  # fmt: skip
    """The final Project: the user's columns, what ORDER BY reads, and the key, hidden."""
    planning, own = block.planning, block.own()
    expressions: dict[str, Named] = {}
    by_text: dict[str, Typed] = {}

    def place(hint: str, value: Typed) -> Typed:
        if not value.columns <= own:
            return value
        if value.text in by_text:
            return by_text[value.text]
        name = is_column(value)
        if name is None:
            name, reference = planning.column(
                hint, value.known, nullable=planning.is_nullable(value)
            )
        else:
            reference = value
        expressions[name] = Named(name, value.expression())
        by_text[value.text] = reference
        return reference

    shown = [(name, place(name, value)) for name, value in values]
    visible = list(expressions)
    order = []
    for hint, each in extra:
        value = Typed(each.expression.text, each.expression.type, each.expression.columns)
        order.append(replace(each, expression=place(hint, value).expression()))
    if distinct and len(expressions) > len(visible):
        block.text.mistake(
            "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
            None,
            sqlstate="42P10",
        )
    needed = frozenset().union(
        *(each.columns for each in block.correlated), *(each.columns for each in keys)
    )
    outputs = {output.name: output for output in block.plan.outputs}
    for name in (*(() if distinct else block.plan.key), *sorted(needed & own)):
        if name not in expressions:
            expressions[name] = keep(outputs[name])
    plan: Plan = block.plan
    unchanged = {name: keep(output) for name, output in outputs.items()}
    if expressions != unchanged:
        key = plan.key if set(plan.key) <= expressions.keys() else ()
        plan = Project(input=plan, expressions=tuple(expressions.values()), key=key)
    if distinct:
        for name, value in shown:
            if not value.columns <= names_of(plan):
                block.text.refuse(f'DISTINCT over "{name}" is not supported here')
        plan = Aggregate(input=plan, group=tuple(expressions), calls=())
    return Shape(plan, shown, list(block.correlated), tuple(order))


def _limited(block: Block, node: Any, shape: Shape, keys: list[Typed]) -> Shape:
    shape.limit, shape.offset, ties = limits(block.planning, node)
    if (shape.limit is not None or shape.offset) and (ties or shape.correlated):
        partition = tuple(name for each in keys if (name := is_column(each)))
        shape.plan = TopN(
            input=shape.plan, partition=partition, order=shape.order, limit=shape.limit,
            offset=shape.offset, with_ties=ties,
        )  # fmt: skip
        shape.limit, shape.offset = None, 0
    return shape
