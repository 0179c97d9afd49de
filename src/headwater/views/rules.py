"""Which rule keeps each operator current, what it reads, and why not a better one.

    rule        reads
    apply       nothing but the changes
    lookup      the rows that can match the changed ones, by key
    merge       the stored state of each changed group
    first       the stored first rows; the input only when too many of them went
    regroup     the rows of each changed group, partition or set
    whole       the tables below, before and after: recompute and compare

`lookup` and `regroup` need the columns that they search by to come unchanged from a table, or
from a stored state; where they do not, the tables concerned are read whole. What is estimated
here is what `auto` decides by and what EXPLAIN shows.
"""

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from headwater.errors import NotSupported
from headwater.model.ids import TableId
from headwater.sql.algebra import (
    Aggregate,
    Filter,
    Generate,
    Join,
    JoinKind,
    Opaque,
    Plan,
    Project,
    Scan,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
    inputs_of,
    tables_of,
)
from headwater.views.layout import Layout, RefreshPolicy
from headwater.views.merging import cannot_merge
from headwater.views.restriction import branch_names, project_names, restricting, searchable
from headwater.views.spelling import names_of

_FANOUT = 10.0
"""Rows expected under one value of columns that are not a key."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """What is read whole when a node's rows are asked for: tables, and groups stored of tables."""

    tables: frozenset[TableId] = frozenset()
    groups: frozenset[TableId] = frozenset()

    def __or__(self, other: "_Whole") -> "_Whole":
        return _Whole(self.tables | other.tables, self.groups | other.groups)


class Rule(StrEnum):
    """How an operator's delta is found."""

    APPLY = "apply"
    LOOKUP = "lookup"
    MERGE = "merge"
    FIRST = "first"
    REGROUP = "regroup"
    WHOLE = "whole"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operator of a plan, as EXPLAIN shows it."""

    depth: int
    operator: str
    rule: Rule
    reads_per_change: float
    """Rows expected to be read for each changed row, tables that are read whole left out."""
    reads_whole: frozenset[TableId] = frozenset()
    reads_groups: frozenset[TableId] = frozenset()
    """The tables of which all stored groups are read, and not the rows."""
    reason: str = ""
    """Why no better rule applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What an epoch costs either way, in rows read from a file."""

    incremental: float
    full: float

    @property
    def pays(self) -> bool:
        """Whether the rules are cheaper than recomputing."""
        return self.incremental < self.full


def explain_incremental(
    layout: Layout, names: Mapping[TableId, str] | None = None
) -> tuple[Step, ...]:
    """The rule of every operator, from the top down; tables under their names, if given."""
    plan = layout.view.plan
    return tuple(_steps(layout, plan, 0, names or {}, tables_of(plan)))


def check_policy(layout: Layout) -> None:
    """Refuse `incremental_strict` for a view that has an operator without a rule."""
    if layout.view.policy is not RefreshPolicy.INCREMENTAL_STRICT:
        return
    for step in explain_incremental(layout):
        if step.rule is Rule.WHOLE or step.reads_whole or step.reads_groups:
            raise NotSupported(
                f"view {layout.view.name} cannot be kept current by changes alone",
                detail=f"{step.operator}: {step.reason or 'it reads whole tables'}.",
                hint="Use refresh_policy = auto, or change the query.",
            )


def estimate(
    layout: Layout,
    rows: Mapping[TableId, int],
    changed: Mapping[TableId, int],
    stored: int,
) -> Estimate:
    """The cost of both ways; `rows` and `changed` are by table, `stored` the view's rows."""
    # Rough weights, from `bench/views.py`: a row found by key costs about 8 times one that is
    # read in passing, one joined or grouped in memory 3 times, one compared with a stored row 4.
    tables = tables_of(layout.view.plan)
    changes = sum(changed.get(table, 0) for table in tables)
    moved = frozenset(table for table in tables if changed.get(table, 0))
    steps = tuple(_steps(layout, layout.view.plan, 0, {}, moved))
    found = sum(_found(layout, step, changes, stored) for step in steps)
    whole = frozenset().union(*(step.reads_whole for step in steps if step.reads_whole))
    read = 2.0 * sum(rows.get(table, 0) for table in whole)
    read += 2.0 * sum(_groups(step.reads_groups, rows) for step in steps)
    shuffles = sum(1 for step in steps if step.rule not in (Rule.APPLY, Rule.CONSTANT))
    everything = float(sum(rows.get(table, 0) for table in tables))
    incremental = (changes + read) * (1 + 2 * shuffles) + 8 * found + 4 * min(changes, stored)
    full = everything * (1 + 2 * shuffles) + 4 * stored
    # A rule that reads everything twice can only lose.
    return Estimate(
        incremental=max(incremental, full) if whole >= tables else incremental, full=full
    )


def _found(layout: Layout, step: Step, changes: int, stored: int) -> float:
    """How many rows are found by key; changes of one group need its state once."""
    found = changes * step.reads_per_change
    top = step.rule is Rule.MERGE and layout.top is not None
    return min(found, stored) if top else found


def _groups(tables: frozenset[TableId], rows: Mapping[TableId, int]) -> float:
    return max((rows.get(table, 0) for table in tables), default=0) / _FANOUT


def _steps(
    layout: Layout,
    plan: Plan,
    depth: int,
    names: Mapping[TableId, str],
    moved: frozenset[TableId],
) -> Iterable[Step]:
    """What is done when some tables change; nothing is where none of them lies below."""
    if not tables_of(plan) & moved and tables_of(plan):
        return
    step = _step(layout, plan, depth, moved)
    if isinstance(plan, Scan) and plan.table in names:
        step = replace(step, operator=f"scan of {names[plan.table]}")
    yield step
    for each in inputs_of(plan):
        yield from _steps(layout, each, depth + 1, names, moved)


def _step(  # noqa: PLR0911  one return per kind of node
    layout: Layout, plan: Plan, depth: int, moved: frozenset[TableId]
) -> Step:
    name = _name(plan)
    match plan:
        case Scan() | Filter() | Project() | Generate() | UnionAll():
            return Step(depth=depth, operator=name, rule=Rule.APPLY, reads_per_change=0.0)
        case Values():
            return Step(depth=depth, operator=name, rule=Rule.CONSTANT, reads_per_change=0.0)
        case Join():
            return _join_step(layout, plan, depth, name, moved)
        case Aggregate() if layout.kept_of(plan) is not None:
            return Step(depth=depth, operator=name, rule=Rule.MERGE, reads_per_change=1.0)
        case TopN() if layout.top_of(plan) is not None:
            return Step(depth=depth, operator=name, rule=Rule.FIRST, reads_per_change=1.0)
        case Aggregate() | WindowFunctions() | TopN() | SetOperation():
            return _regroup_step(layout, plan, depth, name)
        case Opaque(reason=reason):
            return _whole(depth, name, _Whole(tables_of(plan)), reason)
        case _ as never:
            assert_never(never)


def _regroup_step(layout: Layout, plan: Plan, depth: int, name: str) -> Step:
    reason = _why_not_merged(plan)
    names = restricting(plan)
    read = _Whole()
    for each, columns in zip(inputs_of(plan), names, strict=True):
        read |= _read(layout, each, frozenset(columns.values()))
    if not any(names):
        return _whole(depth, name, read, reason or "there is nothing to divide its rows by")
    computed = read.tables or read.groups
    return Step(
        depth=depth,
        operator=name,
        rule=Rule.REGROUP,
        reads_per_change=2 * _FANOUT,
        reads_whole=read.tables,
        reads_groups=read.groups,
        reason="what it divides rows by is computed, not stored" if computed else reason,
    )


def _whole(depth: int, name: str, read: _Whole, reason: str) -> Step:
    return Step(
        depth=depth,
        operator=name,
        rule=Rule.WHOLE,
        reads_per_change=0.0,
        reads_whole=read.tables,
        reads_groups=read.groups,
        reason=reason,
    )


def _why_not_merged(plan: Plan) -> str:
    if not isinstance(plan, Aggregate):
        return ""
    reasons = [reason for call in plan.calls if (reason := cannot_merge(call)) is not None]
    return "; ".join(dict.fromkeys(reasons)) or "a group's columns cannot be a key"


def _join_step(
    layout: Layout, join: Join, depth: int, name: str, moved: frozenset[TableId]
) -> Step:
    turned = tuple((b, a) for a, b in join.on)
    read = _Whole()
    reads = 0.0
    sides = ((join.left, join.right, join.on), (join.right, join.left, turned))
    for changes, other, on in sides:
        if not tables_of(changes) & moved:
            continue
        columns = searchable(on, other.outputs)
        missed = _read(layout, other, frozenset(columns))
        read |= missed
        reads += 0.0 if missed.tables or missed.groups else _expected(other, columns)
    if join.kind is not JoinKind.INNER:
        reads *= 2
    reason = ""
    if not join.on:
        reason = "no equality between the sides"
    elif read.tables or read.groups:
        reason = "a side cannot be searched by the join's columns, which are computed"
    return Step(
        depth=depth,
        operator=name,
        rule=Rule.LOOKUP,
        reads_per_change=reads / 2,
        reads_whole=read.tables,
        reads_groups=read.groups,
        reason=reason,
    )


def _expected(plan: Plan, columns: Iterable[str]) -> float:
    return 1.0 if plan.key and set(plan.key) <= set(columns) else _FANOUT


def _read(  # noqa: PLR0911  one return per kind of node
    layout: Layout, plan: Plan, columns: frozenset[str]
) -> _Whole:
    """What is read whole when a node's rows are asked for by some columns."""
    match plan:
        case Scan(table=table):
            types = {output.name: output.type for output in plan.outputs}
            found = any(types[name].can_be_key for name in columns & types.keys())
            return _Whole() if found else _Whole(frozenset({table}))
        case Values():
            return _Whole()
        case Filter() | Generate():
            return _read(layout, plan.input, columns & set(names_of(plan.input.outputs)))
        case Project():
            return _read(layout, plan.input, _mapped(columns, project_names(plan)))
        case UnionAll():
            parts = [
                _read(layout, each, _mapped(columns, branch_names(plan, number)))
                for number, each in enumerate(plan.inputs)
            ]
            return _all(parts)
        case Join():
            return _join_reads(layout, plan, columns)
        case Aggregate() if layout.kept_of(plan) is not None:
            # Without a group there is one state, and it is always found.
            found = not plan.group or bool(columns & set(plan.group))
            return _Whole() if found else _Whole(groups=tables_of(plan))
        case TopN() if layout.top_of(plan) is not None:
            return _Whole()
        case _:
            parts = [
                _read(layout, each, _mapped(columns, names))
                for each, names in zip(inputs_of(plan), restricting(plan), strict=True)
            ]
            return _all(parts)


def _all(parts: Iterable[_Whole]) -> _Whole:
    return functools.reduce(operator.or_, parts, _Whole())


def _join_reads(layout: Layout, join: Join, columns: frozenset[str]) -> _Whole:
    turned = tuple((b, a) for a, b in join.on)
    left = columns & set(names_of(join.left.outputs))
    right = columns & set(names_of(join.right.outputs))
    if left and join.kind not in (JoinKind.RIGHT, JoinKind.FULL):
        other = frozenset(searchable(join.on, join.right.outputs)) or right
        return _read(layout, join.left, left) | _read(layout, join.right, other)
    if right and join.kind in (JoinKind.INNER, JoinKind.RIGHT):
        other = frozenset(searchable(turned, join.left.outputs))
        return _read(layout, join.left, other) | _read(layout, join.right, right)
    return _read(layout, join.left, frozenset()) | _read(layout, join.right, frozenset())


def _mapped(columns: frozenset[str], names: Mapping[str, str]) -> frozenset[str]:
    return frozenset(names[name] for name in columns if name in names)


def _name(plan: Plan) -> str:  # noqa: PLR0911  one return per kind of node
    match plan:
        case Join(kind=kind):
            return f"{kind.value} join"
        case SetOperation(kind=kind, all=every):
            return f"{kind.value}{' all' if every else ''}"
        case Scan(table=table):
            return f"scan of table {table}"
        case Aggregate(group=group):
            return f"aggregate by {', '.join(group)}" if group else "aggregate"
        case UnionAll():
            return "union all"
        case WindowFunctions():
            return "window functions"
        case TopN():
            return "top n"
        case _:
            return type(plan).__name__.lower()
