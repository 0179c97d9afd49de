"""Whole queries over whole tables: what a view means, and how it is first filled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.model.ids import TableId
from headwater.sql.algebra import Plan, Scan, Values, inputs_of
from headwater.views import meaning
from headwater.views.layout import Layout
from headwater.views.settle import store_sql
from headwater.views.spelling import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


def batch(spark: "SparkSession", plan: Plan, tables: "Mapping[TableId, DataFrame]") -> "DataFrame":
    """A plan's rows over whole tables, as one Spark query."""
    # A frame that is handed in keeps its plan when the name goes, so names may be short-lived.
    names = {}
    for table, frame in tables.items():
        names[table] = f"_hw_batch_{table}"
        frame.createOrReplaceTempView(names[table])
    try:
        return spark.sql(typed_sql(plan, names))
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def store_queries(layout: Layout, names: Mapping[TableId, str]) -> list[str]:
    """For each store of a view, the query that fills it from nothing."""
    inputs = {id(layout.view.plan): typed_sql(layout.view.plan, names)}
    for kept in layout.kept.values():
        below = kept.merging.node.input
        inputs[id(below)] = plan_sql(below, names)
    queries = []
    for number, schema in enumerate(layout.schemas):
        terms = [
            f"cast({quoted(c.name)} as {c.type.spark}) as {quoted(c.name)}" for c in schema.columns
        ]
        filled = store_sql(layout, number, inputs)
        queries.append(f"select {', '.join(terms)} from ({filled})")
    return queries


def fill(
    spark: "SparkSession", layout: Layout, tables: "Mapping[TableId, DataFrame]"
) -> "list[DataFrame]":
    """For each store of a view, its rows from nothing."""
    names = {}
    for table, frame in tables.items():
        names[table] = f"_hw_batch_{table}"
        frame.createOrReplaceTempView(names[table])
    try:
        return [spark.sql(sql) for sql in store_queries(layout, names)]
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)
