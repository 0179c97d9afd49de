"""Follow one table: what the next batch of a stream has, and how rows and changes meet.

The rule is that of the backfill (docs/design/0008), made for a reader that keeps no rows. Batches
come one after the other, so nothing is delivered by the log while a snapshot is read; what the
log delivered before has to be visible to the snapshot. A change of the log is

    in a range that is     delivered
    left                   no: the snapshot that reads the range will see it (`to_see`)
    read                   unless the range's rows hold its transaction
    settled                yes

So every row comes once, as an insert, and every later change of it once, in the order of the
commits. The ranges are asked of the database, since the order of keys is its own. Where a
snapshot's moment is not known before it is read (`Upstream.moment_first`), the log waits at its
first place until all rows are read; then all of it is delivered, also what the rows hold.

Replay
    Changes    The log is read again between the two places: the same changes. Large values that
               PostgreSQL did not send are read again, and may be newer.
    Rows       While the snapshot of the batch is held, the same rows. After a crash it is gone:
               the splits are read at a later moment, while the checkpoint still says the earlier
               one, so changes between the two are delivered again after the rows. Whether a sink
               kept the first rows or takes the second, it converges by key: these changes have
               whole rows, and come after both.

Why not the engine's own machine (`TableBackfill`): it judges a chunk when it arrives, by what the
reader of the chunk saw. Spark brings nothing back from a task to the driver but rows, and wants
the end of a batch before it is read. Knowing the moment first gives the same rule without that.

Why no durable copy of the planned rows: tasks run only after the end of a batch is written, so
the driver would have to read and write all rows alone, before any task does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headwater.cdc.external_table import TRANSACTION, LogBatch, LogEventKind, Split
from headwater.cdc.offset import CdcOffset
from headwater.errors import SchemaError, SourceUnavailable, UserError
from headwater.spark_source.external.options import ReadOptions, Since
from headwater.spark_source.external.position import Position
from headwater.spark_source.external.upstream import (
    CHANGE_COLUMNS,
    HeldSnapshot,
    StreamLog,
    Upstream,
    UpstreamTable,
    reaches,
)

Answer = TypeVar("Answer")

_PATIENCE_S = 30.0
_PAUSE_S = 0.2
_SCAN_S = 5.0
_POLL_S = 0.25
"""How often a log that had nothing is asked again; Spark would ask a hundred times a second."""
_IDLE_S = 10.0
"""How often a place in the log is noted although nothing in it was ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToRead:
    """Splits for tasks to read."""

    table: UpstreamTable
    splits: list[Split]
    snapshot: str | None
    floor: CdcOffset | None
    position: str


class Follower:
    """The driver's side of one stream. Its methods block; one caller at a time."""

    def __init__(self, upstream: Upstream, options: ReadOptions, wanted: pa.Schema) -> None:
        self._upstream = upstream
        self._options = options
        self._wanted = wanted
        self._opened: UpstreamTable | None = None
        self._log: StreamLog | None = None
        self._held: tuple[Position, HeldSnapshot] | None = None
        self._delivered: tuple[Position, Position, pa.Table] | None = None
        self._scanned: tuple[CdcOffset, CdcOffset] | None = None
        self._moved_at = time.monotonic()
        self._empty_at: float | None = None
        self._rows_came_last = False

    def first(self) -> Position:
        """Where a new stream begins; the same for every call."""
        return Position(table=self._table.name, begin=self._options.begin)

    def end_of_log(self, position: Position) -> CdcOffset:
        """Where the log ends now."""
        return _patiently(self._log_of(position).current)

    def advance(self, position: Position, upto: CdcOffset | None = None) -> Position:
        """The end of the next batch; `position` itself when there is nothing to read.

        With `upto`, that means: nothing more up to there, and no rows left.
        """
        self._let_go()
        self._require(position)
        if position.begin is not None:
            return _patiently(lambda: self._planned(position.begin))
        if position.left and not (self._rows_came_last and self._upstream.moment_first):
            end = _patiently(lambda: self._more_rows(position))
            if end is not None:
                self._rows_came_last = True
                return end
        self._rows_came_last = False
        end = _patiently(lambda: self._more_changes(position, upto))
        if end == position and position.left:
            return _patiently(lambda: self._rows_at_last(position, wait=upto is not None))
        return end

    def rows_between(self, start: Position, end: Position) -> RowsToRead | None:
        """The splits of a batch; None if it is one of changes."""
        count = len(start.left) - len(end.left)
        if start.begin is not None or not count:
            return None
        snapshot = None
        if self._upstream.moment_first:
            if self._held is None or self._held[0] != end:
                # A batch again, whose snapshot is gone.
                self._let_go()
                self._held = end, _patiently(self._upstream.hold)
            snapshot = self._held[1].name
        return RowsToRead(
            table=self._table,
            splits=start.splits(count),
            snapshot=snapshot,
            floor=None if self._upstream.moment_first else start.place,
            position=self._upstream.spelled(start.place),
        )

    def changes_between(self, start: Position, end: Position) -> pa.Table:
        """The changes of a batch, as Spark wants them."""
        if start.begin is not None:
            return self._wanted.empty_table()
        if self._delivered is None or self._delivered[:2] != (start, end):
            self._delivered = start, end, _patiently(lambda: self._again(start, end))
        return self._delivered[2]

    def committed(self, end: Position) -> None:
        """A batch is safe in Spark's checkpoint: what it needed upstream may go.

        Spark says so after it has asked for the end of the next batch, whose snapshot is held.
        """
        if self._held is not None and self._held[0] == end:
            self._let_go()
        if end.begin is None:
            _patiently(lambda: self._log_of(end).acknowledge(end.place))

    def close(self) -> None:
        """Let go of connections and snapshots."""
        self._let_go()
        if self._log is not None:
            self._log.close()
        if self._opened is not None:
            self._opened.close()

    @property
    def _table(self) -> UpstreamTable:
        if self._opened is None:
            ours = {column.name for column in CHANGE_COLUMNS}
            names = [name for name in self._wanted.names if name not in ours]
            table = self._upstream.open_table(self._options.table, names)
            if not table.schema.key:
                raise SchemaError(
                    f"{table.name} has no key, so its changes cannot be told apart",
                    hint="Give it a primary key, or REPLICA IDENTITY USING INDEX on a unique one.",
                )
            self._opened = table
        return self._opened

    def _log_of(self, position: Position) -> StreamLog:
        if self._log is None:
            self._log = self._upstream.open_log(self._table, position.server)
        return self._log

    def _require(self, position: Position) -> None:
        if position.table != self._table.name:
            raise UserError(
                f"the checkpoint is of {position.table}, and not of {self._table.name}",
                hint="Use a checkpoint of its own for each query.",
            )

    def _planned(self, begin: Since | None) -> Position:
        table = self._table
        # The log first: what commits while the splits are planned is in it.
        start = self._upstream.start(table)
        splits = table.splits(self._options.splits) if begin is Since.SNAPSHOT else []
        return Position.planned(table.name, start, splits)

    def _more_rows(self, position: Position) -> Position | None:
        """The next splits; None while a snapshot does not see what it must."""
        count = min(self._options.splits_per_batch, len(position.left))
        if not self._upstream.moment_first:
            return position.with_rows(count, None, None)
        held = self._upstream.hold()
        if not np.all(held.seen.holds(pa.array(position.to_see, pa.int64()))):
            held.close()
            return None
        end = position.with_rows(count, held.seen.serialized(), held.high)
        self._held = end, held
        return end

    def _rows_at_last(self, position: Position, *, wait: bool) -> Position:
        end = self._more_rows(position)
        if end is None and wait:
            raise SourceUnavailable(
                f"the rows of {position.table} cannot be read yet",
                detail="A transaction that was open when the stream began, or that the log has "
                "delivered, is not visible yet.",
                hint="SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start; "
                "shows which are open.",
            )
        return end or position

    def _more_changes(self, position: Position, upto: CdcOffset | None) -> Position:
        log, after = self._log_of(position), position.place
        if self._empty_at is not None and upto is None:
            time.sleep(max(0.0, self._empty_at + _POLL_S - time.monotonic()))
        self._empty_at = None
        if self._scanned is not None and self._scanned[0] == after:
            after = self._scanned[1]
        until = time.monotonic() + _SCAN_S
        while True:
            batch = log.read(after, max_bytes=self._options.bytes_per_batch, upto=upto)
            changes = self._changes_of(batch)
            if changes is not None:
                return self._with_changes(position, batch.offset, changes)
            after = batch.offset
            if not batch.more or time.monotonic() > until:
                break
        self._scanned = position.place, after
        self._empty_at = time.monotonic()
        return self._idled(position, after, upto)

    def _idled(self, position: Position, after: CdcOffset, upto: CdcOffset | None) -> Position:
        """Note the place now and then, so that the server need not keep its log for us."""
        now = time.monotonic()
        if reaches(position.place, after) or (upto is None and now - self._moved_at < _IDLE_S):
            return position
        self._moved_at = now
        end = position.with_log(after, position.to_see)
        self._delivered = position, end, self._wanted.empty_table()
        return end

    def _with_changes(self, position: Position, log: CdcOffset, changes: pa.Table) -> Position:
        delivered, left_out = self._sorted(position, changes)
        to_see = np.union1d(position.to_see, left_out.column(TRANSACTION).to_numpy())
        to_see = to_see.astype(np.int64)
        if to_see.size:
            to_see = to_see[~np.asarray(self._upstream.visible().holds(pa.array(to_see)))]
        end = position.with_log(log, to_see.tolist())
        self._delivered = position, end, self._told(delivered)
        self._moved_at = time.monotonic()
        return end

    def _again(self, start: Position, end: Position) -> pa.Table:
        """The changes between two places, which were delivered before."""
        log, after = self._log_of(start), start.place
        pieces = [self._wanted.empty_table()]
        while not reaches(after, end.place):
            batch = log.read(after, max_bytes=self._options.bytes_per_batch, upto=end.place)
            changes = self._changes_of(batch)
            if changes is not None:
                pieces.append(self._told(self._sorted(start, changes)[0]))
            if reaches(after, batch.offset):
                raise UserError(
                    f"the log at the server ends before {end.place}, up to which it was read",
                    hint="It was restored or replaced. Start the query with a new checkpoint.",
                )
            after = batch.offset
        return pa.concat_tables(pieces)

    def _changes_of(self, batch: LogBatch) -> pa.Table | None:
        """The table's changes; refuses what a stream of rows cannot say."""
        for event in batch.events:
            match event.kind:
                case LogEventKind.TRUNCATE if not self._options.skip_truncate:
                    raise UserError(
                        f"{self._table.name} was truncated, which says nothing of its rows",
                        hint="Empty what was made of the stream and start it with a new "
                        'checkpoint; or pass over it with .option("truncate", "skip").',
                    )
                case LogEventKind.DROP:
                    raise UserError(f"{self._table.name} was dropped upstream")
        changes = batch.changes.get(self._table.name)
        return changes if changes is not None and changes.num_rows else None

    def _sorted(self, position: Position, changes: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Changes to deliver, and those that a snapshot still to come will have."""
        if position.following or not self._upstream.moment_first:
            return changes, changes.slice(0, 0)
        bounds = [each.right for each in position.read if each.right is not None]
        ranges = self._upstream.ranges_of(self._table, changes, bounds)
        delivers = np.zeros(changes.num_rows, dtype=np.bool_)
        for number, each in enumerate(position.read):
            mine = ranges == number
            if each.seen is not None and mine.any():
                transactions = changes.column(TRANSACTION).combine_chunks()
                mine &= ~np.asarray(self._upstream.seen(each.seen).holds(transactions))
            delivers |= mine
        left = ranges == len(position.read)
        return changes.filter(pa.array(delivers)), changes.filter(pa.array(left))

    def _told(self, changes: pa.Table) -> pa.Table:
        """Changes with the columns that the stream has, to the letter."""
        self._require_columns(changes)
        told = self._upstream.told(self._table, self._upstream.complete(self._table, changes))
        return told.select(self._wanted.names).cast(self._wanted)

    def _require_columns(self, changes: pa.Table) -> None:
        types = {each.column.name: each.column.type.arrow for each in self._table.schema.columns}
        for name, type_ in types.items():
            place = changes.schema.get_field_index(name)
            if place < 0 or changes.schema.field(place).type != type_:
                raise SchemaError(
                    f'column "{name}" of {self._table.name} was dropped, renamed or has another '
                    "type now",
                    hint="Start the query anew, with a new checkpoint if its sink cannot take the "
                    "new columns.",
                )

    def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held[1], None
            held.close()


def _patiently(work: Callable[[], Answer]) -> Answer:
    """Do something that an upstream may refuse for a while."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return work()
        except SourceUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)
