"""What the barrier machine does when actors crash."""

import pytest

from barrier_bench import Bench, commits, done, failed, injected, job, kinds, rebuilds, staged
from headwater.barrier.events import (
    GraphRebuilt,
    JobPlan,
    JobsRecovered,
    RebuildFailed,
    StopRequested,
)
from headwater.barrier.instructions import DismissActors, StopEngine, TearDown
from headwater.errors import ActorFailed, BrokenInvariant, SourceUnavailable, StorageUnavailable
from headwater.model.barrier import AssignSplits, BarrierKind, Rescale, Stop, Throttle
from headwater.model.ids import ActorId, JobId
from headwater.model.vnode import VnodeBitmap

INITIAL, CHECKPOINT = BarrierKind.INITIAL, BarrierKind.CHECKPOINT


def torn(out):
    return [each for each in out if isinstance(each, TearDown)]


def seconds(rebuild):
    return rebuild.delay.total_seconds()


def two_graphs(**pace):
    """Job 2 reads from job 1; job 3 stands alone."""
    bench = Bench(**pace)
    bench.run(job(1, 10), job(2, 20, 21, reads=(1,)), job(3, 30))
    return bench


def test_barrier_manager_a_crash_tears_down_its_graph_and_no_other():
    bench = two_graphs()
    out = bench.crash(20, SourceUnavailable("gone"))
    [teardown] = torn(out)
    assert teardown.jobs == (1, 2)
    assert teardown.actors == (10, 20, 21)
    assert isinstance(teardown.cause, SourceUnavailable)
    assert kinds(injected(bench.tick())[0]) == {30: CHECKPOINT}


def test_barrier_manager_drops_the_graphs_work_and_commits_the_others():
    bench = two_graphs()
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    bench.collect(10, epoch, staged("one"))
    bench.collect(20, epoch, staged("two"))
    bench.collect(30, epoch, staged("three"))
    [commit] = commits(bench.crash(21))
    assert commit.barrier.epoch.prev == epoch
    assert commit.work.positions == {"three": "1"}


def test_barrier_manager_a_commit_behind_another_loses_the_graphs_work_too():
    bench = two_graphs()
    first, second = (injected(bench.tick())[0].barrier.epoch.prev for _ in range(2))
    for actor in (10, 20, 21, 30):
        bench.collect(actor, first, staged(f"{actor}/1"))
        bench.collect(actor, second, staged(f"{actor}/2"))
    bench.crash(10)
    [commit] = commits(bench.committed(first))
    assert commit.barrier.epoch.prev == second
    assert commit.work.positions == {"30/2": "1"}


def test_barrier_manager_several_crashes_of_one_graph_are_one_teardown():
    bench = two_graphs()
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    assert len(torn(bench.crash(10))) == 1
    assert bench.crash(20) == []
    assert bench.crash(10) == []
    assert bench.collect(21, epoch, staged("late")) == []


def test_barrier_manager_what_a_dead_actor_says_is_ignored_also_after_the_rebuild():
    bench = two_graphs()
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    bench.crash(10)
    bench.do(GraphRebuilt(jobs=(job(1, 110), job(2, 120, 121, reads=(1,)))))
    assert not commits(bench.collect(10, epoch, staged("ghost")))
    assert not torn(bench.crash(21))
    with pytest.raises(BrokenInvariant, match="no such actor"):
        bench.crash(999)


def test_barrier_manager_rebuilt_actors_begin_with_initial_while_others_checkpoint():
    bench = two_graphs()
    bench.crash(10)
    bench.do(GraphRebuilt(jobs=(job(1, 110), job(2, 120, 121, reads=(1,)))))
    [inject] = injected(bench.tick())
    assert kinds(inject) == {110: INITIAL, 120: INITIAL, 121: INITIAL, 30: CHECKPOINT}
    assert kinds(injected(bench.tick())[0])[110] is CHECKPOINT


def test_barrier_manager_the_wait_doubles_and_begins_anew_after_a_commit():
    bench = Bench()
    bench.run(job(1, 10), job(2, 20))
    waits, actor = [], 10
    for life in range(5):
        waits.append(seconds(rebuilds(bench.crash(actor))[0]))
        actor = 100 + life
        bench.do(GraphRebuilt(jobs=(job(1, actor),)))
    assert waits == [1, 2, 4, 8, 8]

    def run_barrier():
        epoch = injected(bench.tick())[0].barrier.epoch.prev
        for each in (20, actor):
            if bench.machine.owes(ActorId(each), epoch):
                bench.collect(each, epoch)
        bench.committed(epoch)

    run_barrier()
    # Its first barrier was INITIAL: the commit held nothing of it.
    assert seconds(rebuilds(bench.crash(actor))[0]) == 8
    actor = 200
    bench.do(GraphRebuilt(jobs=(job(1, actor),)))
    run_barrier()
    run_barrier()
    assert seconds(rebuilds(bench.crash(actor))[0]) == 1


def test_barrier_manager_rebuilds_only_after_the_commit_that_holds_its_work():
    bench = two_graphs()
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    for actor in (10, 20, 21, 30):
        bench.collect(actor, epoch, staged(str(actor)))
    out = bench.crash(20)
    assert torn(out)
    assert not rebuilds(out)
    [again] = commits(bench.commit_failed(epoch, StorageUnavailable("full")))
    assert set(again.work.positions) == {"10", "20", "21", "30"}
    [rebuild] = rebuilds(bench.committed(epoch))
    assert rebuild.jobs == (1, 2)
    assert rebuild.torn == (1, 2)


def test_barrier_manager_a_rebuild_that_fails_is_tried_again_later():
    bench = two_graphs()
    assert seconds(rebuilds(bench.crash(10))[0]) == 1
    failure = RebuildFailed(jobs=(JobId(1), JobId(2)), error=SourceUnavailable("away"))
    assert seconds(rebuilds(bench.do(failure))[0]) == 2
    assert seconds(rebuilds(bench.do(failure))[0]) == 4


def test_barrier_manager_recovers_each_graph_on_its_own():
    bench = Bench()
    out = bench.do(
        JobsRecovered(
            jobs=(
                JobPlan(job=JobId(1)),
                JobPlan(job=JobId(2)),
                JobPlan(job=JobId(3), depends_on=(JobId(1),)),
            )
        )
    )
    assert [(each.jobs, seconds(each)) for each in rebuilds(out)] == [((1, 3), 0), ((2,), 0)]


# Commands under way when their graph fails


def test_barrier_manager_an_add_is_undone_with_the_root_cause():
    bench = two_graphs()
    bench.add(job(4, 40, reads=(3,)))
    out = bench.crash(30, SourceUnavailable("gone"))
    error = failed(out)[1]
    assert isinstance(error, ActorFailed)
    assert isinstance(error.__cause__, SourceUnavailable)
    assert torn(out)[0].actors == (30, 40)
    [rebuild] = rebuilds(out)
    assert rebuild.jobs == (3,)
    assert rebuild.torn == (3, 4)
    assert JobId(4) not in bench.machine.jobs


def test_barrier_manager_an_add_of_two_jobs_is_undone_as_one():
    bench = two_graphs()
    bench.add(job(4, 40), job(5, 50))
    out = bench.crash(50)
    assert torn(out)[0].jobs == (4, 5)
    assert list(failed(out)) == [1]
    assert rebuilds(out)[0].jobs == ()


def test_barrier_manager_a_failed_graph_leaves_the_add_of_another_alone():
    bench = two_graphs()
    epoch = injected(bench.add(job(4, 40, reads=(3,))))[0].barrier.epoch.prev
    assert not failed(bench.crash(10))
    bench.collect(30, epoch)
    bench.collect(40, epoch)
    assert done(bench.committed(epoch)) == [1]


def test_barrier_manager_an_add_being_committed_stays():
    bench = Bench()
    bench.run(job(1, 10))
    epoch = injected(bench.add(job(2, 20, reads=(1,))))[0].barrier.epoch.prev
    bench.collect(10, epoch)
    bench.collect(20, epoch)
    assert not failed(bench.crash(20))
    out = bench.committed(epoch)
    assert done(out) == [1]
    assert rebuilds(out)[0].jobs == (1, 2)


def test_barrier_manager_refuses_an_add_to_a_graph_that_is_down():
    bench = two_graphs()
    bench.crash(30)
    out = bench.add(job(4, 40, reads=(3,)))
    assert not injected(out)
    assert isinstance(failed(out)[1], ActorFailed)


@pytest.mark.parametrize(
    "mutation",
    [
        Rescale(bitmaps={ActorId(10): VnodeBitmap.full()}),
        AssignSplits(generation=1, splits={ActorId(10): ("s",)}),
    ],
)
def test_barrier_manager_orders_to_dead_actors_fail(mutation):
    bench = two_graphs()
    bench.command(mutation)
    assert isinstance(failed(bench.crash(10))[1], ActorFailed)


def test_barrier_manager_flush_and_throttle_go_on_with_the_others():
    bench = two_graphs()
    flush = injected(bench.command(sync=True))[0].barrier.epoch.prev
    throttle = injected(bench.command(Throttle(limits={JobId(1): 0})))[0].barrier.epoch.prev
    assert not failed(bench.crash(10))
    bench.collect(30, flush)
    bench.collect(30, throttle)
    assert done(bench.committed(flush)) == [1]
    assert done(bench.committed(throttle)) == [2]


def test_barrier_manager_a_stop_holds_when_its_graph_fails():
    bench = two_graphs()
    epoch = injected(bench.command(Stop(jobs=(JobId(2),))))[0].barrier.epoch.prev
    [rebuild] = rebuilds(bench.crash(10))
    assert rebuild.jobs == (1,)
    bench.collect(30, epoch)
    assert done(bench.committed(epoch)) == [1]
    assert JobId(2) not in bench.machine.jobs


def test_barrier_manager_a_job_can_be_stopped_while_it_is_down():
    bench = two_graphs()
    bench.crash(10)
    epoch = injected(bench.command(Stop(jobs=(JobId(2),))))[0].barrier.epoch.prev
    out = bench.do(GraphRebuilt(jobs=(job(1, 110), job(2, 120, reads=(1,)))))
    assert DismissActors(jobs=(JobId(2),), actors=(ActorId(120),)) in out
    bench.collect(30, epoch)
    assert done(bench.committed(epoch)) == [1]
    assert kinds(injected(bench.tick())[0]) == {110: INITIAL, 30: CHECKPOINT}


def test_barrier_manager_a_stopped_job_parts_what_it_connected():
    bench = Bench()
    bench.run(job(1, 10), job(2, 20), job(3, 30, reads=(1, 2)))
    epoch = injected(bench.command(Stop(jobs=(JobId(3),))))[0].barrier.epoch.prev
    for actor in (10, 20, 30):
        bench.collect(actor, epoch)
    bench.committed(epoch)
    assert torn(bench.crash(10))[0].jobs == (1,)


def test_barrier_manager_an_actor_may_crash_after_its_last_barrier():
    bench = two_graphs()
    epoch = injected(bench.command(Stop(jobs=(JobId(3),))))[0].barrier.epoch.prev
    bench.collect(30, epoch, staged("last"))
    assert not torn(bench.crash(30))
    for actor in (10, 20, 21):
        out = bench.collect(actor, epoch)
    assert commits(out)[0].work.positions == {"last": "1"}


def test_barrier_manager_ends_also_when_a_graph_fails_at_the_last_checkpoint():
    bench = two_graphs()
    epoch = injected(bench.do(StopRequested()))[0].barrier.epoch.prev
    assert rebuilds(bench.crash(10))[0].jobs == ()
    bench.collect(30, epoch)
    assert bench.committed(epoch)[-1] == StopEngine(cause=None)
