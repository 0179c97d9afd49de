"""Decouples barriers from data inside a job: rows go through a log, barriers go past it.

    upstream ---- rows ----> log ---- rows, later ----> downstream
             -- barriers -----------------------------> at once

A consumer that is slow, such as a join that has much to look up, then delays rows and no epoch.
Rows reach it once the ledger has their epoch, and belong to the epoch in which they are emitted.

Promises
    At once     A barrier waits for one chunk at most, the one that the consumer has in its hands.
    Exactly     What was emitted before a barrier is forgotten by the log with that same barrier:
    once        the epoch that commits the consumer's work commits that the rows are consumed.
    Bounded     The log holds some bytes in memory, and the rest in storage.

Why the log is flushed when a barrier is forwarded, and not when it arrives: rows that are emitted
in between would count as consumed one epoch too late, and come twice after a crash.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from headwater.logstore.items import LogChunk, LogItem, LogReader, Offset
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch

Message: TypeAlias = "pa.Table | Barrier"
"""Rows as the log has them (`OP`, `VNODE`, columns), or the boundary after them."""


class LogWriter(Protocol):
    """The writing end of a log; `logstore.writer.KvLogStoreWriter`."""

    async def init(self, epoch: Epoch) -> None:
        """Begin to write with this epoch."""
        ...

    async def write_chunk(self, rows: pa.Table) -> None:
        """Add rows to the epoch that goes on."""
        ...

    async def flush_current_epoch(self, next_epoch: Epoch, *, checkpoint: bool) -> str | None:
        """End the epoch; at a checkpoint give the text that the ledger is to have."""
        ...


class SyncLogStoreExecutor:
    """One input of a job, buffered in a log."""

    def __init__(
        self,
        writer: LogWriter,
        reader: LogReader,
        staged: Callable[[Epoch, str], Awaitable[None]],
    ) -> None:
        """`staged` is told what the ledger is to have, before that checkpoint is forwarded."""
        self._writer = writer
        self._reader = reader
        self._staged = staged

    async def execute(self, upstream: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Barriers as they come, rows as the consumer takes them; ends with `upstream`."""
        await self._reader.init()
        await self._reader.start_from()
        first = True
        incoming: asyncio.Future[Message] | None = None
        outgoing: asyncio.Future[LogItem] | None = None
        try:
            while True:
                incoming = incoming or asyncio.ensure_future(_next(upstream))
                outgoing = outgoing or asyncio.ensure_future(self._reader.next_item())
                waits: set[asyncio.Future[Any]] = {incoming, outgoing}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if incoming.done():
                    # What comes in goes first: a barrier must not wait for rows before it.
                    done, incoming = incoming, None
                    try:
                        message = done.result()
                    except StopAsyncIteration:
                        return
                    if isinstance(message, Barrier):
                        await self._pass(message, first=first)
                        first = False
                        yield message
                    else:
                        await self._writer.write_chunk(message)
                    continue
                item, outgoing = outgoing.result(), None
                if isinstance(item, LogChunk):
                    yield await self._reader.load(item)
                # The consumer has asked for more: what it was given, it has worked off.
                self._reader.truncate(Offset.after(item))
        finally:
            await _cancelled(incoming, outgoing)

    async def _pass(self, barrier: Barrier, *, first: bool) -> None:
        if first:
            await self._writer.init(barrier.epoch.curr)
            return
        text = await self._writer.flush_current_epoch(
            barrier.epoch.curr, checkpoint=barrier.kind.durable
        )
        if text is not None:
            await self._staged(barrier.epoch.prev, text)


async def _next(upstream: AsyncIterator[Message]) -> Message:
    return await anext(upstream)


async def _cancelled(*waits: "asyncio.Future[Any] | None") -> None:
    for wait in waits:
        if wait is not None and not wait.done():
            wait.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await wait
