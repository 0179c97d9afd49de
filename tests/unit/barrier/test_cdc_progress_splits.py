"""Progress of external tables by split."""

import pytest

from headwater.barrier.cdc_progress import (
    CdcTableBackfillProgress,
    CdcTableBackfillState,
    SplitSet,
)
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId

A = ActorId(1)


def splits(*ranges):
    return SplitSet.of(ranges)


def state(backfilled=(), completed=()):
    return CdcTableBackfillState(backfilled=splits(*backfilled), completed=splits(*completed))


def table(total=10):
    progress = CdcTableBackfillProgress(JobId(3), splits=total)
    progress.begin(1, [A])
    return progress


def report(progress, epoch, what, *, actor=A, generation=1, in_flight=True):
    return progress.report(
        actor, generation=generation, epoch=Epoch(epoch), state=what, in_flight=in_flight
    )


def test_cdc_progress_ranges_are_merged():
    assert splits((5, 6), (1, 2), (3, 3), (9, 9)).ranges == ((1, 3), (5, 6), (9, 9))
    assert list(splits((1, 2), (2, 4))) == [1, 2, 3, 4]
    assert len(splits((1, 3), (7, 7))) == 4
    assert splits((2, 3)) <= splits((1, 3))
    assert not splits((2, 4)) <= splits((1, 3))
    with pytest.raises(ValueError, match="cannot go"):
        splits((3, 2))


def test_cdc_progress_counts_splits_in_any_order_and_repeats_once():
    progress = table()
    report(progress, 1, state(backfilled=[(7, 8)]))
    report(progress, 2, state(backfilled=[(1, 2), (7, 8)], completed=[(7, 7)]))
    assert (progress.completed, progress.backfilled, progress.percentage) == (1, 4, 40.0)


@pytest.mark.parametrize(
    "wrong", [{"generation": 0}, {"generation": 2}, {"in_flight": False}, {"actor": ActorId(9)}]
)
def test_cdc_progress_ignores_reports_that_do_not_count(wrong):
    progress = table()
    assert report(progress, 1, state(backfilled=[(1, 5)]), **wrong) is False
    assert progress.backfilled == 0


def test_cdc_progress_refuses_what_cannot_be():
    progress = table()
    with pytest.raises(BrokenInvariant, match="only"):
        report(progress, 1, state(backfilled=[(1, 1)], completed=[(2, 2)]))
    with pytest.raises(BrokenInvariant, match="has 10"):
        report(progress, 1, state(backfilled=[(10, 11)]))
    assert (progress.completed, progress.backfilled) == (0, 0)


def test_cdc_progress_is_100_only_when_completed_and_durable():
    progress = table()
    report(progress, 1, state(backfilled=[(1, 10)]))
    progress.committed(Epoch(1))
    assert progress.percentage == 99.9
    report(progress, 2, state(completed=[(1, 10)]))
    assert progress.percentage == 99.9
    progress.committed(Epoch(2))
    assert progress.done
    assert progress.percentage == 100.0


def test_cdc_progress_of_a_new_assignment_keeps_what_is_durable_and_never_falls():
    progress = table()
    report(progress, 1, state(backfilled=[(1, 3)]))
    progress.committed(Epoch(1))
    report(progress, 2, state(backfilled=[(4, 6)]))
    assert progress.percentage == 60.0
    progress.begin(2, [ActorId(5)])
    assert progress.backfilled == 3
    assert progress.percentage == 60.0
    assert report(progress, 3, state(backfilled=[(9, 9)])) is False
    assert report(progress, 3, state(backfilled=[(9, 9)]), actor=ActorId(5), generation=2)
    assert progress.backfilled == 4


def test_cdc_progress_knows_no_more_than_the_epoch_it_is_stored_with():
    progress = table()
    report(progress, 1, state(backfilled=[(1, 2)]))
    report(progress, 2, state(backfilled=[(5, 5)], completed=[(1, 2)]))
    first = CdcTableBackfillProgress.decode(progress.encode(Epoch(1)))
    second = CdcTableBackfillProgress.decode(progress.encode(Epoch(2)))
    assert (first.backfilled, first.completed) == (2, 0)
    assert (second.job, second.splits) == (3, 10)
    assert (second.backfilled, second.completed, second.percentage) == (3, 2, 30.0)
    assert second.encode(NO_EPOCH) == progress.encode(Epoch(2))


def test_cdc_progress_of_an_empty_table_is_done():
    assert table(total=0).percentage == 100.0


@pytest.mark.parametrize("text", ["x", '{"version":9}', '{"version":1,"job":1,"splits":2}'])
def test_cdc_progress_that_cannot_be_read_is_damage(text):
    with pytest.raises(DamagedState):
        CdcTableBackfillProgress.decode(text)
