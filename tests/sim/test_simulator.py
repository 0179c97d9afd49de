"""2,000 seeds without a divergence, and the same seed always the same run."""

import os
import subprocess
import sys

import pytest

from headwater.testing.many_seeds import SeedFailed
from headwater.testing.simulator.command import main, run_seeds
from headwater.testing.simulator.scenario import (
    PARQUET_SHARE,
    STRAND_SHARE,
    replay_command,
    run_seed,
)

SEEDS = 2000


@pytest.mark.timeout(1500)
def test_no_seed_diverges():
    reports = list(run_seeds(range(SEEDS)))
    failures = [str(report) for report in reports if isinstance(report, SeedFailed)]
    assert not failures, f"{len(failures)} of {SEEDS} seeds failed\n" + "\n\n".join(failures[:3])
    assert len(reports) == SEEDS
    assert sum(report.epochs for report in reports) > 10 * SEEDS
    assert sum(report.lives for report in reports) > 2.5 * SEEDS


@pytest.mark.parametrize("seed", [7, STRAND_SHARE + 1, PARQUET_SHARE + 2])
def test_a_seed_replays_identically(seed):
    first = run_seed(seed)
    again = [run_seed(seed), run_seed(seed)]
    assert again == [first, first]
    # Text hashes differently in every process, so another one must agree as well.
    program = (
        "from headwater.testing.simulator.scenario import run_seed\n"
        f"print(run_seed({seed}).digest)\n"
    )
    for hashing in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(answer.stdout) == first.digest


def test_seeds_differ():
    assert len({run_seed(seed).digest for seed in (0, 3, 4, 5)}) == 4


def test_the_command_prints_seeds_and_their_replay(capsys, monkeypatch):
    assert main(["--seeds", "2", "--seed0", "8", "--jobs", "1", "--verbose"]) == 0
    told = capsys.readouterr().out
    assert "seed 8: " in told
    assert "seed 9: " in told
    assert "2 seeds" in told
    assert "0 failures" in told

    def broken(self, epoch):
        raise RuntimeError("confirming is broken")

    monkeypatch.setattr("headwater.state.table.StateTable.confirm", broken)
    assert main(["--seeds", "1", "--seed0", "8", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert replay_command(8) in told
    assert "confirming is broken" in told
