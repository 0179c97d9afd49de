"""Begin or carry on with a table that follows an external one.

    the ledger has                     the table
    nothing of it                      is new: it is filled from a snapshot
    a backfill that is under way       goes on reading whole rows
    columns to fill, all rows here     reads these columns by key, once the log is past their change
    a finished backfill                follows the log

What the table looked like upstream at the log's place is filed too, because today's columns may
be those of a change that the log has not come to. Reads that need today's columns wait for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.backfill.cdc.keyless_executor import HeldReader
from headwater.backfill.cdc.split_reader import KeyedTable, SplitReader, ThreadSplitReader
from headwater.backfill.cdc.state import BackfillState, not_begun
from headwater.backfill.cdc.task_reader import TaskSplitReader
from headwater.cdc.external_table import (
    ExternalSchema,
    SnapshotChunk,
    Split,
    SplitOptions,
)
from headwater.cdc.included import hold
from headwater.cdc.offset import CdcOffset
from headwater.cdc.schema_change import SeenSchema, decode_seen, encode_seen
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError, RetryableError, SchemaError, SourceUnavailable
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_running import misfit
from headwater.runtime.cdc_tables import CdcTable, CdcUpstream

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Joined:
    """What a table begins with."""

    seen: SeenSchema
    state: BackfillState
    reader: SplitReader
    splits: tuple[Split, ...] = ()
    """Of a table without a key, as they are now: rows may lie elsewhere than they did."""


class Unreadable:
    """An external table whose columns are not those that the log is at."""

    def __init__(self, name: str, schema: ExternalSchema, why: HeadwaterError) -> None:
        self.name = name
        self.schema = schema
        self._why = why

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        """Raise why it cannot be read; that is over once the log has come so far."""
        raise self._error()

    def divide(self, split: Split) -> Sequence[Split]:
        """As `splits`."""
        raise self._error()

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        """As `splits`."""
        raise self._error()

    def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """As `splits`."""
        raise self._error()

    def close(self) -> None:
        """Nothing is open."""

    def _error(self) -> SourceUnavailable:
        return SourceUnavailable(
            f"{self.name} has changed upstream, and the log is not there yet", detail=str(self._why)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """What it takes to begin with a table."""

    upstream: CdcUpstream
    offset: CdcOffset
    """Where the log is."""
    begun: bool
    """Whether the ledger has a position of the source."""

    @property
    def readers(self) -> Blocking:
        """Threads in which the database is asked."""
        return self.upstream.readers

    async def join(self, table: CdcTable, seen: str | None, state: BackfillState | None) -> Joined:
        """From what the ledger has, or what was just staged for it; raises why it cannot be."""
        if seen:
            known = decode_seen(seen)
        elif state is None:
            known = await self._first_seen(table)
        else:
            # Stored by a version that did not file it: only what is the same today goes on.
            external = await self.readers(table.open)
            known = SeenSchema(table=external.name, schema=external.schema)
        why = misfit(table, known.table, known.schema)
        if why:
            raise SchemaError(why)
        if state is None:
            state = await self._first_state(table, known)
        if state.fill_is_due(self.offset):
            state = await self._fill_state(table, state)
        reader = await self.reader(table, known, state)
        splits = tuple(each.split for each in state.splits)
        if isinstance(reader, HeldReader) and state.snapshot and not state.backfill_finished:
            # The snapshot is gone with whoever held it.
            external = await self.readers(table.open)
            splits = tuple(await self.readers(external.splits, table.splits))
        return Joined(known, state, reader, splits)

    async def _first_seen(self, table: CdcTable) -> SeenSchema:
        """The external table as it is, and a place in the log right after that."""
        if not table.snapshot:
            external = await self.readers(table.open)
            return SeenSchema(table=external.name, schema=external.schema)
        for _ in range(_ATTEMPTS):
            external = await self.readers(table.open)
            since = await self.readers(self._end_of_log)
            again = await self.readers(table.open)
            if again.schema == external.schema:
                return decode_seen(encode_seen(external.name, external.schema, since))
        raise SourceUnavailable(f"{table.upstream} keeps changing its columns")

    def _end_of_log(self) -> CdcOffset:
        log = self.upstream.database.open_log({})
        try:
            return log.current()
        finally:
            log.close()

    async def _first_state(self, table: CdcTable, seen: SeenSchema) -> BackfillState:
        """A backfill that has not begun. The log has the table from here on, not before."""
        if not table.snapshot:
            return BackfillState(backfill_finished=True)
        external = await self.readers(table.open)
        await self.upstream.prepare([table.upstream], begun=self.begun)
        crash_point("cdc.after_publish")
        # What began before that may be in the log in part only: chunks must see it whole.
        running = await self.readers(self.upstream.database.running)
        splits = await self.readers(external.splits, table.splits)
        crash_point("cdc.after_splits")
        floor = seen.begins or self.offset
        return BackfillState(
            splits=not_begun(tuple(splits)), to_see=tuple(running), floor=floor
        )  # fmt: skip

    async def _fill_state(self, table: CdcTable, state: BackfillState) -> BackfillState:
        """Begin to fill columns; later, if these are not there under their names today."""
        try:
            external = await self.readers(table.open_some, _filled(table, state))
        except RetryableError:
            raise
        except HeadwaterError:
            return state
        splits = await self.readers(external.splits, table.splits)
        crash_point("cdc.before_fill")
        return state.with_fill_begun(tuple(splits), self.offset)

    async def reader(self, table: CdcTable, seen: SeenSchema, state: BackfillState) -> SplitReader:
        """Who reads the table's chunks, by the connection that there is now."""
        external: KeyedTable
        try:
            if state.filling:
                external = await self.readers(table.open_some, _filled(table, state))
                return ThreadSplitReader(external, self.readers)
            external = await self.readers(table.open)
        except RetryableError:
            raise
        except HeadwaterError as error:
            external = Unreadable(seen.table, seen.schema, error)
            return ThreadSplitReader(external, self.readers)
        if not seen.schema.key:
            database = self.upstream.database
            return HeldReader(lambda: hold(database, external), self.readers)
        if table.store.spark is None:
            return ThreadSplitReader(external, self.readers)
        plan = table.store.snapshot_plan
        return TaskSplitReader(external, self.readers, spark=table.store.spark, plan=plan)


def _filled(table: CdcTable, state: BackfillState) -> list[str]:
    return [*table.store.schema.key, *state.fill]
