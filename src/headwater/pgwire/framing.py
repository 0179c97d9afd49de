"""Cut the stream of bytes into messages, whatever pieces it arrives in.

The first messages of a connection have a length alone; all later ones a type byte before it. A
length is checked before anything is kept for it, so that a client can never make the server
hold more than the limit of the message that it is sending:

    message                                        limit
    start-up, before anybody is known              10,000 bytes
    password, while the client proves who it is    65,536 bytes
    Query, Parse, Bind, CopyData                   `message_bytes`
    all others                                     65,536 bytes

Promises
    Pure         No I/O.
    Lazy         A message is cut off when it is asked for.
    Exact        The same messages come out, however the bytes were split.
"""

from headwater.pgwire.violation import ProtocolViolation

START_UP_BYTES = 10_000
SMALL_BYTES = 65_536
MESSAGE_BYTES = 64 << 20

_LARGE = frozenset(b"QPBd")
_KNOWN = frozenset(b"QPBDECHSdcfpXF")


class Frames:
    """Bytes in, messages out."""

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self._message_bytes = message_bytes
        self._buffer = bytearray()
        self._starting = True
        self._large_allowed = False

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        self._buffer += data

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return len(self._buffer)

    @property
    def ready(self) -> bool:
        """Whether a whole message waits, or one that is wrong already."""
        try:
            head, size = self._measure()
        except ProtocolViolation:
            return True
        return size > 0 and len(self._buffer) >= head + size

    @property
    def ends_with_goodbye(self) -> bool:
        """Whether the last bytes are those of Terminate."""
        return not self._starting and self._buffer.endswith(b"X\x00\x00\x00\x04")

    def begin_messages(self) -> None:
        """From now on messages have a type; the client is not known yet."""
        self._starting = False

    def allow_large(self) -> None:
        """From now on the client is known and may send large messages."""
        self._large_allowed = True

    def next_start_up(self) -> bytes | None:
        """The body of the next message without a type, or None while it is not all here."""
        frame = self._cut()
        return None if frame is None else frame[1]

    def next(self) -> tuple[int, bytes] | None:
        """Type and body of the next message, or None while it is not all here."""
        return self._cut()

    def _measure(self) -> tuple[int, int]:
        """Bytes before the length, and bytes from there on; the latter 0 while not known."""
        head = 0 if self._starting else 1
        if head and self._buffer and self._buffer[0] not in _KNOWN:
            raise ProtocolViolation(f"invalid frontend message type {self._buffer[0]}")
        if len(self._buffer) < head + 4:
            return head, 0
        size = int.from_bytes(self._buffer[head : head + 4], "big", signed=True)
        if size < (8 if self._starting else 4):
            raise ProtocolViolation("invalid message length")
        if size > self._limit():
            raise ProtocolViolation(
                f"a message of {size} bytes is longer than the limit of {self._limit()}",
                hint="Send large data with COPY, or in several statements.",
            )
        return head, size

    def _limit(self) -> int:
        if self._starting:
            return START_UP_BYTES
        if self._large_allowed and self._buffer[0] in _LARGE:
            return self._message_bytes
        return SMALL_BYTES

    def _cut(self) -> tuple[int, bytes] | None:
        head, size = self._measure()
        if size == 0 or len(self._buffer) < head + size:
            return None
        kind = self._buffer[0] if head else 0
        body = bytes(memoryview(self._buffer)[head + 4 : head + size])
        del self._buffer[: head + size]
        return kind, body
