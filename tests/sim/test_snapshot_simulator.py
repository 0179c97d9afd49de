"""5,000 seeds of creating views without a divergence, and bugs put in on purpose are found."""

import contextlib

import pytest
from catching import assert_found

from headwater.backfill.snapshot import executor
from headwater.backfill.snapshot.executor import SnapshotBackfillExecutor
from headwater.backfill.snapshot.machine import Merge, SnapshotBackfillMachine
from headwater.backfill.snapshot.slices import SnapshotFile, groups_of
from headwater.backfill.snapshot.state import BackfillState, Cursor
from headwater.backfill.snapshot.target import Prepared
from headwater.barrier.progress import JobProgress
from headwater.errors import StorageUnavailable
from headwater.model.barrier import Pause
from headwater.model.rate_limit import RateLimit
from headwater.runtime import names
from headwater.runtime.creating import job
from headwater.testing.many_seeds import SeedFailed
from headwater.testing.snapshot_simulator.command import main, run_seeds
from headwater.testing.snapshot_simulator.scenario import run_seed

SEEDS = 5000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_new_views_never_diverge():
    reports = list(run_seeds(range(SEEDS)))
    failures = [str(report) for report in reports if isinstance(report, SeedFailed)]
    assert not failures, f"{len(failures)} of {SEEDS} seeds failed\n" + "\n\n".join(failures[:3])
    assert len(reports) == SEEDS
    assert sum(report.epochs for report in reports) > 15 * SEEDS
    assert sum(report.lives for report in reports) > 2 * SEEDS
    assert sum(report.joined for report in reports) > 0.7 * SEEDS
    assert sum(report.cancelled for report in reports) > 0.2 * SEEDS
    assert sum(report.refused for report in reports) > 0.1 * SEEDS


def test_a_seed_replays_identically_and_seeds_differ():
    assert run_seed(11) == run_seed(11)
    assert len({run_seed(seed).digest for seed in range(6)}) == 6


def test_the_command_prints_seeds(capsys):
    assert main(["--seeds", "3", "--seed0", "8", "--jobs", "1"]) == 0
    assert "3 seeds" in capsys.readouterr().out


def test_found_slices_stored_out_of_their_order(monkeypatch):
    def any_that_is_ready(self):
        return [each for each in self._begun if each.prepared is not None]

    monkeypatch.setattr(SnapshotBackfillExecutor, "_ready", any_that_is_ready)
    assert_found(run_seed, 300, r"is not \{|inserted twice|goes back|are not all")


def test_found_slices_of_a_sweep_that_are_taken_for_each_other(monkeypatch):
    def in_the_order_they_come(begun, found):
        for _, prepared in found:
            each = next((each for each in begun if not each.work.done()), None)
            if each is not None:
                each.work.set_result(prepared)

    monkeypatch.setattr(executor, "_answer", in_the_order_they_come)
    assert_found(run_seed, 300, r"is not \{|inserted twice|are not all|is not what|otherwise")


def test_found_a_sweep_whose_rest_counts_although_one_of_it_failed(monkeypatch):
    async def patient(self, call, begun):
        with contextlib.suppress(StorageUnavailable):
            await call
        for each in begun:
            if not each.work.done():
                each.work.set_result(Prepared({}, each.doing.rows))

    monkeypatch.setattr(SnapshotBackfillExecutor, "_swept", patient)
    assert_found(run_seed, 300, r"is not \{|inserted twice|are not all|is not what|otherwise")


def test_found_progress_that_is_ahead_of_its_rows(monkeypatch):
    moved = BackfillState.moved

    def too_far(self, cursor, rows):
        if cursor is not None and cursor.row:
            cursor = Cursor(cursor.file, cursor.row + 1)
        return moved(self, cursor, rows)

    monkeypatch.setattr(BackfillState, "moved", too_far)
    assert_found(run_seed, 300, "is not|goes back")


def test_found_a_slice_that_does_not_wait_for_the_ledger(monkeypatch):
    monkeypatch.setattr(SnapshotBackfillExecutor, "settled", property(lambda self: True))
    assert_found(run_seed, 300, "is not|are not as they were|inserted twice|passes what it needs")


def test_found_an_epoch_of_the_log_that_is_passed_over(monkeypatch):
    follow = SnapshotBackfillMachine._follow

    def late(self, now, log):
        found = follow(self, now, log)
        if isinstance(found, Merge) and log:
            return Merge(log[-1].epoch)
        return found

    monkeypatch.setattr(SnapshotBackfillMachine, "_follow", late)
    assert_found(run_seed, 300, "joins is not what it was|progress says otherwise")


def test_found_a_slice_that_ignores_what_is_read_before_it(monkeypatch):
    monkeypatch.setattr(SnapshotBackfillMachine, "before", lambda self, read: dict(self.progress))
    assert_found(run_seed, 300, "before the table that it needs|is not")


def test_found_a_slice_that_goes_on_after_one_before_it_failed(monkeypatch):
    monkeypatch.setattr(
        SnapshotBackfillExecutor, "_let_go", lambda self, begun: self._begun.remove(begun)
    )
    assert_found(run_seed, 300, "is not|StopIteration|async generator|goes back")


def test_found_tables_read_against_their_order(monkeypatch):
    def last_first(self):
        left = [s for s in self.steps if not all(self.progress[t].finished for t in s.tables)]
        return left[-1] if left else None

    monkeypatch.setattr(SnapshotBackfillMachine, "_step", last_first)
    assert_found(run_seed, 300, "is read before all of")


def test_found_a_pause_that_nobody_heeds(monkeypatch):
    mutate = SnapshotBackfillExecutor._mutate

    def deaf(self, barrier):
        if not isinstance(barrier.mutation, Pause):
            mutate(self, barrier)

    monkeypatch.setattr(SnapshotBackfillExecutor, "_mutate", deaf)
    assert_found(run_seed, 300, "read in a pause")


def test_found_a_limit_that_nobody_heeds(monkeypatch):
    def slow(self, limit, now):
        self.limiter.alter(RateLimit(rows_per_s=limit.rows_per_s or 1), now)

    monkeypatch.setattr(SnapshotBackfillMachine, "throttled", slow)
    assert_found(run_seed, 300, "under a limit of 0")


def test_found_a_pin_that_is_ahead_of_the_ledger(monkeypatch):
    async def newest(self, progress):
        epoch = await pinned(self, progress)
        await self.lent.pin(self.key, self.lent.last())
        return epoch

    pinned = job.FillingJob._pinned
    monkeypatch.setattr(job.FillingJob, "_pinned", newest)
    assert_found(run_seed, 300, "passes what it needs|no longer kept|needs what is gone")


def test_found_a_job_that_goes_on_when_it_is_over(monkeypatch):
    around = job.Surroundings
    monkeypatch.setattr(
        job, "Surroundings", lambda **given: around(**{**given, "over": lambda: False})
    )
    assert_found(run_seed, 300, "read for a view that goes")


def test_found_a_time_to_wake_up_that_has_passed(monkeypatch):
    def forgetful(self):
        while self._epoch is not None and not self._over and not self._around.over():
            if self._merging is not None or not self._may_begin() or not self._begin_one():
                return

    monkeypatch.setattr(SnapshotBackfillExecutor, "_begin", forgetful)
    assert_found(run_seed, 300, "rounds were run")


def test_found_files_of_a_table_that_is_read_already(monkeypatch):
    def always(table, view, followed, seams):
        return groups_of(SnapshotFile(live.file, live.live_rows) for live in view.files)

    monkeypatch.setattr(job, "_groups", always)
    assert_found(run_seed, 300, "was read by vnodes|is no longer kept")


def test_found_a_report_of_another_life_that_counts(monkeypatch):
    report = JobProgress.report

    def any_life(self, actor, *, generation, **said):
        return report(self, actor, generation=self._generation, **said)

    monkeypatch.setattr(JobProgress, "report", any_life)
    assert_found(run_seed, 300, "a report counts|more rows are read")


def test_found_progress_that_falls(monkeypatch):
    def as_it_is(self):
        return None if self.executor is None else self.executor.progress

    monkeypatch.setattr(job.FillingJob, "progress", property(as_it_is))
    assert_found(run_seed, 300, "progress falls")


def test_found_progress_that_begins_anew_with_a_life(monkeypatch):
    monkeypatch.setattr(JobProgress, "resume", lambda self, rows: None)
    assert_found(run_seed, 300, "less than what the ledger has")


def test_found_a_view_over_one_in_the_making(monkeypatch):
    found = names.CatalogRelations.find

    def lenient(self, name):
        try:
            return found(self, name)
        except names.RelationError:
            each = self._snapshot.relation(name.name)
            self.reads[str(name)] = names.Read(relation=each.id, columns=("k", "v"))
            return None

    monkeypatch.setattr(names.CatalogRelations, "find", lenient)
    assert_found(run_seed, 300, "is not refused")
