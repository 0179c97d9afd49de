"""MySQL and MariaDB as the readers need them.

Their transactions cannot take on the snapshot of another session, so there is no moment that many
tasks share, and a task's moment is known only in the task. A stream therefore reads all rows
first and then the whole log from the place where it began, also what the rows already hold.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headwater.cdc.external_table import TRANSACTION, LogBatch, Seen, Split
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.database import MySqlDatabase
from headwater.cdc.mysql.log import MySqlLog
from headwater.cdc.mysql.options import KNOWN, MySqlOptions
from headwater.cdc.mysql.schema import read_schema
from headwater.cdc.mysql.seen import POSITION_BITS, place
from headwater.cdc.mysql.table import MySqlTable
from headwater.cdc.offset import BinlogOffset, CdcOffset
from headwater.errors import BrokenInvariant, ConfigError
from headwater.model.reserved import COMMIT_TIMESTAMP
from headwater.spark_source.external.upstream import (
    COMMIT_POSITION,
    HeldSnapshot,
    Numbers,
    Start,
    UpstreamTable,
    reaches,
)

OPTIONS = tuple(name for name in KNOWN if name != "connector")


@dataclass(frozen=True, slots=True)
class MySqlUpstream:
    """One MySQL or MariaDB server."""

    options: MySqlOptions
    stated: Mapping[str, str] = field(repr=False)
    given: Collection[str] = field(default=frozenset())
    moment_first: bool = False

    @staticmethod
    def parse(options: Mapping[str, str]) -> "MySqlUpstream":
        """From options as the user wrote them."""
        return MySqlUpstream(MySqlOptions.parse(options), dict(options), frozenset(options))

    def open_table(self, name: str, columns: Sequence[str] | None) -> MySqlTable:
        """A table with these columns, and those of its key."""
        with MySqlConnection(self.options) as connection:
            schema = read_schema(connection, self.options, name)
            if columns is not None:
                more = [each for each in schema.key if each not in columns]
                schema = read_schema(connection, self.options, name, [*columns, *more])
        return MySqlTable(self.options, schema)

    def whole(self, table: UpstreamTable) -> Split:
        """Nobody may ask for it."""
        raise _no_moment()

    def held(self) -> AbstractContextManager[str]:
        """Nobody may ask for it."""
        raise _no_moment()

    def at(self, table: UpstreamTable, snapshot: str) -> UpstreamTable:
        """Nobody may ask for it."""
        raise _no_moment()

    def require_stream(self) -> None:
        """Nothing is made at the server, so nothing has to be named."""

    def start(self, table: UpstreamTable) -> Start:
        """Where the log ends now."""
        database = MySqlDatabase(self.stated)
        database.validate()
        return Start(log=database.prepare([table.name]), server="", to_see=())

    def open_log(self, table: UpstreamTable, server: str) -> "_Log":
        """The log of a table."""
        return _Log(self.options, table)

    def hold(self) -> HeldSnapshot:
        """Nobody may ask for it."""
        raise _no_moment()

    def visible(self) -> Seen:
        """Nobody asks for it."""
        _never()

    def seen(self, text: str) -> Seen:
        """Nobody asks for it."""
        _never()

    def ranges_of(
        self, table: UpstreamTable, keys: pa.Table, bounds: Sequence[tuple[str, ...]]
    ) -> Numbers:
        """Nobody asks for it."""
        _never()

    def complete(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """The binlog has whole rows."""
        return changes

    def told(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """Changes with the columns of a stream."""
        texts = [_text(each) for each in changes.column(TRANSACTION).to_pylist()]
        changes = changes.append_column(COMMIT_POSITION, pa.array(texts, pa.string()))
        unknown = pa.nulls(changes.num_rows, pa.timestamp("us", tz="UTC"))
        return changes.append_column(COMMIT_TIMESTAMP, unknown)

    def spelled(self, offset: CdcOffset) -> str:
        """The number of the file and the byte, which sort as text."""
        assert isinstance(offset, BinlogOffset)
        return _text(place(offset))


class _Log:
    """The binlog, of one table."""

    def __init__(self, options: MySqlOptions, table: UpstreamTable) -> None:
        self._name = table.name
        self._log = MySqlLog(options, {table.name: table.schema})

    def current(self) -> CdcOffset:
        # Where a stream ends its last batch, the next one begins.
        return self._log.exact_current()

    def read(self, after: CdcOffset, *, max_bytes: int, upto: CdcOffset | None) -> LogBatch:
        if upto is not None and reaches(after, upto):
            return LogBatch(offset=after)
        batch = self._log.read(after, max_bytes=max_bytes)
        if upto is None or reaches(upto, batch.offset):
            return batch
        assert isinstance(upto, BinlogOffset)
        changes = {
            name: table.filter(pc.less_equal(table.column(TRANSACTION), place(upto)))
            for name, table in batch.changes.items()
        }
        # What happened besides rows is a batch of its own, hence after `upto`.
        return replace(batch, offset=upto, changes=changes, events=(), more=False)

    def acknowledge(self, offset: CdcOffset) -> None:
        self._log.acknowledge(offset)

    def close(self) -> None:
        self._log.close()


def _text(number: int) -> str:
    return f"{number >> POSITION_BITS:08d}:{number & ((1 << POSITION_BITS) - 1):013d}"


def _no_moment() -> ConfigError:
    return ConfigError(
        "MySQL and MariaDB have no snapshot that several sessions can read",
        detail="Options consistent and snapshot.name need one.",
        hint="Leave them out: each chunk of rows is then of one moment of its own.",
    )


def _never() -> NoReturn:
    raise BrokenInvariant("a snapshot of MySQL or MariaDB is not known before it is read")
