"""How a view is stored: its columns and key, and the states of aggregates beside it.

    the plan                              its rows are stored as
    has a key                             themselves, by that key
    is a mergeable aggregate, perhaps     themselves with the hidden state of each group
    under projections
    has no key                            themselves, with a hidden key: the hash of the row and
                                          a number that tells equal rows apart

Mergeable aggregates further down, and top-ns, have a store of their own, so that no epoch needs
to read their input again. Every name that users did not choose begins with `HIDDEN_PREFIX`, and
a row of the view is a row of the store, so other tools need to know nothing but which columns to
leave out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.sql.algebra import (
    Aggregate,
    Filter,
    Generate,
    Opaque,
    Output,
    Plan,
    Project,
    Query,
    Scan,
    TopN,
    UnionAll,
    inputs_of,
)
from headwater.views.merging import Merging, cannot_merge
from headwater.views.spelling import names_of, plain_column
from headwater.views.topmost import KeptTop, can_be_kept

ROW_HASH = f"{HIDDEN_PREFIX}row"
ROW_NUMBER = f"{HIDDEN_PREFIX}number"
MAIN = 0
"""The number of the store that holds the view's rows."""


class RefreshPolicy(StrEnum):
    """How a view is brought up to date."""

    AUTO = "auto"
    INCREMENTAL = "incremental"
    INCREMENTAL_STRICT = "incremental_strict"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A query that is kept current; `columns` pairs stored names with the plan's columns."""

    name: str
    plan: Plan
    columns: tuple[tuple[str, str], ...]
    policy: RefreshPolicy = RefreshPolicy.AUTO

    @property
    def visible(self) -> tuple[str, ...]:
        """The stored columns that the user sees."""
        return tuple(name for name, _ in self.columns if not name.startswith(HIDDEN_PREFIX))


def view_of(name: str, query: Query, policy: RefreshPolicy = RefreshPolicy.AUTO) -> View:
    """A view's definition: what the user sees, and hidden columns where the key needs them."""
    seen = {column for _, column in query.visible}
    hidden = [column for column in query.plan.key if column not in seen]
    own = [(f"{HIDDEN_PREFIX}key_{number}", column) for number, column in enumerate(hidden)]
    return View(name=name, plan=query.plan, columns=(*query.visible, *own), policy=policy)


class Shape(StrEnum):
    """What a view's main store holds."""

    KEYED = "keyed"
    MERGED = "merged"
    MULTISET = "multiset"


@dataclass(frozen=True, slots=True)
class Kept:
    """An aggregate whose states are stored; `names` maps the plan's columns to stored ones."""

    merging: Merging
    store: int
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """The stores of one view, the main one first."""

    view: View
    shape: Shape
    schemas: tuple[Schema, ...]
    kept: Mapping[int, Kept]
    """By the identity of the aggregate node."""
    projections: tuple[Project, ...] = field(default=())
    """For MERGED: from the top down to the aggregate."""
    tops: Mapping[int, KeptTop] = field(default_factory=dict)
    """By the identity of the top-n node."""

    @property
    def top(self) -> Kept | None:
        """The aggregate that the main store holds the states of."""
        return next((each for each in self.kept.values() if each.store == MAIN), None)

    def kept_of(self, plan: Plan) -> Kept | None:
        """The stored states of a node, when it has some."""
        return self.kept.get(id(plan))

    def top_of(self, plan: Plan) -> KeptTop | None:
        """The stored first rows of a node, when it has some."""
        return self.tops.get(id(plan))


def lay_out(view: View) -> Layout:
    """Decide how a view is stored."""
    types = {output.name: output.type for output in view.plan.outputs}
    columns = tuple(Column(stored, types[column]) for stored, column in view.columns)
    kept: dict[int, Kept] = {}
    schemas: list[Schema] = []
    incremental = view.policy is not RefreshPolicy.FULL
    shape = Shape.KEYED
    projections: tuple[Project, ...] = ()
    top = _merged_top(view) if incremental else None
    if top is not None:
        node, projections, names = top
        merging = Merging(node)
        states = [output for output in merging.columns if output.name not in node.group]
        key = tuple(names[name] for name in merging.key)
        schemas.append(Schema((*columns, *_as_columns(states)), key))
        kept[id(node)] = Kept(merging, MAIN, names)
        shape = Shape.MERGED
    else:
        by_column = {column: stored for stored, column in reversed(view.columns)}
        key = tuple(by_column.get(column, "") for column in view.plan.key)
        if not key or "" in key or not all(types[c].can_be_key for c in view.plan.key):
            shape, key = Shape.MULTISET, (ROW_HASH, ROW_NUMBER)
            columns = (*columns, Column(ROW_HASH, BIGINT), Column(ROW_NUMBER, BIGINT))
        schemas.append(Schema(columns, key))
    tops: dict[int, KeptTop] = {}
    if incremental:
        _keep_inner(view.plan, kept, tops, schemas)
    return Layout(view, shape, tuple(schemas), kept, projections, tops)


def is_linear(plan: Plan) -> bool:
    """Whether each output row comes from one input row, so that no two changes can meet."""
    match plan:
        case Scan():
            return True
        case Filter() | Project() | Generate() | UnionAll():
            return all(is_linear(each) for each in inputs_of(plan))
        case _:
            return False


def mergeable(node: Aggregate) -> bool:
    """Whether all of a node's states can be stored by group and merged."""
    by_name = {output.name: output for output in node.input.outputs}
    return all(cannot_merge(call) is None for call in node.calls) and all(
        by_name[name].type.can_be_key for name in node.group
    )


def _merged_top(view: View) -> tuple[Aggregate, tuple[Project, ...], dict[str, str]] | None:
    """The aggregate at the top, the projections above it, and where its group is stored."""
    projections: list[Project] = []
    plan = view.plan
    while isinstance(plan, Project):
        projections.append(plan)
        plan = plan.input
    if not isinstance(plan, Aggregate) or not mergeable(plan):
        return None
    names = {name: name for name in plan.group}
    for project in reversed(projections):
        passed = {plain_column(each.expression): each.name for each in project.expressions}
        names = {name: passed[at] for name, at in names.items() if at in passed}
    stored = {column: name for name, column in reversed(view.columns)}
    names = {name: stored[at] for name, at in names.items() if at in stored}
    if len(names) < len(plan.group):
        return None
    own = (*Merging(plan).state_names,)
    return plan, tuple(projections), {**names, **{name: name for name in own}}


def _keep_inner(
    plan: Plan, kept: dict[int, Kept], tops: dict[int, KeptTop], schemas: list[Schema]
) -> None:
    """Give a store to each other mergeable aggregate and top-n whose changes are asked for."""
    if isinstance(plan, Opaque):
        return
    if isinstance(plan, TopN) and id(plan) not in tops and can_be_kept(plan):
        top = KeptTop(plan, len(schemas))
        tops[id(plan)] = top
        schemas.append(top.schema)
    if isinstance(plan, Aggregate) and id(plan) not in kept and mergeable(plan):
        merging = Merging(plan)
        names = {name: _stored(number, name) for number, name in enumerate(merging.key)}
        names |= {name: name for name in merging.state_names}
        columns = tuple(Column(names[o.name], o.type) for o in merging.columns)
        kept[id(plan)] = Kept(merging, len(schemas), names)
        schemas.append(Schema(columns, tuple(names[name] for name in merging.key)))
    for each in inputs_of(plan):
        _keep_inner(each, kept, tops, schemas)


def _stored(number: int, name: str) -> str:
    return name if name.startswith(HIDDEN_PREFIX) else f"{HIDDEN_PREFIX}group_{number}"


def _as_columns(outputs: list[Output]) -> tuple[Column, ...]:
    return tuple(Column(output.name, output.type) for output in outputs)


def stored_names(view: View) -> tuple[str, ...]:
    """The plan's columns that are stored, each once."""
    return tuple(dict.fromkeys(column for _, column in view.columns))


def stores_whole_plan(view: View) -> bool:
    """Whether every column of the plan is stored, so that the store can stand for the plan."""
    return set(names_of(view.plan.outputs)) <= set(stored_names(view))
