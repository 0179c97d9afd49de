"""From a query to a plan.

    plan_query(query, text, relations)                  for a SELECT: ORDER BY and LIMIT are
                                                        left to the reader, clocks are allowed
    plan_query(query, text, relations, for_view=True)   for a view: LIMIT becomes a TopN, clocks
                                                        and dice are refused

CTEs are planned anew wherever they are named, and views where they are read: every column of
the plan has a name of its own. Set operations give both sides common types first.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlglot import exp

from headwater.errors import ParseError
from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Named,
    Ordering,
    Output,
    Plan,
    Project,
    Query,
    SetKind,
    SetOperation,
    TopN,
    UnionAll,
    Values,
)
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier
from headwater.sql.domain import outer_domain, same, within
from headwater.sql.expression.coercion import unify
from headwater.sql.expression.comparison import ordered
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, column
from headwater.sql.moment import Moment
from headwater.sql.place import error_at
from headwater.sql.planning import (
    Environment,
    Planning,
    Shape,
    extend,
    is_column,
    keep,
    names_of,
    replaced,
)
from headwater.sql.prune import pruned
from headwater.sql.recursion import Recursive
from headwater.sql.relations import Relations
from headwater.sql.scope import Scope
from headwater.sql.select import plan_select
from headwater.sql.select_clauses import limits, order_target
from headwater.sql.subqueries import with_empties


def plan_query(  # noqa: PLR0913
    query: exp.Expr,
    text: str,
    relations: Relations,
    *,
    for_view: bool = False,
    parameters: Sequence[str | None] | None = None,
    aliases: Sequence[str] = (),
    learned: dict[int, DataType] | None = None,
    now: datetime | None = None,
) -> Query:
    """Plan a query; `text` is the statement that errors point into.

    `learned` takes up the types that parameters must have, by number, as far as they show.
    `now` is what AS OF NOW() - ... counts from.
    """
    try:
        return _planned(query, Text(text, learned), relations, for_view, parameters, aliases, now)
    except RecursionError as problem:
        raise error_at(
            ParseError, "the statement is nested too deeply", text, offset_of_first(text),
            hint="Write long lists with IN, and deep subqueries as WITH clauses.",
            sqlstate="54001",
        ) from problem  # fmt: skip


def offset_of_first(text: str) -> int:
    """Where a text begins, spaces left out."""
    return len(text) - len(text.lstrip())


def _planned(  # noqa: PLR0913, PLR0917
    query: exp.Expr, source: Text, relations: Relations, for_view: bool,
    parameters: Sequence[str | None] | None, aliases: Sequence[str], now: datetime | None,
) -> Query:  # fmt: skip
    moment = Moment(source, now, for_view=for_view)
    planning = Planning(
        text=source, relations=relations, pure=for_view, parameters=parameters, moment=moment,
        plan_query=lambda *_: None,  # type: ignore[arg-type]
    )  # fmt: skip
    planner = _Planner(planning)
    planning.plan_query = planner.inner
    shape = planner.shape(query, None, {})
    if shape.correlated:
        source.mistake("a column of an outer query is used where there is none", query)
    if for_view:
        shape = planner.cut(shape)
    plan, columns = _materialized(planning, shape)
    if aliases:
        if len(aliases) > len(columns):
            source.mistake("too many column names were specified", None, sqlstate="42601")
        columns = [
            (aliases[i] if i < len(aliases) else name, ref) for i, (name, ref) in enumerate(columns)
        ]
    used = {ref for _, ref in columns}
    order = () if for_view else shape.order
    for each in order:
        used |= each.expression.columns
    return Query(
        plan=pruned(plan, frozenset(used | set(plan.key))),
        visible=tuple(columns),
        order=order,
        limit=shape.limit,
        offset=shape.offset,
        as_of=moment.as_of,
    )


def _materialized(planning: Planning, shape: Shape) -> tuple[Plan, list[tuple[str, str]]]:
    """The user's columns as columns of the plan."""
    plan, references = extend(planning, shape.plan, shape.columns)
    columns = []
    for (name, _), reference in zip(shape.columns, references, strict=True):
        found = is_column(reference)
        assert found is not None
        columns.append((name, found))
    return plan, columns


class _Planner:
    """Plans queries of every form."""

    def __init__(self, planning: Planning) -> None:
        self.planning = planning

    def inner(self, node: Any, outer: Scope | None, environment: Environment) -> Shape:
        """A query inside another: LIMIT counts, ORDER BY alone does not."""
        return self.cut(self.shape(node, outer, environment))

    def cut(self, shape: Shape) -> Shape:
        """LIMIT and OFFSET as a TopN."""
        if shape.limit is None and not shape.offset:
            return shape
        top = TopN(
            input=shape.plan, partition=(), order=shape.order, limit=shape.limit,
            offset=shape.offset,
        )  # fmt: skip
        return replace(shape, plan=top, limit=None, offset=0)

    def shape(self, node: Any, outer: Scope | None, environment: Environment) -> Shape:  # noqa: PLR0911
        """Any query."""
        environment = self._with(node, environment)
        match node:
            case exp.Select():
                return plan_select(self.planning, node, outer, environment)
            case exp.Union():
                return self._ordered(node, self._union(node, outer, environment))
            case exp.Intersect() | exp.Except():
                return self._ordered(node, self._set_operation(node, outer, environment))
            case exp.Values():
                return self._ordered(node, self._values(node, outer, environment))
            case exp.Subquery():
                shape = self.shape(node.this, outer, environment)
                if any(node.args.get(each) for each in ("limit", "offset", "order")):
                    return self._ordered(node, self.cut(shape))
                return shape
            case exp.Table():
                select = exp.select("*").from_(node.copy())
                return plan_select(self.planning, select, outer, environment)
            case _:
                self.planning.text.refuse("this query is not supported", node)

    def _with(self, node: Any, environment: Environment) -> Environment:
        clause = node.args.get("with_")
        if clause is None:
            return environment
        environment = dict(environment)
        for each in clause.expressions:
            alias = each.args["alias"]
            names = tuple(identifier(name) for name in alias.args.get("columns") or [])
            if not isinstance(each.this, exp.Query | exp.Values):
                self.planning.text.refuse("a data change in WITH is not supported", each)
            name = identifier(alias.this)
            if clause.args.get("recursive") and _names_itself(each):
                environment[name] = Recursive(
                    self.planning, self.inner, name, names, each.this, dict(environment)
                )
            else:
                environment[name] = (each.this, names, dict(environment))
        return environment

    def _ordered(self, node: Any, shape: Shape) -> Shape:
        """ORDER BY and LIMIT after a set operation name output columns only."""
        clause = node.args.get("order")
        order: list[Ordering] = []
        for term in clause.expressions if clause is not None else []:
            chosen = order_target(self.planning, term.this, shape.columns)
            if chosen is None:
                self.planning.text.refuse(
                    "ORDER BY after a set operation must name an output column", term
                )
            value = ordered(chosen, self.planning.text, term)
            order.append(
                Ordering(
                    value.expression(), bool(term.args.get("desc")),
                    bool(term.args.get("nulls_first")),
                )
            )  # fmt: skip
        limit, offset, ties = limits(self.planning, node)
        if ties:
            self.planning.text.refuse("WITH TIES is not supported here", node)
        return replace(shape, order=tuple(order), limit=limit, offset=offset)

    def _sides(self, node: Any, outer: Scope | None, environment: Environment) -> list[Shape]:
        shapes = [self.inner(side, outer, environment) for side in (node.this, node.expression)]
        if len(shapes[0].columns) != len(shapes[1].columns):
            self.planning.text.mistake(
                "each set operation query must have the same number of columns",
                node,
                sqlstate="42601",
            )
        return shapes

    def _aligned(self, shapes: list[Shape], node: Any) -> list[tuple[Plan, list[str]]]:
        """Each side with columns of the common types."""
        aligned: list[list[Typed]] = [[] for _ in shapes]
        for place in range(len(shapes[0].columns)):
            values = [shape.columns[place][1] for shape in shapes]
            unified, _ = unify(values, self.planning.text, node, "set operation")
            for side, value in zip(aligned, unified, strict=True):
                side.append(value)
        found = []
        for shape, values in zip(shapes, aligned, strict=True):
            plan, references = extend(
                self.planning, shape.plan,
                [(name, value) for (name, _), value in zip(shape.columns, values, strict=True)],
            )  # fmt: skip
            names = [is_column(each) or "" for each in references]
            found.append((plan, names))
        return found

    def _union(self, node: Any, outer: Scope | None, environment: Environment) -> Shape:
        sides = self._flat(node)
        shapes = [self.inner(side, outer, environment) for side in sides]
        for shape in shapes:
            if len(shape.columns) != len(shapes[0].columns):
                self.planning.text.mistake(
                    "each UNION query must have the same number of columns",
                    node,
                    sqlstate="42601",
                )
        shapes, outside = self._taken_inside(shapes, outer)
        aligned = self._aligned(shapes, node)
        shown = [name for name, _ in shapes[0].columns]
        if node.args.get("distinct"):
            return self._handed_on(self._distinct_union(aligned, shown), outside)
        return self._handed_on(self._keyed_union(aligned, shown), outside)

    def _taken_inside(
        self, shapes: list[Shape], outer: Scope | None
    ) -> tuple[list[Shape], list[Typed]]:
        """Correlated sides with what they read around as further columns, the same for each."""
        names = frozenset().union(
            *(each.columns - names_of(shape.plan) for shape in shapes for each in shape.correlated),
            *(v.columns - names_of(shape.plan) for shape in shapes for _, v in shape.columns),
        )
        if not names:
            return shapes, []
        found, outside = [], []
        for shape in shapes:
            domain = outer_domain(self.planning, outer, names, self.planning.text)
            outside = [domain.outside[name] for name in sorted(names)]
            if shape.always_one and shape.correlated:
                inner = [replaced(each, domain.swaps) for each in shape.correlated]
                values = [replaced(value, domain.swaps) for _, value in shape.columns]
                plan, values = with_empties(
                    self.planning, domain.plan, shape.plan, inner, values, shape.empties
                )
            else:
                plan = within(self.planning, shape.plan, domain, shape.correlated)
                values = [replaced(value, domain.swaps) for _, value in shape.columns]
            columns = [(name, v) for (name, _), v in zip(shape.columns, values, strict=True)]
            extra = [("key", domain.columns[name]) for name in sorted(names)]
            found.append(Shape(plan, [*columns, *extra]))
        return found, outside

    def _handed_on(self, shape: Shape, outside: list[Typed]) -> Shape:
        """The further columns of a correlated set operation as its correlation."""
        if not outside:
            return shape
        inside = [value for _, value in shape.columns[-len(outside) :]]
        correlated = [
            same(self.planning, one, two) for one, two in zip(outside, inside, strict=True)
        ]
        return replace(shape, columns=shape.columns[: -len(outside)], correlated=correlated)

    def _flat(self, node: Any) -> list[Any]:
        """The sides of a chain of UNIONs of one kind."""
        sides: list[Any] = []
        kind = bool(node.args.get("distinct"))
        current = node
        while (
            isinstance(current, exp.Union)
            and bool(current.args.get("distinct")) == kind
            and (current is node or not any(
                current.args.get(each) for each in ("order", "limit", "offset", "with_")))
        ):  # fmt: skip
            sides.append(current.expression)
            current = current.this
        sides.append(current)
        return list(reversed(sides))

    def _outputs(self, plan: Plan, names: list[str], shown: list[str]) -> list[tuple[str, Typed]]:
        types_of = {output.name: output.type for output in plan.outputs}
        return [
            self.planning.column(hint, types_of[name])
            for hint, name in zip(shown, names, strict=True)
        ]

    def _distinct_union(self, sides: list[tuple[Plan, list[str]]], shown: list[str]) -> Shape:
        outputs = self._outputs(sides[0][0], sides[0][1], shown)
        union = UnionAll(
            inputs=tuple(plan for plan, _ in sides),
            outputs=tuple(Output(name, ref.known) for name, ref in outputs),
            columns=tuple(tuple(names) for _, names in sides),
        )
        plan = Aggregate(input=union, group=tuple(name for name, _ in outputs), calls=())
        return Shape(plan, list(zip(shown, (ref for _, ref in outputs), strict=True)))

    def _keyed_union(self, sides: list[tuple[Plan, list[str]]], shown: list[str]) -> Shape:
        """UNION ALL: the side's number and its key make the key."""
        outputs = self._outputs(sides[0][0], sides[0][1], shown)
        keyed = all(plan.key for plan, _ in sides)
        hidden: list[tuple[str, Typed, int, str]] = []
        for place, (plan, _) in enumerate(sides if keyed else []):
            for name in plan.key:
                type_ = next(each.type for each in plan.outputs if each.name == name)
                fresh, reference = self.planning.column("key", type_)
                hidden.append((fresh, reference, place, name))
        plans, orders = [], []
        for place, (plan, names) in enumerate(sides):
            made: dict[str, Named] = {}
            by_name = {output.name: output for output in plan.outputs}
            row: list[str] = []
            for name in names:
                made[name] = keep(by_name[name])
                row.append(name)
            for _, reference, owner, name in hidden:
                if owner == place:
                    made[name] = keep(by_name[name])
                    row.append(name)
                else:
                    null = self.planning.name("null")
                    type_ = reference.known
                    text = f"cast(NULL as {type_.spark})"
                    made[null] = Named(null, Expression(text, type_))
                    row.append(null)
            key = plan.key if set(plan.key) <= made.keys() else ()
            plans.append(Project(input=plan, expressions=tuple(made.values()), key=key))
            orders.append(tuple(row))
        every = (*outputs, *((name, ref) for name, ref, _, _ in hidden))
        columns = [Output(name, ref.known) for name, ref in every]
        tag = None
        if keyed:
            tag, _ = self.planning.column("side", types.INTEGER, nullable=False)
            columns.append(Output(tag, types.INTEGER, False))
        union = UnionAll(
            inputs=tuple(plans), outputs=tuple(columns), columns=tuple(orders), tag=tag,
            key=(tag, *(name for name, *_ in hidden)) if tag else (),
        )  # fmt: skip
        return Shape(union, list(zip(shown, (ref for _, ref in outputs), strict=True)))

    def _set_operation(self, node: Any, outer: Scope | None, environment: Environment) -> Shape:
        shapes, outside = self._taken_inside(self._sides(node, outer, environment), outer)
        aligned = self._aligned(shapes, node)
        exact = []
        for plan, names in aligned:
            by_name = {output.name: output for output in plan.outputs}
            made: list[Named] = []
            for name in names:
                if any(each.name == name for each in made):
                    fresh = self.planning.name(name)
                    made.append(Named(fresh, keep(by_name[name]).expression))
                else:
                    made.append(keep(by_name[name]))
            key = plan.key if set(plan.key) <= {each.name for each in made} else ()
            exact.append(Project(input=plan, expressions=tuple(made), key=key))
        for output in exact[0].outputs:
            if output.type.kind in (Kind.NUMERIC, Kind.JSONB, Kind.INTERVAL):
                self.planning.text.refuse(
                    f"a set operation over {output.type.postgres} is not supported", node
                )
        shown = [name for name, _ in shapes[0].columns]
        outputs = self._outputs(exact[0], [each.name for each in exact[0].outputs], shown)
        kind = SetKind.INTERSECT if isinstance(node, exp.Intersect) else SetKind.EXCEPT
        plan = SetOperation(
            kind=kind, all=not node.args.get("distinct"), left=exact[0], right=exact[1],
            outputs=tuple(Output(name, ref.known) for name, ref in outputs),
        )  # fmt: skip
        shape = Shape(plan, list(zip(shown, (ref for _, ref in outputs), strict=True)))
        return self._handed_on(shape, outside)

    def _values(self, node: Any, outer: Scope | None, environment: Environment) -> Shape:
        del outer
        empty = Values(rows=(), outputs=())
        block = Block(self.planning, Scope(self.planning.text), environment, empty)
        translate = block.translator()
        rows = [
            [translate(each) for each in row.expressions] if isinstance(row, exp.Tuple)
            else [translate(row)]
            for row in node.expressions
        ]  # fmt: skip
        if len({len(row) for row in rows}) != 1:
            self.planning.text.mistake(
                "VALUES lists must all be the same length", node, sqlstate="42601"
            )
        by_column = [
            unify([row[place] for row in rows], self.planning.text, node, "VALUES")
            for place in range(len(rows[0]))
        ]
        named = [
            self.planning.column(f"column{place + 1}", type_)
            for place, (_, type_) in enumerate(by_column)
        ]
        number, _ = self.planning.column("row", types.INTEGER, nullable=False)
        plan = Values(
            rows=tuple(
                (
                    *(values[place].expression() for values, _ in by_column),
                    Expression(str(place), types.INTEGER),
                )
                for place in range(len(rows))
            ),
            outputs=(
                *(Output(name, ref.known) for name, ref in named),
                Output(number, types.INTEGER, False),
            ),
            key=(number,),
        )
        shown = [(f"column{place + 1}", ref) for place, (_, ref) in enumerate(named)]
        return Shape(plan, shown)


def _names_itself(cte: Any) -> bool:
    name = identifier(cte.args["alias"].this)
    return any(
        table.args.get("db") is None
        and isinstance(table.this, exp.Identifier)
        and identifier(table.this) == name
        for table in cte.this.find_all(exp.Table)
    )


__all__ = ["column", "names_of", "plan_query"]
