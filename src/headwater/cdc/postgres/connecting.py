"""Connections to PostgreSQL: one way for questions, one for bulk data, one for errors.

Questions go through psycopg. Bulk data goes through asyncpg, whose COPY hands out many rows per
call where libpq hands out one: that is the difference between 0.2 and 2 million rows a second.
`CopyChannel` wraps it for callers that block.

Every session spells values alike, whatever the server's, the database's or the role's settings
are: the snapshot and the log must write the same value with the same characters.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg

from headwater.cdc.postgres.options import PostgresOptions
from headwater.errors import ConfigError, HeadwaterError, SourceUnavailable, UserError

APPLICATION = "headwater"
SESSION = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_SILENCE_S = 30
_DISK_FULL = "53100"
"""After so long without a word, a line is probed, and given up soon after."""
_NOTICES_SINCE, _NOTICES_VERSION = 140_000, (14,)
_NOTICE_OUR_END = "SET client_connection_check_interval = 5000"
"""Lets the server end work, such as building a slot, whose client was killed."""


def connect(options: PostgresOptions) -> "psycopg.Connection[Any]":
    """A connection for questions, in autocommit mode."""
    try:
        connection = psycopg.connect(
            host=options.hostname,
            port=options.port,
            user=options.username,
            password=options.password,
            dbname=options.database,
            sslmode=options.ssl_mode,
            sslrootcert=options.ssl_root_cert,
            connect_timeout=options.connect_timeout_s,
            application_name=APPLICATION,
            client_encoding="UTF8",
            keepalives_idle=_SILENCE_S,
            keepalives_interval=_SILENCE_S // 3,
            keepalives_count=3,
            tcp_user_timeout=1000 * _SILENCE_S * 2,
            options=" ".join(
                f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION.items()
            ),
            autocommit=True,
        )
        if connection.info.server_version >= _NOTICES_SINCE:
            connection.execute(_NOTICE_OUR_END)
    except psycopg.Error as error:
        raise _diagnosed(options, error) from None
    return connection


@contextlib.contextmanager
def session(options: PostgresOptions) -> Iterator["psycopg.Connection[Any]"]:
    """A connection that is closed afterwards, and whose errors are ours."""
    connection = connect(options)
    try:
        with translated(options):
            yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def translated(options: PostgresOptions) -> Iterator[None]:
    """Turn errors of the drivers into ours: wait, or act."""
    try:
        yield
    except HeadwaterError:
        raise
    except (psycopg.Error, asyncpg.PostgresError) as error:
        raise translate(options, error) from None
    except (asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise _away(options, error) from None


def translate(options: PostgresOptions, error: Exception) -> HeadwaterError:
    """What a server's error means for us."""
    state = getattr(error, "sqlstate", None)
    text = options.without_secret(str(error)).strip()
    place = f"{options.hostname}:{options.port}"
    if state == _DISK_FULL:
        # Also reading the log writes there: what is decoded is noted in files.
        return SourceUnavailable(
            f"the disk of PostgreSQL at {place} is full",
            detail=text,
            hint="Make room there; then it goes on by itself. retained_bytes of "
            "hw_catalog.cdc_progress is what the server keeps for us.",
        )
    if state is None or state[:2] in ("08", "53", "57", "58") or state in ("55006", "40001"):
        return _away(options, error)
    if state in ("28P01", "28000"):
        return UserError(
            f'the server at {place} does not let user "{options.username}" in',
            detail=text,
            hint='Check the options "username" and "password", and the server\'s pg_hba.conf.',
        )
    if state == "3D000":
        return UserError(
            f'there is no database "{options.database}" at {place}',
            detail=text,
            hint='Check the option "database.name".',
        )
    failure = UserError(f"PostgreSQL at {place} refused a request (SQLSTATE {state})", detail=text)
    failure.sqlstate = state
    return failure


def _away(options: PostgresOptions, error: Exception) -> SourceUnavailable:
    text = options.without_secret(str(error)).strip() or type(error).__name__
    return SourceUnavailable(
        f"PostgreSQL at {options.hostname}:{options.port} cannot be used now",
        detail=text,
        hint='Check that it runs, and the options "hostname" and "port".',
    )


def _diagnosed(options: PostgresOptions, error: psycopg.Error) -> HeadwaterError:
    """Why no connection came about; libpq tells only in words, the other driver by code."""
    try:
        CopyChannel(options).close()
    except HeadwaterError as better:
        return better
    return _away(options, error)


def _tls(options: PostgresOptions) -> Any:
    if options.ssl_mode == "disable":
        return False
    if options.ssl_mode in ("prefer", "require") and not options.ssl_root_cert:
        return options.ssl_mode
    try:
        context = ssl.create_default_context(cafile=options.ssl_root_cert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            'the file of option "ssl.root.cert" cannot be used', detail=str(error)
        ) from None
    context.check_hostname = options.ssl_mode == "verify-full"
    return context


_SERVER = """
    SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/'
           || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8)"""


class CopyChannel:
    """One connection for bulk data; every call blocks. Not for several threads at once."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        try:
            self._connection = self._run(
                asyncpg.connect(
                    host=options.hostname,
                    port=options.port,
                    user=options.username,
                    password=options.password or "",
                    database=options.database,
                    ssl=_tls(options),
                    timeout=options.connect_timeout_s,
                    statement_cache_size=0,
                    server_settings={"application_name": APPLICATION, **SESSION},
                )
            )
            self._settle()
        except BaseException:
            self._loop.close()
            raise

    def _settle(self) -> None:
        """What can only be said once the server is known."""
        self._watch_line()
        if self._connection.get_server_version() >= _NOTICES_VERSION:
            self.execute(_NOTICE_OUR_END)
        if self._connection.get_settings().server_encoding == "SQL_ASCII":
            # Such a database holds bytes of any kind; they are checked here, by column.
            self.execute("SET client_encoding = 'SQL_ASCII'")
        self._check_server()

    def _check_server(self) -> None:
        """Rows of another server must not come in: what they have seen means nothing here."""
        expected = self._options.server
        if expected is None:
            return
        found = self.query(_SERVER)[0][0]
        if found != expected:
            self._connection.terminate()
            raise UserError(
                f"another server answers at {self._options.hostname}:{self._options.port}",
                detail=f"The source follows {expected}, and this is {found} (system/timeline).",
                hint="Point the source to the old server, or: DROP SOURCE ... CASCADE, then create "
                "the source and its tables again.",
            )

    def _watch_line(self) -> None:
        """Notice a line that went silent, as libpq does for the other connections."""
        line = self._connection._transport.get_extra_info("socket")
        if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
            return
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _SILENCE_S),
            ("TCP_KEEPINTVL", _SILENCE_S // 3),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * _SILENCE_S * 2),
        ):
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def query(self, text: str, *parameters: Any) -> list[Any]:
        """The rows of a query."""
        return list(self._run(self._connection.fetch(text, *parameters)))

    def execute(self, text: str) -> None:
        """Run statements without an answer."""
        self._run(self._connection.execute(text))

    def copy(self, query: str, sink: Callable[[bytes], bool]) -> bool:
        """Send a query's rows to `sink` as COPY's binary bytes; whether all of them came.

        A sink that answers False has enough; the connection is of no use afterwards.
        """

        async def take(data: bytes) -> None:
            if not sink(data):
                raise _Enough

        try:
            self._run(self._connection.copy_from_query(query, output=take, format="binary"))
        except _Enough:
            return False
        return True

    @property
    def broken(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._connection.is_closed())

    def close(self) -> None:
        """Let go of it; also when it is broken.

        A call that another thread has under way fails, and that thread lets go of the rest.
        """
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._connection.terminate)
            return
        if not self._loop.is_closed():
            with contextlib.suppress(Exception):
                if not self._connection.is_closed():
                    self._loop.run_until_complete(self._connection.close(timeout=2))
            self._loop.close()

    def abandon(self) -> None:
        """Let go of it at once, without a word to the server."""
        if not self._loop.is_closed():
            self._connection.terminate()
            self._loop.run_until_complete(_end_other_tasks())
            self._loop.close()

    def _run(self, work: Any) -> Any:
        with translated(self._options):
            return self._loop.run_until_complete(work)


async def _end_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Enough(Exception):
    """A sink has what it wanted."""
