"""Connections to MySQL and MariaDB, their errors in our words, and rows as raw packets.

PyMySQL does the handshake, authentication, TLS and small queries. Large results do not go
through it: a statement is prepared and executed in the binary protocol, and the packets of its
rows are left in one buffer for the kernels (`packets.py`, `binary_rows.py`).

    what the server or the network said               becomes
    cannot connect, gone, shutting down, overloaded   SourceUnavailable, to be tried again
    wrong password, missing privilege, unknown name   UserError and its kin, with a hint
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pymysql
from pymysql.constants import COMMAND
from pymysql.protocol import FieldDescriptorPacket

from headwater.cdc.mysql.options import MySqlOptions, SslMode
from headwater.cdc.mysql.packets import PacketBuffer
from headwater.errors import (
    ConfigError,
    HeadwaterError,
    RelationError,
    SchemaError,
    SourceUnavailable,
    UserError,
)

_NO_TLS = 2026
_KNOWN: tuple[tuple[frozenset[int], tuple[type[HeadwaterError], str, str]], ...] = (
    (
        frozenset({1044, 1045, 1698, 1227, 1142, 1143, 1370}),
        (
            ConfigError,
            'user "{user}" may not do this at {where}',
            "Check user name and password, and what the user has been granted.",
        ),
    ),
    (frozenset({1049}), (ConfigError, "{where} has no such database", "")),
    (frozenset({1146, 1051}), (RelationError, "{where} has no such table", "")),
    (frozenset({1054}), (SchemaError, "a column is gone upstream", "")),
    (frozenset({1412, 1615}), (SourceUnavailable, "a table was altered while it was read", "")),
    (frozenset({1064, 1193, 1231, 1365, 1366}), (UserError, "{where} refuses a statement", "")),
)
"""Errors by the server's numbers: what they are here, and what to do."""
_SESSION = (
    "SET SESSION time_zone = '+00:00', SESSION sql_mode = '', SESSION net_write_timeout = 600"
)
_SESSION_MARIADB = f"{_SESSION}, SESSION tx_isolation = 'REPEATABLE-READ'"
# MySQL answers questions about sizes with what was true a day ago, unless told otherwise.
_SESSION_MYSQL = (
    f"{_SESSION}, SESSION transaction_isolation = 'REPEATABLE-READ', "
    "SESSION information_schema_stats_expiry = 0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """How the server sends a column of a result."""

    name: str
    type: int
    unsigned: bool
    charset: int


class _RowReader:
    """Reads what follows the head of a result, part of which the driver may hold already.

    `readinto1` alone would take that part and then wait for more, which may never come.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._first = True

    def readinto1(self, buffer: Any, /) -> int:
        """Bytes as they come; 0 when the other side hung up."""
        if not self._first:
            return int(self._file.readinto1(buffer))
        self._first = False
        held = self._file.read1(len(buffer))
        buffer[: len(held)] = np.frombuffer(held, dtype=np.uint8)
        return len(held)


class MySqlConnection:
    """One session: UTC, utf8mb4, repeatable read, each statement on its own unless told."""

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        self._prepared: tuple[str, int] | None = None
        with translated(options):
            self._driver: Any = _connect(options)
            version = str(self._driver.get_server_info())
            self.mariadb = "mariadb" in version.lower()
            self._driver.query(_SESSION_MARIADB if self.mariadb else _SESSION_MYSQL)
        self.version = version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver(self) -> Any:
        """The connection of PyMySQL, for the replication protocol."""
        return self._driver

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a small result."""
        with translated(self._options), self._driver.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def value(self, sql: str) -> Any:
        """The first column of the first row, or None."""
        rows = self.query(sql)
        return rows[0][0] if rows else None

    def row(self, sql: str) -> dict[str, Any]:
        """The only row, by column name."""
        with translated(self._options), self._driver.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
            names = [each[0] for each in cursor.description]
        return dict(zip(names, row, strict=True)) if row else {}

    def execute_raw(self, sql: str) -> tuple[tuple[WireColumn, ...], PacketBuffer]:
        """Run a statement in the binary protocol; the rows are left in the buffer's packets.

        The buffer must be read to its end, or the connection closed, before the next statement.
        """
        with translated(self._options):
            statement = self._prepare(sql)
            self._driver._execute_command(
                COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1)
            )
            count = self._driver._read_packet().read_length_encoded_integer()
            columns = tuple(self._read_column() for _ in range(count))
            self._driver._read_packet()
        return columns, PacketBuffer(_RowReader(self._driver._rfile))

    def finish_raw(self) -> None:
        """Forget the statement of `execute_raw`, whose rows are all read."""
        if self._prepared is not None:
            with translated(self._options):
                self._driver._execute_command(
                    COMMAND.COM_STMT_CLOSE, struct.pack("<I", self._prepared[1])
                )
            self._prepared = None

    def close(self) -> None:
        """Hang up; also in the middle of a result."""
        with contextlib.suppress(Exception):
            self._driver._force_close()

    def _prepare(self, sql: str) -> int:
        self._driver._execute_command(COMMAND.COM_STMT_PREPARE, sql)
        head = self._driver._read_packet().get_all_data()
        statement, columns, parameters = struct.unpack_from("<IHH", head, 1)
        for count in (parameters, columns):
            # Each list of definitions ends with one packet more.
            for _ in range(count + 1 if count else 0):
                self._driver._read_packet()
        self._prepared = (sql, int(statement))
        return int(statement)

    def _read_column(self) -> WireColumn:
        packet = self._driver._read_packet(FieldDescriptorPacket)
        return WireColumn(
            name=packet.name,
            type=packet.type_code,
            unsigned=bool(packet.flags & 32),
            charset=packet.charsetnr,
        )


def _connect(options: MySqlOptions) -> Any:
    return pymysql.connect(
        host=options.hostname,
        port=options.port,
        user=options.username,
        password=options.password,
        charset="utf8mb4",
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        write_timeout=options.read_timeout_s,
        autocommit=True,
        # Without a context the driver takes TLS where the server has it.
        ssl=_ssl_context(options),
        ssl_disabled=options.ssl_mode is SslMode.DISABLED,
        program_name="headwater",
    )


def _ssl_context(options: MySqlOptions) -> ssl.SSLContext | None:
    if options.ssl_mode in (SslMode.DISABLED, SslMode.PREFERRED):
        return None
    try:
        context = ssl.create_default_context(cafile=options.ssl_ca)
        if options.ssl_cert:
            context.load_cert_chain(options.ssl_cert, options.ssl_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "the files of ssl.ca, ssl.cert and ssl.key cannot be used", detail=str(error)
        ) from None
    context.check_hostname = options.ssl_mode is SslMode.VERIFY_IDENTITY
    if options.ssl_mode is SslMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def translated(options: MySqlOptions) -> Iterator[None]:
    """Errors of the driver and the network as ours; none of them holds the password."""
    try:
        yield
    except HeadwaterError:
        raise
    except pymysql.err.Error as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        said = str(error.args[-1]) if error.args else ""
        cause = getattr(error, "original_exception", None)
        raise server_error(options, code, said, cause) from None
    except (OSError, EOFError, struct.error) as error:
        raise SourceUnavailable(
            f"the connection to {options.hostname}:{options.port} broke", detail=str(error)
        ) from None


def server_error(
    options: MySqlOptions, code: int, said: str, cause: Exception | None = None
) -> HeadwaterError:
    """What the server said, as the error of ours that tells who must act."""
    detail = f"The server says: {said} (error {code})." if code else said
    where = f"{options.hostname}:{options.port}"
    if isinstance(cause, socket.gaierror):
        kind: type[HeadwaterError] = ConfigError
        message = f'the host "{options.hostname}" is not known'
        hint = 'Check the option "hostname".'
    elif isinstance(cause, ssl.SSLError) or code == _NO_TLS:
        kind = ConfigError
        message = f"no connection to {where} with ssl.mode = {options.ssl_mode}"
        hint = 'Name the authority of its certificate in "ssl.ca", or choose another "ssl.mode".'
    else:
        kind, message, hint = next(
            (known for codes, known in _KNOWN if code in codes),
            (SourceUnavailable, "{where} cannot be reached, or gave up", ""),
        )
        message = message.format(where=where, user=options.username)
    return kind(message, detail=detail, hint=hint)
