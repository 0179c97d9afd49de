"""What the server says, as bytes."""

import struct
from collections.abc import Mapping, Sequence

from headwater.errors import HeadwaterError
from headwater.pgwire.oids import length_of, modifier_of, oid_of
from headwater.pgwire.session import Notice, ResultColumn, TransactionStatus

AUTHENTICATED = b"R\x00\x00\x00\x08\x00\x00\x00\x00"
PARSE_COMPLETE = b"1\x00\x00\x00\x04"
BIND_COMPLETE = b"2\x00\x00\x00\x04"
CLOSE_COMPLETE = b"3\x00\x00\x00\x04"
NO_DATA = b"n\x00\x00\x00\x04"
EMPTY_QUERY = b"I\x00\x00\x00\x04"
PORTAL_SUSPENDED = b"s\x00\x00\x00\x04"
COPY_DONE = b"c\x00\x00\x00\x04"
TEXT, BINARY = 0, 1


def message(kind: bytes, *parts: bytes) -> bytes:
    """One message: its type, its length, its body."""
    body = b"".join(parts)
    return kind + struct.pack(">i", len(body) + 4) + body


def string(text: str) -> bytes:
    """Text that ends in a zero byte, and so must hold none."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode(errors="replace") + b"\x00"


def sasl_start(mechanisms: Sequence[str]) -> bytes:
    """Prove who you are by one of these."""
    return message(b"R", struct.pack(">i", 10), *map(string, mechanisms), b"\x00")


def sasl_continue(data: bytes) -> bytes:
    """The next step of the proof."""
    return message(b"R", struct.pack(">i", 11), data)


def sasl_final(data: bytes) -> bytes:
    """The last step of the proof: ours."""
    return message(b"R", struct.pack(">i", 12), data)


def negotiate(unknown: Sequence[str]) -> bytes:
    """We speak 3.0, and do not know these options of the protocol."""
    return message(b"v", struct.pack(">ii", 3 << 16, len(unknown)), *map(string, unknown))


def parameter_status(name: str, value: str) -> bytes:
    """A setting has this value."""
    return message(b"S", string(name), string(value))


def key_data(process: int, secret: bytes) -> bytes:
    """With these the client can ask to cancel."""
    return message(b"K", struct.pack(">I", process), secret)


def ready(status: TransactionStatus) -> bytes:
    """Your turn."""
    return message(b"Z", status.encode())


def row_description(columns: Sequence[ResultColumn], formats: Sequence[int]) -> bytes:
    """Names, types and formats of the rows to come."""
    parts = [struct.pack(">H", len(columns))]
    for column, code in zip(columns, formats, strict=True):
        parts.append(string(column.name))
        parts.append(
            struct.pack(
                ">ihihih",
                0,
                0,
                column.oid or oid_of(column.type),
                length_of(column.type),
                modifier_of(column.type),
                code,
            )
        )
    return message(b"T", *parts)


def parameter_description(oids: Sequence[int]) -> bytes:
    """Types of the parameters."""
    return message(b"t", struct.pack(f">H{len(oids)}I", len(oids), *oids))


def complete(tag: str) -> bytes:
    """A statement is done."""
    return message(b"C", string(tag))


def copy_in(columns: int, code: int) -> bytes:
    """Send your rows."""
    return message(b"G", struct.pack(f">bH{columns}h", code, columns, *([code] * columns)))


def copy_out(columns: int, code: int) -> bytes:
    """Here come the rows."""
    return message(b"H", struct.pack(f">bH{columns}h", code, columns, *([code] * columns)))


def error(problem: Exception, *, fatal: bool = False) -> bytes:
    """What went wrong; of an exception that is not ours, only that it happened."""
    severity = "FATAL" if fatal else "ERROR"
    if not isinstance(problem, HeadwaterError):
        fields = {"C": "XX000", "M": "internal error", "H": "The server's log says where."}
        return _report(b"E", severity, fields)
    fields = {"C": problem.sqlstate, "M": problem.message, "D": problem.detail, "H": problem.hint}
    position = getattr(problem, "position", None)
    if isinstance(position, int) and position > 0:
        fields["P"] = str(position)
        if problem.detail.startswith("LINE "):
            # Clients draw the line and the caret themselves.
            fields["D"] = ""
    return _report(b"E", severity, fields)


def notice(said: Notice) -> bytes:
    """Something to know."""
    fields = {"C": said.sqlstate, "M": said.message, "D": said.detail, "H": said.hint}
    return _report(b"N", said.severity, fields)


def _report(kind: bytes, severity: str, fields: Mapping[str, str]) -> bytes:
    named = {"S": severity, "V": severity, **fields}
    parts = [name.encode() + string(value) for name, value in named.items() if value]
    return message(kind, *parts, b"\x00")
