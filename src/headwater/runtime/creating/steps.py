"""In which order a new view reads its tables, and in how many slices. Pure.

    the view, seen from its largest table             slices of that table       need each other
    rows, each from one row of it and of others       as many as it has room     no
    groups of such rows, whose states can be merged   as many, or one if the     they are added up
                                                      groups are many
    anything else                                     one                        -

The other tables are read first, whole: a slice of the large one then meets all of them. The more
they weigh, the fewer slices there are. Under a rate limit every view is read in small slices,
whatever that costs. An order that a user has set is kept, table by table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.backfill.snapshot.machine import Step
from headwater.backfill.snapshot.order import Order, in_order
from headwater.model.ids import TableId
from headwater.model.types import Kind
from headwater.sql.algebra import (
    Aggregate,
    Filter,
    Generate,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    inputs_of,
)
from headwater.views.layout import Layout, Shape
from headwater.views.on_arrow.slices import SliceQuery

_MANY = 1 << 20
_OTHERS = 4
"""A slice has at least so many times the rows that are read again for it."""
_OF_ANY_SIZE = frozenset({Kind.VARCHAR, Kind.BYTEA, Kind.JSONB, Kind.LIST, Kind.STRUCT})


@dataclass(frozen=True, slots=True)
class Reading:
    """How a view reads its tables."""

    steps: tuple[Step, ...]
    fresh: bool
    """Whether the rows of different slices have different keys, so that none must be looked up."""
    merges: bool = False
    """Whether slices bring states of groups, which can be added up."""
    query: SliceQuery | None = None
    """What slices go through where Arrow can compute them, many in one job."""


def reading_of(layout: Layout, rows: Mapping[TableId, int], order: Order = ()) -> Reading:
    """How to fill a view; `rows` is how many its tables have, `order` what a user has said."""
    if not rows:
        return Reading((), fresh=True)
    if order:
        return Reading(tuple(Step((t,)) for t in in_order(sorted(rows), order)), fresh=False)
    largest = max(sorted(rows), key=lambda table: rows[table])
    fresh, merges = _fresh(layout, largest), _merges(layout, largest)
    if not fresh and not merges:
        return Reading((Step(tuple(sorted(rows))),), fresh=False)
    others = tuple(sorted(table for table in rows if table != largest))
    again = _OTHERS * sum(rows[table] for table in others)
    slices = max(1, min(_MANY, rows[largest] // again if again else _MANY))
    return Reading((Step((*others, largest), slices),), fresh, merges)


def _fresh(layout: Layout, table: TableId) -> bool:
    plan = layout.view.plan
    keyed = layout.shape is Shape.KEYED and len(layout.schemas) == 1
    return keyed and _scans(plan, table) == 1 and _linear(plan, table)


def _merges(layout: Layout, table: TableId) -> bool:
    plan = layout.view.plan
    if layout.shape is not Shape.MERGED or len(layout.schemas) != 1 or _scans(plan, table) != 1:
        return False
    while isinstance(plan, Project):
        plan = plan.input
    if not isinstance(plan, Aggregate) or not _linear(plan.input, table):
        return False
    # States are kept in memory: those of numbers and times have a size that is known.
    return not any(call.expression.type.kind in _OF_ANY_SIZE for call in plan.calls)


def _scans(plan: Plan, table: TableId) -> int:
    if isinstance(plan, Scan):
        return int(plan.table == table)
    return sum(_scans(each, table) for each in inputs_of(plan))


def _linear(plan: Plan, table: TableId) -> bool:
    """Whether more rows of a table mean more rows here, and no rows of it none."""
    match plan:
        case Scan():
            return plan.table == table
        case Filter() | Project() | Generate():
            return all(_linear(each, table) for each in inputs_of(plan))
        case Join(kind=JoinKind.INNER):
            return _linear(plan.left, table) or _linear(plan.right, table)
        case Join(kind=JoinKind.LEFT | JoinKind.SEMI | JoinKind.ANTI):
            return _linear(plan.left, table)
        case Join(kind=JoinKind.RIGHT):
            return _linear(plan.right, table)
        case _:
            return False
