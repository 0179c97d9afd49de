"""5,000 seeds of the backfill without a divergence, and the same seed always the same run."""

import os
import subprocess
import sys

import pytest

from headwater.testing.cdc_simulator.command import main, run_seeds
from headwater.testing.cdc_simulator.scenario import (
    EXECUTOR_SHARE,
    replay_command,
    run_seed,
)
from headwater.testing.many_seeds import SeedFailed

SEEDS = 5000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_cdc_backfill_never_diverges():
    reports = list(run_seeds(range(SEEDS)))
    failures = [str(report) for report in reports if isinstance(report, SeedFailed)]
    assert not failures, f"{len(failures)} of {SEEDS} seeds failed\n" + "\n\n".join(failures[:3])
    assert len(reports) == SEEDS
    assert sum(report.epochs for report in reports) > 8 * SEEDS
    assert sum(report.lives for report in reports) > 2 * SEEDS


@pytest.mark.parametrize("seed", [7, EXECUTOR_SHARE * 3])
def test_a_cdc_seed_replays_identically(seed):
    first = run_seed(seed)
    assert run_seed(seed) == first
    # Text hashes differently in every process, so another one must agree as well.
    program = (
        "from headwater.testing.cdc_simulator.scenario import run_seed\n"
        f"print(run_seed({seed}).digest)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) == first.digest


def test_cdc_seeds_differ():
    assert len({run_seed(seed).digest for seed in range(6)}) == 6


def test_the_cdc_command_prints_seeds_and_their_replay(capsys, monkeypatch):
    assert main(["--seeds", "3", "--seed0", "8", "--jobs", "1"]) == 0
    assert "3 seeds" in capsys.readouterr().out

    def broken(self):
        raise RuntimeError("sealing is broken")

    monkeypatch.setattr("headwater.backfill.cdc.table_backfill.TableBackfill.seal", broken)
    assert main(["--seeds", "1", "--seed0", "8", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert replay_command(8) in told
    assert "sealing is broken" in told
