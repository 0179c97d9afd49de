"""How fast something is read or sent: rows and bytes per second, alterable, 0 to pause.

A bucket per unit holds what may be read now. It fills with time, up to one second's worth, so
that a new limit is felt within a second. A read takes what it may bring out of the bucket before
it begins, and gives back what it did not bring. A row may be wider than was allowed: the bucket
then owes, and the next read waits.

Time is handed in, in seconds that never go back.
"""

from dataclasses import dataclass

from headwater.errors import ConfigError

_SMALLEST_SHARE = 0.1
"""A read begins when this part of a second's worth is there, rather than row by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """What a user allows; None is no limit, 0 pauses."""

    rows_per_s: int | None = None
    bytes_per_s: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.rows_per_s, self.bytes_per_s):
            if limit is not None and limit < 0:
                raise ConfigError(
                    f"a rate limit cannot be {limit}",
                    hint="Use 0 to pause, or default for no limit.",
                )

    @property
    def pauses(self) -> bool:
        """Whether nothing may be read."""
        return self.rows_per_s == 0 or self.bytes_per_s == 0


@dataclass(slots=True)
class _Bucket:
    per_s: int | None
    level: float
    at: float

    def fill(self, at: float) -> None:
        if self.per_s is not None:
            gained = max(at - self.at, 0.0) * self.per_s
            self.level = min(self.level + gained, float(self.per_s))
        self.at = max(self.at, at)

    def allowed(self, most: int) -> int:
        if self.per_s is None:
            return most
        enough = max(1.0, min(self.per_s * _SMALLEST_SHARE, most))
        # Time is counted in floats; what a millionth is missing of is there.
        return min(int(self.level + 1e-6), most) if self.level + 1e-6 >= enough else 0

    def ready_at(self, most: int) -> float:
        if self.per_s is None or not self.per_s:
            return self.at
        enough = max(1.0, min(self.per_s * _SMALLEST_SHARE, most))
        return self.at + max(enough - self.level, 0.0) / self.per_s


class RateLimiter:
    """The buckets of one table."""

    def __init__(self, limit: RateLimit, at: float) -> None:
        self.limit = limit
        self._rows = _Bucket(limit.rows_per_s, float(limit.rows_per_s or 0), at)
        self._bytes = _Bucket(limit.bytes_per_s, float(limit.bytes_per_s or 0), at)

    def alter(self, limit: RateLimit, at: float) -> None:
        """A new limit holds at once; what was saved up under the old one does not count."""
        owed_rows, owed_bytes = min(self._rows.level, 0.0), min(self._bytes.level, 0.0)
        self.limit = limit
        self._rows = _Bucket(limit.rows_per_s, owed_rows, at)
        self._bytes = _Bucket(limit.bytes_per_s, owed_bytes, at)

    def take(self, max_rows: int, max_bytes: int, at: float) -> tuple[int, int] | None:
        """Allow a read of at most so many rows and bytes, or none yet."""
        if self.limit.pauses:
            return None
        self._rows.fill(at)
        self._bytes.fill(at)
        rows, bytes_ = self._rows.allowed(max_rows), self._bytes.allowed(max_bytes)
        if not rows or not bytes_:
            return None
        self._rows.level -= rows
        self._bytes.level -= bytes_
        return rows, bytes_

    def give_back(self, allowed: tuple[int, int], used: tuple[int, int]) -> None:
        """A read has brought less, or more, than it was allowed."""
        self._rows.level += allowed[0] - used[0]
        self._bytes.level += allowed[1] - used[1]

    def ready_at(self, max_rows: int, max_bytes: int) -> float | None:
        """When to ask again; None when only a new limit helps."""
        if self.limit.pauses:
            return None
        return max(self._rows.ready_at(max_rows), self._bytes.ready_at(max_bytes))
