"""What a statement runs in: the engine, the session's settings, and an open transaction.

Statements outside a transaction take effect by themselves. Inside BEGIN ... COMMIT, rows that
are written are held back until COMMIT, which puts them into one epoch; ROLLBACK forgets them.
Reads are at the last committed epoch either way. Definitions are not part of a transaction: they
take effect at once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import LedgerConflict
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.reserved import RESERVED_COLUMNS
from headwater.runtime.blocking import Blocking
from headwater.runtime.engine import Engine
from headwater.session.variables import Variables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BETWEEN_LOOKS_S = 0.005


@dataclass(slots=True)
class OpenTransaction:
    """What a transaction has written so far, in order."""

    writes: "list[Mapping[TableId, pa.Table | DataFrame]]" = field(default_factory=list)
    failed: bool = False

    @property
    def tables(self) -> frozenset[TableId]:
        """The tables that it has written."""
        return frozenset(table for write in self.writes for table in write)


@dataclass(slots=True)
class Context:
    """One session, as statements see it."""

    engine: Engine
    blocking: Blocking
    """Threads for queries: never the engine's own, which commits need."""
    variables: Variables = field(default_factory=Variables)
    user: str = "root"
    database: str = "dev"
    process: int = 0
    transaction: OpenTransaction | None = None

    async def snapshot(self) -> CatalogSnapshot:
        """What exists now."""
        return await self.engine.ddl.snapshot()

    async def moment(self) -> tuple[CatalogSnapshot, Epoch]:
        """What exists, and an epoch at which just that exists, so that a statement sees one."""
        while True:
            epoch = self.engine.visible
            snapshot = await self.snapshot()
            if self.engine.committer.defined <= epoch:
                return snapshot, epoch
            # A definition is in the ledger, or about to be, and not yet visible.
            await asyncio.sleep(_BETWEEN_LOOKS_S)

    @property
    def path(self) -> tuple[str, ...]:
        """The schemas in which names are looked for."""
        return self.variables.path

    async def write(self, changes: "Mapping[TableId, pa.Table | DataFrame]") -> None:
        """Write rows: now, or with the transaction that is open."""
        if self.transaction is not None:
            self.transaction.writes.append(changes)
            return
        await self.engine.dml.source.put(changes)
        await self.written()

    async def write_all(self, writes: "Sequence[Mapping[TableId, pa.Table | DataFrame]]") -> None:
        """Write what a transaction has written, whole, in its order."""
        source = self.engine.dml.source
        async with source.writing:
            snapshot = await self.snapshot()
            for write in writes:
                for table, changes in write.items():
                    _check_unchanged(snapshot, table, changes)
            await source.put_all(writes)
        await self.written()

    async def written(self) -> None:
        """After something was written: wait until it is visible, if the session wants that."""
        if self.variables.is_on("rw_implicit_flush"):
            await self.engine.flush()


def _check_unchanged(
    snapshot: CatalogSnapshot, table: TableId, changes: "pa.Table | DataFrame"
) -> None:
    """Refuse rows that were made for a table as it is no more."""
    now = snapshot.by_id(table)
    columns = changes.column_names if isinstance(changes, pa.Table) else changes.columns
    own = {name for name in columns if name not in RESERVED_COLUMNS}
    if not isinstance(now, TableDef) or own != set(now.schema.names):
        raise LedgerConflict(
            "a table was altered or dropped while the transaction was open",
            hint="Nothing was written: try again.",
        )
