"""Many seeds of a simulator, on all cores, from a command line: failing ones are printed."""

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

_CHUNK = 8
_COLLECT = 8
_SHOWN = 5


class SeedFailed(AssertionError):
    """A seed has found something; says how to run it again."""


class Counted(Protocol):
    """What a seed did, as far as it is told."""

    @property
    def seed(self) -> int:
        """Which one."""
        ...

    @property
    def digest(self) -> int:
        """A checksum of all that happened: the same seed always gives the same."""
        ...

    @property
    def epochs(self) -> int:
        """Epochs that were committed."""
        ...

    @property
    def lives(self) -> int:
        """Engines that were started."""
        ...


R = TypeVar("R", bound=Counted)


@dataclass(frozen=True, slots=True)
class Simulator(Generic[R]):
    """A simulator by its name as a module, and what runs one seed of it."""

    module: str
    run_seed: Callable[[int], R]

    def run(self, seeds: Sequence[int], jobs: int | None = None) -> Iterator[R | SeedFailed]:
        """Run seeds side by side; the answers come in any order."""
        work = partial(attempt, self.run_seed)
        workers = min(jobs or os.cpu_count() or 1, len(seeds))
        if workers <= 1:
            try:
                yield from map(work, seeds)
            finally:
                gc.unfreeze()
            return
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            yield from pool.imap_unordered(work, seeds, chunksize=_CHUNK)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the seeds that were asked for; the exit code says whether all were well."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("--seeds", type=int, default=1000, help="how many")
        parser.add_argument("--seed0", type=int, default=0, help="the first one")
        parser.add_argument("--jobs", type=int, default=None, help="processes; default: all cores")
        parser.add_argument("--verbose", action="store_true", help="print a line per seed")
        asked = parser.parse_args(arguments)
        began = time.monotonic()
        epochs = lives = done = failures = 0
        for answer in self.run(range(asked.seed0, asked.seed0 + asked.seeds), asked.jobs):
            done += 1
            if isinstance(answer, SeedFailed):
                failures += 1
                if failures <= _SHOWN:
                    print(answer, flush=True)
                continue
            epochs += answer.epochs
            lives += answer.lives
            if asked.verbose:
                print(
                    f"seed {answer.seed}: {answer.epochs} epochs, {answer.lives} lives, "
                    f"trace {answer.digest:08x}",
                    flush=True,
                )
        took = time.monotonic() - began
        rate = 60 * done / max(took, 1e-9)
        print(
            f"{done} seeds, {epochs} epochs, {lives} lives, {failures} failures "
            f"in {took:.1f} s ({rate:.0f} seeds per minute)"
        )
        return 1 if failures else 0


def attempt(run_seed: Callable[[int], R], seed: int) -> R | SeedFailed:
    """Run one seed and bring its failure back as a value; call `gc.unfreeze` after the last."""
    # Seeds leave cycles behind; the collector is quicker when it comes between them, and when it
    # does not walk every module again each time, which takes longer than most seeds.
    gc.disable()
    if seed % _COLLECT == 0:
        gc.collect()
        gc.freeze()
    try:
        return run_seed(seed)
    except SeedFailed as failed:
        # The cause may hold what cannot be sent to another process.
        return SeedFailed(str(failed))
    finally:
        gc.enable()
