"""Epochs: the unit of consistency, and the clock that hands them out.

An epoch is a 64-bit number that grows with time: milliseconds since 2021-04-01 UTC in the high
48 bits, a counter in the low 16. Readers see all of an epoch or none of it.

Promises
    Strictly increasing   also when the machine's clock stands still or jumps back: the next
                          epoch is then the last one plus one.
    Readable              `epoch_time` gives back the wall-clock time of an epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NewType

Epoch = NewType("Epoch", int)

NO_EPOCH = Epoch(0)
"""Before the first epoch; the empty database."""

_COUNTER_BITS = 16
_ZERO = datetime(2021, 4, 1, tzinfo=UTC)


def epoch_at(time: datetime) -> Epoch:
    """The first epoch of that millisecond."""
    return Epoch(((time - _ZERO) // timedelta(milliseconds=1)) << _COUNTER_BITS)


def epoch_time(epoch: Epoch) -> datetime:
    """The wall-clock time an epoch began at, to the millisecond."""
    return _ZERO + timedelta(milliseconds=epoch >> _COUNTER_BITS)


def epoch_millis(epoch: Epoch) -> int:
    """The same as milliseconds since 1970, which is what Delta stores."""
    return int(_ZERO.timestamp() * 1000) + (epoch >> _COUNTER_BITS)


def epoch_before(epoch: Epoch, seconds: float) -> Epoch:
    """What the epoch was so many seconds earlier."""
    return Epoch(max(0, epoch - (int(seconds * 1000) << _COUNTER_BITS)))


def next_epoch(after: Epoch, now: datetime) -> Epoch:
    """The epoch for `now`, or the one right after `after` when the clock has not moved on."""
    return Epoch(max(epoch_at(now), after + 1))


@dataclass(frozen=True, slots=True, order=True)
class EpochPair:
    """A boundary: the epoch that ends and the epoch that begins."""

    prev: Epoch
    curr: Epoch

    def __post_init__(self) -> None:
        if self.curr <= self.prev:
            raise ValueError(f"an epoch pair must grow: prev {self.prev}, curr {self.curr}")

    def follows(self, earlier: "EpochPair") -> bool:
        """Whether this boundary is the very next one after `earlier`."""
        return self.prev == earlier.curr


WallClock = Callable[[], datetime]
"""What the engine asks for the time; tests hand in one that moves when told."""


def system_clock() -> datetime:
    """The machine's clock, in UTC."""
    return datetime.now(UTC)
