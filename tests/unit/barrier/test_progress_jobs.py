"""Progress of new jobs: what actors may say, what people see, what the ledger keeps."""

from datetime import timedelta

import pytest

from headwater.barrier.progress import (
    ConsumingLogStore,
    ConsumingUpstreamTableOrSource,
    CreateMviewProgressReporter,
    Done,
    DoneConsumingLogStore,
    JobProgress,
)
from headwater.barrier.progress_board import ProgressBoard
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId

A, B = ActorId(1), ActorId(2)


def reporter():
    reports = []
    return CreateMviewProgressReporter(lambda epoch, state: reports.append((epoch, state))), reports


def rows(count: int, *, epoch: int = 0) -> ConsumingUpstreamTableOrSource:
    return ConsumingUpstreamTableOrSource(epoch=Epoch(epoch), rows=count, bytes=8 * count)


def tracker(**options):
    progress = JobProgress(JobId(7), **{"total_rows": 100, **options})
    progress.begin(1, [A, B])
    return progress


def report(progress, actor, epoch, state, *, generation=1, in_flight=True, at=0.0):
    return progress.report(
        actor, generation=generation, epoch=Epoch(epoch), state=state, in_flight=in_flight, at=at
    )


def test_progress_reporter_walks_through_all_states():
    progress, reports = reporter()
    progress.update(Epoch(1), consumed=Epoch(1), rows=5, bytes_=40)
    progress.finish(Epoch(2), rows=9)
    progress.finish(Epoch(3), rows=9)
    progress.update_log_store(Epoch(4), lag=timedelta(seconds=3))
    progress.update_log_store(Epoch(5), lag=timedelta(seconds=9))
    progress.finish_log_store(Epoch(6))
    progress.finish_log_store(Epoch(7))
    assert reports == [
        (1, ConsumingUpstreamTableOrSource(epoch=Epoch(1), rows=5, bytes=40)),
        (2, Done(rows=9)),
        (4, ConsumingLogStore(lag=timedelta(seconds=3))),
        (5, ConsumingLogStore(lag=timedelta(seconds=9))),
        (6, DoneConsumingLogStore()),
    ]


@pytest.mark.parametrize(
    "backwards",
    [
        lambda p: p.update(Epoch(2), consumed=Epoch(5), rows=4, bytes_=40),
        lambda p: p.update(Epoch(2), consumed=Epoch(4), rows=5, bytes_=40),
        lambda p: p.update(Epoch(2), consumed=Epoch(5), rows=5, bytes_=39),
        lambda p: p.finish(Epoch(2), rows=4),
        lambda p: (p.finish(Epoch(2), rows=5), p.update(Epoch(3), consumed=Epoch(5), rows=6)),
        lambda p: (p.finish_log_store(Epoch(2)), p.update_log_store(Epoch(3), lag=timedelta(0))),
        lambda p: (p.update_log_store(Epoch(2), lag=timedelta(0)), p.finish(Epoch(3), rows=9)),
    ],
)
def test_progress_reporter_never_goes_back(backwards):
    progress, _ = reporter()
    progress.update(Epoch(1), consumed=Epoch(5), rows=5, bytes_=40)
    with pytest.raises(BrokenInvariant, match="went back"):
        backwards(progress)


def test_progress_sums_over_actors():
    progress = tracker()
    report(progress, A, 1, rows(10))
    report(progress, B, 1, rows(20))
    report(progress, A, 2, rows(15))
    assert (progress.rows, progress.bytes, progress.percentage) == (35, 280, 35.0)


@pytest.mark.parametrize("wrong", [{"generation": 0}, {"in_flight": False}, {"actor": ActorId(9)}])
def test_progress_ignores_reports_that_do_not_count(wrong):
    progress = tracker()
    arguments = {"actor": A, "epoch": 1, "state": rows(10), **wrong}
    assert report(progress, **arguments) is False
    assert (progress.rows, progress.percentage) == (0, 0.0)


def test_progress_is_100_only_when_done_and_durable():
    progress = tracker()
    report(progress, A, 1, Done(rows=90))
    report(progress, B, 1, Done(rows=90))
    assert progress.percentage == 99.9
    assert not progress.done
    progress.committed(Epoch(1))
    assert progress.done
    assert progress.percentage == 100.0


def test_progress_with_a_log_phase_is_done_when_that_is():
    progress = tracker(has_log_phase=True)
    for actor in (A, B):
        report(progress, actor, 1, Done(rows=50))
    progress.committed(Epoch(1))
    assert not progress.done
    for actor in (A, B):
        report(progress, actor, 2, DoneConsumingLogStore())
    assert progress.rows == 100
    progress.committed(Epoch(2))
    assert progress.done


def test_progress_does_not_fall_when_the_graph_restarts_or_the_estimate_grows():
    progress = tracker()
    report(progress, A, 1, rows(30))
    progress.committed(Epoch(1))
    report(progress, A, 2, rows(60))
    assert progress.percentage == 60.0
    progress.begin(2, [ActorId(3)])
    assert progress.rows == 30
    assert progress.percentage == 60.0
    progress.estimate(1000)
    report(progress, ActorId(3), 3, rows(40), generation=2)
    assert progress.percentage == 60.0
    assert report(progress, A, 3, rows(99)) is False


def test_progress_knows_no_more_than_the_epoch_it_is_stored_with():
    progress = tracker()
    report(progress, A, 1, rows(10))
    report(progress, A, 2, rows(50))
    report(progress, A, 3, Done(rows=60))
    report(progress, B, 3, Done(rows=0))
    assert JobProgress.decode(progress.encode(Epoch(1))).rows == 10
    assert JobProgress.decode(progress.encode(Epoch(2))).percentage == 50.0
    assert not JobProgress.decode(progress.encode(Epoch(2))).done
    assert JobProgress.decode(progress.encode(Epoch(3))).done


def test_progress_survives_a_restart():
    progress = tracker()
    report(progress, A, 1, rows(42))
    restored = JobProgress.decode(progress.encode(Epoch(1)))
    restored.begin(1, [A])
    assert (restored.job, restored.rows, restored.bytes) == (7, 42, 336)
    assert restored.percentage == 42.0
    report(restored, A, 5, rows(45))
    assert restored.rows == 45
    assert JobProgress.decode(restored.encode(NO_EPOCH)).rows == 42


def test_progress_rate_and_remaining_time_are_smoothed():
    progress = tracker(total_rows=1000)
    assert progress.rows_per_second(0.0) == 0.0
    assert progress.remaining(0.0) is None
    for second in range(11):
        report(progress, A, second + 1, rows(10 * second), at=float(second))
    assert progress.rows_per_second(10.0) == pytest.approx(10.0)
    assert progress.remaining(10.0) == timedelta(seconds=90)
    assert progress.rows_per_second(20.0) == pytest.approx(5.0)
    assert progress.rows_per_second(100.0) == 0.0


def test_progress_rate_keeps_few_samples():
    progress = tracker(total_rows=None)
    for step in range(5000):
        report(progress, A, 1, rows(step), at=step / 1000)
    assert progress.percentage == 0.0
    assert len(progress._samples) < 100
    assert progress.rows_per_second(5.0) == pytest.approx(1000, rel=0.02)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":2}', '{"version":1,"job":1}'])
def test_progress_that_cannot_be_read_is_damage(text):
    with pytest.raises(DamagedState):
        JobProgress.decode(text)


def test_a_job_that_goes_on_begins_with_what_the_ledger_has():
    progress = tracker(has_log_phase=True)
    progress.resume(40)
    assert (progress.rows, progress.percentage) == (40, 40.0)
    # Less than that is a report that lags behind, and more counts.
    assert report(progress, A, 5, rows(10))
    assert (progress.rows, progress.percentage) == (40, 40.0)
    assert report(progress, A, 6, rows(60))
    assert (progress.rows, progress.percentage) == (60, 60.0)
    progress.begin(2, [A])
    progress.resume(40)
    assert (progress.rows, progress.percentage) == (40, 60.0)


def test_a_job_that_stores_its_own_progress_is_in_no_record():
    board = ProgressBoard()
    board.track(JobProgress(JobId(7), total_rows=100, stored=False))
    board.track(JobProgress(JobId(8), total_rows=100))
    assert set(board.changes(Epoch(1))) == {"job/8"}
