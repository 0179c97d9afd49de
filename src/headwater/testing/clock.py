"""A wall clock that moves when told, also backwards.

    clock = ManualClock()
    clock.advance(seconds=5)
    clock.advance(hours=-1)          # as a machine's clock does when it is corrected

Hand it in wherever a `WallClock` is asked for. Time stands still between two calls, so a test
that depends on it says so by moving it.
"""

from datetime import UTC, datetime, timedelta

START = datetime(2024, 1, 1, tzinfo=UTC)
"""Where test clocks begin."""


class ManualClock:
    """A callable that gives the time it was last set to."""

    def __init__(self, start: datetime = START) -> None:
        self._now = _aware(start)

    def __call__(self) -> datetime:
        """The time, in UTC."""
        return self._now

    def advance(self, *, hours: float = 0, seconds: float = 0, milliseconds: float = 0) -> None:
        """Move by that much; negative numbers move back."""
        self._now += timedelta(hours=hours, seconds=seconds, milliseconds=milliseconds)

    def set(self, now: datetime) -> None:
        """Jump to `now`."""
        self._now = _aware(now)


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return moment.astimezone(UTC)
