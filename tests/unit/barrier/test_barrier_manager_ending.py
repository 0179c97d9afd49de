"""How the barrier machine commits, and how it ends."""

from datetime import timedelta

import pytest

from barrier_bench import Bench, commits, failed, injected, job, staged
from headwater.barrier.events import GraphRebuilt, StopRequested
from headwater.barrier.instructions import DismissActors, StopEngine
from headwater.errors import BrokenInvariant, Fenced, StorageUnavailable
from headwater.model.barrier import BarrierKind
from headwater.model.epoch import NO_EPOCH
from headwater.model.ids import ActorId, JobId

INITIAL, BARRIER = BarrierKind.INITIAL, BarrierKind.BARRIER
CHECKPOINT, SYNC = BarrierKind.CHECKPOINT, BarrierKind.SYNC_CHECKPOINT


def test_barrier_manager_a_failed_commit_is_tried_again_while_later_epochs_wait():
    bench = Bench()
    bench.run(job(1, 10))
    first = injected(bench.tick())[0].barrier.epoch.prev
    second = injected(bench.tick())[0].barrier.epoch.prev
    [commit] = commits(bench.collect(10, first, staged("a")))
    assert commit.delay == timedelta(0)
    assert not commits(bench.collect(10, second, staged("b")))
    delays = []
    for _ in range(5):
        [again] = commits(bench.commit_failed(first, StorageUnavailable("full")))
        assert (again.barrier, again.work) == (commit.barrier, commit.work)
        delays.append(again.delay.total_seconds())
    assert delays == [1, 2, 4, 8, 8]
    assert bench.machine.committed == NO_EPOCH
    [following] = commits(bench.committed(first))
    assert following.barrier.epoch.prev == second
    assert following.delay == timedelta(0)


@pytest.mark.parametrize("error", [Fenced("another engine"), ValueError("bug")])
def test_barrier_manager_a_commit_that_cannot_be_repeated_ends_the_engine(error):
    bench = Bench()
    bench.run(job(1, 10))
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    bench.collect(10, epoch)
    assert bench.commit_failed(epoch, error) == [StopEngine(cause=error)]
    assert bench.tick() == []
    assert bench.command(sync=True) == []


def test_barrier_manager_only_the_commit_under_way_can_be_answered():
    bench = Bench()
    bench.run(job(1, 10))
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    with pytest.raises(BrokenInvariant, match="none is being committed"):
        bench.committed(epoch)


def test_barrier_manager_stops_after_one_last_checkpoint():
    bench = Bench(frequency=10)
    bench.run(job(1, 10), job(2, 20))
    before = injected(bench.tick())[0].barrier.epoch.prev
    out = bench.do(StopRequested())
    [last] = injected(out)
    assert last.barrier.kind is SYNC
    assert last.barrier.sealed == (before, last.barrier.epoch.prev)
    assert last.last == (10, 20)
    assert not injected(bench.tick(10))
    assert bench.do(StopRequested()) == []
    refused = bench.command(sync=True)
    assert "stopping" in str(failed(refused)[1])
    for actor in (10, 20):
        bench.collect(actor, before)
        bench.collect(actor, last.barrier.epoch.prev)
    out = bench.committed(last.barrier.epoch.prev)
    assert out[-1] == StopEngine(cause=None)


def test_barrier_manager_stops_without_jobs_too():
    bench = Bench()
    [commit] = commits(bench.do(StopRequested()))
    assert bench.committed(commit.barrier.epoch.prev) == [StopEngine(cause=None)]


def test_barrier_manager_stopping_lets_go_of_actors_that_never_saw_a_barrier():
    bench = Bench()
    bench.run(job(1, 10))
    bench.crash(10)
    bench.tick()
    bench.do(GraphRebuilt(jobs=(job(1, 11),)))
    # The timer had no actors, so the new ones were sent a barrier at once; rebuild again beside.
    bench.add(job(2, 20))
    bench.crash(11)
    bench.do(GraphRebuilt(jobs=(job(1, 12),)))
    out = bench.do(StopRequested())
    assert DismissActors(jobs=(JobId(1),), actors=(ActorId(12),)) in out
    assert injected(out)[0].last == (20,)
