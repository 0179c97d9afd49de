"""What the server asks of whoever answers statements.

The protocol knows bytes, types and turns of speech; it does not know SQL. Each connection has
one `Session`, which the protocol drives with the texts that the client sent and which answers
with results:

    result      what the client gets
    Rows        a row description, the rows as they come, then the tag
    Done        the tag alone
    CopyIn      a request for data, then the tag with the number of rows
    CopyOut     the rows as a COPY stream, then the tag

Promises of the protocol toward a session
    One at a time    No call begins before the last one ended and its result was consumed,
                     except `cancel`, which may come at any moment.
    Portals          are the exception to "consumed": a result of `execute` may be left half
                     read while other statements run, until the transaction ends.
    Closed           Every stream of batches is read to its end or closed (`aclose`), and every
                     session is closed, exactly once, however the client left.
    Cancelled tasks  When the client is gone, `cancel` is called and then the task that waits
                     inside the session is cancelled. A session must survive that at any await.

An error is raised as a `HeadwaterError`, before a result or from its stream; its `sqlstate`,
`detail`, `hint` and, where it has one, `position` (1-based, in characters of the text) reach the
client. Any other exception is shown as an internal error without its text.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import pyarrow as pa

from headwater.model.types import DataType

TransactionStatus = Literal["I", "T", "E"]
"""Idle; inside a transaction; inside a failed transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumn:
    """A column of a result; `oid` is told instead of the type's own if both are spelled alike."""

    name: str
    type: DataType
    oid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a statement takes and gives; no type means any text will do, None means no rows.

    `parameter_oids` are told instead of the types' own, where both are spelled alike; 0 is none.
    """

    parameters: tuple[DataType | None, ...] = ()
    columns: tuple[ResultColumn, ...] | None = None
    parameter_oids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value bound to `$n`.

    type                                       value
    boolean                                    bool
    smallint, integer, bigint                  int
    real, double                               float
    decimal, numeric                           Decimal
    bytea                                      bytes
    date, time, timestamp(tz), interval,
    jsonb, uuid, varchar, struct               str, as the client or PostgreSQL spells it
    T[]                                        list

    `text` is the same value as PostgreSQL reads it in a literal. Both are None for null.
    """

    type: DataType
    text: str | None
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the client should be told that is not an error."""

    message: str
    severity: Literal["NOTICE", "WARNING", "INFO", "LOG", "DEBUG"] = "NOTICE"
    sqlstate: str = "00000"
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows in batches whose columns are those promised, by place; names inside do not matter.

    The tag is `tag` followed by the number of rows sent, where it ends in a blank: "SELECT ",
    "INSERT 0 ". Otherwise it is sent as it is.
    """

    columns: tuple[ResultColumn, ...]
    batches: AsyncIterator[pa.RecordBatch]
    tag: str = "SELECT "
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A statement that gives no rows, and its tag: "CREATE TABLE", "INSERT 0 3".

    The tags "DEALLOCATE ALL" and "DISCARD ALL" make the protocol forget what was prepared.
    """

    tag: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How a COPY stream is spelled; empty means the default of the format."""

    format: Literal["text", "csv", "binary"] = "text"
    delimiter: str = ""
    null: str | None = None
    header: bool = False
    quote: str = '"'
    escape: str = ""


class CopyTarget(Protocol):
    """Where the rows of `COPY ... FROM STDIN` go."""

    async def write(self, rows: pa.RecordBatch) -> None:
        """Take rows: one string column per column of the copy, in PostgreSQL's input spelling.

        Called any number of times, never with an empty batch, and not again after it raised.
        """
        ...

    async def finish(self) -> int:
        """Make the rows take effect, all of them, and say how many; called once, at the end."""
        ...

    async def abort(self) -> None:
        """Forget the rows: the client gave up, the data was bad, or `write`/`finish` raised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIn:
    """Rows wanted from the client; the tag is "COPY n"."""

    columns: tuple[ResultColumn, ...]
    target: CopyTarget
    options: CopyOptions = field(default_factory=CopyOptions)
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOut:
    """Rows for the client as a COPY stream; the tag is "COPY n"."""

    columns: tuple[ResultColumn, ...]
    batches: AsyncIterator[pa.RecordBatch]
    options: CopyOptions = field(default_factory=CopyOptions)
    notices: tuple[Notice, ...] = ()


StatementResult = Rows | Done | CopyIn | CopyOut


class Session(Protocol):
    """One client's conversation."""

    @property
    def transaction_status(self) -> TransactionStatus:
        """Read after every statement and told to the client."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Values of settings that clients are told of, such as TimeZone and application_name.

        Read after every statement; what changed is reported. `TimeZone` also decides how
        timestamps with zone are spelled. Settings that are missing here keep their defaults.
        """
        ...

    def simple(self, text: str) -> AsyncGenerator[StatementResult, None]:
        """Run the statements of `text`, in order; an empty text gives nothing.

        The next statement must not begin before the result of the one before was consumed,
        which is so by itself when this is an async generator. An error ends the whole text.
        """
        ...

    async def describe(self, text: str, parameter_oids: Sequence[int]) -> Described:
        """Say what one statement takes and gives, without running it.

        Called once for each statement that a client prepares. An oid of 0, or one that is
        missing, leaves the type to the session. Several statements in one text are an error.
        """
        ...

    async def execute(self, text: str, parameters: Sequence[Parameter]) -> StatementResult | None:
        """Run one prepared statement; None when its text is empty.

        Called once for each portal, when its first row is wanted. The statement may have been
        described long ago; if its columns changed since, the client is told so.
        """
        ...

    def fail(self) -> None:
        """Note that the client was told of an error: an open transaction has failed now.

        Called after every error, also those that the session raised itself, and also those
        that it cannot know of, such as a bad parameter or a value that cannot be sent.
        """
        ...

    def cancel(self) -> None:
        """Stop what runs now, if anything does, from any task; it should raise with 57014."""
        ...

    async def close(self) -> None:
        """Give back everything. Called once, also when the client just vanished."""
        ...


class Sessions(Protocol):
    """Where sessions come from."""

    async def open(
        self, user: str, database: str, options: Mapping[str, str], peer: str
    ) -> Session:
        """Begin a session for a client who has proved to be `user`.

        `options` are the client's start-up settings (application_name, TimeZone, ...) under the
        names that it used. Raise to refuse: 57P03 while starting, 3D000 for an unknown database.
        """
        ...
