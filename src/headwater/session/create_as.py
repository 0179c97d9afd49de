"""CREATE TABLE ... AS: a table that begins with the rows of a query, in one epoch.

The rows are computed first, beside the epochs; the table appears with all of them or not at all.
"""

from headwater.catalog.relation import Detail, TableDef
from headwater.errors import NotSupported, UserError
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.pgwire.session import StatementResult
from headwater.runtime.row_ids import ROW_ID
from headwater.runtime.spark_errors import explained
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.session.queries import Planned, frame_of, plan
from headwater.session.writes.assigning import reads
from headwater.session.writes.outcome import caught_up
from headwater.session.writes.spill import Gathered, Spill, gather
from headwater.session.writes.storing import Inserting
from headwater.sql import statement as st


async def create_table_as(
    context: Context, statement: st.CreateTable, namespace: str, text: str
) -> StatementResult:
    """Run CREATE TABLE ... AS; the name is free."""
    if statement.columns or statement.key:
        raise NotSupported(
            "columns cannot be declared in CREATE TABLE ... AS",
            hint="Name them in the query, or create the table first and INSERT ... SELECT.",
        )
    snapshot = await context.snapshot()
    planned = await context.blocking(plan, statement.query, text, snapshot, context.path)
    table = _table(statement, planned, namespace, context.user)
    await caught_up(context, reads(planned.query, snapshot))
    rows = await context.blocking(_rows, context, planned, table)
    try:
        changes = await context.blocking(Inserting(context, table).changes, rows)
        await finished(context.engine.ddl.create_table(table, lambda: changes))
    except BaseException:
        if isinstance(rows, Spill):
            rows.remove()
        raise
    return done(f"SELECT {rows.num_rows}")


def _table(statement: st.CreateTable, planned: Planned, namespace: str, owner: str) -> TableDef:
    names = [column.name for column in planned.columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        error = UserError(f'column "{twice}" specified more than once')
        error.sqlstate = "42701"
        raise error
    columns = tuple(Column(column.name, column.type) for column in planned.columns)
    return TableDef(
        id=TableId(0),
        name=statement.name.name,
        namespace=namespace,
        schema=Schema((*columns, Column(ROW_ID, BIGINT, nullable=False)), (ROW_ID,)),
        folder="",
        append_only=statement.append_only,
        detail=Detail(definition=statement.text, owner=owner),
    )


def _rows(context: Context, planned: Planned, table: TableDef) -> Gathered:
    engine = context.engine
    try:
        frame = frame_of(engine, planned.query, engine.visible)
    except Exception as error:
        raise explained(error) from error
    return gather(engine, frame, table.columns)
