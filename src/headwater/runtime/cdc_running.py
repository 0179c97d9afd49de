"""One table that a source's actor feeds: its executor, and what goes in and comes out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.backfill.cdc.executor import Message, ParallelizedCdcBackfillExecutor, Progress
from headwater.backfill.cdc.keyless_executor import HeldReader
from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.split_reader import SplitReader
from headwater.backfill.cdc.state import BackfillState
from headwater.backfill.cdc.table_backfill import EpochOutput, TableLog
from headwater.cdc.external_table import (
    COMMIT_END,
    COMMITTED_AT,
    TRANSACTION,
    UNCHANGED,
    ExternalSchema,
    LogBatch,
    LogEvent,
    LogEventKind,
)
from headwater.cdc.offset import CdcOffset
from headwater.cdc.schema_change import (
    Decision,
    Follower,
    NotPossible,
    SchemaChange,
    SchemaPolicy,
    SeenSchema,
    decide,
    encode_seen,
)
from headwater.cdc.unsent import reordered_marks
from headwater.model.barrier import Barrier
from headwater.model.reserved import CHANGE_TYPE, HIDDEN_PREFIX, SEQ
from headwater.model.schema import Schema
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
        self.name = seen.table
        """The full name upstream."""
        self.schema = seen.schema
        """What the external table is at the place where the log is."""
        self.executor = executor
        self.stopped = ""
        """Why it is not kept current any more."""
        self._begins = seen.begins
        self._renamed = seen.renamed
        self._decided = seen.decided
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
    def seen(self) -> str:
        """What is filed of the external table."""
        return encode_seen(self.name, self.schema, self._begins, self._renamed, self._decided)

    def seen_after(
        self, schema: ExternalSchema, renamed: tuple[tuple[str, str], ...], upto: CdcOffset
    ) -> str:
        """What is filed once the table has followed a change of columns."""
        return encode_seen(self.name, schema, self._begins, renamed, upto)

    @property
    def may_fill(self) -> bool:
        """Whether it was made without a try to fill its columns."""
        return not self._fill_failed

    def facts(self, output: EpochOutput) -> dict[str, str]:
        """What is filed of it with an epoch."""
        return {f"{PROGRESS}{self.table.id}": output.state, f"{SEEN}{self.table.id}": self.seen}

    def concerns(self, batch: LogBatch) -> bool:
        """Whether the table is not yet newer than what the batch says."""
        return self._begins is None or not reaches(self._begins, batch.offset)

    def decide(self, batch: LogBatch) -> Iterator[tuple[LogEvent, Decision]]:
        """What the batch's changes of columns ask of the table; nothing, mostly."""
        for event in batch.events:
            if event.table != self.name or event.kind is not LogEventKind.SCHEMA:
                continue
            done = self._decided is not None and reaches(self._decided, batch.offset)
            if not self.stopped and not done and self.concerns(batch):
                yield event, self._decision(event)

    def _decision(self, event: LogEvent) -> Decision:
        store = self.table.store
        follower = Follower(
            schema=store.schema,
            policy=self.table.policy,
            named=self.table.named,
            retired=store.retired,
            included=self.table.included.names,
        )
        if not self.schema.key:
            return self._decision_without_key(event)
        if event.schema is None:
            if self.table.named or self.table.policy is SchemaPolicy.IGNORE:
                return SchemaChange(schema=store.schema)
            return NotPossible("it has columns that cannot be read, or no key, or is gone")
        found = decide(follower, self.schema, event.schema, event.renamed)
        gone = set(store.schema.names) - {each.column.name for each in event.schema.columns}
        gone -= self.table.included.names
        if isinstance(found, SchemaChange) and not found.text and gone and not self.state.complete:
            return NotPossible(f'column "{min(gone)}" was dropped while the table was being filled')
        if isinstance(found, SchemaChange) and found.fill and not self.table.snapshot:
            return NotPossible(
                f"{found.text}, with values for rows that are here already, "
                "and a table without a snapshot does not read them"
            )
        return found

    def _decision_without_key(self, event: LogEvent) -> Decision:
        """Rows are told apart by all their columns, so these must stay what they are."""
        before = [(each.column.name, each.column.type) for each in self.schema.columns]
        found = () if event.schema is None else event.schema.columns
        if [(each.column.name, each.column.type) for each in found] != before:
            return NotPossible("it has no key, and other columns than before")
        return SchemaChange(schema=self.table.store.schema)

    def knows(self, schema: ExternalSchema) -> None:
        """The external table is another, and nothing has to be done here for that."""
        self.schema = schema
        self._renamed = ()

    def deliver(self, batch: LogBatch) -> None:
        """The log has come so far."""
        events = []
        concerns = self.concerns(batch)
        for event in batch.events if concerns else ():
            if event.table == self.name and event.kind is LogEventKind.DROP:
                self.stopped = f"table {self.name} was dropped upstream"
            elif event.table == self.name and event.kind is LogEventKind.TRUNCATE:
                events.append(event)
        if not self.stopped:
            changes = batch.changes.get(self.name) if concerns else None
            if changes is not None:
                changes = self._own(changes)
                # Only the transaction that renames has rows under both names.
                self._renamed = ()
            self._incoming.put_nowait(
                TableLog(offset=batch.offset, changes=changes, events=tuple(events))
            )

    def _own(self, changes: pa.Table) -> pa.Table:
        included, times = self.table.included, None
        if included.times:
            times = changes.column(COMMITTED_AT)
        own = own_columns(changes, self.table.store.schema, self._renamed, included.names)
        return included.in_log(own, times)

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


def own_columns(
    changes: pa.Table,
    schema: Schema,
    renamed: Sequence[tuple[str, str]] = (),
    included: frozenset[str] = frozenset(),
) -> pa.Table:
    """The columns that are stored, and the marks of values that were not sent in their order.

    `renamed` are columns of which a transaction may have rows under both names; `included` are
    stored columns that do not come from upstream, whatever is called so there.
    """
    marks = [CHANGE_TYPE, SEQ, TRANSACTION, UNCHANGED]
    others = {*marks, COMMIT_END, COMMITTED_AT}
    sent = ["" if n in included else n for n in changes.column_names if n not in others]
    stored = {*marks, *schema.names} - included
    old = {before: now for before, now in renamed if before in sent and before not in schema.names}
    for before, now in old.items():
        values = changes[before]
        if now in sent:
            values = pc.coalesce(changes[now], values.cast(changes[now].type))
            changes = changes.drop_columns([now])
        changes = changes.drop_columns([before]).append_column(now, values)
    own = changes.select([name for name in changes.column_names if name in stored])
    if UNCHANGED not in own.column_names:
        return own
    bits = own[UNCHANGED].to_numpy()
    if not bits.any():
        return own
    moved = reordered_marks(bits, sent, schema.names)
    for before, now in old.items():
        moved = moved | reordered_marks(bits >> sent.index(before) & 1, [now], schema.names)
    at = own.schema.get_field_index(UNCHANGED)
    return own.set_column(at, UNCHANGED, pa.array(moved))


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
