"""Barriers go past a log, rows go through it, each exactly once whatever dies."""

import asyncio
from random import Random

import pytest

from headwater.logstore.items import LogChunk, Offset
from headwater.model.barrier import Barrier, BarrierKind
from headwater.model.epoch import Epoch, EpochPair
from headwater.sinks.sync_log_store import SyncLogStoreExecutor
from headwater.testing.memory_log import MemoryLog
from sink_kit_world import table


class Store:
    """A log whose writes are seen by readers once committed, with what was truncated by then."""

    def __init__(self):
        self.log = MemoryLog()
        self.durable = MemoryLog()
        self.epoch = None
        self.pieces = []
        self.waiting = []
        self.truncated = {}

    async def init(self, epoch):
        self.epoch = epoch

    async def write_chunk(self, rows):
        self.pieces.append(rows)

    async def flush_current_epoch(self, next_epoch, *, checkpoint):
        self.waiting.append((self.epoch, self.pieces))
        self.truncated[self.epoch] = self.log.truncated
        epoch, self.epoch, self.pieces = self.epoch, next_epoch, []
        return str(epoch) if checkpoint else None

    def commit(self, epoch):
        """The ledger has everything up to an epoch."""
        due = [each for each in self.waiting if each[0] <= epoch]
        self.waiting = self.waiting[len(due) :]
        for each, pieces in due:
            self.log.write(each, pieces)
        self.durable.items = list(self.log.items)
        self.durable.truncated = self.truncated[epoch]

    def crash(self):
        self.log = MemoryLog(items=list(self.durable.items), truncated=self.durable.truncated)
        self.pieces, self.waiting, self.epoch = [], [], None


def barrier(number, kind=BarrierKind.CHECKPOINT):
    return Barrier(epoch=EpochPair(Epoch(number), Epoch(number + 1)), kind=kind)


async def test_a_barrier_passes_rows_that_wait():
    store, upstream, told = Store(), asyncio.Queue(), []

    async def stream():
        while (message := await upstream.get()) is not None:
            yield message

    async def staged(epoch, text):
        told.append((epoch, text))

    out = SyncLogStoreExecutor(store, store.log.reader(), staged).execute(stream())
    upstream.put_nowait(barrier(9, BarrierKind.INITIAL))
    assert (await anext(out)).epoch.curr == 10
    rows = [table((1, n, "x", n)) for n in range(4)]
    for each in rows:
        upstream.put_nowait(each)
    upstream.put_nowait(barrier(10))
    assert (await anext(out)).epoch.prev == 10, "the rows are not committed yet"
    assert told == [(10, "10")]
    store.commit(10)
    assert (await anext(out)).equals(rows[0])
    # More barriers come while three chunks wait; none of them waits.
    for number in (11, 12, 13):
        upstream.put_nowait(barrier(number))
    assert [(await anext(out)).epoch.prev for _ in range(3)] == [11, 12, 13]
    assert store.truncated[11] == Offset(Epoch(10), 0), "the first chunk was worked off by then"
    for each in rows[1:]:
        assert (await anext(out)).equals(each)
    upstream.put_nowait(None)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(out), 60)


async def test_every_row_is_consumed_exactly_once_over_crashes():
    for seed in range(150):
        await play(seed)


class LateStore(Store):
    """Forgets what was emitted before a barrier with the next one only."""

    async def flush_current_epoch(self, next_epoch, *, checkpoint):
        before = self.truncated.get(Epoch(self.epoch - 1), self.durable.truncated)
        text = await super().flush_current_epoch(next_epoch, checkpoint=checkpoint)
        self.truncated[Epoch(next_epoch - 1)] = before
        return text


async def test_rows_that_are_forgotten_too_late_come_twice():
    with pytest.raises(AssertionError, match="twice"):
        [await play(seed, LateStore()) for seed in range(50)]


async def play(seed, store=None):
    dice, store = Random(seed), store or Store()
    committed, number, sent = [], 10, []
    for life in range(5):
        staged_epochs, working = [], []

        async def staged(epoch, text, seen=staged_epochs):
            seen.append(epoch)

        upstream: asyncio.Queue = asyncio.Queue()

        async def stream(upstream=upstream):
            while (message := await upstream.get()) is not None:
                yield message

        out = SyncLogStoreExecutor(store, store.log.reader(), staged).execute(stream())
        upstream.put_nowait(barrier(number, BarrierKind.INITIAL))
        await anext(out)
        number += 1
        pending = []
        for _ in range(30 if life < 4 else 12):
            what = dice.random()
            if what < 0.4 and life < 4:
                key = len(sent) * 1000 + len(pending) + 1 + life * 100_000
                pending.append(key)
                upstream.put_nowait(table((1, key, "x", 0)))
            elif what < 0.7:
                upstream.put_nowait(barrier(number))
                number += 1
                while True:
                    message = await asyncio.wait_for(anext(out), 60)
                    if isinstance(message, Barrier):
                        break
                    working.append(message.column("id").to_pylist()[0])
                if dice.random() < 0.7:
                    # The consumer's work and the log's end are one commit.
                    store.commit(staged_epochs[-1])
                    committed += working
                    working.clear()
                    sent += pending
                    pending.clear()
            elif store.log.items and has_rows(store):
                message = await asyncio.wait_for(anext(out), 60)
                working.append(message.column("id").to_pylist()[0])
        await out.aclose()
        if life < 4:
            store.crash()
        else:
            committed += working
    left = [
        item.rows.column("id").to_pylist()[0]
        for item in store.log.items
        if isinstance(item, LogChunk) and item.rows.column("id").to_pylist()[0] not in committed
    ]
    assert len(committed) == len(set(committed)), "a row was consumed twice"
    assert sorted(committed + left) == sorted(sent), "a row was lost"


def has_rows(store):
    place = [item for item in store.log.items if Offset.after(item) > store.log.truncated]
    unread = [item for item in place if isinstance(item, LogChunk)]
    return len(unread) > 1
