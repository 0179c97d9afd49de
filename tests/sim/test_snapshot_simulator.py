"""5,000 seeds of creating a view without a divergence, and bugs put in on purpose are found."""

import pytest
from catching import assert_found

from headwater.backfill.snapshot.executor import SnapshotBackfillExecutor
from headwater.backfill.snapshot.machine import Merge, SnapshotBackfillMachine
from headwater.backfill.snapshot.state import BackfillState, Cursor
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
    assert_found(run_seed, 300, r"is not \{|inserted twice")


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
    assert_found(run_seed, 300, "is not|AssertionError|inserted twice")


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
