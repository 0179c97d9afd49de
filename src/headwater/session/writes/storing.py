"""The end of an INSERT or a COPY: whole rows of a table become changes of one epoch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.spelling import quoted
from headwater.runtime.engine import Engine
from headwater.runtime.fitting import as_changes
from headwater.runtime.row_ids import ROW_ID, has_row_ids, take
from headwater.runtime.spark_errors import explained
from headwater.session.context import Context
from headwater.session.writes import conflict
from headwater.session.writes.outcome import Wrote, caught_up, put
from headwater.session.writes.returning import Returning, returned
from headwater.session.writes.spill import Gathered, Spill
from headwater.sql.statement import Conflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Inserting:
    """An INSERT's last steps; the caller holds the lock of writers."""

    context: Context
    table: TableDef

    async def store(self, rows: Gathered, returning: Returning | None = None) -> Wrote:
        """Write rows, which have the table's own columns; files are theirs from now on.

        Replay: the rows are put once, or an error is raised and they are not.
        """
        try:
            kept = await self._resolved(rows)
            given = await returned(self.context, returning, kept)
            count = kept.num_rows
            many = isinstance(kept, Spill)
            changes = (
                await self.context.blocking(self.changes, kept) if many else self.changes(kept)
            )
        except BaseException:
            if isinstance(rows, Spill):
                rows.remove()
            raise
        await put(self.context, self.table, changes)
        columns = returning.columns if returning is not None else None
        return Wrote(count=count, columns=columns, rows=given)

    def changes(self, rows: Gathered) -> "pa.Table | DataFrame":
        """Whole rows as inserts, with a key where the table has none of its own."""
        if isinstance(rows, Spill):
            return self._frame(rows)
        return as_changes(self._numbered(rows), ChangeType.INSERT, self.table)

    async def _resolved(self, rows: Gathered) -> Gathered:
        """The rows that the table's rule for conflicts leaves."""
        rule = Conflict(self.table.detail.conflict)
        if rule is Conflict.UPDATE or has_row_ids(self.table) or not rows.num_rows:
            return rows
        context = self.context
        epoch = await caught_up(context, [self.table.id])
        written = context.transaction.writes if context.transaction is not None else ()
        if isinstance(rows, Spill):
            conflict.refuse_written(self.table, written)
            return await context.blocking(
                conflict.resolve_spill, context.engine, rows, self.table, rule, epoch
            )
        existing = await context.blocking(
            conflict.look_up, context.engine, self.table, rows, epoch, written
        )
        return await context.blocking(conflict.resolve, rows, self.table, rule, existing)

    def _numbered(self, rows: pa.Table) -> pa.Table:
        if not has_row_ids(self.table):
            return rows
        first = take(self.context.engine.term, rows.num_rows)
        ids = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
        return rows.append_column(ROW_ID, ids)

    def _frame(self, rows: Spill) -> "DataFrame":
        engine: Engine = self.context.engine
        expressions = [quoted(column.name) for column in rows.columns]
        if has_row_ids(self.table):
            first = take(engine.term, rows.num_rows)
            expressions.append(f"{first}L + {rows.place_sql()} as {quoted(ROW_ID)}")
        expressions += [f"'{ChangeType.INSERT.value}' as `{CHANGE_TYPE}`", f"`{SEQ}`"]
        try:
            return rows.held(rows.frame(engine.spark()).selectExpr(*expressions))
        except Exception as error:
            raise explained(error) from error
