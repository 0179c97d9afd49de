"""One table that a source's actor feeds: its executor, and what goes in and comes out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headwater.backfill.cdc.executor import Message, ParallelizedCdcBackfillExecutor, Progress
from headwater.backfill.cdc.followed_columns import AskedChange, FollowedColumns
from headwater.backfill.cdc.keyless_executor import HeldReader
from headwater.backfill.cdc.split_reader import SplitReader
from headwater.backfill.cdc.state import BackfillState
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.cdc.external_table import ExternalSchema, LogBatch, LogEventKind
from headwater.cdc.schema_change import NotPossible, SchemaPolicy, SeenSchema
from headwater.model.barrier import Barrier
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.runtime.cdc_reader import RenewableReader
from headwater.runtime.cdc_tables import PROGRESS, SEEN, CdcTable


class RunningTable:
    """One table's executor, fed by the actor."""

    def __init__(
        self,
        table: CdcTable,
        seen: SeenSchema,
        executor: ParallelizedCdcBackfillExecutor,
        reader: RenewableReader,
    ) -> None:
        self._reader = reader
        self.table = table
        self._columns = FollowedColumns(
            seen,
            policy=table.policy,
            named=table.named,
            snapshot=table.snapshot,
            included=table.included,
        )
        self.executor = executor
        self.stopped = ""
        """Why it is not kept current any more."""
        # Joined when its columns could be filled already, it has found that they cannot be read.
        backfill = executor.backfill
        self._fill_failed = backfill.state.fill_is_due(backfill.applied)
        self._incoming: asyncio.Queue[TableLog | Barrier] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue()
        self._work = asyncio.ensure_future(self._run())

    @property
    def progress(self) -> Progress:
        """How far its backfill is."""
        return self.executor.progress

    def renew(self, reader: SplitReader) -> None:
        """The same table, reached in another way; reads under way end as they will."""
        if isinstance(reader, HeldReader) and isinstance(self._reader.now, HeldReader):
            # The snapshot that is open stays; the next one is opened in the other way.
            self._reader.now.hold = reader.hold
        else:
            self._reader.now = reader

    @property
    def state(self) -> BackfillState:
        """As the last epoch left it."""
        return self.executor.backfill.state

    @property
    def name(self) -> str:
        """The full name upstream."""
        return self._columns.name

    @property
    def schema(self) -> ExternalSchema:
        """What the external table is at the place where the log is."""
        return self._columns.schema

    @property
    def seen(self) -> str:
        """What is filed of the external table."""
        return self._columns.seen

    @property
    def may_fill(self) -> bool:
        """Whether it was made without a try to fill its columns."""
        return not self._fill_failed

    def facts(self, output: EpochOutput) -> dict[str, str]:
        """What is filed of it with an epoch."""
        return {f"{PROGRESS}{self.table.id}": output.state, f"{SEEN}{self.table.id}": self.seen}

    def change_in(self, batch: LogBatch) -> AskedChange | NotPossible | None:
        """What the batch asks of the table's columns; nothing, mostly."""
        if self.stopped:
            return None
        store = self.table.store
        return self._columns.change_in(batch, store.schema, store.retired, self.state)

    def deliver(self, batch: LogBatch) -> None:
        """The log has come so far."""
        for event in batch.events if self._columns.concerns(batch) else ():
            if event.table == self.name and event.kind is LogEventKind.DROP:
                self.stopped = f"table {self.name} was dropped upstream"
        if not self.stopped:
            self._incoming.put_nowait(self._columns.taken(batch, self.table.store.schema))

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
    ignores = table.policy is SchemaPolicy.IGNORE
    for column in wanted.columns:
        if column.name in hidden or column.name in table.included.names:
            continue
        if column.name not in kept and ignores:
            continue
        if kept.get(column.name) != column.type:
            return f'column "{column.name}" of {name} has changed upstream'
    return ""
