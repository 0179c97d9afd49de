"""What a user says about a MySQL or MariaDB source, checked by name.

    option               default      meaning
    hostname             needed       where the server listens
    port                 3306
    username             needed       needs SELECT, REPLICATION SLAVE, REPLICATION CLIENT
    password             ''           or one of the next two, so that it is in no statement
    password.env                      the name of an environment variable that holds it
    password.file                     a file that holds it; a newline at the end is not part of it
    database.name        needed       one database, or several with commas between
    table.name                        a table of it, for those who read only one
    server.id            random       our id as a replica, 1 to 4294967295; nobody else's
    ssl.mode             preferred    disabled, preferred, required, verify_ca, verify_identity
    ssl.ca                            file with the authorities to trust
    ssl.cert, ssl.key                 files with our own certificate and its key
    zero.dates           error        error, or null: what '0000-00-00' and the like become
    time.mode            time         time, interval or varchar: what a TIME column becomes
    connect.timeout.s    10           1 to 3600
    read.timeout.s       60           1 to 3600: after so long without a word the server is away
    heartbeat.s          5            1 to 3600: how often an idle server says so

An option that does not exist is refused, because a misspelled `ssl.mode` would otherwise
connect in the clear without a word. The password is in no repr and in no error.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from headwater.errors import ConfigError

KNOWN = (
    "connector", "hostname", "port", "username", "password", "password.env", "password.file",
    "database.name", "table.name", "server.id", "ssl.mode", "ssl.ca", "ssl.cert", "ssl.key",
    "zero.dates", "time.mode", "connect.timeout.s", "read.timeout.s", "heartbeat.s",
)  # fmt: skip
_LARGEST_SERVER_ID = (1 << 32) - 1


class SslMode(StrEnum):
    """How the connection is protected; the words are MySQL's own."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify_ca"
    VERIFY_IDENTITY = "verify_identity"


class ZeroDates(StrEnum):
    """What a date that is none becomes."""

    ERROR = "error"
    NULL = "null"


class TimeMode(StrEnum):
    """What a TIME column, which goes from -838:59:59 to 838:59:59, becomes."""

    TIME = "time"
    INTERVAL = "interval"
    VARCHAR = "varchar"


_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions:
    """The options of one source, checked."""

    hostname: str
    port: int = 3306
    username: str
    password: str = field(default="", repr=False)
    databases: tuple[str, ...]
    table: str | None = None
    server_id: int | None = None
    ssl_mode: SslMode = SslMode.PREFERRED
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    zero_dates: ZeroDates = ZeroDates.ERROR
    time_mode: TimeMode = TimeMode.TIME
    connect_timeout_s: int = 10
    read_timeout_s: int = 60
    heartbeat_s: int = 5

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read options as they were written; raises `ConfigError` for each that is wrong."""
        said = {name.lower(): str(value) for name, value in options.items()}
        _refuse_unknown(said)
        databases = tuple(
            name for part in _needed(said, "database.name").split(",") if (name := part.strip())
        )
        if not databases:
            raise ConfigError('option "database.name" names no database')
        return cls(
            hostname=_needed(said, "hostname"),
            port=_number(said, "port", 3306, 65535),
            username=_needed(said, "username"),
            password=_password(said),
            databases=databases,
            table=said.get("table.name") or None,
            server_id=_number(said, "server.id", 0, _LARGEST_SERVER_ID) or None,
            ssl_mode=_word(said, "ssl.mode", SslMode.PREFERRED),
            ssl_ca=said.get("ssl.ca"),
            ssl_cert=said.get("ssl.cert"),
            ssl_key=said.get("ssl.key"),
            zero_dates=_word(said, "zero.dates", ZeroDates.ERROR),
            time_mode=_word(said, "time.mode", TimeMode.TIME),
            connect_timeout_s=_number(said, "connect.timeout.s", 10, 3600),
            read_timeout_s=_number(said, "read.timeout.s", 60, 3600),
            heartbeat_s=_number(said, "heartbeat.s", 5, 3600),
        )

    @property
    def address(self) -> str:
        """Whom we talk to, for people."""
        return f"{self.username}@{self.hostname}:{self.port}"

    def split_name(self, name: str) -> tuple[str, str]:
        """Database and table of a full or plain table name."""
        database, dot, table = name.partition(".")
        if not dot:
            if len(self.databases) > 1:
                raise ConfigError(
                    f'table "{name}" could be in any of {", ".join(self.databases)}',
                    hint="Write the name with its database, as in 'shop.orders'.",
                )
            return self.databases[0], name
        if database not in self.databases:
            raise ConfigError(
                f'table "{name}" is not in a database of this source',
                detail=f"The source has: {', '.join(self.databases)}.",
                hint='Add the database to "database.name".',
            )
        return database, table


def _refuse_unknown(said: Mapping[str, str]) -> None:
    for name in said:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            raise ConfigError(
                f'option "{name}" does not exist',
                hint=f'Did you mean "{near[0]}"?' if near else f"There are: {', '.join(KNOWN)}.",
            )


def _needed(said: Mapping[str, str], name: str) -> str:
    value = said.get(name, "").strip()
    if not value:
        raise ConfigError(f'option "{name}" is needed')
    return value


def _number(said: Mapping[str, str], name: str, default: int, largest: int) -> int:
    text = said.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or not 1 <= int(text) <= largest:
        raise ConfigError(f'option "{name}" is a number from 1 to {largest}, not "{text}"')
    return int(text)


def _word(said: Mapping[str, str], name: str, default: _Word) -> _Word:
    text = said.get(name)
    if text is None:
        return default
    words = type(default)
    try:
        return words(text.strip().lower().replace("-", "_"))
    except ValueError:
        raise ConfigError(f'option "{name}" is one of {", ".join(words)}, not "{text}"') from None


def _password(said: Mapping[str, str]) -> str:
    given = [name for name in ("password", "password.env", "password.file") if name in said]
    if len(given) > 1:
        raise ConfigError(f"the password is given twice: {' and '.join(given)}")
    if not given:
        return ""
    [name] = given
    value = said[name]
    if name == "password":
        return value
    if name == "password.env":
        if value not in os.environ:
            raise ConfigError(f'the environment variable "{value}" for the password is not set')
        return os.environ[value]
    try:
        return Path(value).read_text().removesuffix("\n")
    except OSError as error:
        raise ConfigError(
            f'the password cannot be read from "{value}"', detail=str(error.strerror)
        ) from None
