"""One client's connection: messages in, bytes out, both bounded.

Promises
    In      Reading stops while a large amount of unread messages waits, and goes on later.
    Out     `drain` waits while the client is slow, so that at most a few pieces are in memory.
    Gone    When the client is gone, `on_gone` is called at once, also in the middle of a
            statement, and every wait ends with ClientGone.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from headwater.pgwire.framing import Frames

HIGH_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_LINGER_S = 5.0


class ClientGone(Exception):
    """There is nobody to talk to."""


class Channel(asyncio.Protocol):
    """The transport's other end."""

    def __init__(self, frames: Frames, on_made: "Callable[[Channel], None]") -> None:
        self.frames = frames
        self.on_gone: Callable[[], None] = lambda: None
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._ended = False
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._take(cast(asyncio.Transport, transport))
        self._on_made(self)

    def _take(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.frames.feed(data)
        if self.frames.held > HIGH_BYTES and self.frames.ready and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """Called by the loop; a client that said good-bye is heard out before it is gone."""
        if self.frames.ends_with_goodbye:
            self._ended = True
            _wake(self._reader)
            return True
        self._lose()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        del error
        self._lose()

    def pause_writing(self) -> None:
        """Called by the loop."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._writing_paused = False
        _wake(self._writer)

    @property
    def peer(self) -> str:
        """The client's address, or nothing."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return str(name[0]) if isinstance(name, tuple) else ""

    async def read_start_up(self) -> bytes:
        """The body of the next message without a type."""
        while (body := self.frames.next_start_up()) is None:
            await self._more()
        return body

    async def read(self) -> tuple[int, bytes]:
        """Type and body of the next message."""
        while (frame := self.frames.next()) is None:
            await self._more()
        if self._reading_paused and self.frames.held < HIGH_BYTES // 2:
            self._resume_reading()
        return frame

    def interrupt(self, error: Exception) -> None:
        """Make a wait for the next message end with this error."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_exception(error)

    def write(self, data: bytes | memoryview) -> None:
        """Keep bytes for the client; they go out in large pieces, or by `flush`."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending and self._transport is not None and not self.gone:
            self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))

    @property
    def crowded(self) -> bool:
        """Whether the client has much unread."""
        return self._writing_paused

    async def drain(self) -> None:
        """Send what was kept, and wait while the client has too much unread."""
        self.flush()
        while self._writing_paused and not self.gone:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        if self.gone:
            raise ClientGone

    async def start_tls(self, context: ssl.SSLContext, limit_s: float) -> None:
        """Go on through TLS; the client has been told."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=limit_s
            )
        except (OSError, TimeoutError) as error:
            raise ClientGone from error
        if secured is None:
            raise ClientGone
        self._take(secured)

    def close(self) -> None:
        """Send what was kept and hang up, soon also on a client that does not read it."""
        self.flush()
        if self._transport is not None and not self.gone:
            self._transport.close()
            asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self.gone or self._ended:
            raise ClientGone
        self._resume_reading()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self.gone:
            self._reading_paused = False
            self._transport.resume_reading()

    def _lose(self) -> None:
        if self.gone:
            return
        self.gone = True
        _wake(self._reader)
        _wake(self._writer)
        self.on_gone()


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
