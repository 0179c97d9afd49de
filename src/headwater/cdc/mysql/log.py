"""The change log of a MySQL or MariaDB source.

One stream for all tables of the source, kept open between reads. A batch is whole transactions
of one binlog file, so a read can end before its budget does. A statement that alters, drops or
truncates one of our tables is a batch of its own: every change in one batch has one form.

Promises
    Repeatable    Reading after an offset again opens the stream there again.
    Honest        A position that the server no longer has, or that another server would have to
                  know, raises `UserError`; nothing is skipped.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from headwater.cdc.external_table import ExternalSchema, LogBatch, LogEvent, LogEventKind
from headwater.cdc.mysql.binlog import BinlogStream, EventBatch
from headwater.cdc.mysql.changes import RowEvents, decode_changes
from headwater.cdc.mysql.commit_times import commit_times
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.ddl import Effect, Said, TableEffect, effects, said_of_columns
from headwater.cdc.mysql.events import (
    COMMITTED,
    DELETE_V1,
    DELETE_V2,
    INCIDENT,
    PARTIAL_UPDATE,
    PLAIN,
    PREPARED,
    QUERY,
    TABLE_MAP,
    UPDATE_V1,
    UPDATE_V2,
    WRITE_V1,
    WRITE_V2,
    Events,
)
from headwater.cdc.mysql.history import GtidTrail, check_identity, check_position
from headwater.cdc.mysql.marks import log_end, with_exact_gtids
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.pieces import Array
from headwater.cdc.mysql.schema import read_schema
from headwater.cdc.mysql.seen import POSITION_BITS
from headwater.cdc.mysql.table_map import TableMap, parse_table_map, table_name
from headwater.cdc.offset import BinlogOffset, CdcOffset
from headwater.cdc.schema_change import as_said
from headwater.errors import BrokenInvariant, SourceUnavailable, UserError

_ROWS = (WRITE_V1, UPDATE_V1, DELETE_V1, WRITE_V2, UPDATE_V2, DELETE_V2, PARTIAL_UPDATE)
_KINDS = {
    Effect.ALTERED: LogEventKind.SCHEMA,
    Effect.DROPPED: LogEventKind.DROP,
    Effect.TRUNCATED: LogEventKind.TRUNCATE,
}


_Answer = TypeVar("_Answer")


class MySqlLog:
    """The changes of some tables, in the order of their commits."""

    def __init__(
        self,
        options: MySqlOptions,
        tables: Mapping[str, ExternalSchema],
        *,
        identity: str | None = None,
        commits: bool = False,
    ) -> None:
        self._options = options
        self._commits = commits
        """Whether changes say when their transaction committed."""
        self._identity = identity
        self._schemas = {".".join(options.split_name(name)): each for name, each in tables.items()}
        self._names = {".".join(options.split_name(name)): name for name in tables}
        self._stream: BinlogStream | None = None
        self._trail = GtidTrail(mariadb=False, text="")
        self._asking: MySqlConnection | None = None
        self._maps: dict[int, TableMap | None] = {}
        self._collations: dict[int, str] = {}

    def current(self) -> CdcOffset:
        """The end of the log now."""
        return self._ask(log_end)

    def exact_current(self) -> CdcOffset:
        """The same, to be stored and read on from later."""
        return self._ask(lambda connection: with_exact_gtids(connection, log_end(connection)))

    def read(self, after: CdcOffset, *, max_bytes: int) -> LogBatch:
        """Whole transactions that follow; none, at once, when there are none yet."""
        if not isinstance(after, BinlogOffset):
            raise BrokenInvariant(f"{after} is not a place in a binlog")
        going = self._stream is not None and self._stream.at == after
        try:
            return self._read(after, max_bytes)
        except SourceUnavailable:
            self._hang_up()
            # An open stream may have been cut while nobody read it; that alone is no failure.
            if not going:
                raise
        except BaseException:
            self._hang_up()
            raise
        return self._read(after, max_bytes)

    def acknowledge(self, offset: CdcOffset) -> None:
        """Nothing to do: the server keeps its binlog for as long as it is set to."""

    def close(self) -> None:
        """Let go of connections."""
        self._hang_up()
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _read(self, after: BinlogOffset, max_bytes: int) -> LogBatch:
        stream = self._opened(after)
        batch = stream.read(max_bytes)
        if batch is None:
            return LogBatch(offset=after)
        events = batch.events
        effect_numbers = self._effects(events)
        count, happened = self._cut(batch, effect_numbers)
        last = int(batch.ends[count - 1]) if count else -1
        committed = np.flatnonzero(events.ends[: last + 1] == COMMITTED)
        self._trail.extend(events, last + 1)
        changes = {}
        said = said_of_columns(events.statement(min(effect_numbers))[1]) if happened else None
        if not happened:
            groups = self._groups(batch, stream, last)
            decoded = decode_changes(events, groups, self._schemas, self._options)
            changes = {self._names[name]: table for name, table in decoded.items()}
        file = stream.file
        stream.take(batch, count)
        if stream.file != file:
            # Numbers of tables mean something only within a file.
            self._maps.clear()
        offset = BinlogOffset(stream.file, stream.position, str(self._trail))
        return LogBatch(
            offset=offset,
            changes=changes,
            events=tuple(self._log_event(effect, said) for effect in happened),
            more=stream.behind,
            committed_at=float(events.table[committed[-1], 4]) if len(committed) else None,
        )

    def _opened(self, after: BinlogOffset) -> BinlogStream:
        if self._stream is not None and self._stream.at == after:
            return self._stream
        self._hang_up()
        self._ask(lambda connection: check_identity(connection, self._identity))
        start = self._ask(lambda connection: check_position(connection, after))
        if not self._collations:
            self._collations = self._ask(_read_collations)
        self._stream = BinlogStream(self._options, start)
        self._trail = GtidTrail(mariadb=self._stream.mariadb, text=after.gtids)
        return self._stream

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._maps.clear()

    def _ask(self, question: Callable[[MySqlConnection], _Answer]) -> _Answer:
        """Ask on a connection that is kept, and made anew once when it broke."""
        if self._asking is not None:
            try:
                return question(self._asking)
            except SourceUnavailable:
                self._asking.close()
        self._asking = MySqlConnection(self._options)
        return question(self._asking)

    def _effects(self, events: Events) -> dict[int, list[TableEffect]]:
        """Statements that touch our tables, by the number of their event."""
        found = {}
        plain = (events.types == QUERY) & (events.words == PLAIN)
        for number in np.flatnonzero(plain).tolist():
            database, statement = events.statement(number)
            ours = [each for all_ in effects(statement, database) for each in self._ours(all_)]
            if any(each.effect is Effect.WRITTEN for each in ours):
                raise UserError(
                    f'rows of "{ours[0].database}.{ours[0].table}" were changed by a statement '
                    "that the binlog holds as text",
                    hint="SET GLOBAL binlog_format = 'ROW'; then drop the source and create it "
                    "again, since the rows of that statement cannot be known.",
                )
            if ours:
                found[number] = ours
        if (events.types == INCIDENT).any():
            raise UserError(
                "the server says in its binlog that it has lost events",
                hint="Drop the source and create it again.",
            )
        return found

    def _ours(self, effect: TableEffect) -> list[TableEffect]:
        """The effect if it is on a table of ours; on a whole database, one for each of ours."""
        if effect.table:
            return [effect] if f"{effect.database}.{effect.table}" in self._names else []
        names = (name.partition(".") for name in self._names)
        return [
            TableEffect(effect.effect, database, table)
            for database, _, table in names
            if database == effect.database
        ]

    def _cut(
        self, batch: EventBatch, effect_numbers: Mapping[int, list[TableEffect]]
    ) -> tuple[int, list[TableEffect]]:
        """How many transactions to take, and the effects of the only one if it is a statement."""
        if not effect_numbers:
            return len(batch.ends), []
        first = min(effect_numbers)
        before = int(np.searchsorted(batch.ends, first))
        if before:
            return before, []
        if not len(batch.ends):
            return 0, []
        end = int(batch.ends[0])
        return 1, [each for at, all_ in effect_numbers.items() if at <= end for each in all_]

    def _groups(self, batch: EventBatch, stream: BinlogStream, last: int) -> list[RowEvents]:
        """Row events of our tables up to the last one, by the form of their table."""
        events = batch.events.first(last + 1)
        numbers = np.flatnonzero(np.isin(events.types, _ROWS))
        if not len(numbers):
            return []
        self._learn_maps(events)
        ends = np.searchsorted(batch.ends, numbers)
        states = events.ends[batch.ends[ends]]
        ids = _table_ids(events, numbers)
        base = BinlogOffset(stream.file, 0).number << POSITION_BITS
        times = commit_times(events, batch.ends[batch.ends <= last]) if self._commits else None
        forms: dict[TableMap, list[int]] = {}
        for table_id in np.unique(ids).tolist():
            table = self._maps.get(table_id)
            if table is not None:
                forms.setdefault(table, []).append(table_id)
        groups = []
        for table, table_ids in forms.items():
            mine = np.isin(ids, table_ids)
            _refuse_events(table, events.types[numbers[mine]], states[mine])
            mine &= states == COMMITTED
            places = base | batch.positions[ends[mine]]
            if mine.any():
                moments = None if times is None else times[ends[mine]]
                groups.append(RowEvents(table, numbers[mine], places, moments))
        return groups

    def _learn_maps(self, events: Events) -> None:
        numbers = np.flatnonzero(events.types == TABLE_MAP)
        ids, firsts = np.unique(_table_ids(events, numbers), return_index=True)
        for table_id, first in zip(ids.tolist(), firsts.tolist(), strict=True):
            if table_id not in self._maps:
                body = events.body(int(numbers[first]))
                ours = table_name(body) in self._names
                self._maps[table_id] = parse_table_map(body, self._collations) if ours else None

    def _log_event(self, effect: TableEffect, said: Said | None) -> LogEvent:
        name = f"{effect.database}.{effect.table}"
        schema = None
        renamed = () if said is None else said.renamed
        if effect.effect is Effect.ALTERED:
            # A table that is gone again, or has a column that we cannot hold, has no schema here;
            # the rows that follow are decoded by what the log itself says of them.
            with contextlib.suppress(UserError):
                schema = self._ask(
                    lambda connection: read_schema(connection, self._options, name).external
                )
                if said is not None:
                    # The server has the table of today, perhaps some statements later.
                    schema = as_said(self._schemas[name], schema, renamed, said.words)
                self._schemas[name] = schema
        return LogEvent(
            kind=_KINDS[effect.effect],
            table=self._names[name],
            seq=0,
            schema=schema,
            renamed=renamed,
        )


def _refuse_events(table: TableMap, types: Array, states: Array) -> None:
    if (types == PARTIAL_UPDATE).any():
        raise UserError(
            f'the binlog has only parts of changed JSON documents of "{table.name}"',
            hint="SET GLOBAL binlog_row_value_options = ''; then create the table here anew.",
        )
    if (states == PREPARED).any():
        raise UserError(
            f'rows of "{table.name}" were changed in a two-phase (XA) transaction',
            detail="The binlog has its rows when it is prepared, and not when it commits.",
            hint="Write these tables without XA PREPARE, then create the table here anew.",
        )


def _table_ids(events: Events, numbers: Array) -> Array:
    bodies = events.table[numbers, 1]
    ids = np.zeros(len(numbers), dtype=np.int64)
    for place in range(6):
        ids |= events.data[bodies + place].astype(np.int64) << 8 * place
    return ids


def _read_collations(connection: MySqlConnection) -> dict[int, str]:
    view = "COLLATION_CHARACTER_SET_APPLICABILITY" if connection.mariadb else "COLLATIONS"
    rows = connection.query(
        f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view} WHERE ID IS NOT NULL"
    )
    return {int(number): str(charset) for number, charset in rows}
