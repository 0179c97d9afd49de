"""What all definitions of relations share: one at a time, each with one epoch or not at all."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.barrier.coordinator import Coordinator
from headwater.catalog.catalog import Catalog
from headwater.catalog.relation import Detail, ObjectDef, SourceDef, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.cdc.source import Source
from headwater.crash_points import crash_point
from headwater.errors import (
    CommitUnknown,
    HeadwaterError,
    RetryableError,
)
from headwater.model.epoch import Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_sources import CdcSources
from headwater.runtime.committer import Definition, EpochCommitter
from headwater.runtime.connectors import Connector
from headwater.runtime.creating.views import CreatingViews
from headwater.runtime.dml_job import DmlTables
from headwater.runtime.maintenance import Maintenance
from headwater.runtime.sinks.sinks import Sinks
from headwater.runtime.source_job import SourceJob
from headwater.runtime.upstream.sources import UpstreamSources
from headwater.state.store import StateStore

if TYPE_CHECKING:
    pass

MakeJob = Callable[[SourceDef, Sequence[TableDef], Source], SourceJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the engine lends to whoever defines relations."""

    catalog: Catalog
    store: StateStore
    committer: EpochCommitter
    coordinator: Coordinator
    maintenance: Maintenance
    blocking: Blocking
    connectors: Mapping[str, Connector] | None
    sources: dict[SourceName, Source]
    job: MakeJob
    dml: DmlTables
    cdc: CdcSources
    creating: CreatingViews
    sinks: Sinks
    upstreams: UpstreamSources
    unpin: Callable[[str], None]


class DdlBase:
    """Carries definitions out."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._one = asyncio.Lock()

    async def snapshot(self) -> CatalogSnapshot:
        """What exists now."""
        return await self._around.blocking(self._around.catalog.snapshot)

    async def _define(
        self,
        definition: Definition,
        *,
        undo: Sequence[TableId] = (),
        prepare: Callable[[int], None] = lambda key: None,
    ) -> Epoch:
        around = self._around
        await around.blocking(around.catalog.check, definition.changes)
        proposal = around.committer.propose(definition)
        prepare(proposal.key)
        crash_point("catalog.before_create")
        done: Awaitable[Epoch] = around.coordinator.define(proposal.key)
        try:
            epoch = await asyncio.shield(asyncio.ensure_future(done))
            if proposal.refused is not None:
                raise proposal.refused
        except HeadwaterError:
            for id_ in undo:
                around.store.drop(id_)
            raise
        finally:
            around.committer.withdraw(proposal)
        crash_point("catalog.after_create")
        return epoch

    async def _delete_files(self, tables: Sequence[TableId]) -> None:
        around = self._around
        async with around.maintenance.between_rounds:
            for table in tables:
                around.store.drop(table)
            # They are dropped; what cannot be deleted now, a later round deletes.
            with contextlib.suppress(RetryableError, CommitUnknown):
                await around.maintenance.purge()

    async def _ids(self, count: int) -> list[int]:
        return [await self._around.blocking(self._around.catalog.next_id) for _ in range(count)]


def folder_of(name: str, id_: int) -> str:
    """The folder of a table: readable, and never used twice."""
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return f"{plain}-{id_}"


def store_of(view: TableDef | ObjectDef, id_: TableId, schema: Schema) -> TableDef:
    """A store of a view, which nobody sees."""
    return TableDef(
        id=id_,
        name=f"_hw_store_{id_}_of_{view.id}",
        namespace=view.namespace,
        schema=schema,
        folder=folder_of(f"{view.name}_store", id_),
        kind=TableKind.STORE,
        detail=Detail(part_of=TableId(view.id)),
    )


def refuse_taken(snapshot: CatalogSnapshot, name: str, tables: Mapping[str, Schema]) -> None:
    """Raise if a name is taken already."""
    taken: dict[str, str] = {source.name: "42710" for source in snapshot.sources}
    taken |= {table.name: "42P07" for table in snapshot.tables}
    for wanted in (name, *tables):
        if wanted in taken:
            raise relation_error(f'relation "{wanted}" already exists', taken[wanted])
