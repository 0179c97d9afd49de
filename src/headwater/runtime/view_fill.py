"""Fill the stores of a new view: few rows on the driver, many by Spark tasks."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.model.change import ChangeType
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.table_commit import TableCommit
from headwater.runtime.view_world import KeptView, ViewWorld
from headwater.views.layout import Layout
from headwater.views.recompute import fill

_SMALL_ROWS = 100_000


def filled_stores(
    spark: SparkSession, layout: Layout, tables: Mapping[TableId, DataFrame], rows: int
) -> "list[pa.Table | DataFrame]":
    """The rows of each store as inserts; `rows` is how many the tables have."""
    frames = fill(spark, layout, tables)
    if rows > _SMALL_ROWS:
        return [as_inserts(frame) for frame in frames]
    return [as_inserts(frame.toArrow()) for frame in frames]


def stage_filled(spark: SparkSession, view: KeptView, world: ViewWorld) -> list[TableCommit]:
    """Stage a view's stores, which are new, with its query over the epoch's tables.

    Replay: as of `StateTable.stage`.
    """
    frames = {id_: world.after(id_) for id_ in view.reads}
    rows = sum(world.upcoming(id_).after.rows for id_ in view.reads)
    filled = filled_stores(spark, view.layout, frames, rows)
    commits = [
        store.stage(world.epoch, parts=[store.prepare(world.epoch, inserts, fresh=True)])
        for store, inserts in zip(view.stores, filled, strict=True)
    ]
    for store in view.stores:
        store.prepared()
    return [commit for commit in commits if commit is not None]


def as_inserts(rows: pa.Table | DataFrame) -> "pa.Table | DataFrame":
    """Rows as changes."""
    if isinstance(rows, DataFrame):
        return rows.withColumn(CHANGE_TYPE, F.lit(ChangeType.INSERT.value))
    word = pa.array([ChangeType.INSERT.value])
    return rows.append_column(CHANGE_TYPE, word.take(pa.array(np.zeros(rows.num_rows, np.int64))))
