"""The net difference between two relations of one schema: the changes that make one the other.

Rows that both have do not appear, however often they were written on either side. Rows are told
apart by all their columns, the hidden ones too, so that afterwards the one holds exactly what the
other does. A row that has changed is a delete and then an insert of its key.
"""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.model.reserved import SEQ
from headwater.model.schema import Schema
from headwater.model.spelling import quoted
from headwater.sql.algebra import Output
from headwater.views.recompute import named_frames
from headwater.views.spelling import WEIGHT, listed, union_all
from headwater.views.terms import added_up, changes_sql

_FEW_ROWS = 100_000
"""So many rows in all are compared with the outcome in memory; else it stays with Spark."""


def net_difference(
    spark: SparkSession, old: DataFrame, new: DataFrame, schema: Schema, *, rows: int
) -> "pa.Table | DataFrame":
    """The changes from `old` to `new`, in the columns of `schema`; `rows` is how many both have."""
    columns = schema.names
    outputs = tuple(Output(column.name, column.type) for column in schema.columns)
    # Both zeros are one value to Spark, and here each must stay what it is.
    types = {column.name: column.type.spark for column in schema.columns}
    exact = [name for name, type_ in types.items() if type_ in ("float", "double")]
    with named_frames(spark, {"old": old, "new": new}) as names:
        parts = [
            f"select {listed(columns)}, 1L as {quoted(WEIGHT)} from {names['new']}",
            f"select {listed(columns)}, -1L as {quoted(WEIGHT)} from {names['old']}",
        ]
        frame = spark.sql(changes_sql(added_up(union_all(parts), columns, exact), outputs))
    if rows > _FEW_ROWS:
        return frame
    return frame.toArrow().sort_by(SEQ).drop_columns([SEQ])
