"""When the next periodic barrier is due, and how long to wait before trying again.

Promises
    No burst     A late barrier moves all later ones; missed ones are not made up for.
    No queue     While an epoch is committed the next one goes on, and is ended just in time: what
                 is ended early would only wait, and be older when it can be seen.
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


class Rhythm:
    """How long epochs take to be collected and to be committed, as the last ones did."""

    def __init__(self) -> None:
        self._collecting = 0.0
        self._committing = 0.0

    def collected(self, seconds: float) -> None:
        """A barrier was collected by all, so long after it was sent."""
        self._collecting = seconds

    def committed(self, seconds: float) -> None:
        """An epoch was committed, so long after it was collected."""
        self._committing = seconds

    def next_after(self, committing_since: float) -> float:
        """When to send a barrier that is collected as the epoch before it is committed."""
        return committing_since + max(self._committing - self._collecting, 0.0)


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
