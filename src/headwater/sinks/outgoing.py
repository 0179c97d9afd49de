"""Rows of a delivery on their way into a database: checked, laid out, and spelled as text.

straight    the sink's columns, in the target's own order of names
staged      an operation and the sink's columns, of which only the key counts in a delete
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.change import RowOp
from headwater.model.types import SMALLINT
from headwater.sinks.bad_rows import null_in_key, unfit_value
from headwater.sinks.rereading import Rereadable
from headwater.sinks.sink import OP, SinkKind, SinkSpec
from headwater.sinks.spelling import Form
from headwater.sinks.text_rows import BLOCK_ROWS, BULK, Block, Layout, RowWriter, UnfitCell


class Outgoing:
    """The rows of one delivery; they can be brought out more than once."""

    def __init__(self, spec: SinkSpec, rows: Rereadable, form: Form) -> None:
        self._spec = spec
        self._rows = rows
        self._form = form
        self.deletes = False
        """Whether a staged row was a delete."""
        self.inserts = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches that have rows, from the first."""
        return (batch for batch in self._rows if batch.num_rows)

    def blocks(
        self, *, staged: bool, layout: Layout = BULK, block_rows: int = BLOCK_ROWS
    ) -> Iterator[Block]:
        """All rows as text; raises `UserError` at the first that cannot be there."""
        types = [column.type for column in self._spec.columns]
        writer = RowWriter([SMALLINT, *types] if staged else types, self._form, layout, block_rows)
        for batch in self._checked():
            columns = self._staged(batch) if staged else batch.columns[1:]
            try:
                yield from writer.blocks(columns)
            except UnfitCell as unfit:
                name = self._spec.columns[unfit.column - staged].name
                raise unfit_value(name, batch, unfit.row, self._spec.key, unfit.why) from None

    def _checked(self) -> Iterator[pa.RecordBatch]:
        schema = self._spec.arrow
        for given in self.batches():
            batch = given if given.schema.equals(schema) else given.cast(schema)
            if self._spec.kind is SinkKind.UPSERT:
                for name in self._spec.key:
                    if batch.column(name).null_count:
                        row = pc.index(batch.column(name).is_null(), True).as_py()
                        raise null_in_key(name, batch, row, self._spec.key)
            yield batch

    def _staged(self, batch: pa.RecordBatch) -> list[pa.Array]:
        op = batch.column(OP)
        gone = pc.equal(op, pa.scalar(RowOp.DELETE.value, pa.int8()))
        deletes = pc.sum(gone).as_py() or 0
        self.deletes |= deletes > 0
        self.inserts |= deletes < batch.num_rows
        columns = batch.columns[1:]
        if deletes:
            key = set(self._spec.key)
            columns = [
                column if name in key else pc.if_else(gone, pa.scalar(None, column.type), column)
                for name, column in zip(batch.schema.names[1:], columns, strict=True)
            ]
        return [pc.cast(op, pa.int16()), *columns]
