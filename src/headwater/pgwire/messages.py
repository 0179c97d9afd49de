"""What clients say, as values: the body of each message read with every bound checked.

A body that does not hold what its message must hold is refused with 08P01, text that is not
UTF-8 with 22021. Neither ends the connection: the next message begins where the length says.
"""

import struct
from dataclasses import dataclass
from typing import NoReturn

from headwater.pgwire.violation import ProtocolViolation, WireError

CANCEL_REQUEST = 80877102
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Who the client is and what it wants; `minor` is the protocol's."""

    minor: int
    options: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """Stop what the connection with this number and secret does."""

    process: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class EncryptionRequest:
    """May we speak through TLS, or through GSS?"""

    tls: bool


@dataclass(frozen=True, slots=True)
class Query:
    """Run this text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """Prepare this text under this name."""

    name: str
    text: str
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Make a portal out of a statement and values."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """Say what a statement (or a portal) takes and gives."""

    portal: bool
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """Give rows of a portal, so many at most; 0 for all."""

    portal: str
    max_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Forget a statement (or a portal)."""

    portal: bool
    name: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Send what you have."""


@dataclass(frozen=True, slots=True)
class Sync:
    """End of a group of messages."""


@dataclass(frozen=True, slots=True)
class CopyData:
    """A piece of a COPY stream."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CopyDone:
    """End of a COPY stream."""


@dataclass(frozen=True, slots=True)
class CopyFail:
    """The client gives up its COPY stream."""

    reason: str


@dataclass(frozen=True, slots=True)
class Password:
    """A step of the proof of identity."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The old way to call a function, which is not offered."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Good-bye."""


Message = (
    Query
    | Parse
    | Bind
    | Describe
    | Execute
    | Close
    | Flush
    | Sync
    | CopyData
    | CopyDone
    | CopyFail
    | Password
    | FunctionCall
    | Terminate
)


class Body:
    """Reads the parts of a message, never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            self._broken()
        part = self._data[self._at : end]
        self._at = end
        return part

    def int16(self) -> int:
        """A signed number of two bytes."""
        return int.from_bytes(self.bytes(2), "big", signed=True)

    def int32(self) -> int:
        """A signed number of four bytes."""
        return int.from_bytes(self.bytes(4), "big", signed=True)

    def uint32(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self.bytes(4), "big")

    def string(self) -> str:
        """Text up to a zero byte."""
        end = self._data.find(b"\x00", self._at)
        if end < 0:
            self._broken()
        part = self._data[self._at : end]
        self._at = end + 1
        return utf8(part)

    def count16(self, each: int) -> int:
        """How many parts of at least `each` bytes follow; they must fit."""
        count = int.from_bytes(self.bytes(2), "big")
        if count * each > len(self._data) - self._at:
            self._broken()
        return count

    @property
    def rest(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._at

    def end(self) -> None:
        """There must be nothing left."""
        if self.rest:
            self._broken()

    def _broken(self) -> NoReturn:
        raise WireError("invalid message format", "08P01")


def utf8(data: bytes) -> str:
    """Text, or the refusal of what is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = data[error.start : error.start + 4].hex(" ")
        raise WireError(
            f'invalid byte sequence for encoding "UTF8": {wrong}',
            "22021",
            hint="Headwater speaks UTF-8 only.",
        ) from None


def read_start_up(data: bytes) -> Startup | CancelRequest | EncryptionRequest:
    """The first message of a connection."""
    body = Body(data)
    try:
        version = body.uint32()
        if version in (SSL_REQUEST, GSS_REQUEST):
            body.end()
            return EncryptionRequest(version == SSL_REQUEST)
        if version == CANCEL_REQUEST:
            process = body.uint32()
            return CancelRequest(process=process, secret=body.bytes(body.rest))
        major, minor = version >> 16, version & 0xFFFF
        if major != 3:
            raise ProtocolViolation(
                f"unsupported frontend protocol {major}.{minor}: server supports 3.0", "0A000"
            )
        options: dict[str, str] = {}
        while name := body.string():
            options[name] = body.string()
        body.end()
    except ProtocolViolation:
        raise
    except WireError as error:
        raise ProtocolViolation("invalid startup packet layout", error.sqlstate) from None
    return Startup(minor=minor, options=options)


def read_message(kind: int, data: bytes) -> Message:  # noqa: PLR0911, PLR0912  one per message
    """What a message with this type byte says."""
    body = Body(data)
    match chr(kind):
        case "Q":
            text = body.string()
            body.end()
            return Query(text)
        case "P":
            return _read_parse(body)
        case "B":
            return _read_bind(body)
        case "D":
            portal, name = _read_target(body)
            return Describe(portal=portal, name=name)
        case "C":
            portal, name = _read_target(body)
            return Close(portal=portal, name=name)
        case "E":
            name, max_rows = body.string(), body.int32()
            body.end()
            return Execute(portal=name, max_rows=max(max_rows, 0))
        case "H":
            return Flush()
        case "S":
            return Sync()
        case "d":
            return CopyData(data)
        case "c":
            return CopyDone()
        case "f":
            return CopyFail(body.string())
        case "p":
            return Password(data)
        case "F":
            return FunctionCall()
        case "X":
            return Terminate()
    raise ProtocolViolation(f"invalid frontend message type {kind}")


def _read_parse(body: Body) -> Parse:
    name, text = body.string(), body.string()
    count = body.count16(4)
    oids = struct.unpack(f">{count}I", body.bytes(4 * count))
    body.end()
    return Parse(name=name, text=text, oids=oids)


def _read_bind(body: Body) -> Bind:
    portal, statement = body.string(), body.string()
    formats = _read_formats(body)
    values: list[bytes | None] = []
    for _ in range(body.count16(4)):
        size = body.int32()
        values.append(None if size == -1 else body.bytes(size))
    result_formats = _read_formats(body)
    body.end()
    return Bind(
        portal=portal,
        statement=statement,
        formats=formats,
        values=tuple(values),
        result_formats=result_formats,
    )


def _read_formats(body: Body) -> tuple[int, ...]:
    count = body.count16(2)
    formats = struct.unpack(f">{count}h", body.bytes(2 * count))
    for code in formats:
        if code not in (0, 1):
            raise WireError(f"invalid format code: {code}", "08P01")
    return formats


def _read_target(body: Body) -> tuple[bool, str]:
    kind, name = body.bytes(1), body.string()
    body.end()
    if kind not in (b"S", b"P"):
        raise WireError(f"invalid subtype of a message: {kind!r}", "08P01")
    return kind == b"P", name
