"""Stage a large batch as Spark tasks.

The batch is divided by vnode range, each task gets its rows sorted by key and order, and does
what the driver does for a small batch (`stage.py`). The rows never come to the driver: tasks
write the files themselves and hand back their names.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ShortType, StructField, StructType

from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError
from headwater.model.reserved import CHANGE_TYPE, SEQ, VNODE
from headwater.model.schema import Schema
from headwater.model.slices import in_slices
from headwater.model.spelling import quoted
from headwater.model.vnode import VNODE_COUNT
from headwater.state.key_hash import vnode_sql, vnodes
from headwater.state.merge import conform
from headwater.state.parquet_file import write_file
from headwater.state.read import Reader
from headwater.state.stage import (
    PART_SCHEMA,
    PartWriter,
    StagedPart,
    StagePlan,
    chunks_by_key,
    failure_row,
    part_from_rows,
    part_rows,
)
from headwater.state.task_process import settle_in

_TASK_BYTES = 64 << 20
_SPOOLED_BYTES = 16 << 20


def with_vnode(frame: DataFrame, schema: Schema) -> DataFrame:
    """Add the vnode of each row: natively where Spark can compute it, else by our kernels."""
    if (expression := vnode_sql(schema)) is not None:
        return frame.withColumn(VNODE, F.expr(expression))

    names = frame.columns

    def by_kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            slots = pa.array(vnodes(batch.rename_columns(names), schema).astype("int16"))
            yield batch.append_column(VNODE, slots)

    numbered = numbered_columns(frame)
    widened = StructType([*numbered.schema.fields, StructField(VNODE, ShortType())])
    return numbered.mapInArrow(by_kernel, widened).toDF(*names, VNODE)


def numbered_columns(frame: DataFrame) -> DataFrame:
    """The columns by number, because `mapInArrow` trips over dots and backticks in names."""
    return frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))


def ordered_frame(spark: SparkSession, changes: pa.Table, schema: Schema) -> DataFrame:
    """Changes from the driver as a DataFrame that keeps their order."""
    return spark.createDataFrame(_numbered(changes, schema, 0), _ordered_types(schema))


def _ordered_types(schema: Schema) -> str:
    return f"{schema.spark}, `{CHANGE_TYPE}` string, `{SEQ}` bigint"


def _numbered(changes: pa.Table, schema: Schema, first: int) -> pa.Table:
    fitting = conform(changes, schema).select(list(schema.names))
    wanted = fitting.append_column(CHANGE_TYPE, changes.column(CHANGE_TYPE).cast(pa.string()))
    return wanted.append_column(SEQ, pa.array(first + np.arange(changes.num_rows)))


@contextmanager
def spooled_frame(spark: SparkSession, plan: StagePlan, changes: pa.Table) -> Iterator[DataFrame]:
    """The same for changes that may be larger than memory: they go by way of files.

    Replay: files that a crash leaves are unnamed, and are collected.
    """
    schema, paths, count = plan.schema, [], 0
    try:
        for part in in_slices(changes, _SPOOLED_BYTES):
            paths.append(plan.origin.change_file())
            write_file(plan.storage, paths[-1], _numbered(part, schema, count))
            count += part.num_rows
        arrow = pa.schema([*schema.arrow, (CHANGE_TYPE, pa.string()), (SEQ, pa.int64())])
        reader = Reader(plan.storage, plan.dead_rows)
        yield reader.files(spark, _ordered_types(schema), arrow, paths)
    finally:
        for path in paths:
            plan.storage.delete(path)


def _guessed_bytes(frame: DataFrame, parallelism: int) -> int:
    try:
        # Only a classic session can be asked; it answers from statistics, without a job. Of
        # files it knows the compressed size.
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes().toString())
    except Exception:
        return _TASK_BYTES * parallelism * 8


def _tasks(size: int, parallelism: int) -> int:
    """Enough tasks that each sorts what fits a small heap."""
    return max(1, min(VNODE_COUNT, max(parallelism, size // _TASK_BYTES)))


def stage_frame(
    plan: StagePlan, frame: DataFrame, parallelism: int, *, size: int | None = None
) -> StagedPart:
    """Stage changes held by a DataFrame; `_seq` orders changes of one key when it is there.

    `size` is what the changes take in memory, where it is known.

    Replay: tasks that run twice write files under new names; only those handed back count.
    """
    crash_point("stage.before_files")
    wanted = [*plan.schema.names, CHANGE_TYPE]
    order = [VNODE, *(quoted(name) for name in plan.schema.key)]
    if SEQ in frame.columns:
        wanted.append(SEQ)
        order.append(SEQ)
    size = _guessed_bytes(frame, parallelism) if size is None else size
    tasks = _tasks(size, parallelism)
    divided = (
        frame.select(*[F.col(quoted(name)) for name in wanted])
        .transform(with_vnode, plan.schema)
        .repartitionById(tasks, (F.col(VNODE) * tasks / VNODE_COUNT).cast("int"))
        .sortWithinPartitions(*order)
    )
    names = divided.columns

    def stage_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_in()
        try:
            with PartWriter(plan) as writer:
                named = (batch.rename_columns(names) for batch in batches)
                for chunk in chunks_by_key(named, plan.schema):
                    writer.add(chunk)
                yield part_rows(writer.finish())
        except HeadwaterError as error:
            yield failure_row(error)

    return part_from_rows(numbered_columns(divided).mapInArrow(stage_share, PART_SCHEMA).toArrow())
