"""Jobs and a committer for the coordinator's tests: real actors that misbehave as told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

from headwater.barrier.coordinator import Coordinator
from headwater.barrier.events import Pace
from headwater.barrier.participant import LocalOutputs, Site
from headwater.barrier.timer import Backoff
from headwater.model.barrier import Barrier, BarrierKind, Stop
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork

INITIAL = BarrierKind.INITIAL
QUICK = Pace(interval=timedelta(milliseconds=10))
SELDOM = Pace(interval=timedelta(hours=1))


@dataclass
class Memory:
    """A committer that keeps epochs in memory and fails as told."""

    epochs: dict[Epoch, StagedWork] = field(default_factory=dict)
    sealed: list[Epoch] = field(default_factory=list)
    discarded: list[tuple[JobId, ...]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def commit(self, barrier: Barrier, work: StagedWork, sealed: tuple[Epoch, ...]) -> None:
        self.running += 1
        try:
            assert self.running == 1
            await self.gate.wait()
            await asyncio.sleep(0)
            if self.faults:
                raise self.faults.pop(0)
            epoch = barrier.epoch.prev
            assert not self.epochs or epoch > max(self.epochs)
            self.epochs[epoch] = work
            self.sealed.extend(sealed)
        finally:
            self.running -= 1

    async def discard(self, jobs: tuple[JobId, ...]) -> None:
        await asyncio.sleep(0)
        self.discarded.append(jobs)

    @property
    def positions(self) -> list[str]:
        return [name for work in self.epochs.values() for name in work.positions]


@dataclass
class Counter:
    """A job whose actors stage one position per checkpoint, and misbehave as told."""

    job: JobId
    depends_on: tuple[JobId, ...] = ()
    actor_count: int = 1
    sites: list[Site] = field(default_factory=list)
    seen: list[tuple[ActorId, Barrier]] = field(default_factory=list)
    build_faults: list[Exception] = field(default_factory=list)
    crash: dict[int, BaseException] = field(default_factory=dict)
    """By place among the actors: raise this at the next barrier."""
    returns: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ended: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def build(self, site: Site) -> None:
        await asyncio.sleep(0)
        if self.build_faults:
            raise self.build_faults.pop(0)
        self.sites.append(site)

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        place = site.actors.index(actor)
        try:
            async for barrier in site.local.subscribe_barrier(actor):
                self.seen.append((actor, barrier))
                await self.gate.wait()
                if place in self.crash:
                    raise self.crash.pop(place)
                if self.returns:
                    self.returns = False
                    return
                await self.work(actor, site, outputs, barrier)
                if isinstance(barrier.mutation, Stop) and self.job in barrier.mutation.jobs:
                    return
        finally:
            self.ended += 1

    async def work(
        self, actor: ActorId, site: Site, outputs: LocalOutputs, barrier: Barrier
    ) -> None:
        staged = None
        if barrier.kind.durable:
            staged = StagedWork(positions={f"{self.job}/{actor}/{barrier.epoch.prev}": "x"})
        site.local.collect(actor, barrier, staged)

    @property
    def kinds(self) -> list[BarrierKind]:
        return [barrier.kind for _, barrier in self.seen]


@contextlib.asynccontextmanager
async def running(
    *jobs: Counter, memory: Memory | None = None, pace: Pace = SELDOM, **options: object
) -> AsyncIterator[tuple[Coordinator, Memory]]:
    memory = memory or Memory()
    options.setdefault("backoff", Backoff(first=timedelta(milliseconds=5)))
    options.setdefault("error_window", timedelta(milliseconds=5))
    options.setdefault("watch", lambda notice: None)
    coordinator = Coordinator(memory, after=NO_EPOCH, pace=pace, **options)
    await coordinator.start(jobs)
    try:
        yield coordinator, memory
    finally:
        await coordinator.stop(grace=timedelta(seconds=30))
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)
