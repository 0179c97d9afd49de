"""Packets of the MySQL protocol, found in one buffer by a kernel.

A packet is three bytes of length, a sequence number, and that many bytes. One that is 0xFFFFFF
long goes on in the next; these are joined in place. A result, and a stream of binlog events,
ends with a packet that begins with 0xFE (end) or 0xFF (error); all others begin with 0x00.
"""

from typing import Any, Protocol

import numba
import numpy as np

_LONG = 0xFFFFFF
_FIRST = 1 << 20
_READ_AHEAD = 1 << 18

MORE, LONG, END, ERROR, FULL = 0, 1, 2, 3, 4


class ByteReader(Protocol):
    """What `socket.makefile('rb')` gives."""

    def readinto1(self, buffer: Any, /) -> int:
        """Bytes as they come; 0 when the other side hung up."""
        ...


@numba.njit(cache=True, nogil=True)
def _scan(data, place, starts, sizes, bound):  # type: ignore[no-untyped-def]
    """Note packets until there is a reason to stop: where, how many, and why."""
    at, end, count = place
    while True:
        if end - at < 4:
            return at, count, MORE
        size = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        if size == _LONG:
            return at, count, LONG
        if end - at - 4 < size:
            return at, count, MORE
        first = data[at + 4] if size else 0
        if first == 0xFF:
            return at, count, ERROR
        if first == 0xFE and size < 9:
            return at + 4 + size, count, END
        if count == starts.size or at > bound:
            return at, count, FULL
        starts[count] = at + 4
        sizes[count] = size
        count += 1
        at += 4 + size


class PacketBuffer:
    """Bytes from a connection, and where the packets in them lie.

    `data` may move when more is read, so positions are kept as numbers and not as views.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self.data = np.empty(_FIRST, dtype=np.uint8)
        self.end = 0
        self.at = 0
        self.count = 0
        self._starts = np.empty(1024, dtype=np.int64)
        self._sizes = np.empty(1024, dtype=np.int64)
        self.ended = False

    @property
    def starts(self) -> "np.ndarray[Any, Any]":
        """Where the payload of each packet begins."""
        return self._starts[: self.count]

    @property
    def sizes(self) -> "np.ndarray[Any, Any]":
        """How long each payload is."""
        return self._sizes[: self.count]

    def read_all(self, max_bytes: int) -> bool:
        """Read packets until the result ends, or about `max_bytes` are here.

        Answers whether it ended. Raises `ServerSaid` for an error packet.
        """
        while not self.ended and self.at < max_bytes:
            if not self.scan():
                self._receive(_READ_AHEAD)
        return self.ended

    def scan(self, bound: int = 1 << 62) -> bool:
        """Note the packets that are here already, up to about `bound` bytes.

        Answers whether it stopped for another reason than that bytes are missing.
        """
        while True:
            self.at, self.count, why = _scan(
                self.data, (self.at, self.end, self.count), self._starts, self._sizes, bound
            )
            if why == FULL and self.count == self._starts.size:
                self._starts = np.resize(self._starts, self.count * 2)
                self._sizes = np.resize(self._sizes, self.count * 2)
            elif why == LONG:
                self._join_long()
            elif why == ERROR:
                raise self._error()
            else:
                self.ended = self.ended or why == END
                return bool(why != MORE)

    def receive(self, at_most: int) -> int:
        """Wait for bytes and take them in; gives how many."""
        self._room(at_most)
        count = self._reader.readinto1(self.data[self.end : self.end + at_most])
        self.end += count
        return count

    def forget(self, packets: int) -> None:
        """Drop the first packets and their bytes, and move the rest to the front."""
        begin = int(self._starts[packets]) - 4 if packets < self.count else self.at
        rest = self.end - begin
        self.data[:rest] = self.data[begin : self.end].copy()
        kept = self.count - packets
        self._starts[:kept] = self._starts[packets : self.count] - begin
        self._sizes[:kept] = self._sizes[packets : self.count]
        self.count, self.end, self.at = kept, rest, self.at - begin

    def _receive(self, at_most: int) -> None:
        if self.receive(at_most) == 0:
            raise EOFError("the server hung up in the middle of an answer")

    def _room(self, size: int) -> None:
        if self.data.size - self.end < size:
            larger = np.empty(max(self.data.size * 2, self.end + size), dtype=np.uint8)
            larger[: self.end] = self.data[: self.end]
            self.data = larger

    def _need(self, end: int) -> None:
        while self.end < end:
            self._receive(max(_READ_AHEAD, end - self.end))

    def _join_long(self) -> None:
        """Take the headers out of a payload that came in several packets."""
        start, size, at = self.at + 4, 0, self.at
        while True:
            self._need(at + 4)
            part = int.from_bytes(self.data[at : at + 3].tobytes(), "little")
            if size:
                self.data[at : self.end - 4] = self.data[at + 4 : self.end].copy()
                self.end -= 4
            else:
                at += 4
            self._need(at + part)
            at += part
            size += part
            if part < _LONG:
                break
        if self.count == self._starts.size:
            self._starts = np.resize(self._starts, self.count * 2)
            self._sizes = np.resize(self._sizes, self.count * 2)
        self._starts[self.count], self._sizes[self.count] = start, size
        self.count += 1
        self.at = at

    def _error(self) -> "ServerSaid":
        size = int.from_bytes(self.data[self.at : self.at + 3].tobytes(), "little")
        payload = self.data[self.at + 4 : self.at + 4 + size].tobytes()
        text = payload[3:].decode("utf-8", "replace")
        return ServerSaid(
            int.from_bytes(payload[1:3], "little"), text[6:] if text[:1] == "#" else text
        )


class ServerSaid(Exception):
    """An error packet in the middle of a result."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
