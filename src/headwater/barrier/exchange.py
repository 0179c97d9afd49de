"""Channels between two actors on the driver, bounded in bytes.

    the sender closes        the receiver gets what is in the channel, then the stream ends
    the sender fails         what is in the channel is void; the receiver raises the error
    the receiver closes      `send` returns False from then on, and drops what it is given

A message that would exceed the bound waits until there is room; one that is larger than the
bound goes through alone. A message without a size never waits: barriers pass a full channel,
in order, and their number is bounded by the barriers under way.

Cancelling a waiting `send` or `receive` loses nothing: the message is in the channel or it is
not, and a message that was not returned is still there.
"""

import asyncio
from collections import deque
from typing import Generic, Self, TypeVar

T = TypeVar("T")

UNBOUNDED = 1 << 62
"""For channels whose messages have no size."""


class _Channel(Generic[T]):
    """What the two ends share."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.messages: deque[tuple[T, int]] = deque()
        self.ended = False
        self.abandoned = False
        self.error: BaseException | None = None
        self.readable = asyncio.Event()
        self.writable = asyncio.Event()


class LocalSender(Generic[T]):
    """The end that puts messages in; for one coroutine."""

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel = channel

    async def send(self, message: T, *, size: int = 0) -> bool:
        """Put a message in, waiting for room; False when nobody will ever receive it."""
        channel = self._channel
        while not self.gone and size and 0 < channel.held_bytes > channel.max_bytes - size:
            channel.writable.clear()
            await channel.writable.wait()
        return self._put(message, size)

    def send_nowait(self, message: T) -> bool:
        """Put a message without a size in; it never waits."""
        return self._put(message, 0)

    @property
    def gone(self) -> bool:
        """Whether the receiver has closed, or this end has."""
        return self._channel.abandoned or self._channel.ended

    def close(self) -> None:
        """No more messages come."""
        self._channel.ended = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """No more messages come, and those in the channel are void."""
        if not self._channel.ended:
            self._channel.error = error
            self._channel.messages.clear()
            self._channel.held_bytes = 0
            self.close()

    def _put(self, message: T, size: int) -> bool:
        if self.gone:
            return False
        self._channel.messages.append((message, size))
        self._channel.held_bytes += size
        self._channel.readable.set()
        return True

    def _wake(self) -> None:
        self._channel.readable.set()
        self._channel.writable.set()


class LocalReceiver(Generic[T]):
    """The end that takes messages out; for one coroutine."""

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel = channel

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        channel = self._channel
        while not channel.messages:
            if channel.error is not None:
                raise channel.error
            if channel.ended or channel.abandoned:
                raise StopAsyncIteration
            channel.readable.clear()
            await channel.readable.wait()
        message, size = channel.messages.popleft()
        channel.held_bytes -= size
        channel.writable.set()
        return message

    async def receive(self) -> T | None:
        """The next message, or None at the end."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            return None

    def close(self) -> None:
        """Take no more messages; the sender learns of it."""
        self._channel.abandoned = True
        self._channel.messages.clear()
        self._channel.held_bytes = 0
        self._channel.readable.set()
        self._channel.writable.set()


def open_channel(max_bytes: int = UNBOUNDED) -> tuple[LocalSender[T], LocalReceiver[T]]:
    """A new channel that holds about `max_bytes` at most."""
    channel: _Channel[T] = _Channel(max_bytes)
    return LocalSender(channel), LocalReceiver(channel)
