"""One connection of a sink to MySQL or MariaDB: its transactions, its bulk loads, its errors.

LOAD DATA LOCAL asks the client for a file. Ours answers with rows that are made on the way, and
with nothing else: the driver's own answer, which opens whatever file the server names, is off.
With LOCAL the server turns errors into warnings and goes on, so every warning is an error here.
"""

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysql.protocol import OKPacketWrapper

from headwater.errors import BrokenInvariant, HeadwaterError, SinkUnavailable, UserError
from headwater.sinks.mysql.options import Target, quoted

LOCKED = "55P03"
"""The state of an error that says: somebody else holds a lock for too long."""
_LOCK_WAIT = 1205
_SILENCE_S = 30
"""After so long without a word, a line is probed, and given up soon after."""
_PIECE_BYTES = 256 << 10
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO', "
    "SESSION time_zone = '+00:00', SESSION sql_notes = 1, "
    "SESSION net_read_timeout = 3600, SESSION autocommit = 1, "
    "SESSION innodb_lock_wait_timeout = {lock_timeout}, SESSION lock_wait_timeout = {lock_timeout}"
)
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

_WAITS = frozenset({
    1020, 1040, 1053, 1080, 1105, 1158, 1159, 1160, 1161, 1203, 1205, 1206, 1213, 1226, 1290, 1317,
    1412, 1615, 1792, 1836, 1927, 3024, 3032, 3058, 3170, 3572, 4031,
})  # fmt: skip
"""Conflicts, locks, too many connections, shutting down, read-only for now, killed."""
_FULL = frozenset({1021, 1026, 1041, 1114, 3, 28})
_RIGHTS = frozenset({1044, 1142, 1143, 1227, 1370, 1419})


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the server: its number and its words."""

    code: int
    text: str


class Session:
    """One connection, inside one transaction or outside of any."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection: Any = _connect(target)
        self.execute(_SESSION.format(lock_timeout=target.lock_timeout_s))
        self.execute(_ISOLATION)
        [(version, local, largest)] = self.execute(
            "SELECT VERSION(), @@local_infile, @@max_allowed_packet"
        )
        self.mariadb = "mariadb" in str(version).lower()
        self.takes_files = bool(local)
        self.largest_packet = int(largest)
        self.said_slow = False
        """Whether the log says already that rows come by INSERT."""

    def close(self) -> None:
        """Let go of it; the server rolls back what was under way."""
        with contextlib.suppress(Exception):
            self._connection._force_close()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; its rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def execute_bytes(self, statement: bytes) -> list[Warned]:
        """Run a large statement as it is; what the server warned of."""
        self._connection.query(statement)
        return self._warned(self._connection._result.warning_count)

    def load(self, statement: str, texts: Iterable[bytes]) -> list[Warned]:
        """Run LOAD DATA LOCAL over rows that are made on the way; what the server warned of."""
        connection = self._connection
        connection._execute_command(COMMAND.COM_QUERY, statement)
        if not connection._read_packet().is_load_local_packet():
            raise BrokenInvariant("LOAD DATA LOCAL was answered without asking for rows")
        most = min(_PIECE_BYTES, self.largest_packet)
        for text in texts:
            for start in range(0, len(text), most):
                connection.write_packet(text[start : start + most])
        connection.write_packet(b"")
        answer = OKPacketWrapper(connection._read_packet())
        return self._warned(answer.warning_count)

    def _warned(self, count: int) -> list[Warned]:
        if not count:
            return []
        shown = self.execute("SHOW WARNINGS")
        # A server may be told to keep none of them; they are no less for that.
        return [Warned(int(code), str(text)) for _, code, text in shown] or [
            Warned(0, f"the server had {count} warnings and shows none")
        ]


class Line:
    """The connection of one sink; opened when it is needed, gone after an error."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session: Session | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (Line, (self._target,))

    def close(self) -> None:
        """Let go of the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @contextlib.contextmanager
    def session(self, first: str = "SELECT 1") -> Iterator[Session]:
        """A connection whose errors are ours; `first` is what it is asked first."""
        with translated(self._target):
            session = self._answering(first)
        try:
            with translated(self._target):
                yield session
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self, name: str) -> Iterator[Session]:
        """A transaction that commits at the end, or leaves nothing behind.

        While it runs its session holds a lock by which another one can find and end it. Raises
        `SinkUnavailable` also where a commit was sent and no answer came: whether it is there is
        what the progress row says at the next try.
        """
        with self.session("START TRANSACTION") as session:
            session.execute("DO GET_LOCK(%s, 0)", [name])
            yield session
            session.execute("COMMIT")
            session.execute("DO RELEASE_LOCK(%s)", [name])

    def _answering(self, first: str) -> Session:
        if self._session is not None:
            try:
                self._session.execute(first)
                return self._session
            except (pymysql.err.Error, OSError):
                # It went away while nothing was under way; perhaps the server is back.
                self.close()
        self._session = Session(self._target)
        self._session.execute(first)
        return self._session


def _connect(target: Target) -> Any:
    connection: Any = pymysql.connect(
        host=target.host,
        port=target.port,
        user=target.options["user"],
        password=target.options["password"],
        database=target.database,
        charset="utf8mb4",
        connect_timeout=target.connect_timeout_s,
        ssl=target.ssl_context(),
        ssl_disabled=target.ssl_mode == "disabled",
        local_infile=True,
        program_name="headwater",
    )
    # The server was told that we can; the driver itself must never read files for it.
    connection._local_infile = False
    line = connection._sock
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _SILENCE_S),
        ("TCP_KEEPINTVL", _SILENCE_S // 3),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * _SILENCE_S * 2),
    ):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


@contextlib.contextmanager
def translated(target: Target) -> Iterator[None]:
    """Turn errors of the driver and the network into ours."""
    try:
        yield
    except (pymysql.err.Error, OSError) as error:
        raise translate(target, error) from None


def code_of(error: BaseException) -> int:
    """The server's number of an error; 0 where there is none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def translate(target: Target, error: BaseException) -> HeadwaterError:
    """What an error means: wait, or somebody has to act."""
    code = code_of(error)
    text = target.options.without_secrets(str(error.args[-1] if error.args else error))
    if code in _FULL and not isinstance(error, OSError):
        return SinkUnavailable(
            f"the disk of {target.place} is full",
            detail=text,
            hint="Make room there; then it goes on by itself.",
        )
    if isinstance(error, OSError | pymysql.err.InterfaceError) or (
        code in _WAITS or 2000 <= code < 3000 or code == 0
    ):
        away = SinkUnavailable(
            f"{target.place} cannot be used now",
            detail=text or type(error).__name__,
            hint='Check that it runs, and the options "host" and "port".' if code >= 2000 else "",
        )
        away.sqlstate = LOCKED if code == _LOCK_WAIT else away.sqlstate
        return away
    return _for_somebody(target, code, text)


def _for_somebody(target: Target, code: int, text: str) -> UserError:
    user, who = target.options["user"], f'user "{target.options["user"]}"'
    if code in (1045, 1698, 1251, 2059):
        failure = UserError(
            f"{target.place} does not let {who} in",
            detail=text,
            hint='Check the options "user" and "password".',
        )
        failure.sqlstate = "28000"
        return failure
    if code == 1049:
        return UserError(
            f'there is no database "{target.database}" in {target.place}',
            detail=text,
            hint=f"CREATE DATABASE {quoted(target.database)}; or change the option.",
        )
    if code in _RIGHTS:
        return UserError(
            f"{who} lacks a right in {target.place}",
            detail=text,
            hint="GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE TEMPORARY TABLES ON "
            f"{quoted(target.database)}.* TO '{user}'@'%';",
        )
    if code == 1146:
        return UserError(f"a table is missing in {target.place}", detail=text)
    if code == 1665:
        return UserError(
            f"{target.place} cannot log rows in its binary log",
            detail=text,
            hint="Set binlog_format to ROW or MIXED.",
        )
    return UserError(f"{target.place} refused a delivery (error {code})", detail=text)
