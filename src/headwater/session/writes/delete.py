"""DELETE: the rows that match are gone in one epoch.

As an UPDATE, it reads and writes under the lock of writers. A condition that fixes the key is
looked up; any other is one Spark query, of which only keys come back unless RETURNING wants more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.spelling import quoted
from headwater.runtime.engine import Engine
from headwater.runtime.fitting import as_changes
from headwater.runtime.spark_errors import explained
from headwater.session.context import Context
from headwater.session.writes import conflict
from headwater.session.writes.matching import fixed_keys, look_up, scan
from headwater.session.writes.outcome import Wrote, put, writing
from headwater.session.writes.returning import plan_returning, returned
from headwater.session.writes.scene import reading_of, set_scene
from headwater.session.writes.spill import Gathered, Spill
from headwater.sql.statement import Delete

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


async def delete(
    context: Context,
    statement: Delete,
    parameters: Sequence[str | None] = (),
    *,
    text: str | None = None,
) -> Wrote:
    """Run a DELETE. Replay: its rows are put once, or not at all when it raises."""
    reading = reading_of(context, statement, parameters, text)
    async with writing(context) as snapshot:
        scene = set_scene(context, snapshot, statement, reading)
        table = scene.target.table
        scene.target.refuse_append_only("DELETE")
        if context.transaction is not None:
            conflict.refuse_written(table, context.transaction.writes)
        returning = plan_returning(scene, statement.returning)
        keys = fixed_keys(scene, statement.where)
        if keys is not None:
            rows: Gathered = await look_up(scene, keys)
        else:
            wanted = table.schema.columns if returning else table.schema.key_columns
            rows, _ = await scan(scene, statement.where, wanted)
        try:
            given = await returned(context, returning, rows)
            changes = await context.blocking(_Changes(context.engine, table), rows)
        except BaseException:
            if isinstance(rows, Spill):
                rows.remove()
            raise
        await put(context, table, changes)
    columns = returning.columns if returning is not None else None
    return Wrote(count=rows.num_rows, columns=columns, rows=given)


@dataclass(frozen=True, slots=True)
class _Changes:
    """Makes deletions of matched rows. Blocking."""

    engine: Engine
    table: TableDef

    def __call__(self, rows: Gathered) -> "pa.Table | DataFrame":
        key = self.table.schema.key
        if not isinstance(rows, Spill):
            return as_changes(rows.select(list(key)), ChangeType.DELETE, self.table)
        columns = [
            quoted(c.name) if c.name in key else f"cast(null as {c.type.spark}) as {quoted(c.name)}"
            for c in self.table.schema.columns
        ]
        kind = f"'{ChangeType.DELETE.value}' as `{CHANGE_TYPE}`"
        try:
            frame = rows.frame(self.engine.spark())
            return rows.held(frame.selectExpr(*columns, kind, f"`{SEQ}`"))
        except Exception as error:
            raise explained(error) from error
