"""FROM: items, joins, table functions and lateral subqueries.

Inner joins and comma joins are one pool of items and conditions: which items are joined first is
decided when all conditions are known, along equalities, so that a product is made only where the
user left items unconnected. Outer joins are taken in the order in which they are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Filter,
    Join,
    JoinKind,
    Output,
    Plan,
    Project,
    Scan,
    Values,
)
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier, object_name
from headwater.sql.expression import comparison
from headwater.sql.expression.typed import Typed, made
from headwater.sql.planning import (
    Planning,
    Shape,
    filtered,
    joined,
    keep,
    names_of,
)
from headwater.sql.relations import Relation, suggestion
from headwater.sql.scope import Source
from headwater.sql.table_functions import table_function

_DEEPEST_VIEW = 50


@dataclass(slots=True)
class Pool:
    """Items that are joined inner, and the conditions between them."""

    items: list[Plan] = field(default_factory=list)
    conditions: list[Typed] = field(default_factory=list)


def one_row(planning: Planning) -> Plan:
    """What a query without FROM reads: one row."""
    name, _ = planning.column("one", types.INTEGER, nullable=False)
    row = (Expression("1", types.INTEGER),)
    return Values(rows=(row,), outputs=(Output(name, types.INTEGER, False),), key=(name,))


def read_from(block: Block, select: Any) -> Pool:
    """Plan the FROM clause; the block's scope gets its sources."""
    pool = Pool()
    first = select.args.get("from_")
    if first is None:
        pool.items.append(one_row(block.planning))
        return pool
    _item(block, pool, first.this)
    for join in select.args.get("joins") or []:
        _join(block, pool, join)
    for lateral in select.args.get("laterals") or []:
        _item(block, pool, lateral)
    return pool


def _item(block: Block, pool: Pool, node: Any) -> None:
    """Add one item, with the joins that are written inside its parentheses."""
    if _needs_left(node):
        _lateral(block, pool, node, JoinKind.INNER, [])
        return
    if isinstance(node, exp.Paren):
        _item(block, pool, node.this)
        return
    nested = node.args.get("joins")
    if (
        isinstance(node, exp.Subquery)
        and isinstance(node.this, exp.Table | exp.Subquery)
        and (not node.args.get("alias"))
    ):
        inner = Pool()
        _item(block, inner, node.this)
        for join in nested or []:
            _join(block, inner, join)
        pool.items.append(assembled(block.planning, inner))
        return
    plan, source = _source(block, node)
    block.scope.add(source)
    if nested:
        inner = Pool([plan])
        for join in nested:
            _join(block, inner, join)
        plan = assembled(block.planning, inner)
    pool.items.append(plan)


def _needs_left(node: Any) -> bool:
    if isinstance(node, exp.Lateral | exp.Unnest):
        return True
    return isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous)


_SIDES = {"LEFT": JoinKind.LEFT, "RIGHT": JoinKind.RIGHT, "FULL": JoinKind.FULL}


def _join(block: Block, pool: Pool, join: Any) -> None:
    side = (join.args.get("side") or "").upper()
    method = (join.args.get("method") or "").upper()
    kind = _SIDES.get(side, JoinKind.INNER)
    if method not in ("", "NATURAL") or (join.args.get("kind") or "").upper() in ("SEMI", "ANTI"):
        block.text.refuse(f"{method or join.args.get('kind')} JOIN is not supported", join)
    before = len(block.scope.sources)
    if _needs_left(join.this):
        on = join.args.get("on")
        _lateral(block, pool, join.this, kind, [on] if on is not None else [])
        return
    inner = Pool()
    _item(block, inner, join.this)
    right = assembled(block.planning, inner)
    shared = _shared_names(block, join, method, before)
    if kind is JoinKind.INNER:
        pool.items.append(right)
        pool.conditions += _using(block, shared, before, kind)
        if join.args.get("on") is not None:
            parts = conjuncts(join.args["on"])
            # A subquery is joined when all items of FROM are there.
            block.later += [part for part in parts if part.find(exp.Query)]
            for part in parts:
                if not part.find(exp.Query):
                    pool.conditions += _conditions(block, part)
        return
    conditions = _using(block, shared, before, kind)
    if join.args.get("on") is not None:
        conditions += _conditions(block, join.args["on"])
    left = assembled(block.planning, pool)
    pool.items = [joined(block.planning, kind, left, right, conditions)]
    pool.conditions = []


def conjuncts(node: Any) -> list[exp.Expr]:
    """The parts of a condition that AND connects."""
    found: list[exp.Expr] = []
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, exp.And):
            stack += [each.expression, each.this]
        elif isinstance(each, exp.Paren):
            stack.append(each.this)
        else:
            found.append(each)
    return found


def _conditions(block: Block, node: Any) -> list[Typed]:
    translate = block.translator()
    found = []
    for part in conjuncts(node):
        if part.find(exp.Select):
            block.text.refuse("a subquery in ON of an outer join is not supported", part)
        found.append(translate.condition(part))
    return found


def _shared_names(block: Block, join: Any, method: str, before: int) -> list[str]:
    using = [identifier(each) for each in join.args.get("using") or []]
    if method != "NATURAL":
        return using
    left = {name for source in block.scope.sources[:before] for name, _ in source.columns}
    return [
        name
        for source in block.scope.sources[before:]
        for name, _ in source.columns
        if name in left
    ]


def _using(block: Block, names: Sequence[str], before: int, kind: JoinKind) -> list[Typed]:
    """The equalities of USING; afterwards each name is one column for both sides."""
    conditions = []
    scope = block.scope
    for name in names:
        left = [value for shown, value in scope.merged if shown == name]
        left += [
            value
            for source in scope.sources[:before]
            for shown, value in source.columns
            if shown == name and name not in source.merged
        ]
        right = [
            value
            for source in scope.sources[before:]
            for shown, value in source.columns
            if shown == name
        ]
        if len(left) != 1 or len(right) != 1:
            block.text.mistake(
                f'column "{name}" specified in USING must be in both tables once',
                None,
                sqlstate="42703",
            )
        conditions.append(comparison.compare("=", left[0], right[0], block.text, None))
        merged = left[0]
        if kind is JoinKind.RIGHT:
            merged = right[0]
        elif kind is JoinKind.FULL:
            one, two = comparison.comparable(left[0], right[0], block.text, None)
            merged = made(f"coalesce({one.text}, {two.text})", one.known, one, two)
        scope.merged = [pair for pair in scope.merged if pair[0] != name]
        scope.merged.append((name, merged))
        for source in scope.sources:
            if any(shown == name for shown, _ in source.columns):
                source.merged.add(name)
    return conditions


def _alias(node: Any) -> tuple[str | None, list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return None, []
    name = identifier(alias.this) if alias.this is not None else None
    return name, [identifier(each) for each in alias.args.get("columns") or []]


def _renamed(block: Block, columns: list[tuple[str, Typed]], names: list[str], node: Any) -> (
    list[tuple[str, Typed]]
):  # fmt: skip
    if len(names) > len(columns):
        block.text.mistake("too many column aliases", node, sqlstate="42P10")
    rest = columns[len(names) :]
    return [(name, value) for name, (_, value) in zip(names, columns, strict=False)] + rest


def _source(block: Block, node: Any) -> tuple[Plan, Source]:
    name, columns = _alias(node)
    if node.args.get("sample") or node.args.get("pivots"):
        block.text.refuse("TABLESAMPLE and PIVOT are not supported", node)
    if isinstance(node, exp.Subquery | exp.Values):
        query = node.this if isinstance(node, exp.Subquery) else node
        shape = block.planning.plan_query(query, block.scope.outer, block.environment)
        block.correlated += shape.correlated
        shown = _renamed(block, shape.columns, columns, node)
        return shape.plan, Source(name or "", shown)
    if not isinstance(node, exp.Table):
        block.text.refuse(f"{node.sql('postgres')[:60]} in FROM is not supported", node)
    return _table(block, node, name, columns)


def _table(block: Block, node: Any, alias: str | None, names: list[str]) -> tuple[Plan, Source]:
    wanted = object_name(node)
    if node.args.get("version") is not None:
        assert block.planning.moment is not None
        block.planning.moment.take(node.args["version"], node)
    if wanted.schema is None and wanted.name in block.environment:
        entry = block.environment[wanted.name]
        if isinstance(entry, tuple):
            query, cte_names, inside = entry
            shape = block.planning.plan_query(query, block.scope.outer, inside)
            block.correlated += shape.correlated
        else:
            shape, cte_names = entry.shape(), ()
        shown = _renamed(block, shape.columns, list(cte_names), node)
        return shape.plan, Source(alias or wanted.name, _renamed(block, shown, names, node))
    relation = block.planning.relations.find(wanted)
    if relation is None:
        block.text.mistake(
            f'relation "{wanted}" does not exist',
            node,
            sqlstate="42P01",
            hint=suggestion(wanted.name, [*block.planning.relations.names(), *block.environment]),
        )
    if relation.query is not None:
        shape = _view(block, relation, node)
        shown = [
            (declared.name, value)
            for declared, (_, value) in zip(relation.columns, shape.columns, strict=True)
        ]
        return shape.plan, Source(alias or wanted.name, _renamed(block, shown, names, node))
    plan, columns, key = scan(block.planning, relation)
    shown = _renamed(block, columns, names, node)
    return plan, Source(alias or wanted.name, shown, schema=relation.schema, key=frozenset(key))


def _view(block: Block, relation: Relation, node: Any) -> Shape:
    from headwater.sql.parse import parse_one  # noqa: PLC0415
    from headwater.sql.statement import CreateView, Select  # noqa: PLC0415

    planning = block.planning
    if len(planning.views) >= _DEEPEST_VIEW or relation.name in planning.views:
        block.text.mistake(f'view "{relation.name}" is defined by itself', node, sqlstate="42P17")
    assert relation.query is not None
    statement = parse_one(relation.query)
    assert isinstance(statement, Select | CreateView)
    planning.views.append(relation.name)
    outside, planning.text.text = planning.text.text, relation.query
    around, planning.relations = planning.relations, relation.within or planning.relations
    try:
        return planning.plan_query(statement.query, None, {})
    finally:
        planning.relations = around
        planning.text.text = outside
        planning.views.pop()


def scan(planning: Planning, relation: Relation) -> tuple[Plan, list[tuple[str, Typed]], list[str]]:
    """The rows of a stored relation."""
    assert relation.id is not None
    pairs, outputs, shown, key = [], [], [], {}
    for place, each in enumerate((*relation.columns, *relation.hidden)):
        nullable = each.nullable and each.name not in relation.key
        name, reference = planning.column(each.name, each.type, nullable=nullable)
        pairs.append((name, each.name))
        outputs.append(Output(name, each.type, nullable))
        key[each.name] = name
        if place < len(relation.columns):
            shown.append((each.name, reference))
    names = [key[each] for each in relation.key]
    plan = Scan(table=relation.id, columns=tuple(pairs), outputs=tuple(outputs), key=tuple(names))
    return plan, shown, names


def _lateral(block: Block, pool: Pool, node: Any, kind: JoinKind, on: list[Any]) -> None:
    """An item that may read the items before it."""
    if kind not in (JoinKind.INNER, JoinKind.LEFT):
        block.text.refuse("a lateral item cannot be on the null-supplying side's left", node)
    alias, columns = _alias(node)
    inner = node.this if isinstance(node, exp.Lateral) else node
    if isinstance(inner, exp.Subquery):
        _lateral_query(block, pool, inner, kind, on, alias, columns, node)
        return
    left = assembled(block.planning, pool) if pool.items else None
    plan, source = table_function(
        block, left, inner, alias or "", columns, node, outer=kind is JoinKind.LEFT
    )
    pool.items, pool.conditions = [plan], []
    block.scope.add(source)
    for condition in on:
        parts = _conditions(block, condition)
        if kind is JoinKind.LEFT and any(each.text != "true" for each in parts):
            block.text.refuse("a LEFT JOIN of a table function needs ON true", node)
        pool.conditions += parts


def _lateral_query(  # noqa: PLR0913, PLR0917
    block: Block, pool: Pool, inner: Any, kind: JoinKind, on: list[Any], alias: str | None,
    columns: list[str], node: Any,
) -> None:  # fmt: skip
    left = assembled(block.planning, pool)
    block.plan = left
    shape = block.planning.plan_query(inner.this, block.scope, block.environment)
    right, empties = shape.plan, shape.empties
    block.scope.add(Source(alias or "", _renamed(block, shape.columns, columns, node)))
    conditions = list(shape.correlated)
    for condition in on:
        conditions += _conditions(block, condition)
    if shape.always_one and shape.correlated:
        from headwater.sql.subqueries import left_with_marker  # noqa: PLC0415

        plan, values = left_with_marker(
            block, left, right, conditions, [value for _, value in shape.columns], empties
        )
        shown = [(name, value) for (name, _), value in zip(
            block.scope.sources[-1].columns, values, strict=True)]  # fmt: skip
        block.scope.sources[-1].columns = shown
        pool.items, pool.conditions = [plan], []
        return
    pool.items = [joined(block.planning, kind, left, right, conditions)]
    pool.conditions = []


def pushed(plan: Plan, condition: Typed) -> Plan:
    """The plan under a condition, applied as far down as it means the same."""
    columns = condition.columns
    match plan:
        case Filter(input=inner):
            return replace(plan, input=pushed(inner, condition))
        case Project(input=inner, expressions=expressions) if columns <= names_of(inner) and all(
            each == keep(output)
            for each in expressions
            if each.name in columns
            for output in inner.outputs
            if output.name == each.name
        ):
            return replace(plan, input=pushed(inner, condition))
        case Join(kind=JoinKind.INNER | JoinKind.LEFT | JoinKind.SEMI | JoinKind.ANTI) if (
            columns and columns <= names_of(plan.left)
        ):
            return replace(plan, left=pushed(plan.left, condition))
        case Join(kind=JoinKind.INNER | JoinKind.RIGHT) if columns and columns <= names_of(
            plan.right
        ):
            return replace(plan, right=pushed(plan.right, condition))
        case Aggregate(group=group) if columns and columns <= set(group):
            return replace(plan, input=pushed(plan.input, condition))
        case _:
            return filtered(plan, [condition])


def assembled(planning: Planning, pool: Pool) -> Plan:
    """All items of a pool joined, along equalities first."""
    items = list(pool.items)
    waiting: list[Typed] = []
    for condition in pool.conditions:
        for place, item in enumerate(items):
            if condition.columns and condition.columns <= names_of(item):
                items[place] = pushed(item, condition)
                break
        else:
            waiting.append(condition)
    plan = items.pop(0)
    while items:
        place = _next_item(plan, items, waiting)
        item = items.pop(place)
        names = names_of(plan) | names_of(item)
        ready = [each for each in waiting if each.columns <= names]
        waiting = [each for each in waiting if each not in ready]
        plan = joined(planning, JoinKind.INNER, plan, item, ready)
    for condition in waiting:
        plan = pushed(plan, condition)
    return plan


def _next_item(plan: Plan, items: list[Plan], waiting: list[Typed]) -> int:
    have = names_of(plan)
    for place, item in enumerate(items):
        names = names_of(item)
        if any(
            each.columns <= have | names and each.columns & have and each.columns & names
            for each in waiting
        ):
            return place
    return 0
