"""The change log of a PostgreSQL source, read from its slot by SQL.

`pg_logical_slot_peek_binary_changes` decodes from the slot's position and leaves it where it is,
so a read can be repeated after a crash, is bounded, and holds whole transactions only. Where one
streaming connection would hand out messages one by one, this hands out blocks, which are decoded
by kernels; it is several times as fast.

Places
    A transaction follows `after` if its commit record ends behind `after`. A batch that read
    everything up to the end of the log has that end as its offset, also when nothing in it was
    ours: so the slot advances while our tables are idle, and nothing is written upstream. An end
    that may lie inside a record (`SlotStatus.settled`) is not taken: once the slot were there, the
    server would leave out the commit that begins before it.

Price
    Every read decodes again from the slot's restart_lsn, and sends again what was not
    acknowledged. `acknowledge` therefore moves the slot every few megabytes or seconds; each
    move decodes once more, without sending.

Memory
    A batch is about `max_bytes` of messages, unless one transaction alone is larger: it comes
    whole, and so does its Arrow form. Both are on disk then (`spool.py`), as they are at the
    server. Pieces of it that are decoded or applied at once are small.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headwater.cdc.external_table import ExternalSchema, LogBatch, LogEvent, LogEventKind
from headwater.cdc.offset import CdcOffset, PostgresOffset
from headwater.cdc.postgres import kernels
from headwater.cdc.postgres.cells import Cells
from headwater.cdc.postgres.changes import MessageBatch, OtherFormat, RelationView, joined
from headwater.cdc.postgres.connecting import CopyChannel, connect, translated
from headwater.cdc.postgres.copy_binary import header_end
from headwater.cdc.postgres.options import PostgresOptions
from headwater.cdc.postgres.pgoutput import Relation, Truncate
from headwater.cdc.postgres.relations import KnownRelations
from headwater.cdc.postgres.slot import ServerIdentity, SlotStatus, read_status
from headwater.cdc.postgres.splits import quoted_text
from headwater.cdc.postgres.watch import (
    Altered,
    Shapes,
    missing_tables,
    same_columns,
    same_shape,
)
from headwater.cdc.spool import SpooledBytes, gathered
from headwater.errors import BrokenInvariant
from headwater.model.spelling import sql_quoted

Answer = TypeVar("Answer")

_BINARY_SINCE = 140_000
_ADVANCE_BYTES = 8 << 20
_ADVANCE_S = 10.0
_WATCH_S = 10.0
_SCAN_BYTES = 256 << 20
_LEAST_MESSAGES, _MOST_MESSAGES = 1_000, 20_000_000
_ROWS_AT_ONCE = 1 << 18
_DECODED_AT_ONCE = 32 << 20
_LONGEST_HEADER = 1 << 16


@dataclass(slots=True)
class _Peeked:
    """What one look at the slot gave."""

    batch: MessageBatch
    upto: PostgresOffset
    complete: bool
    """Whether everything came that there was to read; the log is then read up to `upto`."""


class PostgresLog:
    """Reads one slot for all tables of a source. One caller at a time."""

    def __init__(
        self,
        options: PostgresOptions,
        tables: Mapping[str, ExternalSchema],
        *,
        identity: ServerIdentity | None = None,
        clock: Callable[[], float] = time.monotonic,
        commits: bool = False,
    ) -> None:
        self._options = options
        self._commits = commits
        """Whether changes say where and when their transaction committed."""
        self._known = KnownRelations(tables, options.schema)
        self._identity = identity
        self._clock = clock
        self._connection: Any = None
        self._channel: CopyChannel | None = None
        self._binary: bool | None = None
        self._message_bytes = 200.0
        self._read_before: dict[PostgresOffset, int] = {}
        """How many messages the slot gives before those that follow a position."""
        self._advanced_at = clock()
        self._owed: PostgresOffset | None = None
        """Acknowledged, and not told to the server yet."""
        self._watched_at: float | None = None
        self._gone: set[str] = set()
        self._told_gone: set[str] = set()
        self._shapes = Shapes()
        self._altered: dict[str, Altered] = {}

    def current(self) -> CdcOffset:
        """The end of the log now."""
        return self._ask(self._status).end

    def read(
        self, after: CdcOffset, *, max_bytes: int, upto: PostgresOffset | None = None
    ) -> LogBatch:
        """Whole transactions that follow; none, at once, when there are none yet.

        `upto` is an offset that a read gave: the same transactions come again, and none later.
        """
        assert isinstance(after, PostgresOffset)
        return self._ask(lambda: self._read(after, max_bytes, upto))

    def acknowledge(self, offset: CdcOffset) -> None:
        """Let the server forget what lies before `offset`, now or a little later.

        Replay: an older offset, or the same again, changes nothing.
        """
        assert isinstance(offset, PostgresOffset)
        self._ask(lambda: self._advance(offset))

    def close(self) -> None:
        """Let go of connections; more are opened when they are needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        try:
            with translated(self._options):
                return work()
        except BaseException:
            # A connection that failed once is not trusted again.
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._channel is not None:
                self._channel.abandon()
                self._channel = None
            raise

    def _sql(self) -> Any:
        if self._connection is None:
            self._connection = connect(self._options)
        return self._connection

    def _status(self) -> SlotStatus:
        return read_status(self._sql(), self._options.slot)

    def _read(self, after: PostgresOffset, max_bytes: int, last: PostgresOffset | None) -> LogBatch:
        status = self._status()
        status.check(after, self._identity)
        self._identity = status.identity
        if self._binary is None:
            self._binary = status.server_version >= _BINARY_SINCE
        self._watch()
        if self._owed is not None:
            # Where nothing more is written, no later acknowledgement would bring it along.
            self._advance(self._owed)
        end = status.end if last is None else min(last, status.end)
        if end <= after:
            return LogBatch(offset=after, events=self._alterations(after) + self._drops())
        begin = max(after, status.confirmed or after)
        upto = PostgresOffset(min(end.lsn, begin.lsn + _SCAN_BYTES))
        while True:
            peeked = self._peek(after, upto, max_bytes)
            if upto == status.end and not status.settled:
                peeked.upto = after
            try:
                found = self._decode(peeked, after, max_bytes)
            except OtherFormat:
                if not self._binary:
                    raise BrokenInvariant("a slot sends binary where text was asked") from None
                self._binary = False
                continue
            more = found.more or upto < end
            return LogBatch(
                offset=found.offset,
                changes=found.changes,
                events=found.events + (() if more else self._unlogged(found)),
                more=more,
                committed_at=found.committed_at,
            )

    def _peek(self, after: PostgresOffset, upto: PostgresOffset, max_bytes: int) -> _Peeked:
        """Messages from the slot's position on, at least one whole new transaction if there is."""
        wanted = max(_LEAST_MESSAGES, int(max_bytes / self._message_bytes))
        limit = wanted + self._read_before.get(after, 0)
        while True:
            limit = min(limit, _MOST_MESSAGES)
            peeked = self._look(after, upto, limit, max_bytes)
            if peeked.complete or self._has_news(peeked.batch, after):
                return peeked
            # All of it was read before: the slot stands behind our position, who knows how far.
            limit *= 4

    def _look(
        self, after: PostgresOffset, upto: PostgresOffset, limit: int, max_bytes: int
    ) -> _Peeked:
        if self._channel is None:
            self._channel = CopyChannel(self._options)
        spool = SpooledBytes()
        enough = 2 * max_bytes

        def take(piece: bytes) -> bool:
            nonlocal enough
            spool.append(piece)
            if spool.size < enough:
                return True
            enough *= 2
            return not self._has_news(self._messages(spool), after)

        whole = self._channel.copy(self._query(upto, limit), take)
        if not whole:
            self._channel.abandon()
            self._channel = None
        batch = self._messages(spool)
        if len(batch):
            self._message_bytes = max(16.0, spool.size / len(batch))
        return _Peeked(batch, upto, whole and len(batch) < limit)

    @staticmethod
    def _has_news(batch: MessageBatch, after: PostgresOffset) -> bool:
        return batch.first_after(after.lsn) < batch.whole_transactions

    def _query(self, upto: PostgresOffset, limit: int) -> str:
        publication = quoted_text(sql_quoted(self._options.publication))
        binary = ", 'binary', 'true'" if self._binary else ""
        return (
            "SELECT data FROM pg_logical_slot_peek_binary_changes("
            f"{quoted_text(self._options.slot)}, '{upto}', {limit}, "
            f"'proto_version', '1', 'publication_names', {publication}{binary})"
        )

    def _messages(self, spool: SpooledBytes) -> MessageBatch:
        data = spool.array()
        at = header_end(bytes(data[:_LONGEST_HEADER])) if data.size else 0
        starts, lengths = [], []
        while data.size:
            found = np.empty((1, _ROWS_AT_ONCE), np.int64), np.empty((1, _ROWS_AT_ONCE), np.int32)
            rows, at, end = kernels.split_rows(data, at, *found)
            if end < 0:
                raise BrokenInvariant("a COPY of a slot has rows of another width")
            starts.append(found[0][0, :rows])
            lengths.append(found[1][0, :rows])
            if end or rows < _ROWS_AT_ONCE:
                break
        empty = np.empty(0, np.int64), np.empty(0, np.int32)
        cells = Cells(
            data,
            np.concatenate([empty[0], *starts]),
            np.concatenate([empty[1], *lengths]),
        )
        return MessageBatch(cells, binary=bool(self._binary))

    def _decode(self, peeked: _Peeked, after: PostgresOffset, max_bytes: int) -> LogBatch:
        batch = peeked.batch
        first = batch.first_after(after.lsn)
        if first == batch.whole_transactions:
            return LogBatch(offset=max(peeked.upto, after))
        end = batch.last_within(first, max_bytes)
        begin = batch.transaction(first).first
        segments = self._segments(batch, range(begin, batch.transaction(end - 1).end))
        changed = [
            (int(batch.places_of(view.relation.oid, messages)[0]), view)
            for view, messages in segments
            if self._known.differs(view, after)
        ]
        changed.sort(key=lambda each: each[0])
        if changed:
            # A schema changes between two batches, or in a batch of one transaction.
            end = min(end, max(batch.last_before(changed[0][0]), first + 1))
        last = batch.transaction(end - 1)
        whole = range(begin, last.end)
        offset = PostgresOffset(last.end_lsn)
        complete = peeked.complete and end == batch.whole_transactions
        if complete:
            offset = max(offset, peeked.upto)
        self._read_before = {offset: last.end}
        return LogBatch(
            offset=offset,
            changes=self._tables(batch, segments, whole),
            events=self._events(batch, self._last(batch, segments, whole, after), whole, offset),
            more=not complete,
            committed_at=last.committed_at,
        )

    def _segments(self, batch: MessageBatch, whole: range) -> list[tuple[RelationView, range]]:
        """Where which version of a relation of ours is in force and used."""
        in_force: dict[int, tuple[int, RelationView]] = {}
        found: list[tuple[RelationView, range]] = []
        for place, message in batch.rare():
            if not isinstance(message, Relation):
                continue
            view = self._known.view(self._sql(), message)
            if view is None:
                continue
            if self._binary and not all(wire.binary for wire in view.wires):
                raise OtherFormat(view.table)
            if message.oid in in_force:
                since, earlier = in_force[message.oid]
                found.append((earlier, _overlap(whole, since, place)))
            in_force[message.oid] = place, view
        found += [(view, _overlap(whole, since, whole.stop)) for since, view in in_force.values()]
        return [
            (view, messages)
            for view, messages in found
            if batch.places_of(view.relation.oid, messages).size
        ]

    def _last(
        self,
        batch: MessageBatch,
        segments: list[tuple[RelationView, range]],
        whole: range,
        after: PostgresOffset,
    ) -> list[tuple[int, RelationView]]:
        """The tables that are another in the end; in between, a transaction may have both."""
        found: dict[str, tuple[int, RelationView]] = {}
        for view, messages in segments:
            inside = _overlap(whole, messages.start, messages.stop)
            places = batch.places_of(view.relation.oid, inside)
            if places.size and places[0] >= found.get(view.table, (0, view))[0]:
                found[view.table] = int(places[0]), view
        return sorted(
            (each for each in found.values() if self._known.differs(each[1], after)),
            key=lambda each: each[0],
        )

    def _tables(
        self, batch: MessageBatch, segments: list[tuple[RelationView, range]], whole: range
    ) -> dict[str, pa.Table]:
        near = self._newest_transaction() if segments else 0
        pieces: dict[str, list[pa.Table]] = {}
        for view, messages in segments:
            inside = _overlap(whole, messages.start, messages.stop)
            if not batch.places_of(view.relation.oid, inside).size:
                continue
            pieces.setdefault(view.table, []).append(
                gathered(self._pieces(batch, view, inside, near))
            )
        return {table: joined(table, each) for table, each in pieces.items()}

    def _pieces(
        self, batch: MessageBatch, view: RelationView, inside: range, near: int
    ) -> Iterator[pa.Table]:
        as_null = self._options.unrepresentable_as_null
        for some in batch.parts(inside, _DECODED_AT_ONCE):
            yield batch.changes(view, some, near=near, bad_as_null=as_null, commits=self._commits)

    def _events(
        self,
        batch: MessageBatch,
        changed: list[tuple[int, RelationView]],
        whole: range,
        offset: PostgresOffset,
    ) -> tuple[LogEvent, ...]:
        events = []
        for place, view in changed:
            if place in whole:
                schema = self._known.described(self._sql(), view)
                self._known.learn(view.table, schema, offset)
                altered = self._altered.get(view.table)
                if altered is not None and altered.at <= offset:
                    # What the catalog said is older, or the same.
                    del self._altered[view.table]
                events.append(
                    LogEvent(
                        kind=LogEventKind.SCHEMA, table=view.table, seq=2 * place, schema=schema
                    )
                )
        for place, message in batch.rare():
            if isinstance(message, Truncate) and place in whole:
                events += [
                    LogEvent(kind=LogEventKind.TRUNCATE, table=table, seq=2 * place)
                    for oid in message.relations
                    if (table := self._known.table_of(oid)) is not None
                ]
        return tuple(sorted(events, key=lambda event: event.seq))

    def _newest_transaction(self) -> int:
        row = self._sql().execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(row.fetchone()[0])

    def _watch(self) -> None:
        """Every few seconds: are our tables still there, and still published."""
        now = self._clock()
        if self._watched_at is None or now - self._watched_at >= _WATCH_S:
            self._watched_at = now
            self._gone = set(missing_tables(self._sql(), self._options.publication, self._known))
            self._altered |= self._shapes.altered(self._sql(), self._known)

    def _unlogged(self, batch: LogBatch) -> tuple[LogEvent, ...]:
        assert isinstance(batch.offset, PostgresOffset)
        return self._alterations(batch.offset, batch.changes) + self._drops()

    def _alterations(
        self, offset: PostgresOffset, rows_of: Collection[str] = ()
    ) -> tuple[LogEvent, ...]:
        """Columns that changed without a row after it, once the log has been read so far.

        Rows with the old columns are taken first: read again, they would be read as the new ones.
        """
        due = [
            table
            for table, altered in self._altered.items()
            if altered.at <= offset
            and (table not in rows_of or same_shape(self._known.latest(table), altered.schema))
        ]
        last = int(np.iinfo(np.int64).max)
        events = []
        for table in sorted(due):
            schema = self._altered.pop(table).schema
            if same_columns(self._known.latest(table), schema):
                continue  # A row has told of it since.
            self._known.learn(table, schema, offset)
            events.append(
                LogEvent(
                    kind=LogEventKind.SCHEMA, table=table, seq=last, schema=schema, newest=True
                )
            )
        return tuple(events)

    def _drops(self) -> tuple[LogEvent, ...]:
        """Tables that are gone, once each, after everything that the log says of them."""
        gone = sorted(self._gone - self._told_gone)
        self._told_gone |= self._gone
        last = int(np.iinfo(np.int64).max)
        return tuple(LogEvent(kind=LogEventKind.DROP, table=table, seq=last) for table in gone)

    def _advance(self, offset: PostgresOffset) -> None:
        now = self._clock()
        if offset == self._owed and now - self._advanced_at < _ADVANCE_S:
            return
        self._owed = None
        status = self._status()
        if status.confirmed is None or offset <= status.confirmed:
            return
        pending = offset.lsn - status.confirmed.lsn
        if pending < _ADVANCE_BYTES and now - self._advanced_at < _ADVANCE_S:
            self._owed = offset
            return
        status.check(offset, self._identity)
        self._sql().execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)",
            [self._options.slot, str(min(offset, status.end))],
        )
        self._advanced_at = now
        self._read_before = {}


def _overlap(whole: range, begin: int, end: int) -> range:
    return range(max(begin, whole.start), min(end, whole.stop))
