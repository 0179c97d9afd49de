"""What one statement's planning shares: fresh names, what is never null, and small steps.

Every column of a plan gets a name of its own here, made from the user's name and a number.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sqlglot import exp

from headwater.model.types import DataType
from headwater.sql.algebra import (
    Expression,
    Filter,
    Join,
    JoinKind,
    Named,
    Ordering,
    Output,
    Plan,
    Project,
    Query,
    Values,
)
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import TRUE, Typed, column
from headwater.sql.moment import Moment
from headwater.sql.relations import Relations
from headwater.sql.scope import Scope

_NAME = re.compile(r"`([^`]+)`")


@dataclass(slots=True)
class Shape:
    """A planned query: its plan, and the user's columns as values over the plan's columns.

    `correlated` are conditions that also read the query around; the caller must join on them.
    """

    plan: Plan
    columns: list[tuple[str, Typed]]
    correlated: list[Typed] = field(default_factory=list)
    order: tuple[Ordering, ...] = ()
    limit: int | None = None
    offset: int = 0
    always_one: bool = False
    """Exactly one row per value of the correlation, also over nothing."""
    empties: dict[str, str] = field(default_factory=dict)
    """Columns of aggregates whose value over nothing is not null, with that value."""


@dataclass(slots=True, kw_only=True)
class Planning:
    """The state of one statement's planning."""

    text: Text
    relations: Relations
    pure: bool = False
    parameters: Sequence[str | None] | None = None
    plan_query: "Callable[[exp.Expr, Scope | None, Environment], Shape]"
    not_null: set[str] = field(default_factory=set)
    ranked: "dict[str, Ranked]" = field(default_factory=dict)
    views: list[str] = field(default_factory=list)
    moment: "Moment | None" = None
    _next: int = 0

    def name(self, hint: str) -> str:
        """A fresh column name."""
        self._next += 1
        plain = re.sub(r"[^a-z0-9_]", "", hint.lower().replace(" ", "_"))[:30] or "c"
        return f"{plain}_{self._next}"

    def column(self, hint: str, type_: DataType, *, nullable: bool = True) -> tuple[str, Typed]:
        """A fresh column, and a reference to it."""
        name = self.name(hint)
        if not nullable:
            self.not_null.add(name)
        return name, column(name, type_, nullable=nullable)

    def nullable_again(self, plan: Plan) -> None:
        """The columns of this plan come out of the outer side of a join: they may be null."""
        self.not_null -= {output.name for output in plan.outputs}

    def is_nullable(self, value: Typed) -> bool:
        """Whether a value may be null, given what is known of its columns by now."""
        return value.nullable or not value.columns <= self.not_null


@dataclass(frozen=True, slots=True)
class Ranked:
    """A column that is a row_number or rank, by what it counts."""

    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    with_ties: bool


Environment = dict[str, "tuple[exp.Expr, tuple[str, ...], Environment] | Prepared"]
"""CTEs in sight: query, column names, and what that query itself can see."""


class Prepared(Protocol):
    """A CTE that is planned in another way than as a query of its own."""

    def shape(self) -> Shape:
        """Its rows, under fresh names."""
        ...


def names_of(plan: Plan) -> frozenset[str]:
    """The columns that a plan gives."""
    return frozenset(output.name for output in plan.outputs)


def keep(output: Output) -> Named:
    """A column passed through under its own name."""
    text = f"`{output.name}`"
    return Named(output.name, Expression(text, output.type, frozenset({output.name})))


def is_column(value: Typed) -> str | None:
    """The name, if the value is nothing but a column."""
    found = _NAME.fullmatch(value.text)
    return found[1] if found and len(value.columns) == 1 else None


def replaced(value: Typed, new: dict[str, str]) -> Typed:
    """The value with some column references replaced by other texts."""
    if not new.keys() & value.columns:
        return value
    text = _NAME.sub(lambda found: new.get(found[1], found[0]), value.text)
    interval = value.interval
    if interval is not None:
        swap = lambda part: _NAME.sub(lambda found: new.get(found[1], found[0]), part)  # noqa: E731
        interval = type(interval)(*map(swap, (interval.months, interval.days, interval.micros)))
    names = frozenset(each for part in new.values() for each in _NAME.findall(part))
    equal = value.equal
    if equal is not None:
        equal = (replaced(equal[0], new), replaced(equal[1], new))
    same = value.same
    if same is not None:
        same = (replaced(same[0], new), replaced(same[1], new))
    return replace(value, text=text, columns=(value.columns - new.keys()) | names,
                   interval=interval, equal=equal, same=same)  # fmt: skip


def extend(
    planning: Planning, plan: Plan, values: Iterable[tuple[str, Typed]]
) -> tuple[Plan, list[Typed]]:
    """The plan with further columns, each a reference; plain columns are not copied."""
    added: list[Named] = []
    references: list[Typed] = []
    for hint, value in values:
        if is_column(value):
            references.append(value)
            continue
        name, reference = planning.column(hint, value.known, nullable=planning.is_nullable(value))
        added.append(Named(name, value.expression()))
        references.append(reference)
    if not added:
        return plan, references
    kept = tuple(keep(output) for output in plan.outputs)
    return Project(input=plan, expressions=(*kept, *added), key=plan.key), references


def filtered(plan: Plan, conditions: Sequence[Typed]) -> Plan:
    """The plan under these conditions; `true` changes nothing."""
    conditions = [each for each in conditions if each.text != TRUE.text]
    if not conditions:
        return plan
    text = " and ".join(each.text for each in conditions)
    whole = Expression(
        f"({text})" if len(conditions) > 1 else text,
        conditions[0].known,
        frozenset().union(*(each.columns for each in conditions)),
    )
    return Filter(input=plan, predicate=whole)


def equality(value: Typed, *, null_safe: bool = False) -> tuple[Expression, Expression] | None:
    """The two sides, if a condition is one plain equality (or one that two nulls satisfy)."""
    sides = value.same if null_safe else value.equal
    return None if sides is None else (sides[0].expression(), sides[1].expression())


def split_equalities(
    conditions: Iterable[Typed],
    left: frozenset[str],
    right: frozenset[str],
    *,
    null_safe: bool = False,
) -> tuple[tuple[tuple[Expression, Expression], ...], list[Typed]]:
    """Equalities between the sides, turned the right way round, and what is left over."""
    pairs: list[tuple[Expression, Expression]] = []
    rest: list[Typed] = []
    for condition in conditions:
        sides = equality(condition, null_safe=null_safe)
        if sides is not None:
            one, two = sides
            if one.columns and two.columns:
                if one.columns <= left and two.columns <= right:
                    pairs.append((one, two))
                    continue
                if one.columns <= right and two.columns <= left:
                    pairs.append((two, one))
                    continue
        rest.append(condition)
    return tuple(pairs), rest


def conjunction(conditions: Sequence[Typed]) -> Expression | None:
    """All conditions as one, or None."""
    if not conditions:
        return None
    text = " and ".join(each.text for each in conditions)
    columns = frozenset().union(*(each.columns for each in conditions))
    return Expression(f"({text})", conditions[0].known, columns)


def joined(
    planning: Planning, kind: JoinKind, left: Plan, right: Plan, conditions: Sequence[Typed]
) -> Plan:
    """A join; conditions on one side alone are moved there where that is the same."""
    left_names, right_names = names_of(left), names_of(right)
    rest: list[Typed] = []
    for condition in conditions:
        if condition.columns <= right_names and condition.columns and kind in (
            JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI,
        ):  # fmt: skip
            right = filtered(right, [condition])
        elif condition.columns <= left_names and condition.columns and kind in (
            JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI,
        ):  # fmt: skip
            left = filtered(left, [condition])
        elif condition.text != TRUE.text:
            rest.append(condition)
    pairs, residual = split_equalities(rest, left_names, right_names)
    null_safe = False
    if not pairs:
        pairs, residual = split_equalities(rest, left_names, right_names, null_safe=True)
        null_safe = bool(pairs)
    key = _join_key(kind, left, right, pairs)
    if kind is JoinKind.FULL and not set(key) <= planning.not_null:
        # A row of each side without partner, both with null keys, would look the same.
        key = ()
    if kind in (JoinKind.LEFT, JoinKind.FULL):
        planning.nullable_again(right)
    if kind in (JoinKind.RIGHT, JoinKind.FULL):
        planning.nullable_again(left)
    return Join(
        kind=kind, left=left, right=right, on=pairs, null_safe=null_safe,
        residual=conjunction(residual), key=key,
    )  # fmt: skip


def _join_key(
    kind: JoinKind, left: Plan, right: Plan, pairs: Sequence[tuple[Expression, Expression]]
) -> tuple[str, ...]:
    if kind in (JoinKind.SEMI, JoinKind.ANTI):
        return left.key
    # An empty key is a key too, of a plan that gives at most one row.
    if not (left.key or at_most_one(left)) or not (right.key or at_most_one(right)):
        return ()
    if kind in (JoinKind.INNER, JoinKind.LEFT) and _covers(right, pairs, side=1):
        return left.key
    if kind is JoinKind.INNER and _covers(left, pairs, side=0):
        return right.key
    return (*left.key, *right.key)


def _covers(plan: Plan, pairs: Sequence[tuple[Expression, Expression]], *, side: int) -> bool:
    """Whether the join's equalities fix the whole key of one side, so that one row fits."""
    if not plan.key:
        return at_most_one(plan)
    fixed = {found[1] for pair in pairs if (found := _NAME.fullmatch(pair[side].text))}
    return set(plan.key) <= fixed


def at_most_one(plan: Plan) -> bool:
    """Whether a plan gives one row at most."""
    from headwater.sql.algebra import Aggregate  # noqa: PLC0415

    match plan:
        case Aggregate(group=()):
            return True
        case Project(input=inner) | Filter(input=inner):
            return at_most_one(inner)
        case Values(rows=rows):
            return len(rows) <= 1
        case Join(left=left, right=right, kind=kind):
            if kind in (JoinKind.SEMI, JoinKind.ANTI):
                return at_most_one(left)
            return kind is not JoinKind.FULL and at_most_one(left) and at_most_one(right)
        case _:
            return False


ONE_ROW = Values(rows=((),), outputs=())
"""What a query without FROM reads: one row without columns."""

__all__ = ["Query"]
