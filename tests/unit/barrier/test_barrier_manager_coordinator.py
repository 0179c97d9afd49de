"""The coordinator with real actors on asyncio: failures, restarts, commits, and how it ends."""

import asyncio
import itertools
from datetime import timedelta

import pytest

from barrier_jobs import INITIAL, QUICK, SELDOM, Counter, Memory, running, until
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.events import Pace
from headwater.barrier.notices import ClockWentBack, CommitDelayed, GraphFailed, GraphStarted
from headwater.barrier.timer import Backoff
from headwater.errors import (
    ActorFailed,
    BrokenInvariant,
    Fenced,
    RelationError,
    SourceUnavailable,
    StorageUnavailable,
    UserError,
)
from headwater.model.barrier import BarrierKind, Pause, Resume, Throttle
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import JobId


async def test_barrier_manager_flush_commits_what_every_actor_staged():
    one, two = Counter(JobId(1), actor_count=2), Counter(JobId(2), depends_on=(JobId(1),))
    async with running(one, two) as (coordinator, memory):
        epoch = await coordinator.flush()
        assert coordinator.committed == epoch
        assert len(memory.epochs[epoch].positions) == 3
        assert sorted(one.kinds) == [INITIAL] * 2 + [BarrierKind.SYNC_CHECKPOINT] * 2
        assert two.sites[0].upstream == {JobId(1): one.sites[0].actors}
        assert await coordinator.wait_committed(epoch) == epoch


async def test_barrier_manager_flush_without_jobs_leaves_an_epoch():
    async with running() as (coordinator, memory):
        first, second = await coordinator.flush(), await coordinator.flush()
        assert NO_EPOCH < first < second
        assert list(memory.epochs) == [first, second]


async def test_barrier_manager_commits_periodically_and_seals_every_epoch_once():
    job = Counter(JobId(1))
    pace = Pace(interval=timedelta(milliseconds=2), frequency=3)
    async with running(job, pace=pace) as (coordinator, memory):
        await until(lambda: len(memory.epochs) >= 3)
        await coordinator.flush()
    ended = [barrier.epoch.prev for _, barrier in job.seen if barrier.kind is not INITIAL]
    assert memory.sealed == ended
    assert BarrierKind.BARRIER in job.kinds


async def test_barrier_manager_a_failing_graph_restarts_and_the_other_does_not_notice():
    bad, worse = Counter(JobId(1)), Counter(JobId(2), depends_on=(JobId(1),))
    good = Counter(JobId(3))
    notices = []
    async with running(bad, worse, good, pace=QUICK, watch=notices.append) as (coordinator, memory):
        await coordinator.flush()
        bad.crash[0] = SourceUnavailable("away")
        await until(lambda: len(bad.sites) == 2)
        epoch = await coordinator.flush()
        await until(lambda: coordinator.committed > epoch)
        assert [site.generation for site in worse.sites] == [1, 2]
        assert len(good.sites) == 1
        assert good.kinds.count(INITIAL) == 1
        assert bad.kinds.count(INITIAL) == worse.kinds.count(INITIAL) == 2
        assert (JobId(1), JobId(2)) in memory.discarded
        assert bad.ended == worse.ended == 1
    [failure] = [each for each in notices if isinstance(each, GraphFailed)]
    assert failure.jobs == (1, 2)
    assert isinstance(failure.cause, SourceUnavailable)
    assert GraphStarted(jobs=(JobId(1), JobId(2))) in notices


async def test_barrier_manager_an_epoch_never_holds_a_part_of_a_graph():
    left, right = Counter(JobId(1)), Counter(JobId(2), depends_on=(JobId(1),))
    alone = Counter(JobId(3))
    async with running(left, right, alone, pace=QUICK) as (coordinator, memory):
        for _ in range(8):
            right.crash[0] = ValueError("boom")
            lives = len(right.sites)
            await until(lambda lives=lives: len(right.sites) > lives)
            await coordinator.flush()
            await coordinator.flush()
    for work in memory.epochs.values():
        jobs = {name.split("/")[0] for name in work.positions}
        assert ("1" in jobs) == ("2" in jobs)
    assert any("3" in str(work.positions) for work in memory.epochs.values())


async def test_barrier_manager_the_most_telling_error_is_the_cause():
    first, second = Counter(JobId(1)), Counter(JobId(2), depends_on=(JobId(1),))
    notices = []
    async with running(first, second, watch=notices.append) as (coordinator, _):
        first.crash[0] = ValueError("a consequence")
        second.crash[0] = UserError("you did this")
        await coordinator.flush()
        await until(lambda: any(isinstance(each, GraphFailed) for each in notices))
    [failure] = [each for each in notices if isinstance(each, GraphFailed)]
    assert str(failure.cause) == "you did this"


async def test_barrier_manager_returning_without_being_told_is_a_failure():
    job = Counter(JobId(1), returns=True)
    notices = []
    async with running(job, watch=notices.append):
        await until(lambda: len(job.sites) == 2)
    [failure] = [each for each in notices if isinstance(each, GraphFailed)]
    assert isinstance(failure.cause, BrokenInvariant)


async def test_barrier_manager_cancelling_itself_is_a_failure():
    job = Counter(JobId(1), crash={0: asyncio.CancelledError()})
    async with running(job):
        await until(lambda: len(job.sites) == 2)


async def test_barrier_manager_waits_longer_with_every_failure():
    times = []
    job = Counter(JobId(1))

    class Impatient(Counter):
        async def build(self, site):
            times.append(asyncio.get_running_loop().time())
            raise SourceUnavailable("away")

    job = Impatient(JobId(1))
    backoff = Backoff(first=timedelta(milliseconds=10), longest=timedelta(milliseconds=40))
    async with running(job, backoff=backoff) as (coordinator, _):
        await until(lambda: len(times) == 5)
        await coordinator.flush()
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    for wait, expected in zip(waits, [0.01, 0.02, 0.04, 0.04], strict=True):
        assert wait >= expected


async def test_barrier_manager_rebuilds_only_when_the_commit_with_its_work_is_over():
    job, memory = Counter(JobId(1)), Memory()
    async with running(job, memory=memory) as (coordinator, _):
        await coordinator.flush()
        before = len(memory.discarded)
        memory.gate.clear()
        flush = asyncio.create_task(coordinator.flush())
        await until(lambda: memory.running == 1)
        job.crash[0] = ValueError("boom")
        pause = asyncio.create_task(coordinator.pause())
        await until(lambda: job.ended == 1)
        await asyncio.sleep(0.05)
        assert len(memory.discarded) == before
        assert len(job.sites) == 1
        memory.gate.set()
        epoch = await flush
        await pause
        assert len(memory.epochs[epoch].positions) == 1
        await until(lambda: len(job.sites) == 2)
        assert job.sites[1].committed >= epoch


async def test_barrier_manager_adds_and_stops_jobs():
    table, view = Counter(JobId(1)), Counter(JobId(2), depends_on=(JobId(1),))
    async with running(table) as (coordinator, memory):
        await coordinator.add([view])
        assert view.kinds == [INITIAL]
        epoch = await coordinator.flush()
        assert len(memory.epochs[epoch].positions) == 2
        epoch = await coordinator.stop_jobs([JobId(2)])
        assert view.ended == 1
        assert len(memory.epochs[epoch].positions) == 2
        assert len(memory.epochs[await coordinator.flush()].positions) == 1
        assert len(view.sites) == 1
        await coordinator.add([view])
        assert len(view.sites) == 2
        with pytest.raises(RelationError, match="already"):
            await coordinator.add([view])


async def test_barrier_manager_an_add_that_fails_leaves_nothing():
    table = Counter(JobId(1))
    view = Counter(JobId(2), depends_on=(JobId(1),), crash={0: UserError("a bad view")})
    async with running(table) as (coordinator, memory):
        await coordinator.flush()
        with pytest.raises(ActorFailed, match="a bad view") as failed:
            await coordinator.add([view])
        assert isinstance(failed.value.__cause__, UserError)
        assert (JobId(1), JobId(2)) in memory.discarded
        await until(lambda: len(table.sites) == 2)
        await coordinator.flush()
        assert len(view.sites) == 1
        await coordinator.add([view])
        assert len(view.sites) == 2


async def test_barrier_manager_an_add_that_cannot_be_built_raises_its_error():
    view = Counter(JobId(2), actor_count=2, build_faults=[UserError("no such column")])
    async with running(Counter(JobId(1))) as (coordinator, _):
        with pytest.raises(UserError, match="no such column"):
            await coordinator.add([view])
        with pytest.raises(RelationError, match="not there"):
            await coordinator.add([Counter(JobId(3), depends_on=(JobId(9),))])
        await coordinator.add([view])


async def test_barrier_manager_pauses_resumes_and_throttles():
    job = Counter(JobId(1))
    async with running(job) as (coordinator, _):
        await coordinator.pause()
        await coordinator.pause()
        job.crash[0] = ValueError("boom")
        await coordinator.flush()
        await until(lambda: len(job.sites) == 2)
        await coordinator.throttle({JobId(1): 0})
        await coordinator.resume()
    mutations = [barrier.mutation for _, barrier in job.seen]
    throttle = Throttle(limits={JobId(1): 0})
    assert [m for m in mutations if m is not None][:4] == [Pause(), Pause(), throttle, Resume()]
    reborn = [barrier for actor, barrier in job.seen if actor == job.sites[1].actors[0]]
    assert (reborn[0].kind, reborn[0].mutation) == (INITIAL, Pause())


def _under_way(job, memory):
    """How many barriers it has seen whose epochs are not committed."""
    return sum(barrier.epoch.prev > max(memory.epochs) for _, barrier in job.seen)


async def test_barrier_manager_a_slow_actor_holds_barriers_back_at_the_cap():
    slow, fast = Counter(JobId(1)), Counter(JobId(2))
    pace = Pace(interval=timedelta(milliseconds=1), cap=3)
    async with running(slow, fast, pace=pace) as (coordinator, memory):
        await until(lambda: len(memory.epochs) > 2)
        slow.gate.clear()
        await until(lambda: _under_way(fast, memory) == pace.cap)
        seen = len(fast.seen)
        await asyncio.sleep(0.05)
        assert len(fast.seen) == seen
        flush = asyncio.create_task(coordinator.flush())
        await until(lambda: len(fast.seen) == seen + 1)
        slow.gate.set()
        await flush
        await until(lambda: len(fast.seen) > seen + 5)


async def test_barrier_manager_repeats_a_commit_until_it_works_and_complains_once():
    memory = Memory(faults=[StorageUnavailable("full")] * 3 + [StorageUnavailable("read-only")])
    notices = []
    async with running(Counter(JobId(1)), memory=memory, watch=notices.append) as (coordinator, _):
        epoch = await coordinator.flush()
        assert len(memory.epochs[epoch].positions) == 1
    complaints = [str(each.error) for each in notices if isinstance(each, CommitDelayed)]
    assert complaints == ["full", "read-only"]


@pytest.mark.parametrize("error", [Fenced("another engine"), ValueError("a bug")])
async def test_barrier_manager_a_fenced_engine_ends_itself_and_says_why(error):
    job = Counter(JobId(1))
    memory = Memory(faults=[error])
    async with running(job, memory=memory) as (coordinator, _):
        waiting = asyncio.create_task(coordinator.wait_committed(Epoch(1 << 60)))
        with pytest.raises((Fenced, UserError)):
            await coordinator.flush()
        assert await coordinator.failure is error
        with pytest.raises((Fenced, UserError)):
            await waiting
        await until(lambda: job.ended == 1)
        assert memory.epochs == {}
        with pytest.raises((Fenced, UserError)):
            await coordinator.flush()
        with pytest.raises((Fenced, UserError)):
            await coordinator.add([Counter(JobId(2))])


async def test_barrier_manager_an_actor_that_breaks_the_rules_ends_the_engine():
    class Liar(Counter):
        async def work(self, actor, site, outputs, barrier):
            site.local.collect(actor, barrier)
            site.local.collect(actor, barrier)

    async with running(Liar(JobId(1))) as (coordinator, _):
        failure = await asyncio.wait_for(coordinator.failure, 60)
        assert isinstance(failure, BrokenInvariant)
        assert failure.story


async def test_barrier_manager_stop_commits_one_last_epoch():
    job, memory = Counter(JobId(1)), Memory()
    async with running(job, memory=memory) as (coordinator, _):
        await coordinator.flush()
    last = max(memory.epochs)
    assert len(memory.epochs) == 2
    assert f"1/{job.sites[0].actors[0]}/{last}" in memory.epochs[last].positions
    assert job.kinds[-1] is BarrierKind.SYNC_CHECKPOINT
    assert not coordinator.failure.done()


async def test_barrier_manager_stop_does_not_wait_for_ever():
    job, memory = Counter(JobId(1)), Memory()
    coordinator = Coordinator(memory, after=NO_EPOCH, pace=SELDOM, watch=lambda notice: None)
    await coordinator.start([job])
    job.gate.clear()
    flush = asyncio.create_task(coordinator.flush())
    await asyncio.sleep(0)
    await coordinator.stop(grace=timedelta(milliseconds=20))
    with pytest.raises(UserError, match="stopped"):
        await flush
    assert memory.epochs == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_barrier_manager_a_cancelled_caller_changes_nothing():
    job = Counter(JobId(1))
    async with running(job) as (coordinator, memory):
        job.gate.clear()
        flush = asyncio.create_task(coordinator.flush())
        await asyncio.sleep(0.01)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        job.gate.set()
        await until(lambda: len(memory.epochs) == 1)


async def test_barrier_manager_settings_take_effect_at_once():
    job = Counter(JobId(1))
    async with running(job) as (coordinator, memory):
        await coordinator.flush()
        coordinator.change_settings(QUICK)
        await until(lambda: len(memory.epochs) > 4)


async def test_barrier_manager_says_when_the_clock_goes_back():
    from datetime import UTC, datetime

    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    notices = []
    async with running(Counter(JobId(1)), clock=lambda: now[0], watch=notices.append) as (c, _):
        first = await c.flush()
        now[0] -= timedelta(days=1)
        assert await c.flush() > first
    assert [each.by for each in notices if isinstance(each, ClockWentBack)] == [timedelta(days=1)]


async def test_barrier_manager_actors_exchange_rows_over_a_local_channel():
    class Upstream(Counter):
        async def work(self, actor, site, outputs, barrier):
            for sender in outputs.senders:
                await sender.send(f"row of {barrier.epoch.prev}", size=10)
                await sender.send(barrier)
            await super().work(actor, site, outputs, barrier)

    got = []

    class Downstream(Counter):
        async def build(self, site):
            await super().build(site)
            [upstream] = site.upstream[JobId(1)]
            self.input = site.local.register_local_upstream_output(site.actors[0], upstream)

        async def work(self, actor, site, outputs, barrier):
            got.append([await self.input.receive(), (await self.input.receive()).epoch])
            await super().work(actor, site, outputs, barrier)

    upstream, downstream = Upstream(JobId(1)), Downstream(JobId(2), depends_on=(JobId(1),))
    async with running(upstream) as (coordinator, _):
        await coordinator.add([downstream])
        await coordinator.flush()
        upstream.crash[0] = ValueError("boom")
        flush = await coordinator.flush()
        await until(lambda: len(downstream.sites) == 2)
        await coordinator.flush()
        assert flush
    assert [row for row, _ in got] == [f"row of {pair.prev}" for _, pair in got]
    assert len(got) >= 4
