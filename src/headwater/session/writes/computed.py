"""Columns whose values are expressions: generated ones, and defaults that are no constants.

Both are computed over rows that are not stored yet. Few rows go to Spark and come back; many
stay in files, before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headwater.model import types
from headwater.model.reserved import HIDDEN_PREFIX, SEQ
from headwater.model.schema import Column, Schema
from headwater.runtime.engine import Engine
from headwater.runtime.spark_errors import explained
from headwater.session.writes.assigning import (
    TARGET,
    assigned_query,
    column_of,
    from_target,
    local_target,
    run,
)
from headwater.session.writes.scene import Scene
from headwater.session.writes.spill import Gathered, Spill, gather, select_columns
from headwater.session.writes.target import Target
from headwater.sql.algebra import Query
from headwater.sql.expression.problem import Text
from headwater.sql.parse import parse_expression
from headwater.sql.plan import plan_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = f"{HIDDEN_PREFIX}place"


@dataclass(frozen=True, slots=True)
class Computed:
    """A column and the SQL text that gives its value."""

    column: Column
    text: str


async def with_computed(
    scene: Scene, rows: Gathered, columns: Sequence[Column], computed: Sequence[Computed]
) -> Gathered:
    """The rows with further columns after their own, which are `columns`; their values fit."""
    if not computed:
        return rows
    query = _planned(scene, columns, computed)
    finish = _Fitting(scene.target, tuple(each.column.name for each in computed))
    work = _Work(scene.context.engine, tuple(columns), tuple(computed), query, finish)
    return await scene.context.blocking(work, rows)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Checks the values of some columns. Travels to Spark tasks."""

    target: Target
    names: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        return self.target.check(rows, self.names)


def _planned(scene: Scene, columns: Sequence[Column], computed: Sequence[Computed]) -> Query:
    place = Column(PLACE, types.BIGINT, False)
    relations = local_target(scene.snapshot, scene.context.path, (*columns, place), PLACE)
    items = [column_of(TARGET, each.name) for each in (*columns, place)]
    values: list[exp.Expr] = [parse_expression(each.text) for each in computed]
    # Errors in a stored expression have no place in the text of this statement.
    query = plan_query(from_target([*items, *values], TARGET), "", relations, parameters=())
    targets = [*[None] * len(items), *[each.column for each in computed]]
    return assigned_query(query, targets, Text(""))


@dataclass(frozen=True, slots=True)
class _Work:
    engine: Engine
    columns: tuple[Column, ...]
    computed: tuple[Computed, ...]
    query: Query
    finish: _Fitting

    def __call__(self, rows: Gathered) -> Gathered:
        engine, count = self.engine, len(self.columns)
        # The place stands between the columns that were there and those that are new.
        names = [f"v{i}" for i in range(count + 1 + len(self.computed)) if i != count]
        try:
            spark = engine.spark()
            if isinstance(rows, Spill):
                local = rows.frame(spark).withColumnRenamed(SEQ, PLACE)
            else:
                local = local_frame(spark, rows, self.columns)
            made = run(engine, self.query, engine.visible, local)
            ordered = select_columns(made, [*names, f"v{count}"])
        except Exception as error:
            raise explained(error) from error
        wanted = (*self.columns, *(each.column for each in self.computed))
        parts = rows.parts if isinstance(rows, Spill) else (rows.num_rows,)
        result = gather(engine, ordered, wanted, finish=self.finish, parts=parts)
        if isinstance(rows, Spill):
            rows.remove()
        return result


def local_frame(spark: "SparkSession", rows: pa.Table, columns: Sequence[Column]) -> "DataFrame":
    """Rows of the driver as a DataFrame, with their place."""
    schema = Schema((*columns, Column(PLACE, types.BIGINT)), (PLACE,))
    places = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    named = rows.select([column.name for column in columns]).append_column(PLACE, places)
    return spark.createDataFrame(named, schema.spark)


def constant_column(value: object, type_: types.DataType, count: int) -> pa.Array:
    """The same value in every row."""
    one = pa.array([value], type_.arrow)
    return one.take(pa.array(np.zeros(count, dtype=np.int64)))
