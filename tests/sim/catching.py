"""A bug put in on purpose must be found by some seed, with the complaint that fits it."""

import re
from collections.abc import Callable

import pytest

from headwater.testing.many_seeds import SeedFailed


def assert_found(run_seed: Callable[[int], object], seeds: int, complaint: str) -> None:
    """Run seeds from the first on until one fails, which must say this."""
    for seed in range(seeds):
        try:
            run_seed(seed)
        except SeedFailed as failed:
            said = str(failed).splitlines()[0]
            assert re.search(complaint, said), said
            return
    pytest.fail(f"it was not found in {seeds} seeds")
