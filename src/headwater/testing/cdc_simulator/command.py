"""The command line of the backfill's simulator: many seeds on all cores, failures printed."""

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence

from headwater.testing.cdc_simulator.scenario import Report, SeedFailed, run_seed

_CHUNK = 16
_SHOWN = 5
_COLLECT = 8


def run_seeds(seeds: Sequence[int], jobs: int | None = None) -> Iterator[Report | SeedFailed]:
    """Run seeds side by side; the answers come in any order."""
    workers = min(jobs or os.cpu_count() or 1, len(seeds))
    if workers <= 1:
        yield from map(attempt, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(attempt, seeds, chunksize=_CHUNK)


def attempt(seed: int) -> Report | SeedFailed:
    """Run one seed and bring its failure back as a value."""
    # Seeds leave cycles behind; the collector is quicker when it comes between them.
    gc.disable()
    if seed % _COLLECT == 0:
        gc.collect()
    try:
        return run_seed(seed)
    except SeedFailed as failed:
        # The cause may hold what cannot be sent to another process.
        return SeedFailed(str(failed))
    finally:
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds that were asked for; the exit code says whether all were well."""
    parser = argparse.ArgumentParser(prog="python -m headwater.testing.cdc_simulator")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--seed0", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=None, help="processes; default: all cores")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    failures = 0
    commits = lives = done = 0
    for answer in run_seeds(range(asked.seed0, asked.seed0 + asked.seeds), asked.jobs):
        done += 1
        if isinstance(answer, SeedFailed):
            failures += 1
            if failures <= _SHOWN:
                print(answer, flush=True)
            continue
        commits += answer.commits
        lives += answer.lives
    took = time.monotonic() - began
    rate = 60 * done / max(took, 1e-9)
    print(
        f"{done} seeds, {commits} epochs, {lives} lives, {failures} failures "
        f"in {took:.1f} s ({rate:.0f} seeds per minute)"
    )
    return 1 if failures else 0
