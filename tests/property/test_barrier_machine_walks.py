"""The barrier machine under random histories (A20 to A27), and proof that the judge can say no."""

import pytest

from barrier_walk import Walk
from headwater.barrier.graph import Jobs
from headwater.barrier.in_flight import BarriersUnderWay, BarrierUnderWay
from headwater.barrier.recovery import Recovery
from headwater.barrier.timeline import Timeline
from headwater.model.epoch import Epoch, EpochPair

STEPS = 700


def walk(seed: int, *, check: bool = True, steps: int = STEPS) -> Walk:
    history = Walk(seed, check=check)
    history.start(seed % 5)
    try:
        history.run(steps)
    except Exception as error:
        error.add_note(f"seed {seed}, event {history.events}")
        raise
    return history


@pytest.mark.parametrize("seed", range(60))
def test_barrier_manager_keeps_its_promises_in_random_histories(seed):
    walk(seed)


def test_barrier_manager_walks_reach_the_interesting_places():
    """A walk that never crashes, waits or commits would prove nothing."""
    history = walk(7, steps=4000)
    assert history.events > 2000
    assert len(history.torn) > 50
    assert sum(each.committed for each in history.sent) > 200
    assert max(len(each.inject.to) for each in history.sent) > 4
    assert any(not each.durable for each in history.sent)


def _impatient(monkeypatch):
    """Commits when one actor has not collected."""
    monkeypatch.setattr(BarrierUnderWay, "complete", property(lambda self: len(self.waiting) <= 1))


def _keeps_work(monkeypatch):
    """Keeps the work of a graph that was torn down."""

    def drop(self, actors):
        for actor in actors:
            self.waiting.pop(actor, None)

    monkeypatch.setattr(BarrierUnderWay, "drop", drop)


def _lonely(monkeypatch):
    """Tears down only the job that crashed."""
    monkeypatch.setattr(Jobs, "graph_of", lambda self, *jobs: jobs)


def _hasty(monkeypatch):
    """Rebuilds a graph although a commit under way names its files."""

    def crash(self, event, job, original=Recovery.crash):
        original(self, event, job)
        self.committed()

    monkeypatch.setattr(Recovery, "crash", crash)


def _forgetful(monkeypatch):
    """Seals only the last epoch at a checkpoint."""

    def seal(self, epoch, kind, original=Timeline._seal):
        return original(self, epoch, kind)[-1:]

    monkeypatch.setattr(Timeline, "_seal", seal)


def _skipping(monkeypatch):
    """Leaves a gap between two barriers."""

    def boundary(self, wall, *, original=Timeline.boundary, **rest):
        barrier = original(self, wall, **rest)
        self.last = EpochPair(Epoch(barrier.epoch.curr + 1), Epoch(barrier.epoch.curr + 2))
        return barrier

    monkeypatch.setattr(Timeline, "boundary", boundary)


def _unbounded(monkeypatch):
    """Does not count the barriers under way."""
    monkeypatch.setattr(BarriersUnderWay, "__len__", lambda self: 0)
    monkeypatch.setattr(BarriersUnderWay, "__bool__", lambda self: True, raising=False)


@pytest.mark.parametrize(
    "mutate",
    [_impatient, _keeps_work, _lonely, _hasty, _forgetful, _skipping, _unbounded],
    ids=lambda mutate: mutate.__name__.strip("_"),
)
def test_barrier_manager_walks_notice_a_broken_machine(mutate, monkeypatch):
    mutate(monkeypatch)

    def breaks(seed: int) -> bool:
        try:
            walk(seed, check=False)
        except Exception:
            return True
        return False

    assert any(breaks(seed) for seed in range(20))
