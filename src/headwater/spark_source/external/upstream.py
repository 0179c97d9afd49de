"""What the readers need from a database, beside the contract of every external table.

    moment known first (PostgreSQL)   a snapshot is exported before its rows are read, so that the
                                      driver knows what the tasks will see
    moment known later (MySQL)        a task learns what it saw by reading; Spark brings nothing
                                      back from a task to the driver but rows

See `changes.py` for what becomes of that.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headwater.cdc.external_table import ExternalStorageTable, LogBatch, Seen, Split
from headwater.cdc.offset import BinlogOffset, CdcOffset, PostgresOffset
from headwater.errors import DamagedState
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, SEQ
from headwater.model.schema import Column
from headwater.model.types import BIGINT, TIMESTAMPTZ, VARCHAR

Numbers = np.ndarray[Any, np.dtype[Any]]

COMMIT_POSITION = "_commit_position"
CHANGE_COLUMNS = (
    Column(CHANGE_TYPE, VARCHAR),
    Column(COMMIT_POSITION, VARCHAR),
    Column(COMMIT_TIMESTAMP, TIMESTAMPTZ),
    Column(SEQ, BIGINT),
)
"""What a stream has besides the table's columns."""


def reaches(offset: CdcOffset, place: CdcOffset) -> bool:
    """Whether everything before `place` is also before `offset`."""
    match offset, place:
        case PostgresOffset(), PostgresOffset():
            return offset >= place
        case BinlogOffset(), BinlogOffset():
            return offset >= place
        case _:
            raise DamagedState(f"{offset} and {place} are places in different logs")


class UpstreamTable(ExternalStorageTable, Protocol):
    """A table whose connections can be let go."""

    def close(self) -> None:
        """Let go of connections; more may be opened later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a stream begins."""

    log: CdcOffset
    server: str
    """Which server answered; another one would have another log."""
    to_see: tuple[int, ...]
    """Transactions whose changes the log may lack: a snapshot must see them."""


class HeldSnapshot(Protocol):
    """A moment that tasks can read, until it is closed or its connection is lost."""

    name: str
    seen: Seen
    high: CdcOffset

    def close(self) -> None:
        """Let go of it."""
        ...


class StreamLog(Protocol):
    """The log of one table. One caller at a time."""

    def current(self) -> CdcOffset:
        """The end of the log now."""
        ...

    def read(self, after: CdcOffset, *, max_bytes: int, upto: CdcOffset | None) -> LogBatch:
        """Whole transactions that follow, none of them after `upto`."""
        ...

    def acknowledge(self, offset: CdcOffset) -> None:
        """Everything before `offset` is not needed again."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Upstream(Protocol):
    """One database, by options that were checked. Can be pickled; holds no connection."""

    @property
    def moment_first(self) -> bool:
        """Whether the moment of a snapshot is known before its rows are read."""
        ...

    @property
    def given(self) -> Collection[str]:
        """The names of the database's options that the user wrote."""
        ...

    def open_table(self, name: str, columns: Sequence[str] | None) -> UpstreamTable:
        """A table with these columns, and those of its key."""
        ...

    def whole(self, table: UpstreamTable) -> Split:
        """All of a table as one split."""
        ...

    def held(self) -> AbstractContextManager[str]:
        """A moment that is kept while the block runs; gives its name."""
        ...

    def at(self, table: UpstreamTable, snapshot: str) -> UpstreamTable:
        """The table as somebody's snapshot sees it."""
        ...

    def require_stream(self) -> None:
        """Refuse options with which changes cannot be followed."""
        ...

    def start(self, table: UpstreamTable) -> Start:
        """Make what a stream needs upstream. Replay: what is there already is used."""
        ...

    def open_log(self, table: UpstreamTable, server: str) -> StreamLog:
        """The log of a table, of the server that the stream began with."""
        ...

    def hold(self) -> HeldSnapshot:
        """A moment for tasks to read, where `moment_first`."""
        ...

    def visible(self) -> Seen:
        """What a snapshot that is taken from now on sees at least, where `moment_first`."""
        ...

    def seen(self, text: str) -> Seen:
        """What a held snapshot saw, from its text."""
        ...

    def ranges_of(
        self, table: UpstreamTable, keys: pa.Table, bounds: Sequence[tuple[str, ...]]
    ) -> Numbers:
        """For each key, how many of the bounds are not above it, in the database's own order."""
        ...

    def complete(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """Changes with the values that the log did not send."""
        ...

    def told(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """Changes without preimages that say nothing, and with the columns of a stream."""
        ...

    def spelled(self, offset: CdcOffset) -> str:
        """A position as text that sorts as positions do."""
        ...
