"""What tests of INSERT, UPDATE, DELETE and COPY share: an engine with tables, and statements."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog.relation import ColumnDetail, Detail, TableDef
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.pgwire.text import text_of
from headwater.runtime.blocking import Blocking
from headwater.runtime.engine import Engine
from headwater.runtime.row_ids import ROW_ID
from headwater.session.context import Context
from headwater.session.writes.delete import delete
from headwater.session.writes.insert import insert
from headwater.session.writes.outcome import Wrote
from headwater.session.writes.update import update
from headwater.sql.parse import parse_one
from headwater.sql.statement import CreateTable, Delete, Insert, Update

CALM = {"barrier_interval_ms": 60_000, "maintenance_interval_s": 3600.0, "storage_fsync": False}


def no_spark() -> Any:
    """In the place of a Spark session, for statements that must not start one."""
    raise AssertionError("this statement needs no Spark")


@asynccontextmanager
async def opened(
    folder: Path, spark: Any = None, connectors: Any = None, **settings: Any
) -> AsyncIterator["Desk"]:
    """An engine with a session; without `spark` nothing may ask for it."""
    values = {**CALM, **settings}
    async with Engine(folder, settings=values, spark=spark, connectors=connectors) as engine:
        if spark is None:
            engine.spark = no_spark  # type: ignore[method-assign]
        blocking = Blocking(2)
        try:
            yield Desk(Context(engine=engine, blocking=blocking))
        finally:
            blocking.close()


def table_def(ddl: str) -> TableDef:
    """The definition that a CREATE TABLE asks for."""
    statement = parse_one(ddl)
    assert isinstance(statement, CreateTable)
    columns = [
        Column(each.name, each.type, each.nullable and each.name not in statement.key)
        for each in statement.columns
    ]
    key = statement.key
    if not key:
        columns.append(Column(ROW_ID, BIGINT, False))
        key = (ROW_ID,)
    details = {
        each.name: ColumnDetail(
            default=None if each.default is None else each.default.sql("postgres"),
            generated=None if each.generated is None else each.generated.sql("postgres"),
            length=each.length,
        )
        for each in statement.columns
    }
    conflict = str(statement.conflict.value) if statement.conflict else "update"
    return TableDef(
        id=TableId(0),
        name=statement.name.name,
        folder="",
        schema=Schema(tuple(columns), tuple(key)),
        append_only=statement.append_only,
        detail=Detail(definition=ddl, columns=details, conflict=conflict),
    )


class Desk:
    """One session that writes."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.engine = context.engine

    async def create(self, ddl: str) -> TableDef:
        definition = table_def(ddl)
        await self.engine.ddl.create_table(definition)
        return self.engine.catalog.snapshot().table(definition.name)

    async def run(self, text: str, parameters: Sequence[str | None] = ()) -> Wrote:
        """Run one statement that writes."""
        match parse_one(text):
            case Insert() as statement:
                return await insert(self.context, statement, parameters)
            case Update() as statement:
                return await update(self.context, statement, parameters)
            case Delete() as statement:
                return await delete(self.context, statement, parameters)
            case other:
                raise AssertionError(other)

    async def settled(self) -> None:
        """Wait until everything that is written is visible."""
        await self.engine.flush()
        while self.engine.dml.source.waiting(self.engine.dml.ids):
            await self.engine.flush()

    async def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The visible columns of all rows that are written, in the order of their first."""
        await self.settled()
        definition = self.engine.catalog.snapshot().table(table)
        names = [column.name for column in definition.columns]
        found = await asyncio.to_thread(self.engine.table(table).rows)
        columns = [found.column(name).to_pylist() for name in names]
        return sorted(zip(*columns, strict=True), key=repr)

    async def texts(self, table: str) -> list[tuple[Any, ...]]:
        """The same, each value as PostgreSQL spells it."""
        await self.settled()
        definition = self.engine.catalog.snapshot().table(table)
        found = await asyncio.to_thread(self.engine.table(table).rows)
        return sorted(spelled(found, definition.columns), key=repr)


def spelled(rows: pa.Table, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
    """Rows as PostgreSQL spells them."""
    texts = [text_of(rows.column(c.name), c.type).to_pylist() for c in columns]
    return list(zip(*texts, strict=True))
