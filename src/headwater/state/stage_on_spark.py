"""Stage a large batch as Spark tasks.

The batch is divided by vnode range, each task gets its rows sorted by key and order, and does
what the driver does for a small batch (`stage.py`). The rows never come to the driver: tasks
write the files themselves and hand back their names.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.crash_points import crash_point
from headwater.model.reserved import CHANGE_TYPE, SEQ, VNODE
from headwater.model.schema import Schema
from headwater.model.vnode import VNODE_COUNT
from headwater.state.key_hash import vnode_sql, vnodes
from headwater.state.stage import (
    PART_SCHEMA,
    PartWriter,
    StagedPart,
    StagePlan,
    chunks_by_key,
    part_from_rows,
    part_rows,
)


def with_vnode(frame: DataFrame, schema: Schema) -> DataFrame:
    """Add the vnode of each row: natively where Spark can compute it, else by our kernels."""
    if (expression := vnode_sql(schema)) is not None:
        return frame.withColumn(VNODE, F.expr(expression))

    def by_kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            slots = pa.array(vnodes(batch, schema).astype("int16"))
            yield batch.append_column(VNODE, slots)

    return frame.mapInArrow(by_kernel, frame.schema.add(VNODE, "smallint"))


def ordered_frame(spark: SparkSession, changes: pa.Table, schema: Schema) -> DataFrame:
    """Changes from the driver as a DataFrame that keeps their order."""
    wanted = changes.select([*schema.names, CHANGE_TYPE])
    numbered = wanted.append_column(SEQ, pa.array(range(changes.num_rows), pa.int64()))
    types = f"{schema.spark}, `{CHANGE_TYPE}` string, `{SEQ}` bigint"
    return spark.createDataFrame(numbered, types)


def stage_frame(plan: StagePlan, frame: DataFrame, parallelism: int) -> StagedPart:
    """Stage changes held by a DataFrame; `_seq` orders changes of one key when it is there.

    Replay: tasks that run twice write files under new names; only those handed back count.
    """
    crash_point("stage.before_files")
    wanted = [*plan.schema.names, CHANGE_TYPE]
    order = [VNODE, *(f"`{name}`" for name in plan.schema.key)]
    if SEQ in frame.columns:
        wanted.append(SEQ)
        order.append(SEQ)
    tasks = max(1, min(parallelism, VNODE_COUNT))
    divided = (
        frame.select(*[F.col(f"`{name}`") for name in wanted])
        .transform(with_vnode, plan.schema)
        .repartitionById(tasks, (F.col(VNODE) * tasks / VNODE_COUNT).cast("int"))
        .sortWithinPartitions(*order)
    )

    def stage_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with PartWriter(plan) as writer:
            for chunk in chunks_by_key(batches, plan.schema):
                writer.add(chunk)
            yield part_rows(writer.finish())

    return part_from_rows(divided.mapInArrow(stage_share, PART_SCHEMA).toArrow())
