"""From the changes of a relation to the rows that its sink is owed.

    changes of the relation              rows of the log
    its columns, `_change_type`          `_op`, `_vnode`, the sink's columns
    a row's vnode by the relation's key  by the sink's key, so that all changes of one key at the
                                         target are in the same range of vnodes

Where the sink's key is another than the relation's, an update may move a row from one key to
another: it is a delete and an insert.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.logstore.items import OP, VNODE, Segment
from headwater.model.change import ChangeType, RowOp
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.spelling import quoted
from headwater.model.vnode import VNODE_COUNT
from headwater.state.key_hash import vnodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPS = {
    ChangeType.INSERT: RowOp.INSERT,
    ChangeType.DELETE: RowOp.DELETE,
    ChangeType.UPDATE_POSTIMAGE: RowOp.UPDATE_INSERT,
    ChangeType.UPDATE_PREIMAGE: RowOp.UPDATE_DELETE,
}
_PLAIN = {
    **_OPS,
    ChangeType.UPDATE_POSTIMAGE: RowOp.INSERT,
    ChangeType.UPDATE_PREIMAGE: RowOp.DELETE,
}
_TASK_ROWS = 500_000


@dataclass(frozen=True, slots=True)
class Owing:
    """How the changes of one relation become rows of one sink's log. Travels to Spark tasks."""

    columns: tuple[Column, ...]
    """What is delivered."""
    schema: Schema
    """The relation's; its key orders the changes of a row."""
    key: tuple[str, ...]
    """The sink's key; the relation's where the sink has none."""

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the log's rows."""
        fields = [pa.field(column.name, column.type.arrow) for column in self.columns]
        return pa.schema([pa.field(OP, pa.int8()), pa.field(VNODE, pa.int16()), *fields])

    def rows(self, changes: pa.Table) -> pa.Table:
        """The rows that are owed for some changes, in their order."""
        words = _PLAIN if self.key != self.schema.key else _OPS
        known = pa.array([word.value for word in words])
        codes = pa.array([op.value for op in words.values()], pa.int8())
        kinds = changes.column(CHANGE_TYPE).cast(pa.string())
        ops = codes.take(pc.index_in(kinds, known).combine_chunks())
        slots = vnodes(changes, Schema(self.schema.columns, self.key)).astype(np.int16)
        arrays = [ops, pa.array(slots)]
        for column in self.columns:
            arrays.append(changes.column(column.name).cast(column.type.arrow))
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def inserts(self, rows: pa.Table) -> pa.Table:
        """The same for rows that are new, and know their vnodes by the sink's key."""
        ops = pa.array(np.full(rows.num_rows, RowOp.INSERT, np.int8))
        arrays = [pa.chunked_array([ops]), rows.column(VNODE).cast(pa.int16())]
        arrays += [rows.column(each.name).cast(each.type.arrow) for each in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.arrow)


def owed_segments(
    owing: Owing,
    changes: "DataFrame",
    parallelism: int,
    write: Callable[[pa.Table], Segment],
) -> list[Segment]:
    """Have Spark tasks write what is owed for many changes; the rows never come to the driver.

    Replay: tasks that run twice write files under new names; only those handed back count.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    from headwater.state.stage_on_spark import numbered_columns, with_vnode  # noqa: PLC0415

    stored = Schema(owing.schema.columns, owing.key)
    wanted = [*dict.fromkeys([*owing.schema.names, CHANGE_TYPE])]
    keys = [F.col(quoted(name)) for name in owing.schema.key]
    old = F.col(CHANGE_TYPE).isin(ChangeType.DELETE.value, ChangeType.UPDATE_PREIMAGE.value)
    divided = (
        changes.select(*[F.col(quoted(name)) for name in wanted])
        .transform(with_vnode, stored)
        .repartitionById(parallelism, (F.col(VNODE) * parallelism / VNODE_COUNT).cast("int"))
        .sortWithinPartitions(VNODE, *keys, old.desc())
    )
    names = divided.columns

    def write_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch.rename_columns(names))
            if sum(each.num_rows for each in waiting) >= _TASK_ROWS:
                # An update's two halves may part here; they stay in order.
                yield segment_row(write(owing.rows(pa.Table.from_batches(waiting))))
                waiting.clear()
        if waiting and sum(each.num_rows for each in waiting):
            yield segment_row(write(owing.rows(pa.Table.from_batches(waiting))))

    found = numbered_columns(divided).mapInArrow(write_share, "segment binary").toArrow()
    return [segment_of_row(row) for row in found.column(0).to_pylist()]


def segment_row(segment: Segment) -> pa.RecordBatch:
    """What a task hands back for a segment that it has written."""
    return pa.record_batch([pa.array([pickle.dumps(segment)], pa.binary())], names=["segment"])


def segment_of_row(row: bytes) -> Segment:
    """The segment that a task has handed back."""
    found = pickle.loads(row)
    assert isinstance(found, Segment)
    return found
