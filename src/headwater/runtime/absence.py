"""A source that does not answer: who hears of it, and when it is asked again."""

from collections.abc import Callable
from datetime import timedelta

from headwater.barrier.timer import Backoff

_WAITS = Backoff(first=timedelta(milliseconds=100), longest=timedelta(seconds=10))


class Absence:
    """Counts failures in a row; whoever listens hears of the first of them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._failures = 0

    def failed(self, why: str) -> float:
        """It did not answer; how many seconds to leave it alone."""
        if not self._failures:
            self._tell(why)
        self._failures += 1
        return _WAITS.after(self._failures).total_seconds()

    def over(self) -> None:
        """It has answered."""
        self._failures = 0
