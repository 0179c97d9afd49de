"""One table that a source's actor feeds: its executor, and what goes in and comes out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headwater.backfill.cdc.executor import Message, ParallelizedCdcBackfillExecutor, Progress
from headwater.backfill.cdc.keyless_executor import HeldReader
from headwater.backfill.cdc.split_reader import KeyedTable, SplitReader
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.cdc.external_table import (
    TRANSACTION,
    UNCHANGED,
    ExternalSchema,
    LogBatch,
    LogEventKind,
)
from headwater.model.barrier import Barrier
from headwater.model.reserved import CHANGE_TYPE, HIDDEN_PREFIX, SEQ
from headwater.runtime.cdc_reader import RenewableReader
from headwater.runtime.cdc_tables import CdcTable


class RunningTable:
    """One table's executor, fed by the actor."""

    def __init__(
        self,
        table: CdcTable,
        external: KeyedTable,
        executor: ParallelizedCdcBackfillExecutor,
        reader: RenewableReader,
    ) -> None:
        self._reader = reader
        self.table = table
        self.external = external
        self.executor = executor
        self.stopped = ""
        """Why it is not kept current any more."""
        self._known = {*table.store.schema.names, CHANGE_TYPE, SEQ, TRANSACTION, UNCHANGED}
        """Columns that were added upstream since are left out."""
        self._incoming: asyncio.Queue[TableLog | Barrier] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue()
        self._work = asyncio.ensure_future(self._run())

    @property
    def schema(self) -> ExternalSchema:
        """As it was when the table was opened."""
        return self.external.schema

    @property
    def progress(self) -> Progress:
        """How far its backfill is."""
        return self.executor.progress

    def renew(self, external: KeyedTable, reader: SplitReader) -> None:
        """The same table, reached in another way; reads under way end as they will."""
        self.external = external
        if isinstance(reader, HeldReader) and isinstance(self._reader.now, HeldReader):
            # The snapshot that is open stays; the next one is opened in the other way.
            self._reader.now.hold = reader.hold
        else:
            self._reader.now = reader

    def deliver(self, batch: LogBatch) -> None:
        """The log has come so far."""
        name = self.external.name
        events = []
        for event in batch.events:
            if event.table != name:
                continue
            match event.kind:
                case LogEventKind.DROP:
                    self.stopped = f"table {name} was dropped upstream"
                case LogEventKind.SCHEMA if event.schema is not None:
                    self.stopped = misfit(self.table, name, event.schema)
                case _:
                    events.append(event)
        if not self.stopped:
            changes = batch.changes.get(name)
            if changes is not None:
                changes = changes.select([n for n in changes.column_names if n in self._known])
            self._incoming.put_nowait(
                TableLog(offset=batch.offset, changes=changes, events=tuple(events))
            )

    async def answer(self, barrier: Barrier) -> EpochOutput | None:
        """What the epoch that ends does to the table; None where the barrier is not durable."""
        self._incoming.put_nowait(barrier)
        output = None
        while True:
            next_ = asyncio.ensure_future(self._outgoing.get())
            await asyncio.wait([next_, self._work], return_when=asyncio.FIRST_COMPLETED)
            if not next_.done():
                next_.cancel()
                self._work.result()
                return output
            message = next_.result()
            if isinstance(message, Barrier):
                return output
            output = message

    async def close(self) -> None:
        """End; nothing of it is left in memory."""
        self._work.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._work

    async def _run(self) -> None:
        async for message in self.executor.execute(self._messages()):
            self._outgoing.put_nowait(message)

    async def _messages(self) -> AsyncIterator[TableLog | Barrier]:
        while True:
            yield await self._incoming.get()


def misfit(table: CdcTable, name: str, found: ExternalSchema) -> str:
    """Why an external table cannot be written to the stored one."""
    wanted = table.store.schema
    hidden = [each for each in wanted.names if each.startswith(HIDDEN_PREFIX)]
    if found.key != (() if hidden else wanted.key):
        return f"the key of {name} is ({', '.join(found.key)}) now"
    kept = {each.column.name: each.column.type for each in found.columns}
    for column in wanted.columns:
        if column.name in hidden:
            continue
        if kept.get(column.name) != column.type:
            return f'column "{column.name}" of {name} has changed upstream'
    return ""
