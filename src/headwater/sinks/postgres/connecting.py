"""One connection of a sink to PostgreSQL: its transactions, and what its errors mean for us.

A connection is kept from one delivery to the next and is let go at the first error, so that the
server rolls back whatever was under way. All settings that matter are made inside each
transaction: a pooler between us and the server may hand out another session every time.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg

from headwater.errors import HeadwaterError, SinkUnavailable, UserError
from headwater.sinks.postgres.options import Target

LOCKED = "55P03"
"""The state of an error that says: somebody else holds a lock for too long."""
_SILENCE_S = 30
"""After so long without a word, a line is probed, and given up soon after."""
_BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL datestyle = 'ISO, YMD';
SET LOCAL intervalstyle = 'postgres';
SET LOCAL timezone = 'UTC';
SET LOCAL standard_conforming_strings = on;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL lock_timeout = '{lock_timeout}s';
SELECT set_config('synchronous_commit', 'on', true)
 WHERE current_setting('synchronous_commit') = 'off'
"""
"""What is acknowledged must outlive a crash of the server: our log forgets it then."""

_WAITS = frozenset({"40001", "40P01", LOCKED, "55006", "25006"})
"""Conflicts, deadlocks, locks, and a server that is a standby for now."""


class Line:
    """The connection of one sink; opened when it is needed, gone after an error."""

    def __init__(self, target: Target, application: str) -> None:
        self._target = target
        self._application = application
        self._connection: psycopg.Connection[Any] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (Line, (self._target, self._application))

    def close(self) -> None:
        """Let go of the connection; the server rolls back what was under way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["psycopg.Cursor[Any]"]:
        """A transaction that commits at the end, or leaves nothing behind.

        Raises `SinkUnavailable` also where a commit was sent and no answer came: whether it is
        there is what the progress row says at the next try.
        """
        cursor = self._begun()
        try:
            with self.translated():
                yield cursor
                if cursor.execute("COMMIT").statusmessage != "COMMIT":
                    raise SinkUnavailable(f"{self._target.place} rolled a delivery back")
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors of the driver into ours."""
        try:
            yield
        except psycopg.Error as error:
            raise translate(self._target, error) from None

    def _begun(self) -> "psycopg.Cursor[Any]":
        """A cursor in a new transaction, on the connection that was kept or on a new one."""
        kept = self._connection
        if kept is not None:
            try:
                return self._begin(kept)
            except psycopg.Error:
                # It went away while nothing was under way; perhaps the server is back.
                self.close()
        self._connection = _connect(self._target, self._application)
        with self.translated():
            return self._begin(self._connection)

    def _begin(self, connection: "psycopg.Connection[Any]") -> "psycopg.Cursor[Any]":
        cursor = connection.cursor()
        cursor.execute(_BEGIN.format(lock_timeout=self._target.lock_timeout_s))
        return cursor


def _connect(target: Target, application: str) -> "psycopg.Connection[Any]":
    try:
        return psycopg.connect(
            host=target.host,
            port=target.port,
            user=target.options["user"],
            password=target.options["password"] or None,
            dbname=target.database,
            sslmode=target.ssl_mode,
            sslrootcert=target.options["ssl.root.cert"] or None,
            connect_timeout=target.connect_timeout_s,
            application_name=application,
            client_encoding="UTF8",
            keepalives_idle=_SILENCE_S,
            keepalives_interval=_SILENCE_S // 3,
            keepalives_count=3,
            tcp_user_timeout=1000 * _SILENCE_S * 2,
            autocommit=True,
            prepare_threshold=None,
        )
    except psycopg.Error as error:
        raise _diagnosed(target, error) from None


def _diagnosed(target: Target, error: psycopg.Error) -> HeadwaterError:
    """Why no connection came about; libpq tells only in words, the other driver by code."""

    async def ask() -> None:
        line = await asyncpg.connect(
            host=target.host,
            port=target.port,
            user=target.options["user"],
            password=target.options["password"],
            database=target.database,
            ssl=_tls(target),
            timeout=target.connect_timeout_s,
        )
        await line.close()

    if error.sqlstate is None:
        try:
            asyncio.run(ask())
        except asyncpg.PostgresError as better:
            return translate(target, better)
        except Exception:
            # Not even that: the first error says why.
            return translate(target, error)
    return translate(target, error)


def _tls(target: Target) -> Any:
    """As strict as the first connection was: a password goes nowhere else."""
    if target.ssl_mode == "disable":
        return False
    if not target.ssl_mode.startswith("verify"):
        return target.ssl_mode
    context = ssl.create_default_context(cafile=target.options["ssl.root.cert"] or None)
    context.check_hostname = target.ssl_mode == "verify-full"
    return context


def translate(target: Target, error: Exception) -> HeadwaterError:
    """What a server's error means: wait, or somebody has to act."""
    state = getattr(error, "sqlstate", None) or ""
    text = target.options.without_secrets(str(error)).strip() or type(error).__name__
    user = target.options["user"]
    if state == "53100":
        return SinkUnavailable(
            f"the disk of {target.place} is full",
            detail=text,
            hint="Make room there; then it goes on by itself.",
        )
    if not state or state[:2] in ("08", "53", "57", "58") or state in _WAITS:
        away = SinkUnavailable(
            f"{target.place} cannot be used now",
            detail=text,
            hint='Check that it runs, and the options "host" and "port".' if not state else "",
        )
        away.sqlstate = state or away.sqlstate
        return away
    failure = _for_somebody(target, state, text, user)
    failure.sqlstate = state
    return failure


def _for_somebody(target: Target, state: str, text: str, user: str) -> UserError:
    if state in ("28P01", "28000"):
        return UserError(
            f'{target.place} does not let user "{user}" in',
            detail=text,
            hint='Check the options "user" and "password", and the server\'s pg_hba.conf.',
        )
    if state == "3D000":
        return UserError(
            f'there is no database "{target.database}" in {target.place}',
            detail=text,
            hint='Check the option "database".',
        )
    if state == "3F000":
        return UserError(
            f"a schema is missing in {target.place}",
            detail=text,
            hint=f'CREATE SCHEMA "{target.schema}"; or change the option "schema".',
        )
    if state == "42501":
        return UserError(
            f'user "{user}" lacks a right in {target.place}',
            detail=text,
            hint=f'GRANT SELECT, INSERT, UPDATE, DELETE ON {target.name} TO "{user}"; '
            f'GRANT USAGE, CREATE ON SCHEMA "{target.progress_schema}" TO "{user}".',
        )
    if state == "42P01":
        return UserError(f"a table is missing in {target.place}", detail=text)
    return UserError(f"{target.place} refused a delivery (SQLSTATE {state})", detail=text)
