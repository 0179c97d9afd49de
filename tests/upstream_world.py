"""A small world in virtual time: upstreams that are written, readers that follow, crashes between.

At every commit each vnode has exactly the rows that its upstream had at the epoch which the ledger
says it is at; at the end everything is at the last epoch.
"""

import asyncio
from dataclasses import dataclass
from random import Random

from headwater.backfill.snapshot.upstream.executor import (
    Consumed,
    Surroundings,
    UpstreamTableExecutor,
)
from headwater.backfill.snapshot.upstream.followed import Following
from headwater.backfill.snapshot.upstream.stream import Pace
from headwater.errors import LedgerUnavailable, SourceUnavailable, StorageUnavailable
from headwater.model.barrier import Barrier, BarrierKind, Pause, Rescale, Resume, Stop, Throttle
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.vnode import VnodeBitmap
from headwater.testing.virtual_time import run
from upstream_double import Ledger, MemoryUpstream, Seen, StrictTable, vnode

JOB = JobId(7)
KEYS = 40


@dataclass
class Table:
    """One followed table and all that there is of it."""

    id: TableId
    upstream: MemoryUpstream
    ledger: Ledger
    local: StrictTable


class Life:
    """One reader, from a start to a stop or a crash."""

    def __init__(self, world, actor, vnodes):
        self.world = world
        self.actor = actor
        self.barriers = asyncio.Queue()
        around = Surroundings(
            job=JOB,
            actor=actor,
            vnodes=vnodes,
            wait_committed=world.wait_committed,
            pace=Pace(slice_bytes=300, slices=50, stretch_bytes=1500, parallelism=2),
            pin_s=1.0,
            tell=lambda table, text: world.told.append(text),
        )
        self.executor = UpstreamTableExecutor(
            around,
            [
                Following(
                    id=table.id,
                    upstream=Seen(table.upstream, actor),
                    local=table.local,
                    stored=table.ledger.stored,
                    pins=world.pins,
                    stopped=table.ledger.stopped,
                )
                for table in world.tables
            ],
        )
        self.out = self.executor.execute(self._stream())

    async def _stream(self):
        while True:
            yield await self.barriers.get()

    async def pass_(self, barrier):
        await self.barriers.put(barrier)
        consumed = None
        async for message in self.out:
            if isinstance(message, Consumed):
                assert barrier.kind.durable, "an epoch that is not durable stores something"
                consumed = message
            else:
                assert message is barrier
                return consumed
        raise AssertionError("the stream ended before its barrier")


class World:
    def __init__(self, seed, tables=2, readers=1, pins=True):
        self.dice = Random(f"{seed}/world")
        self.pins = pins
        self.told = []
        self.tables = []
        for number in range(tables):
            ledger = Ledger()
            table = Table(TableId(number + 1), MemoryUpstream(), ledger, StrictTable(ledger))
            self.tables.append(table)
        self._head = Epoch(1)
        self.epoch = Epoch(1000)
        self.committed = Epoch(0)
        self._commits = asyncio.Event()
        self.bitmaps = dict(enumerate(VnodeBitmap.split(readers)))
        self.lives = []
        self.limit = None
        self.together = False
        self.commits = 0

    async def wait_committed(self, epoch):
        while self.committed < epoch:
            await self._commits.wait()

    def write(self, number=8):
        """One transaction over all tables."""
        self._head = Epoch(self._head + 10)
        for table in self.tables:
            keys = self.dice.sample(range(KEYS), self.dice.randrange(number))
            values = [None, f"v{self.dice.randrange(5)}", f"w{self.dice.randrange(5)}"]
            table.upstream.write({key: self.dice.choice(values) for key in keys}, self._head)

    async def start(self):
        """A new life of all readers, from what is committed."""
        for life in self.lives:
            await life.out.aclose()
        for table in self.tables:
            table.local.head = dict(table.ledger.rows)
        self.together = False
        self.lives = [Life(self, ActorId(actor), vnodes) for actor, vnodes in self.bitmaps.items()]
        await self.barrier(BarrierKind.INITIAL)
        if self.limit is not None:
            await self.barrier(BarrierKind.BARRIER, Throttle(limits={JOB: self.limit}))

    async def barrier(self, kind, mutation=None, *, crash=False):
        """Send a barrier to all readers, and commit what it brings, or crash before that."""
        prev, self.epoch = self.epoch, Epoch(self.epoch + 1)
        barrier = Barrier(epoch=EpochPair(prev=prev, curr=self.epoch), kind=kind, mutation=mutation)
        brought = await asyncio.gather(*(life.pass_(barrier) for life in self.lives))
        if crash:
            return
        if kind.durable:
            for consumed in brought:
                self._keep(consumed)
            self.committed = prev
            self._commits.set()
            self._commits.clear()
            self.commits += 1
            self.check()

    def _keep(self, consumed):
        if consumed is None:
            return
        for table in self.tables:
            if table.id in consumed.states:
                _monotone(table.ledger, consumed.states[table.id])
                table.ledger.keep(consumed.states[table.id])
                table.ledger.rows = dict(table.local.head)
            if table.id in consumed.stopped:
                table.ledger.stopped = consumed.stopped[table.id]

    def check(self):
        """Rows and states fit, vnode by vnode."""
        for table in self.tables:
            known = dict(table.ledger.rows)
            for state in table.ledger.stored():
                inside = {k: v for k, v in known.items() if state.first <= vnode(k) <= state.last}
                wanted = {
                    k: v
                    for k, v in table.upstream.at[state.epoch].items()
                    if state.first <= vnode(k) <= state.last
                }
                if state.finished:
                    assert inside == wanted, f"vnodes {state.first}-{state.last} at {state.epoch}"
                else:
                    assert inside.items() <= wanted.items()
        self._check_together()

    def _check_together(self):
        """Tables that have come together stay together, while nothing limits them."""
        at = {self._position(table) for table in self.tables if not table.ledger.stopped}
        if None in at or self.limit is not None:
            self.together = False
            return
        assert not self.together or len(at) <= 1, f"a transaction is seen in parts: {at}"
        self.together = len(at) == 1

    def _position(self, table):
        states = table.ledger.stored()
        if len(table.ledger.states) < 256 or not all(state.finished for state in states):
            return None
        epochs = {state.epoch for state in states}
        return epochs.pop() if len(epochs) == 1 else None

    def trouble(self):
        """Something does not answer just now."""
        table = self.dice.choice(self.tables)
        what = self.dice.choice(["refresh", "snapshot", "changes", "pin", "local"])
        error = self.dice.choice([SourceUnavailable, StorageUnavailable, LedgerUnavailable])("away")
        if what == "local":
            table.local.raises.append(error)
        elif not table.upstream.raises:
            table.upstream.raises.append((what, error))

    def dealt(self):
        """Other owners of the vnodes."""
        parts = len(self.bitmaps)
        if self.dice.random() < 0.5:
            return dict(enumerate(self.dice.sample(VnodeBitmap.split(parts), parts)))
        vnodes = self.dice.sample(range(256), 256)
        edges = sorted(self.dice.sample(range(256), parts - 1))
        cuts = zip([0, *edges], [*edges, 256], strict=True)
        return {n: VnodeBitmap.of(vnodes[a:b]) for n, (a, b) in enumerate(cuts)}

    async def step(self):
        """Something happens."""
        roll = self.dice.random()
        durable = [BarrierKind.CHECKPOINT, BarrierKind.SYNC_CHECKPOINT]
        kind = self.dice.choice([BarrierKind.BARRIER, *durable])
        if roll < 0.3:
            self.write()
        elif roll < 0.4:
            self.trouble()
        elif roll < 0.45:
            await self.barrier(self.dice.choice(durable), crash=True)
            await self.start()
        elif roll < 0.5:
            await self.barrier(kind, Pause())
            await asyncio.sleep(self.dice.random())
            await self.barrier(kind, Resume())
        elif roll < 0.57:
            self.limit = self.dice.choice([None, 0, 3, 30])
            await self.barrier(kind, Throttle(limits={JOB: self.limit}))
        elif roll < 0.65 and len(self.bitmaps) > 1:
            self.bitmaps = self.dealt()
            bitmaps = {ActorId(actor): vnodes for actor, vnodes in self.bitmaps.items()}
            self.together = False
            await self.barrier(BarrierKind.SYNC_CHECKPOINT, Rescale(bitmaps=bitmaps))
        elif roll < 0.75:
            for table in self.tables if self.pins else self.tables[:1]:
                table.upstream.forget(Epoch(self._head - 10 * self.dice.randrange(4)))
        else:
            await self.barrier(kind)
        self._check_limits()
        await asyncio.sleep(self.dice.choice([0, 0.01, 0.3]))

    def _check_limits(self):
        """A limit survives whatever happens to readers and vnodes. (A32)"""
        for life in self.lives:
            for followed in life.executor.tables.values():
                if followed.stream is not None:
                    assert followed.stream.limiter.limit.rows_per_s == self.limit

    async def settle(self):
        """Nothing limits any more: everything gets to the last epoch."""
        self.limit = None
        await self.barrier(BarrierKind.CHECKPOINT, Throttle(limits={JOB: None}))
        for table in self.tables:
            table.upstream.write({KEYS + 1: "last"}, Epoch(self._head + 10))
        last = Epoch(self._head + 10)
        for _ in range(400):
            if all(t.ledger.stopped or self._position(t) == last for t in self.tables):
                break
            await asyncio.sleep(0.3)
            await self.barrier(BarrierKind.CHECKPOINT)
        for table in self.tables:
            if table.ledger.stopped:
                assert not self.pins, f"what a pin holds is gone: {table.ledger.stopped}"
                continue
            assert self._position(table) == last, f"{table.id} is at {self._position(table)}"
            assert table.ledger.rows == table.upstream.at[last]
        await self._end()

    async def _end(self):
        """Stop ends the stream after its barrier."""
        await self.barrier(BarrierKind.SYNC_CHECKPOINT, Stop(jobs=(JOB,)))
        for life in self.lives:
            assert [message async for message in life.out] == []


def _monotone(ledger, states):
    """What is stored of a vnode never goes back. (A12)"""
    for state in states:
        for at in range(state.first, state.last + 1):
            before = ledger.states.get(at)
            if before is None:
                continue
            assert state.epoch >= before.epoch
            if before.finished:
                assert state.finished
            elif not state.finished:
                assert state.epoch == before.epoch
                assert state.cursor >= before.cursor


def simulate(seed, *, tables=2, readers=1, pins=True, steps=60):
    """One history; the same again for the same seed."""
    found = []

    async def main():
        world = World(seed, tables=tables, readers=readers, pins=pins)
        found.append(world)
        for _ in range(5):
            world.write(30)
        await world.start()
        for _ in range(steps):
            await world.step()
        await world.settle()

    run(main(), seed=seed, executor_latency=0.2)
    return found[0]
