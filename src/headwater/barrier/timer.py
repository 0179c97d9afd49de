"""When the next periodic barrier is due, and how long to wait before trying again.

Promises
    No burst     A late barrier moves all later ones; missed ones are not made up for.
    Quiet        Nothing is due while nobody wants barriers.
"""

from dataclasses import dataclass
from datetime import timedelta


class BarrierTimer:
    """The due time of the next periodic barrier, in monotonic seconds."""

    def __init__(self, interval: timedelta) -> None:
        self.interval = interval
        self.due: float | None = None

    def start(self, now: float) -> None:
        """Begin with a barrier at once, unless the timer runs already."""
        if self.due is None:
            self.due = now

    def restart(self, now: float) -> None:
        """A barrier has just been sent: the next is due one interval from now."""
        self.due = now + self.interval.total_seconds()

    def hasten(self, now: float) -> None:
        """The next barrier is due now, if any is."""
        if self.due is not None:
            self.due = min(self.due, now)

    def stop(self) -> None:
        """Nothing is due until the next start."""
        self.due = None

    def is_due(self, now: float) -> bool:
        """Whether a periodic barrier should be sent now."""
        return self.due is not None and now >= self.due


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A wait that doubles with every failure in a row, up to a longest one."""

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=30)

    def after(self, failures: int) -> timedelta:
        """How long to wait after that many failures in a row; nothing after none."""
        if failures == 0:
            return timedelta(0)
        # The exponent is capped so that a job failing for weeks does not overflow a timedelta.
        doubled = self.first * float(1 << min(failures - 1, 32))
        return min(doubled, self.longest)
