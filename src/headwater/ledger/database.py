"""One SQL database, SQLite or PostgreSQL, with transactions that mean what they say.

    SQLite        WAL, synchronous=FULL; a write begins with BEGIN IMMEDIATE, so that what it
                  reads cannot change before it commits. Readers never wait.
    PostgreSQL    READ COMMITTED for writes, which lock the fence row first; REPEATABLE READ for
                  reads. A session that is frozen inside a transaction is ended by the server, so
                  that its locks do not outlive it. synchronous_commit is never off.

Promises
    Failed or unknown   An error before COMMIT is sent means that nothing was written. An error of
                        COMMIT itself is `CommitUnknown`, and only reading the ledger can tell.
    Unchanged           What the body of a transaction raises comes out as it is, except that the
                        database's own errors are put into our words (`translation.py`).
    Discreet            No password and no statement parameter is in any message.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    RootTransaction,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from headwater.errors import CommitUnknown, ConfigError
from headwater.ledger.translation import shown, strike_out, translate

_BUSY_TIMEOUT_S = 10.0
_WAL_PAUSE_S = 0.01
_LOCK_TIMEOUT_MS = 30_000
_FROZEN_SESSION_MS = 15_000

_POSTGRES_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "headwater",
}


class Database:
    """Transactions on one database; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def connect(cls, url: str) -> Self:
        """Prepare connections to `url`; none is made yet."""
        parsed = _parse(url)
        try:
            if parsed.get_backend_name() == "sqlite":
                return cls(_sqlite(parsed))
            return cls(_postgres(parsed))
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the driver for {parsed.drivername} is not installed",
                hint="pip install 'headwater[postgres]'",
            ) from error

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return shown(self.engine.url)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Write: commit when the body ends, roll back when it raises.

        Raises `CommitUnknown` when COMMIT was sent and did not come back well.
        Replay: as the body says; a rolled back transaction has left nothing.
        """
        with self._connection(writes=True) as connection:
            with self._translated():
                begun = self._begin(connection, writes=True)
            try:
                with self._translated():
                    yield connection
            except BaseException:
                with suppress(SQLAlchemyError):
                    begun.rollback()
                raise
            try:
                begun.commit()
            except SQLAlchemyError as error:
                connection.invalidate()
                said = strike_out(str(getattr(error, "orig", error)).strip(), self.engine.url)
                raise CommitUnknown(
                    "the ledger did not answer a commit",
                    detail=f"{self.shown}: {said}",
                    hint="Read the ledger before anything else.",
                ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read: everything inside sees the database as of one moment."""
        with self._connection(writes=False) as connection, self._translated():
            begun = self._begin(connection, writes=False)
            try:
                yield connection
            finally:
                begun.rollback()

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextmanager
    def _connection(self, *, writes: bool) -> Iterator[Connection]:
        with self._translated():
            connection = self.engine.connect()
            if not writes and self.engine.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
        try:
            yield connection
        finally:
            with suppress(SQLAlchemyError):
                connection.close()

    def _begin(self, connection: Connection, *, writes: bool) -> RootTransaction:
        # Said here and not by an event of the engine, which every statement would look for.
        begun = connection.begin()
        if self.engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        return begun

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise translate(error, self.engine.url) from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(
            "ledger_url is not a database URL",
            hint="Write sqlite:////absolute/path.db or postgresql+psycopg://user@host/database.",
        ) from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if parsed.database in (None, "", ":memory:"):
                raise ConfigError(
                    "the ledger cannot be kept in memory",
                    hint="Give ledger_url a file: sqlite:////absolute/path.db.",
                )
            return parsed
        case "postgres" | "postgresql" | "postgresql+psycopg":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ConfigError(
                f"the ledger cannot be kept in {other}",
                hint="Use sqlite:////absolute/path.db or postgresql+psycopg://...",
            )


def _sqlite(url: URL) -> Engine:
    engine = _engine(url, {"timeout": _BUSY_TIMEOUT_S})

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # With no isolation level the driver begins no transaction of its own; `_begin` does.
        connection.isolation_level = None
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")

    event.listen(engine, "connect", prepare)
    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL. SQLite does not wait for others by itself here, so we do."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_WAL_PAUSE_S)


def _postgres(url: URL) -> Engine:
    defaults = {name: value for name, value in _POSTGRES_DEFAULTS.items() if name not in url.query}
    engine = _engine(url, defaults)

    def prepare(connection: Any, _record: object) -> None:
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
        connection.execute(f"SET idle_in_transaction_session_timeout = {_FROZEN_SESSION_MS}")
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")
        connection.autocommit = False

    event.listen(engine, "connect", prepare)
    return engine


def _engine(url: URL, connect_args: dict[str, Any]) -> Engine:
    try:
        return create_engine(
            url, connect_args=connect_args, hide_parameters=True, pool_pre_ping=True
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"ledger_url {shown(url)} cannot be used") from error
