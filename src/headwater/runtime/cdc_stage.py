"""Stage what an epoch does to a table that is kept in step with an external one."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.table_backfill import EpochOutput
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Schema
from headwater.model.spelling import quoted
from headwater.model.table_commit import TableCommit
from headwater.state.stage_on_spark import ordered_frame
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INSERT = pa.array([ChangeType.INSERT.value])


def stage_output(table: StateTable, epoch: Epoch, output: EpochOutput) -> TableCommit | None:
    """Write the files of an epoch: changes of the log first, snapshot rows over them."""
    names = [*table.schema.names, CHANGE_TYPE]
    parts = [output.changes.select(names)]
    parts += [_inserts(part.table(), table.schema) for part in output.parts]
    changes = pa.concat_tables(parts, promote_options="permissive")
    if output.cleared:
        return table.stage(epoch, _after_clearing(table, changes))
    return table.stage(epoch, changes) if changes.num_rows else None


def _inserts(rows: pa.Table, schema: Schema) -> pa.Table:
    fitting = rows.select(list(schema.names)).cast(schema.arrow)
    kinds = _INSERT.take(pa.array(np.zeros(rows.num_rows, dtype=np.int64)))
    return fitting.append_column(CHANGE_TYPE, kinds)


def _after_clearing(table: StateTable, changes: pa.Table) -> "DataFrame":
    """A TRUNCATE: every row goes, in Spark, and what came after it follows."""
    from pyspark.sql import functions as F  # noqa: PLC0415  only tasks that need it

    columns = [F.col(quoted(name)) for name in table.schema.names]
    gone = table.staged_frame().select(
        *columns,
        F.lit(ChangeType.DELETE.value).alias(CHANGE_TYPE),
        F.lit(-1).cast("bigint").alias(SEQ),
    )
    return gone.unionByName(ordered_frame(gone.sparkSession, changes, table.schema))
