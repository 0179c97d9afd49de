"""The barrier machine, one rule per test."""

import itertools
from datetime import timedelta

import pytest

from barrier_bench import Bench, commits, done, failed, injected, job, kinds, staged
from headwater.barrier.events import BarrierWanted, Pace, SettingsChanged
from headwater.barrier.instructions import (
    DismissActors,
    NotifyStarted,
    ReportClockWentBack,
    WakeAt,
)
from headwater.errors import BrokenInvariant, UserError
from headwater.model.barrier import (
    Add,
    AssignSplits,
    BarrierKind,
    Pause,
    Rescale,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
)
from headwater.model.epoch import Epoch, epoch_at
from headwater.model.ids import ActorId, FragmentId, JobId
from headwater.model.record import StagedWork
from headwater.model.vnode import VnodeBitmap

INITIAL, BARRIER = BarrierKind.INITIAL, BarrierKind.BARRIER
CHECKPOINT, SYNC = BarrierKind.CHECKPOINT, BarrierKind.SYNC_CHECKPOINT


# Epochs


def test_barrier_manager_first_barrier_is_initial_for_all_and_seals_nothing():
    bench = Bench(after=Epoch(7))
    [first] = injected(bench.start(job(1, 10), job(2, 20)))
    assert kinds(first) == {10: INITIAL, 20: INITIAL}
    assert first.barrier.epoch.prev == 7
    assert first.barrier.sealed == ()
    bench.collect(10, Epoch(7))
    assert not commits(bench.collect(20, Epoch(7)))


def test_barrier_manager_each_barrier_begins_where_the_last_one_ended():
    bench = Bench()
    bench.run(job(1, 10))
    pairs = [injected(bench.tick())[0].barrier.epoch for _ in range(5)]
    assert all(later.follows(earlier) for earlier, later in itertools.pairwise(pairs))
    assert pairs[0].curr == epoch_at(bench.wall - timedelta(seconds=4))


def test_barrier_manager_epochs_grow_when_the_clock_jumps_back_and_say_so_once():
    bench = Bench()
    bench.run(job(1, 10))
    last = injected(bench.tick())[0].barrier.epoch.curr
    bench.wall -= timedelta(hours=1)
    out = bench.tick()
    assert injected(out)[0].barrier.epoch.curr == last + 1
    assert [each.by for each in out if isinstance(each, ReportClockWentBack)] == [
        timedelta(minutes=59, seconds=59)
    ]
    out = bench.tick()
    assert injected(out)[0].barrier.epoch.curr == last + 2
    assert not [each for each in out if isinstance(each, ReportClockWentBack)]


def test_barrier_manager_reports_a_ledger_from_the_future():
    bench = Bench()
    bench = Bench(after=epoch_at(bench.wall + timedelta(days=1)))
    out = bench.start(job(1, 10))
    assert [each.by for each in out if isinstance(each, ReportClockWentBack)] == [timedelta(days=1)]


# Collecting


def test_barrier_manager_nothing_commits_before_every_actor_has_collected():
    bench = Bench()
    bench.run(job(1, 10, 11), job(2, 20))
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    assert not commits(bench.collect(10, epoch, staged("a")))
    assert not commits(bench.collect(20, epoch, staged("b")))
    [commit] = commits(bench.collect(11, epoch, staged("c")))
    assert commit.barrier.epoch.prev == epoch
    assert commit.work.positions == {"a": "1", "b": "1", "c": "1"}
    assert commit.sealed == (epoch,)


def test_barrier_manager_an_actor_may_be_ahead_and_commits_stay_in_order():
    bench = Bench()
    bench.run(job(1, 10), job(2, 20))
    epochs = [injected(bench.tick())[0].barrier.epoch.prev for _ in range(3)]
    for epoch in epochs:
        assert not commits(bench.collect(10, epoch, staged(f"a{epoch}")))
    assert [c.barrier.epoch.prev for c in commits(bench.collect(20, epochs[0]))] == [epochs[0]]
    assert not commits(bench.collect(20, epochs[1]))
    assert not commits(bench.collect(20, epochs[2]))
    assert [c.barrier.epoch.prev for c in commits(bench.committed(epochs[0]))] == [epochs[1]]
    assert [c.barrier.epoch.prev for c in commits(bench.committed(epochs[1]))] == [epochs[2]]
    assert not commits(bench.committed(epochs[2]))
    assert bench.machine.committed == epochs[2]


@pytest.mark.parametrize("which", ["twice", "out of order", "unknown epoch", "unknown actor"])
def test_barrier_manager_an_illegal_collection_tells_the_story(which):
    bench = Bench()
    bench.run(job(1, 10), job(2, 20))
    first = injected(bench.tick())[0].barrier.epoch.prev
    second = injected(bench.tick())[0].barrier.epoch.prev
    actor, epoch = {
        "twice": (10, first),
        "out of order": (20, second),
        "unknown epoch": (10, Epoch(5)),
        "unknown actor": (99, first),
    }[which]
    bench.collect(10, first)
    with pytest.raises(BrokenInvariant, match=f"actor {actor}") as broken:
        bench.collect(actor, epoch)
    assert any(f"InjectBarrier checkpoint {first}" in line for line in broken.value.story)
    assert f"BarrierCollected actor={actor} epoch={epoch}" in broken.value.story[-1]


@pytest.mark.parametrize("kind", [INITIAL, BARRIER])
def test_barrier_manager_refuses_work_at_a_barrier_that_commits_nothing(kind):
    bench = Bench(frequency=3)
    [inject] = injected(bench.start(job(1, 10)))
    if kind is BARRIER:
        bench.collect(10, inject.barrier.epoch.prev)
        [inject] = injected(bench.tick())
    assert kinds(inject) == {10: kind}
    with pytest.raises(BrokenInvariant, match="handed over work"):
        bench.collect(10, inject.barrier.epoch.prev, staged("a"))


def test_barrier_manager_two_actors_cannot_stage_the_same_thing():
    bench = Bench()
    bench.run(job(1, 10), job(2, 20))
    epoch = injected(bench.tick())[0].barrier.epoch.prev
    bench.collect(10, epoch, staged("a"))
    with pytest.raises(BrokenInvariant, match="two actors") as broken:
        bench.collect(20, epoch, staged("a"))
    assert broken.value.story


# Kinds


def test_barrier_manager_every_nth_barrier_is_a_checkpoint_and_seals_those_before():
    bench = Bench(frequency=3)
    bench.run(job(1, 10))
    sent = [injected(bench.tick())[0].barrier for _ in range(6)]
    assert [each.kind for each in sent] == [BARRIER, BARRIER, CHECKPOINT] * 2
    assert sent[2].sealed == tuple(each.epoch.prev for each in sent[:3])
    assert sent[5].sealed == tuple(each.epoch.prev for each in sent[3:])
    assert sent[0].sealed == ()


@pytest.mark.parametrize(
    ("mutation", "kind"),
    [
        (Pause(), CHECKPOINT),
        (Resume(), BARRIER),
        (Throttle(limits={JobId(1): 5}), CHECKPOINT),
        (StartFragmentBackfill(fragments=(FragmentId(1),)), CHECKPOINT),
        (AssignSplits(generation=1, splits={ActorId(10): ("s",)}), CHECKPOINT),
        (Rescale(bitmaps={ActorId(10): VnodeBitmap.full()}), CHECKPOINT),
        (Stop(jobs=(JobId(1),)), CHECKPOINT),
        (None, CHECKPOINT),
    ],
)
def test_barrier_manager_every_command_but_resume_forces_a_checkpoint(mutation, kind):
    bench = Bench(frequency=10)
    bench.run(job(1, 10))
    [inject] = injected(bench.command(mutation))
    assert inject.barrier.kind is kind
    if not isinstance(mutation, Resume):
        assert inject.to[ActorId(10)].mutation == mutation


def test_barrier_manager_the_count_begins_anew_at_a_forced_checkpoint():
    bench = Bench(frequency=3)
    bench.run(job(1, 10))
    bench.tick()
    bench.command(sync=True)
    assert [injected(bench.tick())[0].barrier.kind for _ in range(3)] == [
        BARRIER,
        BARRIER,
        CHECKPOINT,
    ]


@pytest.mark.parametrize(
    ("pace", "kind"),
    [
        (Pace(interval=timedelta(seconds=1), frequency=3, cap=9), CHECKPOINT),
        (Pace(interval=timedelta(seconds=2), frequency=3), BARRIER),
        (Pace(interval=timedelta(seconds=1), frequency=4), BARRIER),
    ],
)
def test_barrier_manager_the_count_begins_anew_with_another_pace(pace, kind):
    bench = Bench(frequency=3)
    bench.run(job(1, 10))
    unsealed = [injected(bench.tick())[0].barrier.epoch.prev for _ in range(2)]
    bench.do(SettingsChanged(pace=pace))
    sent = [injected(bench.tick(2))[0].barrier for _ in range(4)]
    assert sent[0].kind is kind
    first_checkpoint = next(each for each in sent if each.kind is CHECKPOINT)
    assert first_checkpoint.sealed[:2] == tuple(unsealed)


# The timer


def test_barrier_manager_periodic_barriers_come_at_the_interval():
    bench = Bench()
    bench.run(job(1, 10))
    assert not injected(bench.tick(0.5))
    assert injected(bench.tick(0.5))
    assert not injected(bench.tick(0.9))
    assert injected(bench.tick(0.1))


def test_barrier_manager_a_barrier_that_is_wanted_comes_at_once_and_only_once():
    bench = Bench(cap=1)
    bench.run(job(1, 10))
    bench.pass_time(0.3)
    [sent] = injected(bench.do(BarrierWanted()))
    assert not injected(bench.tick(0.9))
    assert not injected(bench.do(BarrierWanted())), "one is under way, and that is all there may be"
    bench.collect(10, sent.barrier.epoch.prev)
    assert len(injected(bench.committed(sent.barrier.epoch.prev))) == 1


def test_barrier_manager_nobody_gets_a_barrier_that_is_wanted_where_nobody_runs():
    bench = Bench()
    bench.start()
    assert not injected(bench.do(BarrierWanted()))


def test_barrier_manager_a_late_tick_delays_and_never_bursts():
    bench = Bench()
    bench.run(job(1, 10))
    assert len(injected(bench.tick(7.5))) == 1
    assert not injected(bench.tick(0.9))
    assert len(injected(bench.tick(0.1))) == 1


def test_barrier_manager_a_command_resets_the_timer():
    bench = Bench()
    bench.run(job(1, 10))
    bench.pass_time(0.8)
    out = bench.command(sync=True)
    assert [each.seconds for each in out if isinstance(each, WakeAt)] == [bench.seconds + 1]
    assert not injected(bench.tick(0.9))
    assert injected(bench.tick(0.2))


def test_barrier_manager_holds_periodic_barriers_back_at_the_cap_and_lets_commands_pass():
    bench = Bench(cap=2)
    bench.run(job(1, 10))
    epochs = [injected(bench.tick())[0].barrier.epoch.prev for _ in range(2)]
    assert not injected(bench.tick())
    [flush] = injected(bench.command(sync=True))
    assert not injected(bench.tick(60))
    for epoch in (*epochs, flush.barrier.epoch.prev):
        assert not injected(bench.collect(10, epoch))
    assert not injected(bench.committed(epochs[0]))
    # Two are left, the cap; one more makes room for exactly one late barrier.
    assert len(injected(bench.committed(epochs[1]))) == 1
    assert not injected(bench.tick(0.9))
    assert done(bench.committed(flush.barrier.epoch.prev)) == [1]


def test_barrier_manager_a_slow_commit_is_waited_for_just_long_enough():
    bench = Bench()
    bench.run(job(1, 10))
    # An epoch that takes half a second to collect and five to commit.
    [slow] = injected(bench.tick())
    bench.pass_time(0.5)
    bench.collect(10, slow.barrier.epoch.prev)
    bench.pass_time(5)
    [second] = injected(bench.committed(slow.barrier.epoch.prev))
    bench.pass_time(0.5)
    out = bench.collect(10, second.barrier.epoch.prev)
    # The next one would be due in half a second; it is sent when it will be collected in time.
    assert [each.seconds for each in out if isinstance(each, WakeAt)] == [bench.seconds + 4.5]
    assert not injected(bench.tick(4.4))
    assert len(injected(bench.tick(0.1))) == 1


def test_barrier_manager_a_commit_that_was_faster_than_the_last_holds_nothing_back():
    bench = Bench()
    bench.run(job(1, 10))
    [slow] = injected(bench.tick())
    bench.collect(10, slow.barrier.epoch.prev)
    bench.pass_time(60)
    [second] = injected(bench.committed(slow.barrier.epoch.prev))
    bench.collect(10, second.barrier.epoch.prev)
    assert not injected(bench.tick(2))
    assert len(injected(bench.committed(second.barrier.epoch.prev))) == 1


def test_barrier_manager_nothing_is_sent_without_actors():
    bench = Bench()
    assert bench.tick() == []
    bench.run(job(1, 10))
    [stop] = injected(bench.command(Stop(jobs=(JobId(1),))))
    bench.collect(10, stop.barrier.epoch.prev)
    bench.committed(stop.barrier.epoch.prev)
    assert [bench.tick(10) for _ in range(3)] == [[], [], []]


# Commands


def test_barrier_manager_a_command_is_started_when_sent_and_done_when_committed():
    bench = Bench()
    bench.run(job(1, 10))
    out = bench.command(Pause())
    epoch = injected(out)[0].barrier.epoch.prev
    assert [each.command for each in out if isinstance(each, NotifyStarted)] == [1]
    assert not done(bench.collect(10, epoch))
    assert done(bench.committed(epoch)) == [1]


def test_barrier_manager_a_resume_between_checkpoints_is_done_when_complete():
    bench = Bench(frequency=5)
    bench.run(job(1, 10))
    [pause] = injected(bench.command(Pause()))
    bench.collect(10, pause.barrier.epoch.prev)
    bench.committed(pause.barrier.epoch.prev)
    [resume] = injected(bench.command(Resume()))
    assert done(bench.collect(10, resume.barrier.epoch.prev)) == [2]


def test_barrier_manager_commands_each_have_their_own_barrier_in_order():
    bench = Bench()
    bench.run(job(1, 10))
    sent = [injected(bench.command(m))[0] for m in (Pause(), None, Resume())]
    assert [each.barrier.mutation for each in sent] == [Pause(), None, Resume()]
    for each in sent:
        bench.collect(10, each.barrier.epoch.prev)
    finished = [done(bench.committed(each.barrier.epoch.prev)) for each in sent]
    assert finished == [[1], [2], [3]]


def test_barrier_manager_flush_without_jobs_leaves_an_epoch():
    bench = Bench(after=Epoch(7))
    out = bench.command(sync=True)
    initial, flush = injected(out)
    assert (initial.barrier.kind, flush.barrier.kind) == (INITIAL, SYNC)
    [commit] = commits(out)
    assert commit.work == StagedWork()
    assert commit.barrier.epoch.prev > 7
    assert done(bench.committed(commit.barrier.epoch.prev)) == [1]
    [again] = commits(bench.command(sync=True))
    assert again.barrier.epoch.prev == commit.barrier.epoch.curr


def test_barrier_manager_pause_and_resume_again_change_nothing():
    bench = Bench()
    bench.run(job(1, 10))
    mutations = [Resume(), Pause(), Pause(), Resume(), Resume()]
    sent = [injected(bench.command(each))[0].barrier.mutation for each in mutations]
    assert sent == [None, Pause(), None, Resume(), None]


def test_barrier_manager_newcomers_learn_that_the_engine_is_paused():
    bench = Bench()
    bench.run(job(1, 10))
    bench.command(Pause())
    [add] = injected(bench.add(job(2, 20)))
    assert isinstance(add.to[ActorId(10)].mutation, Add)
    assert add.to[ActorId(20)].mutation == Pause()
    bench.command(Resume())
    [add] = injected(bench.add(job(3, 30)))
    assert isinstance(add.to[ActorId(30)].mutation, Add)


def test_barrier_manager_added_actors_see_the_same_boundary_as_initial():
    bench = Bench()
    bench.run(job(1, 10))
    [add] = injected(bench.add(job(2, 20, 21, reads=(1,))))
    assert kinds(add) == {10: CHECKPOINT, 20: INITIAL, 21: INITIAL}
    assert add.to[ActorId(20)].epoch == add.to[ActorId(10)].epoch
    assert add.to[ActorId(20)].sealed == ()
    assert kinds(injected(bench.tick())[0]) == {10: CHECKPOINT, 20: CHECKPOINT, 21: CHECKPOINT}


def test_barrier_manager_stopped_actors_collect_the_barrier_last_and_are_let_go_at_its_commit():
    bench = Bench()
    bench.run(job(1, 10), job(2, 20))
    [stop] = injected(bench.command(Stop(jobs=(JobId(2),))))
    assert stop.last == (20,)
    later = injected(bench.tick())[0]
    assert kinds(later) == {10: CHECKPOINT}
    epoch = stop.barrier.epoch.prev
    bench.collect(20, epoch, staged("last"))
    [commit] = commits(bench.collect(10, epoch))
    assert commit.work.positions == {"last": "1"}
    out = bench.committed(epoch)
    assert DismissActors(jobs=(JobId(2),), actors=(ActorId(20),)) in out
    assert done(out) == [1]
    assert JobId(2) not in bench.machine.jobs


def _halves():
    return VnodeBitmap.of(range(128)), VnodeBitmap.of(range(128, 256))


@pytest.mark.parametrize(
    ("mutation", "says"),
    [
        (Rescale(bitmaps={ActorId(10): _halves()[0], ActorId(11): _halves()[0]}), "two actors"),
        (
            Rescale(bitmaps={ActorId(10): _halves()[0], ActorId(11): VnodeBitmap.empty()}),
            "without an owner",
        ),
        (Rescale(bitmaps={ActorId(10): VnodeBitmap.full()}), "leaves out"),
        (Rescale(bitmaps={ActorId(77): VnodeBitmap.full()}), "no actor 77"),
        (AssignSplits(generation=1, splits={ActorId(77): ()}), "no actor 77"),
        (Throttle(limits={JobId(7): 1}), "no job 7"),
        (Throttle(limits={JobId(1): -1}), "cannot be -1"),
        (Stop(jobs=(JobId(7),)), "no job 7"),
    ],
)
def test_barrier_manager_refuses_what_cannot_work_before_sending_it(mutation, says):
    bench = Bench()
    bench.run(job(1, 10, 11))
    out = bench.command(mutation)
    assert not injected(out)
    assert says in str(failed(out)[1])
    assert isinstance(failed(out)[1], UserError)


def test_barrier_manager_accepts_a_rescale_that_is_disjoint_and_complete():
    bench = Bench()
    bench.run(job(1, 10, 11), job(2, 20))
    low, high = _halves()
    out = bench.command(Rescale(bitmaps={ActorId(10): high, ActorId(11): low}), sync=True)
    assert injected(out)[0].barrier.kind is SYNC
    assert not failed(out)


@pytest.mark.parametrize(("number", "reads"), [(1, ()), (2, (9,))])
def test_barrier_manager_refuses_to_add_what_is_there_or_reads_from_nothing(number, reads):
    bench = Bench()
    bench.run(job(1, 10))
    out = bench.add(job(number, 20, reads=reads))
    assert not injected(out)
    assert isinstance(failed(out)[1], UserError)


def test_barrier_manager_refuses_an_actor_id_that_was_used_before():
    bench = Bench()
    bench.run(job(1, 10))
    with pytest.raises(BrokenInvariant, match="an id used before"):
        bench.add(job(2, 10))
