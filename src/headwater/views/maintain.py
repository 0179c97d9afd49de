"""Bring all views of one level up to date with an epoch's changes.

The engine calls `maintain` once per epoch and level of views (a view on a view is a level
higher; the lower one is a table to it). Every view gets what its stores must take:

    its tables                            its refresh policy             way
    did not change                        any                            skipped
    changed                               incremental, _strict           the rules
    changed                               full                           recompute and compare
    changed                               auto                           the cheaper one
    any, and the view is stale            any                            recompute and compare

Promises
    Exact        After the stores took the changes, each view equals its query over the tables.
    Few jobs     All views share their rounds, so the number of Spark jobs does not grow with
                 the number of views.
    Repeatable   Nothing is written here; the same epoch gives the same changes again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.model.ids import TableId
from headwater.model.spelling import quoted
from headwater.model.types import BIGINT
from headwater.sql.algebra import Output, tables_of
from headwater.views.changes import as_changes
from headwater.views.delta import Deltas
from headwater.views.desk import Collect, Lookup, Side, Source, StoreId
from headwater.views.layout import (
    MAIN,
    ROW_HASH,
    ROW_NUMBER,
    Layout,
    RefreshPolicy,
    Shape,
    is_linear,
)
from headwater.views.multiset import numbered
from headwater.views.recompute import store_queries
from headwater.views.relation import Relation
from headwater.views.rounds import run, side_by_side
from headwater.views.rules import Estimate, estimate
from headwater.views.settle import StoreDelta, settled
from headwater.views.spark_desk import SparkDesk
from headwater.views.spelling import WEIGHT, listed, union_all
from headwater.views.terms import added_up, changes_sql

_SMALL_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class LiveView:
    """A view and its stores as they were before the epoch, the main one first.

    The stores of a view that is `stale` miss epochs; it is recomputed and compared.
    """

    layout: Layout
    stores: tuple[Relation, ...]
    stale: bool = False


class Way(StrEnum):
    """How a view was brought up to date."""

    SKIPPED = "skipped"
    INCREMENTAL = "incremental"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """What the stores of a view must take: upserts and deletes by key, in order."""

    view: str
    way: Way
    stores: "Mapping[int, pa.Table | DataFrame]" = field(default_factory=dict)
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The changes of all views, and what finding them took."""

    views: tuple[ViewChanges, ...]
    jobs: int
    rows_looked_up: int
    read_whole: frozenset[Source]


def maintain(
    spark: SparkSession, views: Sequence[LiveView], tables: Mapping[TableId, Relation]
) -> Report:
    """Find what an epoch changes in each view."""
    changed = frozenset(id_ for id_, relation in tables.items() if relation.changes is not None)
    relations: dict[Source, Relation] = {}
    relations.update(tables.items())
    for each in views:
        for number, store in enumerate(each.stores):
            relations[StoreId(each.layout.view.name, number)] = store
    ways = [_way(each, tables, changed) for each in views]
    with SparkDesk(spark, relations) as desk:
        works = [
            _changes(each, way, desk, tables, changed)
            for each, (way, _) in zip(views, ways, strict=True)
        ]
        found = run(works, desk.answer)
        results = [
            ViewChanges(each.layout.view.name, way, _framed(desk, stores), cost)
            for each, (way, cost), stores in zip(views, ways, found, strict=True)
        ]
        return Report(tuple(results), desk.jobs, desk.rows_looked_up, frozenset(desk.wholes_read))


def _way(
    live: LiveView, tables: Mapping[TableId, Relation], changed: frozenset[TableId]
) -> tuple[Way, Estimate | None]:
    view = live.layout.view
    reads = tables_of(view.plan)
    if live.stale:
        return Way.FULL, None
    if not reads & changed:
        return Way.SKIPPED, None
    if view.policy is RefreshPolicy.FULL:
        return Way.FULL, None
    if view.policy is not RefreshPolicy.AUTO:
        return Way.INCREMENTAL, None
    cost = estimate(
        live.layout,
        {table: tables[table].rows for table in reads},
        {table: tables[table].changed_rows for table in reads},
        live.stores[MAIN].rows,
    )
    return (Way.INCREMENTAL if cost.pays else Way.FULL), cost


_Found = dict[int, pa.Table | str]
"""By store: its changes, or the query that gives them when they may be many."""


async def _changes(
    live: LiveView,
    way: Way,
    desk: SparkDesk,
    tables: Mapping[TableId, Relation],
    changed: frozenset[TableId],
) -> _Found:
    layout = live.layout
    reads = tables_of(layout.view.plan)
    match way:
        case Way.SKIPPED:
            return {}
        case Way.FULL:
            deltas = _full(layout, desk)
            read = sum(tables[table].rows for table in reads)
            small = min(read, live.stores[MAIN].rows) <= _SMALL_ROWS
            bounded = True
        case Way.INCREMENTAL:
            deltas = await settled(layout, Deltas(layout, desk, changed))
            small = all(isinstance(tables[table].changes, pa.Table) for table in reads & changed)
            # What is not small to begin with is brought to the driver only as few groups.
            few = layout.shape is Shape.MERGED and live.stores[MAIN].rows <= _SMALL_ROWS // 4
            bounded, small = not small, small or few
    if not small:
        return {delta.store: _ordered(layout, delta, desk, way) for delta in deltas}
    tables_found = await side_by_side(
        *(_collected(layout, delta, way, desk, bounded=bounded) for delta in deltas)
    )
    return {delta.store: rows for delta, rows in zip(deltas, tables_found, strict=True)}


async def _collected(
    layout: Layout, delta: StoreDelta, way: Way, desk: SparkDesk, *, bounded: bool
) -> pa.Table | str:
    sql = delta.sql
    if bounded:
        # What was small may have become large.
        sql = f"select * from ({sql}) limit {_SMALL_ROWS + 1}"
    rows = await Collect(sql, delta.outputs, local=delta.local, last=True)
    if bounded and rows.num_rows > _SMALL_ROWS:
        return _ordered(layout, delta, desk, way)
    if way is Way.FULL or delta.store != MAIN or layout.shape is not Shape.MULTISET:
        return as_changes(rows)
    schema = layout.schemas[MAIN]
    source = StoreId(layout.view.name, MAIN)
    found = await Lookup(source, rows.select([ROW_HASH]))
    if found is None:
        return _ordered(layout, delta, desk, way)
    assert found.table is not None
    return numbered(rows, found.table, schema)


def _full(layout: Layout, desk: SparkDesk) -> list[StoreDelta]:
    """Every store's rows from nothing, compared with what is stored."""
    names = {table: desk.whole(table, Side.NEW).name for table in tables_of(layout.view.plan)}
    found = []
    for number, sql in enumerate(store_queries(layout, names)):
        columns = layout.schemas[number].names
        stored = desk.whole(StoreId(layout.view.name, number), Side.OLD).name
        parts = [
            f"select {listed(columns)}, 1L as {quoted(WEIGHT)} from ({sql})",
            f"select {listed(columns)}, -1L as {quoted(WEIGHT)} from {stored}",
        ]
        outputs = tuple(Output(c.name, c.type) for c in layout.schemas[number].columns)
        both = added_up(union_all(parts), columns, _exact(layout, number))
        found.append(StoreDelta(number, both, (*outputs, Output(WEIGHT, BIGINT)), False))
    return found


def _exact(layout: Layout, store: int) -> frozenset[str]:
    """Columns with floats of a view whose rows are rows of a table: they stay what they are."""
    if store != MAIN or layout.shape is Shape.MULTISET or not is_linear(layout.view.plan):
        return frozenset()
    types = {column.name: column.type.spark for column in layout.schemas[store].columns}
    return frozenset(n for n, type_ in types.items() if "float" in type_ or "double" in type_)


def _ordered(layout: Layout, delta: StoreDelta, desk: SparkDesk, way: Way) -> str:
    """The changes as a query with their type and order."""
    sql, outputs = delta.sql, delta.outputs
    if way is Way.INCREMENTAL and delta.store == MAIN and layout.shape is Shape.MULTISET:
        sql = _renumbered(layout, sql, desk)
        outputs = tuple(Output(c.name, c.type) for c in layout.schemas[MAIN].columns)
    return changes_sql(sql, outputs)


def _renumbered(layout: Layout, delta: str, desk: SparkDesk) -> str:
    """All rows of the delta's hashes, taken out and put back under new numbers."""
    names = [name for name, _ in layout.view.columns]
    stored = desk.whole(StoreId(layout.view.name, MAIN), Side.OLD).name
    row_hash, number, weight = quoted(ROW_HASH), quoted(ROW_NUMBER), quoted(WEIGHT)
    columns = listed([*names, ROW_HASH])
    hashes = f"select distinct {row_hash} as _hw_hash from ({delta})"
    touched = f"select * from {stored} left semi join ({hashes}) on {row_hash} = _hw_hash"
    total = (
        f"select {columns}, sum({weight}) as _hw_n from (select {columns}, {weight} from ({delta}) "
        f"union all select {columns}, 1L from ({touched})) group by {columns} "
        f"having sum({weight}) > 0"
    )
    copies = f"select {columns}, explode(sequence(1L, _hw_n)) as _hw_copy from ({total})"
    place = f"row_number() over (partition by {row_hash} order by {listed(names)})"
    new = f"select {columns}, cast({place} as bigint) as {number}, 1L as {weight} from ({copies})"
    old = f"select {columns}, {number}, -1L as {weight} from ({touched})"
    return union_all([old, new])


def _framed(desk: SparkDesk, stores: _Found) -> "dict[int, pa.Table | DataFrame]":
    return {
        number: desk.frame(found) if isinstance(found, str) else found
        for number, found in stores.items()
    }
