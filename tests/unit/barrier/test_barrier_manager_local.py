"""The bridge between actors and coordinator: events, subscriptions, channels, and virtual time."""

import asyncio
import selectors
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from headwater.barrier.conductor import Conductor
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.crew import Crew, most_telling
from headwater.barrier.events import Pace
from headwater.barrier.exchange import open_channel
from headwater.barrier.local import (
    BarrierCollectedEvent,
    BarrierSubscribed,
    LocalBarrierEvent,
    LocalBarrierManager,
)
from headwater.barrier.timer import Backoff
from headwater.errors import ActorFailed, BrokenInvariant, SourceUnavailable, UserError
from headwater.model.barrier import Barrier, BarrierKind
from headwater.model.epoch import NO_EPOCH, Epoch, EpochPair
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork


def barrier(prev: int) -> Barrier:
    return Barrier(epoch=EpochPair(Epoch(prev), Epoch(prev + 1)), kind=BarrierKind.CHECKPOINT)


async def hear(local: LocalBarrierManager, crew: Crew) -> None:
    """Handle subscriptions and collections as the coordinator does."""
    while True:
        event = await local.next_event()
        match event:
            case BarrierSubscribed(actor=actor, sender=sender):
                crew.subscribe(actor, sender)
            case BarrierCollectedEvent(actor=actor):
                crew.note_collected(actor)
            case _:
                pass
        local.done()


@pytest.fixture
async def bridge():
    local = LocalBarrierManager(channel_bytes=100)
    crew = Crew(local)
    task = asyncio.create_task(hear(local, crew))
    yield local, crew
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_barrier_manager_only_puts_events_in_order():
    local = LocalBarrierManager()
    local.subscribe_barrier(ActorId(1))
    local.register_local_upstream_output(ActorId(1), ActorId(2))
    local.collect(ActorId(1), barrier(5), StagedWork(positions={"a": "1"}))
    local.notify_failure(ActorId(1), ValueError("boom"))
    names = [type(await local.next_event()).__name__ for _ in range(4)]
    assert names == [
        "BarrierSubscribed",
        "LocalUpstreamOutputRegistered",
        "BarrierCollectedEvent",
        "ActorFailureReported",
    ]


def test_barrier_manager_has_a_variant_for_everything_an_actor_can_say():
    """Each variant is named in the one place that handles them."""
    import inspect

    handler = inspect.getsource(Conductor._hear)
    variants = get_args(LocalBarrierEvent)
    assert len(variants) == 6
    for variant in variants:
        assert f"case {variant.__name__}(" in handler
    assert "assert_never" in handler


async def test_barrier_manager_a_new_subscriber_gets_every_pending_barrier(bridge):
    local, crew = bridge
    [actor] = crew.hire(JobId(1), 1)
    crew.deliver(actor, barrier(1), last=False)
    crew.deliver(actor, barrier(2), last=False)
    first, second = local.subscribe_barrier(actor), local.subscribe_barrier(actor)
    await local.handled()
    crew.deliver(actor, barrier(3), last=True)
    for receiver in (first, second):
        assert [each.epoch.prev async for each in receiver] == [1, 2, 3]


async def test_barrier_manager_subscribing_after_the_first_collection_is_an_error(bridge):
    local, crew = bridge
    [actor] = crew.hire(JobId(1), 1)
    crew.deliver(actor, barrier(1), last=False)
    local.collect(actor, barrier(1))
    late = local.subscribe_barrier(actor)
    with pytest.raises(BrokenInvariant, match="after it had collected"):
        await anext(late)


async def test_barrier_manager_an_actor_that_is_gone_gets_no_barriers(bridge):
    local, _ = bridge
    assert await local.subscribe_barrier(ActorId(77)).receive() is None


async def test_barrier_manager_channel_waits_for_room_in_bytes():
    sender, receiver = open_channel(100)
    await sender.send("a", size=60)
    blocked = asyncio.create_task(sender.send("b", size=60))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert await receiver.receive() == "a"
    assert await blocked
    assert await receiver.receive() == "b"


async def test_barrier_manager_channel_lets_a_large_message_through_alone():
    sender, receiver = open_channel(100)
    assert await asyncio.wait_for(sender.send("large", size=1000), 60)
    blocked = asyncio.create_task(sender.send("small", size=1))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert await receiver.receive() == "large"
    assert await blocked


async def test_barrier_manager_barriers_pass_a_full_channel_in_order():
    sender, receiver = open_channel(10)
    await sender.send("row", size=10)
    assert await asyncio.wait_for(sender.send(barrier(1)), 60)
    assert await receiver.receive() == "row"
    assert (await receiver.receive()).epoch.prev == 1


async def test_barrier_manager_channel_closes_after_what_is_in_it():
    sender, receiver = open_channel()
    await sender.send("a")
    sender.close()
    assert [each async for each in receiver] == ["a"]
    assert await receiver.receive() is None


async def test_barrier_manager_channel_fails_at_once():
    sender, receiver = open_channel()
    await sender.send("a")
    sender.fail(SourceUnavailable("away"))
    with pytest.raises(SourceUnavailable):
        await receiver.receive()


async def test_barrier_manager_channel_tells_the_sender_that_nobody_listens():
    sender, receiver = open_channel(10)
    await sender.send("a", size=10)
    blocked = asyncio.create_task(sender.send("b", size=10))
    await asyncio.sleep(0)
    receiver.close()
    assert await blocked is False
    assert await sender.send("c") is False
    assert sender.gone


async def test_barrier_manager_cancelling_a_receive_loses_nothing():
    sender, receiver = open_channel()
    waiting = asyncio.create_task(receiver.receive())
    await asyncio.sleep(0)
    await sender.send("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await receiver.receive() == "a"


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([asyncio.CancelledError(), ActorFailed("echo"), ValueError("x")], ValueError),
        ([ValueError("x"), SourceUnavailable("away")], SourceUnavailable),
        ([SourceUnavailable("away"), UserError("bad")], UserError),
        ([asyncio.CancelledError(), ActorFailed("echo")], ActorFailed),
    ],
)
def test_barrier_manager_picks_the_most_telling_error(errors, cause):
    assert type(most_telling(errors)) is cause
    assert type(most_telling(reversed(errors))) is cause


class _SkippingSelector(selectors.DefaultSelector):
    """Never waits: time jumps to whatever comes next."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        self.loop.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is made up."""

    def __init__(self) -> None:
        selector = _SkippingSelector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class _Fragile:
    """A job that fails in every third life barrier."""

    depends_on = ()
    actor_count = 2

    def __init__(self, job: JobId) -> None:
        self.job = job

    async def build(self, site: Any) -> None:
        await asyncio.sleep(0.3)

    async def run(self, actor: ActorId, site: Any, outputs: Any) -> None:
        count = 0
        async for each in site.local.subscribe_barrier(actor):
            await asyncio.sleep(0.01 * actor)
            count += 1
            if count == 4 and actor % 2:
                raise SourceUnavailable("away")
            site.local.collect(actor, each)


class _Sleepy:
    async def commit(self, *_: Any) -> None:
        await asyncio.sleep(0.2)

    async def discard(self, _: Any) -> None:
        await asyncio.sleep(0.05)


def test_barrier_manager_replays_an_hour_exactly_in_virtual_time():
    def run() -> tuple[list[str], Epoch, float]:
        loop = VirtualLoop()
        start = datetime(2026, 1, 1, tzinfo=UTC)

        async def hour() -> tuple[list[str], Epoch, float]:
            coordinator = Coordinator(
                _Sleepy(),
                after=NO_EPOCH,
                pace=Pace(interval=timedelta(seconds=1), frequency=2),
                backoff=Backoff(),
                clock=lambda: start + timedelta(seconds=loop.time()),
                watch=lambda notice: None,
            )
            await coordinator.start([_Fragile(JobId(1)), _Fragile(JobId(2))])
            await asyncio.sleep(3600)
            await coordinator.flush()
            story = coordinator.story()
            await coordinator.stop(grace=timedelta(seconds=5))
            return story, coordinator.committed, loop.time()

        try:
            return loop.run_until_complete(hour())
        finally:
            loop.close()

    first, second = run(), run()
    assert first == second
    assert first[2] >= 3600
    assert len(first[0]) == 200
