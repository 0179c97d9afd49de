"""Stage what an epoch does to a table that is kept in step with an external one."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.merging import SnapshotPart
from headwater.backfill.cdc.table_backfill import EpochOutput
from headwater.backfill.cdc.task_reader import FileRows
from headwater.errors import BrokenInvariant
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Schema
from headwater.model.spelling import quoted
from headwater.model.table_commit import TableCommit
from headwater.state.snapshot_files import ReadyFile
from headwater.state.stage_on_spark import ordered_frame
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FEW_ROWS = 100_000


def stage_output(table: StateTable, epoch: Epoch, output: EpochOutput) -> TableCommit | None:
    """Write the files of an epoch: changes of the log first, snapshot rows over them.

    Replay: staged again it writes other files; the record names one set of them or none.
    """
    if output.schema is not None:
        if output.changes.num_rows or output.parts or output.cleared:
            raise BrokenInvariant("columns change in an epoch that has changes of rows")
        if output.renamed is not None:
            return table.rewrite(epoch, output.schema, output.renamed)
        return table.stage(epoch, schema=output.schema)
    names = [*table.schema.names, CHANGE_TYPE]
    # After a TRUNCATE the rows of files may have the keys of rows that go: all are changes then.
    ready = [] if output.cleared else [file for part in output.parts if (file := _ready(part))]
    parts = [output.changes.select(names)]
    parts += [
        _inserts(part.table(), table.schema)
        for part in output.parts
        if output.cleared or not isinstance(part.chunk, FileRows)
    ]
    changes = pa.concat_tables(parts, promote_options="permissive")
    if output.cleared:
        return table.stage(epoch, _after_clearing(table, changes))
    return table.stage(epoch, changes, files=ready) if changes.num_rows or ready else None


def stage_nothing(table: StateTable, epoch: Epoch) -> TableCommit | None:
    """Take every row away. Replay: as of `stage_output`."""
    fields = [*table.schema.arrow, pa.field(CHANGE_TYPE, pa.string())]
    return table.stage(epoch, _after_clearing(table, pa.schema(fields).empty_table()))


def _ready(part: SnapshotPart) -> ReadyFile | None:
    return ReadyFile(part.chunk.file, part.dropped) if isinstance(part.chunk, FileRows) else None


def _inserts(rows: pa.Table, schema: Schema) -> pa.Table:
    return _marked(rows.select(list(schema.names)).cast(schema.arrow), ChangeType.INSERT)


def _marked(rows: pa.Table, kind: ChangeType) -> pa.Table:
    kinds = pa.array([kind.value]).take(pa.array(np.zeros(rows.num_rows, dtype=np.int64)))
    return rows.append_column(CHANGE_TYPE, kinds)


def _after_clearing(table: StateTable, changes: pa.Table) -> "pa.Table | DataFrame":
    """A TRUNCATE: every row goes, and what came after it follows."""
    names = list(table.schema.names)
    rows = table.staged_rows(_FEW_ROWS)
    if isinstance(rows, pa.Table):
        gone = _marked(rows.select(names), ChangeType.DELETE)
        return pa.concat_tables([gone, changes], promote_options="permissive")
    deleted = rows.selectExpr(
        *(quoted(name) for name in names),
        f"'{ChangeType.DELETE.value}' as {CHANGE_TYPE}",
        f"-1L as {SEQ}",
    )
    return deleted.unionByName(ordered_frame(rows.sparkSession, changes, table.schema))
