"""The binlog as a stream of events, over the replication protocol.

We ask as a replica would, from a place in a file, and the server sends events for as long as
the connection lives: what is there at once, and more as it is committed. An idle server sends a
heartbeat now and then; a server that is silent for longer is taken as gone.

The stream is cut into files. Inside a file, events have one form (with or without checksums)
and table numbers one meaning; `EventBatch` never holds events of two.
"""

import ssl
import struct
import time
import uuid
from dataclasses import dataclass
from random import SystemRandom
from typing import Any

import numpy as np

from headwater.cdc.mysql.connection import MySqlConnection, server_error, translated
from headwater.cdc.mysql.events import (
    FORMAT,
    HEADER,
    OPEN,
    ROTATE,
    Events,
    file_has_checksums,
    next_file,
    read_events,
)
from headwater.cdc.mysql.marks import log_end
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.packets import PacketBuffer, ServerSaid
from headwater.cdc.mysql.pieces import Array
from headwater.cdc.offset import BinlogOffset
from headwater.errors import SourceUnavailable, UserError

_COM_BINLOG_DUMP = 0x12
_LOST = 1236
_READ = 1 << 20
_QUIET_S = 0.01
_LISTEN_S = 0.2
_HEAD = 1024
_FIRST_PLACE = 4
_POSITION_MASK = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Whole transactions of one file."""

    events: Events
    ends: Array
    """Numbers of the events that end a transaction."""
    positions: Array
    """Where in the file each of them ends."""
    next_file: str | None
    """The file that follows, when this one is read to its end."""


class _SocketReader:
    """Reads from a socket, plain or TLS, for as long as `wait_s`."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.wait_s = 1.0

    def readinto1(self, buffer: Any, /) -> int:
        """Bytes as they come; 0 when the other side hung up."""
        self._sock.settimeout(self.wait_s)
        return int(self._sock.recv_into(buffer))


class BinlogStream:
    """Events after one place. Made anew for another place, or when the connection broke."""

    def __init__(self, options: MySqlOptions, after: BinlogOffset) -> None:
        self._options = options
        self.file = after.file
        self.position = after.position
        self._checksum: bool | None = None
        self._quiet = True
        self._connection = MySqlConnection(options)
        try:
            self.known_end = log_end(self._connection)
            self._ask(after)
        except BaseException:
            self._connection.close()
            raise
        self._reader = _SocketReader(self._connection.driver._sock)
        self._buffer = PacketBuffer(self._reader)
        self._heard_at = time.monotonic()

    @property
    def mariadb(self) -> bool:
        """Which server it is."""
        return self._connection.mariadb

    @property
    def behind(self) -> bool:
        """Whether there is more than has been taken, as far as is known."""
        return not self._quiet or self.at < self.known_end

    @property
    def at(self) -> BinlogOffset:
        """Up to where events have been taken."""
        return BinlogOffset(self.file, self.position)

    def read(self, max_bytes: int) -> EventBatch | None:
        """Whole transactions, as far as they are here; None when there is none.

        A transaction larger than `max_bytes` comes whole. They are read again until `take`.
        """
        budget = max_bytes
        while True:
            # The head of a file is passed over while little is here, since the rest is moved then.
            self._quiet = not self._fill(_HEAD if self._checksum is None else budget)
            batch = self._batch()
            if batch is not None:
                return batch
            if self._quiet and self._checksum is not None:
                if self.at >= self.known_end:
                    return None
            elif self._buffer.at >= budget:
                budget *= 2

    def take(self, batch: EventBatch, transactions: int) -> None:
        """The first transactions of a batch are done; all of them when the file is, too."""
        if transactions == len(batch.ends):
            if batch.next_file is not None:
                self._buffer.forget(len(batch.events) and int(batch.events.table[-1, 6]) + 1)
                self.file, self.position, self._checksum = batch.next_file, _FIRST_PLACE, None
                return
            if not transactions:
                return
        number = int(batch.ends[transactions - 1])
        self._buffer.forget(int(batch.events.table[number, 6]) + 1)
        self.position = int(batch.positions[transactions - 1])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, after: BinlogOffset) -> None:
        connection, options = self._connection, self._options
        period = options.heartbeat_s * 1_000_000_000
        server_id = options.server_id or SystemRandom().randrange(1 << 20, 1 << 31)
        words = ("master",) if connection.mariadb else ("master", "source")
        settings = [
            setting
            for word in words
            for setting in (
                f"@{word}_binlog_checksum = @@GLOBAL.binlog_checksum",
                f"@{word}_heartbeat_period = {period}",
            )
        ]
        if connection.mariadb:
            settings.append("@mariadb_slave_capability = 4")
        else:
            settings += [f"@{word}_uuid = '{uuid.uuid4()}'" for word in ("slave", "replica")]
        connection.query(f"SET {', '.join(settings)}")
        request = struct.pack("<IHI", after.position, 0, server_id) + after.file.encode()
        with translated(options):
            connection.driver._execute_command(_COM_BINLOG_DUMP, request)

    def _fill(self, budget: int) -> bool:
        """Take in what comes, up to the budget; False when it was quiet before that.

        A server that never falls silent is not listened to for long: what is here must go on.
        """
        enough = time.monotonic() + _LISTEN_S
        with translated(self._options):
            try:
                self._buffer.scan(budget)
                while self._buffer.at < budget and time.monotonic() < enough:
                    if not self._receive():
                        return False
                    self._buffer.scan(budget)
            except ServerSaid as said:
                if said.code == _LOST:
                    raise lost_position(self.at, said.text) from None
                raise server_error(self._options, said.code, said.text) from None
        if self._buffer.ended:
            raise SourceUnavailable("the server ended the stream of its binlog")
        return True

    def _receive(self) -> bool:
        self._reader.wait_s = _QUIET_S
        try:
            count = self._buffer.receive(_READ)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            silent = time.monotonic() - self._heard_at
            if silent > max(3 * self._options.heartbeat_s, self._options.read_timeout_s):
                raise SourceUnavailable(f"the server has been silent for {silent:.0f} s") from None
            return False
        if count == 0:
            raise SourceUnavailable("the server closed the stream of its binlog")
        self._heard_at = time.monotonic()
        return True

    def _batch(self) -> EventBatch | None:
        buffer = self._buffer
        if self._checksum is None:
            self._begin_file()
            return None
        if not buffer.count:
            return None
        events = read_events(buffer.data, buffer.starts, buffer.sizes, checksum=self._checksum)
        following = None
        if len(events) and events.types[-1] == ROTATE:
            following = next_file(events.body(len(events) - 1), self.at.number)
        ends = np.flatnonzero(events.ends != OPEN)
        if not len(ends) and following is None:
            return None
        positions = self._positions(events.table[ends, 3])
        return EventBatch(events, ends, positions, following)

    def _positions(self, ends: Array) -> Array:
        """Places in the file; headers have only the lower 32 bits of them."""
        before = np.concatenate([[self.position & _POSITION_MASK], ends[:-1]])
        rounds = (self.position >> 32) + np.cumsum(ends < before)
        return np.asarray(ends + (rounds << 32))

    def _begin_file(self) -> None:
        """Pass over what the server sends before a file's own events; learns their form."""
        buffer = self._buffer
        for packet in range(buffer.count):
            start, size = int(buffer.starts[packet]), int(buffer.sizes[packet])
            if buffer.data[start + 5] == FORMAT:
                body = buffer.data[start + 1 + HEADER : start + size].tobytes()
                self._checksum = file_has_checksums(body)
                buffer.forget(packet + 1)
                return


def lost_position(at: BinlogOffset, said: str) -> UserError:
    """What to say when the log no longer has our place."""
    return UserError(
        f"the binlog no longer has position {at}",
        detail=said,
        hint="Changes between are gone at the server, so the tables have to be filled anew: drop "
        "the source and create it again. Let the server keep its binlog for longer "
        "(binlog_expire_logs_seconds, or expire_logs_days).",
    )
