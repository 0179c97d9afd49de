"""How long a reader waits before it delivers again what has failed.

The n-th rewind in a row waits `base * factor ** n`, at most `longest`, of which a random half is
left away so that sinks which failed together do not come back together. Progress in between
begins anew. This is the only wait after a failure: nothing else is stacked upon it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

REWIND_BASE_DELAY = timedelta(seconds=1)
REWIND_BACKOFF_FACTOR = 2.0
REWIND_MAX_DELAY = timedelta(seconds=180)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindBackoff:
    """Growing waits; `sleep` and `random` are handed in by tests."""

    base: timedelta = REWIND_BASE_DELAY
    factor: float = REWIND_BACKOFF_FACTOR
    longest: timedelta = REWIND_MAX_DELAY
    sleep: Sleep = asyncio.sleep
    random: Callable[[], float] = random.random

    def delay(self, failures: int) -> timedelta:
        """The wait after so many failures in a row before this one, without chance."""
        # A target may be down for weeks; the exponent is capped so that nothing overflows.
        seconds = self.base.total_seconds() * self.factor ** min(failures, 64)
        return timedelta(seconds=min(seconds, self.longest.total_seconds()))

    async def wait(self, failures: int) -> None:
        """Wait so long, or up to half of it less."""
        seconds = self.delay(failures).total_seconds()
        await self.sleep(seconds * (1 - self.random() / 2))
