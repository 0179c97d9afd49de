"""A bug put in on purpose must be found by some seed, with the complaint that fits it."""

import re
from collections.abc import Callable

import pytest

from headwater.testing.many_seeds import SeedFailed

Complaint = str | Callable[[str], bool]
"""What the first line must say, or what must be true of all that is said."""


def assert_found(
    run_seed: Callable[[int], object], seeds: int, complaint: Complaint, *, first: int = 0
) -> None:
    """Run seeds from the first on until one fails, which must say this."""
    for seed in range(first, first + seeds):
        try:
            run_seed(seed)
        except SeedFailed as failed:
            said = str(failed)
            first = said.splitlines()[0]
            fits = re.search(complaint, first) if isinstance(complaint, str) else complaint(said)
            assert fits, said[:2000]
            return
    pytest.fail(f"it was not found in {seeds} seeds")
