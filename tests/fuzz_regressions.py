"""What the fuzzer has found, each made as small as it would go.

`open` says why a case still fails; the test then expects it to fail, and says so when it does not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Steps that once failed."""

    steps: tuple[str, ...]
    open: str = ""


CASES: dict[str, Case] = {}
