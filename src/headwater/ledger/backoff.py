"""How long to keep trying when the ledger's database does not answer."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that grow by `factor` from `first_s` to `longest_s`, `total_s` in all."""

    first_s: float = 0.05
    factor: float = 2.0
    longest_s: float = 5.0
    total_s: float = 120.0

    def waits(self) -> Iterator[float]:
        """The waits in seconds, one after the other; it ends when `total_s` is used up."""
        wait, left = self.first_s, self.total_s
        while left > 0:
            yield min(wait, left)
            left -= wait
            wait = min(wait * self.factor, self.longest_s)
