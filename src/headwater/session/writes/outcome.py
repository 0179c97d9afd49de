"""What a statement has written, and how it gets into an epoch.

A statement's changes are put once, so that they are in one epoch, whole. Whoever reads rows in
order to write them, and whoever writes rows of a schema, does so under one lock: no other
statement's rows come in between, and no ALTER TABLE.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import LedgerConflict
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.pgwire.session import ResultColumn
from headwater.session.context import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """How many rows a statement has written, and what its RETURNING gives."""

    count: int
    columns: tuple[ResultColumn, ...] | None = None
    rows: pa.Table | None = None


@asynccontextmanager
async def writing(context: Context) -> AsyncIterator[CatalogSnapshot]:
    """Be the only statement that writes; gives what exists."""
    async with context.engine.dml.source.writing:
        yield await context.snapshot()


async def caught_up(context: Context, tables: Iterable[TableId]) -> Epoch:
    """The epoch to read at, once nothing of these tables waits to become visible."""
    engine, wanted = context.engine, frozenset(tables)
    # Each load of many rows takes an epoch of its own.
    while engine.dml.source.waiting(wanted):
        await engine.flush()
    return engine.visible


def unchanged(snapshot: CatalogSnapshot, table: TableDef) -> None:
    """Refuse rows that were made for a table as it is no more."""
    now = snapshot.by_id(table.id)
    if now is None:
        raise relation_error(f'relation "{table.name}" does not exist', "42P01")
    if not isinstance(now, TableDef) or now.schema != table.schema:
        raise LedgerConflict(
            f'table "{table.name}" was altered while the statement ran',
            hint="Nothing was written: try again.",
        )


async def put(context: Context, table: TableDef, changes: "pa.Table | DataFrame | None") -> None:
    """Write the changes of a statement; None is nothing at all."""
    if changes is None or (isinstance(changes, pa.Table) and not changes.num_rows):
        return
    await context.write({table.id: changes})
