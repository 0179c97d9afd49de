"""A bug put in on purpose must be found by some seed, with the complaint that fits it."""

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest

from headwater.testing.many_seeds import SeedFailed, attempt

Complaint = str | Callable[[str], bool]
"""What the first line must say, or what must be true of all that is said."""


def assert_found(
    run_seed: Callable[[int], Any], seeds: int, complaint: Complaint, *, first: int = 0
) -> None:
    """Run seeds from the first on until one fails, which must say this."""
    try:
        answers = (attempt(run_seed, seed) for seed in range(first, first + seeds))
        failed = next((each for each in answers if isinstance(each, SeedFailed)), None)
    finally:
        gc.unfreeze()
    if failed is None:
        pytest.fail(f"it was not found in {seeds} seeds")
    said = str(failed)
    line = said.splitlines()[0]
    fits = re.search(complaint, line) if isinstance(complaint, str) else complaint(said)
    assert fits, said[:2000]
