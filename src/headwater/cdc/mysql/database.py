"""A MySQL or MariaDB server as a source: what it must have, and what it gives.

    needed                                         because
    log_bin, binlog_format = ROW                   changes are read as rows
    binlog_row_image = FULL                        a change has the whole row, before and after
    binlog_row_metadata = FULL                     the log itself names columns, signs, charsets
    gtid_mode = ON (MySQL)                         what a snapshot saw can only be known by GTIDs
    SELECT, REPLICATION SLAVE, REPLICATION CLIENT  rows, the log, and where it ends

Each lack is named with the SQL that mends it. Nothing is made at the server, so nothing is left
behind there.
"""

from collections.abc import Mapping, Sequence

from headwater.cdc.external_table import (
    ExternalSchema,
    ExternalStorageTable,
    HeldSnapshot,
    Origin,
)
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.history import check_identity, read_identity
from headwater.cdc.mysql.log import MySqlLog
from headwater.cdc.mysql.marks import log_end, no_binlog, with_exact_gtids
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.schema import literal, read_schema
from headwater.cdc.mysql.survey import survey_binlogs
from headwater.cdc.mysql.table import MySqlTable
from headwater.cdc.offset import BinlogOffset, CdcOffset
from headwater.cdc.survey import LogSurvey
from headwater.errors import ConfigError, NotSupported

_SETTINGS = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_DEFAULTS = {
    # A server that does not have the setting behaves like this.
    "binlog_format": "ROW",
}
_GTID_STEPS = (
    "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; "
    "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON;"
)
_ALL = frozenset({"ALL PRIVILEGES", "SUPER"})
_MAY_READ_LOG = frozenset({"REPLICATION SLAVE", "REPLICATION REPLICA"})
_MAY_SEE_END = frozenset({"REPLICATION CLIENT", "BINLOG MONITOR"})


class MySqlDatabase:
    """One source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = MySqlOptions.parse(options)
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"MySqlDatabase({self._options.address})"

    def validate(self) -> None:
        """Whether everything is in place; each lack by name, with what mends it."""
        with MySqlConnection(self._options) as connection:
            _check_databases(connection, self._options)
            _check_settings(connection)
            _check_grants(connection, self._options)
            log_end(connection)
            if self._options.table is not None:
                read_schema(connection, self._options, self._options.table)

    def identity(self) -> str:
        """Which server answers."""
        with MySqlConnection(self._options) as connection:
            return read_identity(connection)

    def expect(self, identity: str) -> None:
        """Read from this server only."""
        self._identity = identity

    def prepare(self, tables: Sequence[str], *, begun: bool = False) -> CdcOffset:
        """Look at the tables; nothing has to be made. Gives the start, with its exact GTIDs."""
        with MySqlConnection(self._options) as connection:
            check_identity(connection, self._identity)
            for name in tables:
                read_schema(connection, self._options, name)
            return with_exact_gtids(connection, log_end(connection))

    def running(self) -> tuple[int, ...]:
        """None: the binlog has every table, whoever reads it."""
        return ()

    def open_table(self, name: str, columns: Sequence[str] | None = None) -> MySqlTable:
        """A table, or a subset of its columns."""
        with MySqlConnection(self._options) as connection:
            return MySqlTable(self._options, read_schema(connection, self._options, name, columns))

    def hold(self, table: ExternalStorageTable) -> HeldSnapshot:
        """Refused: a snapshot belongs to one connection, and rows have no place to divide by."""
        raise NotSupported(
            f"table {table.name} has no primary key",
            hint="Add one upstream; tables of MySQL and MariaDB without a key cannot be followed.",
        )

    def origin(self, name: str) -> Origin:
        """What a table's names are at the source."""
        database, table = self._options.split_name(name)
        return Origin(connector="mysql-cdc", database=database, schema=None, table=table)

    def open_log(self, tables: Mapping[str, ExternalSchema], *, commits: bool = False) -> MySqlLog:
        """The log, of these tables."""
        return MySqlLog(self._options, tables, identity=self._identity, commits=commits)

    def survey(self, after: CdcOffset | None) -> LogSurvey:
        """How the binlogs stand, seen from a position."""
        assert after is None or isinstance(after, BinlogOffset)
        with MySqlConnection(self._options) as connection:
            return survey_binlogs(connection, after)

    def unpublish(self, tables: Sequence[str], *, followed: Sequence[str]) -> None:
        """Nothing was made for them."""

    def release(self) -> None:
        """The server keeps its binlogs for as long as it is set to, with us or without."""

    def drop(self) -> None:
        """Nothing of ours is at the server."""


def _check_databases(connection: MySqlConnection, options: MySqlOptions) -> None:
    there = {row[0] for row in connection.query("SHOW DATABASES")}
    for name in options.databases:
        if name not in there:
            raise ConfigError(
                f'the database "{name}" does not exist, or the user may not see it',
                hint=f"GRANT SELECT ON `{name}`.* TO '{options.username}'@'%';",
            )


def _check_settings(connection: MySqlConnection) -> None:
    names = (*_SETTINGS, "log_bin", "gtid_mode")
    listed = ", ".join(literal(name) for name in names)
    rows = connection.query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    settings = {name.lower(): str(value).upper() for name, value in rows}
    if settings.get("log_bin") != "ON":
        raise no_binlog()
    for name, wanted in _SETTINGS.items():
        found = settings.get(name, _DEFAULTS.get(name))
        if found != wanted:
            raise ConfigError(
                f"the server's {name} is {found or 'not there'}, and has to be {wanted}",
                hint=f"SET GLOBAL {name} = '{wanted}'; and put it into the server's configuration. "
                "Sessions that are open keep the old value.",
            )
    if not connection.mariadb and settings.get("gtid_mode") != "ON":
        raise ConfigError(
            f"the server's gtid_mode is {settings.get('gtid_mode')}, and has to be ON",
            detail="Without GTIDs MySQL does not tell which transactions a snapshot has seen.",
            hint=_GTID_STEPS,
        )


def _check_grants(connection: MySqlConnection, options: MySqlOptions) -> None:
    granted: set[str] = set()
    for row in connection.query("SHOW GRANTS"):
        words, _, target = str(row[0]).removeprefix("GRANT ").partition(" ON ")
        if target.startswith("*.*"):
            granted |= {word.strip().upper() for word in words.split(",")}
    if granted & _ALL:
        return
    for wanted, spelled in ((_MAY_READ_LOG, "SLAVE"), (_MAY_SEE_END, "CLIENT")):
        if not granted & wanted:
            raise ConfigError(
                f'user "{options.username}" lacks the privilege REPLICATION {spelled}',
                hint=f"GRANT REPLICATION {spelled} ON *.* TO '{options.username}'@'%';",
            )
