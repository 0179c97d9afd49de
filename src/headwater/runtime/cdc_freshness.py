"""How far a source is behind its upstream, in time.

Every read of the log tells up to when it is complete: a read that reached the end of the log has
everything that had committed when the read began; one that left something behind has everything
up to the commit of its last transaction. Once an epoch with that position is in the ledger, we
are fresh up to then. The lag is the time since.

So an idle source has a lag of about one epoch, whenever its last transaction was; a source that
is away, or that cannot be staged, lags by the second. Pure: times are handed in, in seconds
since 1970.
"""

from collections import deque
from dataclasses import dataclass

from headwater.cdc.offset import CdcOffset

_MOST = 512


@dataclass(frozen=True, slots=True)
class _Read:
    offset: CdcOffset
    complete_to: float


class Freshness:
    """Up to when one source's changes are all in the ledger."""

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()
        self._fresh_to: float | None = None
        self._applied: CdcOffset | None = None
        self.last_event_at: float | None = None
        """When the last transaction that was read committed upstream."""

    def restarted(self) -> None:
        """What was read and is not in the ledger is read again."""
        self._reads.clear()

    def read(
        self, offset: CdcOffset, *, began_at: float, committed_at: float | None, more: bool
    ) -> None:
        """The log was read up to a place."""
        if committed_at is not None:
            self.last_event_at = committed_at
        if more and committed_at is None:
            return
        complete = committed_at if more and committed_at is not None else began_at
        if self._reads and self._reads[-1].offset == offset:
            self._reads.pop()
        self._reads.append(_Read(offset, complete))
        if self._applied is not None:
            # An idle log is read up to where the ledger is already.
            self.applied(self._applied)
        if len(self._reads) > _MOST:
            # The oldest goes: who asks meanwhile hears of a lag that is a little too large.
            self._reads.popleft()

    def applied(self, position: CdcOffset) -> None:
        """The ledger has everything up to a position."""
        self._applied = position
        while self._reads and self._reads[0].offset <= position:  # type: ignore[operator]
            self._fresh_to = max(self._fresh_to or 0.0, self._reads.popleft().complete_to)

    def lag_s(self, now: float) -> float | None:
        """The seconds since everything was here; None before the first time."""
        return None if self._fresh_to is None else max(0.0, now - self._fresh_to)
