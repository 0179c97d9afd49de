"""Whole queries over whole tables: what a view means, and how it is first filled."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.model.spelling import quoted
from headwater.sql.algebra import Plan, Query, Scan, Values, inputs_of
from headwater.views import meaning
from headwater.views.layout import MAIN, Layout
from headwater.views.settle import states_sql, store_sql
from headwater.views.spelling import names_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count()


def plan_sql(plan: Plan, names: Mapping[TableId, str]) -> str:
    """The one query that a plan is, over tables under these names."""
    match plan:
        case Scan():
            return meaning.scan_sql(plan, names[plan.table])
        case Values():
            return meaning.values_sql(plan)
        case _:
            return meaning.apply(plan, [plan_sql(each, names) for each in inputs_of(plan)])


def typed_sql(plan: Plan, names: Mapping[TableId, str]) -> str:
    """The query, in the types that the plan declares."""
    terms = [f"cast({quoted(o.name)} as {o.type.spark}) as {quoted(o.name)}" for o in plan.outputs]
    return f"select {', '.join(terms)} from ({plan_sql(plan, names)})"


def query_sql(query: Query, names: Mapping[TableId, str]) -> str:
    """The user's columns under the user's names, in the order and the number asked for."""
    columns = ", ".join(f"{quoted(column)} as {quoted(name)}" for name, column in query.visible)
    ending = f" order by {meaning.order_sql(query.order)}" if query.order else ""
    if query.limit is not None:
        ending += f" limit {query.limit}"
    if query.offset:
        ending += f" offset {query.offset}"
    rows = f"select * from ({typed_sql(query.plan, names)}){ending}"
    if query.order:
        # The order has to outlive the last projection, which may drop what it reads.
        return f"select {columns} from ({rows}) order by {meaning.order_sql(query.order)}"
    return f"select {columns} from ({rows})"


def batch(spark: "SparkSession", plan: Plan, tables: "Mapping[TableId, DataFrame]") -> "DataFrame":
    """A plan's rows over whole tables, as one Spark query."""
    with named_frames(spark, tables) as names:
        return spark.sql(typed_sql(plan, names))


_Name = TypeVar("_Name")


@contextmanager
def named_frames(
    spark: "SparkSession", tables: "Mapping[_Name, DataFrame]"
) -> Iterator[dict[_Name, str]]:
    """Names for frames while a query over them is parsed; the query keeps their plans.

    Many queries are made side by side, at different epochs: no two share a name.
    """
    names = {table: f"_hw_batch_{next(_numbers)}" for table in tables}
    try:
        for table, frame in tables.items():
            frame.createOrReplaceTempView(names[table])
        yield names
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def store_queries(layout: Layout, names: Mapping[TableId, str]) -> list[str]:
    """For each store of a view, the query that fills it from nothing."""
    inputs = _inputs(layout, names)
    return [
        _in_types(schema.columns, store_sql(layout, number, inputs))
        for number, schema in enumerate(layout.schemas)
    ]


def states_query(layout: Layout, names: Mapping[TableId, str]) -> tuple[str, tuple[Column, ...]]:
    """The states of the aggregate that a view is, from nothing, and their columns."""
    kept = layout.top
    assert kept is not None, "only aggregates have states"
    schema = layout.schemas[MAIN]
    columns = tuple(schema[kept.names[name]] for name in names_of(kept.merging.columns))
    return _in_types(columns, states_sql(kept, _inputs(layout, names))), columns


def _inputs(layout: Layout, names: Mapping[TableId, str]) -> dict[int, str]:
    inputs = {id(layout.view.plan): typed_sql(layout.view.plan, names)}
    below = [kept.merging.node.input for kept in layout.kept.values()]
    below += [top.node.input for top in layout.tops.values()]
    return inputs | {id(each): plan_sql(each, names) for each in below}


def _in_types(columns: Sequence[Column], sql: str) -> str:
    terms = [f"cast({quoted(c.name)} as {c.type.spark}) as {quoted(c.name)}" for c in columns]
    return f"select {', '.join(terms)} from ({sql})"


def fill(
    spark: "SparkSession", layout: Layout, tables: "Mapping[TableId, DataFrame]"
) -> "list[DataFrame]":
    """For each store of a view, its rows from nothing."""
    with named_frames(spark, tables) as names:
        return [spark.sql(sql) for sql in store_queries(layout, names)]
