"""A PostgreSQL source: what we need there is made, checked and removed again.

Ours upstream are one publication and one slot. The publication comes first: a slot decodes with
the catalog of the past, in which a publication made later does not exist. A publication that we
made carries a comment saying so, written in the same transaction, and only such a one is dropped.

    Slot, as found                                 what happens
    none                                           it is made
    ready                                          it is used, from where it stands
    being built, by a session of ours              that session is ended; then it is made anew
    being built or read by somebody else           we wait a little, then say so
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from headwater.cdc.external_table import ExternalSchema, ExternalStorageTable, Origin
from headwater.cdc.offset import CdcOffset, PostgresOffset
from headwater.cdc.postgres.connecting import APPLICATION, session
from headwater.cdc.postgres.log import PostgresLog
from headwater.cdc.postgres.marks import all_running
from headwater.cdc.postgres.options import PostgresOptions
from headwater.cdc.postgres.schema import PgTable, read_table, split_name
from headwater.cdc.postgres.seen import PostgresSeen
from headwater.cdc.postgres.slot import ServerIdentity, SlotStatus, read_status
from headwater.cdc.postgres.splits import quoted_text
from headwater.cdc.postgres.survey import survey_slot
from headwater.cdc.postgres.table import HeldTable, PostgresTable
from headwater.cdc.postgres.types import TypeCatalog
from headwater.cdc.postgres.validation import check_published, check_server, check_table
from headwater.cdc.survey import LogSurvey
from headwater.errors import SourceUnavailable, UserError
from headwater.model.spelling import sql_quoted

_OURS = "Made by Headwater; dropped together with its source."
_BUILD_TIMEOUT_S = 60
_WAIT_S = 20.0
_PAUSE_S = 0.1


class PostgresDatabase:
    """One source. Its methods block."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        identity: ServerIdentity | None = None,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._options = options
        self._identity = identity
        self._wait_s = wait_s

    def __repr__(self) -> str:
        return f"PostgresDatabase({self._options!r})"

    @property
    def options(self) -> PostgresOptions:
        """Where it is, and what is ours there."""
        return self._options

    def identity(self) -> ServerIdentity:
        """Which server answers; to be kept, and given to the constructor after a restart."""
        with session(self._options) as connection:
            return read_status(connection, self._options.slot).identity

    def validate(self) -> None:
        """Whether everything is in place; each lack by name, with what mends it."""
        with session(self._options) as connection:
            check_server(connection, self._options)
            if self._options.table is not None:
                name = f"{sql_quoted(self._options.schema)}.{sql_quoted(self._options.table)}"
                self._checked_table(connection, name)

    def expect(self, identity: str) -> None:
        """Read from this server only."""
        self._identity = ServerIdentity.parse(identity)
        self._options = replace(self._options, server=identity)

    def prepare(self, tables: Sequence[str], *, begun: bool = False) -> CdcOffset:
        """Make the publication and the slot, and give the place where changes begin.

        Replay: what is there already is left as it is.
        """
        with session(self._options) as connection:
            status = self._check_server(connection)
            if begun:
                status.check_kept()
            check_server(connection, self._options)
            found = [self._checked_table(connection, name) for name in tables]
            self._publish(connection, found)
            return self._ready_slot(connection)

    def running(self) -> tuple[int, ...]:
        """Transactions in progress: of a table published just now, the log may lack their changes.

        A transaction is decoded with the publication as it was at each of its changes. One that
        wrote before the table was published commits afterwards without those changes.
        """
        with session(self._options) as connection:
            row = connection.execute("SELECT pg_current_snapshot()::text, age('3'::xid)").fetchone()
            assert row is not None
            return all_running(PostgresSeen.of(row[0]), row[1])

    def open_table(self, name: str, columns: Sequence[str] | None = None) -> PostgresTable:
        """A table, or a subset of its columns."""
        with session(self._options) as connection:
            return PostgresTable(self._options, self._read(connection, name, columns))

    def hold(self, table: ExternalStorageTable) -> HeldTable:
        """One snapshot for all chunks of a table without a key, until it is closed."""
        assert isinstance(table, PostgresTable)
        return HeldTable(self._options, table)

    def origin(self, name: str) -> Origin:
        """What a table's names are at the source."""
        schema, table = split_name(name, self._options.schema)
        database = self._options.database
        return Origin(connector="postgres-cdc", database=database, schema=schema, table=table)

    def open_log(
        self, tables: Mapping[str, ExternalSchema], *, commits: bool = False
    ) -> PostgresLog:
        """The log, of these tables."""
        return PostgresLog(self._options, tables, identity=self._identity, commits=commits)

    def survey(self, after: CdcOffset | None) -> LogSurvey:
        """How log and slot stand, seen from a position."""
        assert after is None or isinstance(after, PostgresOffset)
        with session(self._options) as connection:
            self._check_server(connection)
            return survey_slot(connection, self._options.slot, after)

    def unpublish(self, tables: Sequence[str], *, followed: Sequence[str]) -> None:
        """Take tables out of the publication, if we made it.

        Replay: what is out already is not missed.
        """
        with session(self._options) as connection:
            if not self._publication_is_ours(connection):
                return
            # One table may be spelled in several ways.
            kept = {self._found(connection, name) for name in followed}
            for table in {self._found(connection, name) for name in tables} - kept - {None}:
                self._unpublish(connection, str(table))

    def release(self) -> None:
        """Drop the slot; the publication stays, it keeps nothing. Replay: may be repeated."""
        with session(self._options) as connection:
            self._check_server(connection)
            self._drop_slot(connection)

    def drop(self) -> None:
        """Remove the slot, and the publication if we made it.

        Replay: what is gone already is not missed.
        """
        with session(self._options) as connection:
            self._drop_slot(connection)
            if self._publication_is_ours(connection):
                connection.execute(
                    f"DROP PUBLICATION IF EXISTS {sql_quoted(self._options.publication)}"
                )

    def _check_server(self, connection: Any) -> SlotStatus:
        """The slot, at the server that is followed: another one may have a slot of this name."""
        status = read_status(connection, self._options.slot)
        status.check_identity(self._identity)
        return status

    def _publication_is_ours(self, connection: Any) -> bool:
        found = connection.execute(
            "SELECT obj_description(oid, 'pg_publication') = %s FROM pg_publication"
            " WHERE pubname = %s",
            [_OURS, self._options.publication],
        ).fetchone()
        return bool(found is not None and found[0])

    def _found(self, connection: Any, name: str) -> str | None:
        """A table as SQL spells it; None when it does not exist."""
        try:
            types = TypeCatalog(unknown_as_text=True)
            schema = self._options.schema
            return read_table(connection, types, name, default_schema=schema).sql
        except UserError:
            return None

    def _unpublish(self, connection: Any, table: str) -> None:
        publication = sql_quoted(self._options.publication)
        try:
            connection.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table}")
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject):
            # It is not in the publication any more.
            return

    def _read(self, connection: Any, name: str, columns: Sequence[str] | None = None) -> PgTable:
        types = TypeCatalog(unknown_as_text=self._options.unknown_types_as_text)
        schema = self._options.schema
        return read_table(connection, types, name, columns=columns, default_schema=schema)

    def _checked_table(self, connection: Any, name: str) -> PgTable:
        # Only what every subset of columns needs: types are checked when the table is opened.
        types = TypeCatalog(unknown_as_text=True)
        table = read_table(connection, types, name, default_schema=self._options.schema)
        check_table(connection, self._options, table)
        check_published(connection, self._options, table)
        return table

    def _publish(self, connection: Any, tables: Sequence[PgTable]) -> None:
        publication = sql_quoted(self._options.publication)
        exists = connection.execute(
            "SELECT puballtables FROM pg_publication WHERE pubname = %s",
            [self._options.publication],
        ).fetchone()
        try:
            if exists is None:
                names = ", ".join(table.sql for table in tables)
                with connection.transaction():
                    connection.execute(
                        f"CREATE PUBLICATION {publication}"
                        + (f" FOR TABLE {names}" if names else "")
                        + " WITH (publish_via_partition_root = true)"
                    )
                    connection.execute(
                        f"COMMENT ON PUBLICATION {publication} IS {quoted_text(_OURS)}"
                    )
            elif not exists[0]:
                self._add_tables(connection, publication, tables)
        except psycopg.errors.DuplicateObject:
            self._add_tables(connection, publication, tables)
        except psycopg.errors.InsufficientPrivilege as error:
            names = ", ".join(table.sql for table in tables)
            raise UserError(
                f'user "{self._options.username}" may not publish {names}',
                detail=str(error).strip(),
                hint="Only a table's owner may. As an administrator: "
                + (
                    f"CREATE PUBLICATION {publication} FOR TABLE {names} "
                    "WITH (publish_via_partition_root = true);"
                    if exists is None
                    else f"ALTER PUBLICATION {publication} ADD TABLE {names};"
                ),
            ) from None

    def _add_tables(self, connection: Any, publication: str, tables: Sequence[PgTable]) -> None:
        present = {
            (schema, name)
            for schema, name in connection.execute(
                "SELECT schemaname::text, tablename::text FROM pg_publication_tables"
                " WHERE pubname = %s",
                [self._options.publication],
            )
        }
        for table in tables:
            if (table.schema_name, table.name) not in present:
                connection.execute(f"ALTER PUBLICATION {publication} ADD TABLE {table.sql}")
                check_published(connection, self._options, table)

    def _ready_slot(self, connection: Any) -> PostgresOffset:
        status = self._settled(connection, self._usable, "used")
        if not status.exists:
            self._make_slot(connection)
            status = read_status(connection, self._options.slot)
        if status.confirmed is None:
            raise SourceUnavailable(f'slot "{self._options.slot}" is not ready yet')
        status.check(status.confirmed, self._identity)
        return status.confirmed

    @staticmethod
    def _usable(status: SlotStatus) -> bool:
        return not status.exists or (status.active_pid is None and status.confirmed is not None)

    def _make_slot(self, connection: Any) -> None:
        connection.execute(f"SET statement_timeout = '{_BUILD_TIMEOUT_S}s'")
        try:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._options.slot]
            )
        except psycopg.errors.QueryCanceled:
            raise SourceUnavailable(
                f'slot "{self._options.slot}" could not be made within {_BUILD_TIMEOUT_S} s',
                detail="The server waits for transactions that began earlier to end.",
                hint="SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start; "
                "shows them.",
            ) from None
        except psycopg.errors.DuplicateObject:
            # Somebody was faster; whether it may be used is decided like for any other.
            self._settled(connection, self._usable, "used")
        finally:
            connection.execute("SET statement_timeout = 0")

    def _drop_slot(self, connection: Any) -> None:
        status = self._settled(
            connection, lambda each: not each.exists or each.active_pid is None, "dropped"
        )
        if status.exists:
            try:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [self._options.slot])
            except psycopg.errors.UndefinedObject:
                return

    def _settled(
        self, connection: Any, settled: Callable[[SlotStatus], bool], what: str
    ) -> SlotStatus:
        """The slot once nobody else is busy with it; our own half-done sessions are ended."""
        deadline = time.monotonic() + self._wait_s
        while True:
            status = read_status(connection, self._options.slot)
            if settled(status):
                return status
            if what == "dropped" or status.confirmed is None:
                # A killed predecessor's session goes on building or reading until it notices.
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid = %s AND application_name = %s AND usename = current_user",
                    [status.active_pid, APPLICATION],
                )
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f'slot "{self._options.slot}" cannot be {what}: process {status.active_pid} '
                    "of the server has it",
                    hint=f"SELECT pg_terminate_backend({status.active_pid}); ends that process.",
                )
            time.sleep(_PAUSE_S)
