"""The one line of epochs: which comes next, what kind of boundary ends it, what that seals.

    uncheckpointed + 1 >= frequency    the next periodic barrier is a checkpoint
    a command                          is a checkpoint, except Resume
    nothing sent since the start       is INITIAL and seals nothing: it only opens an epoch

A checkpoint seals every epoch since the one before it. The count decides when the next
checkpoint is due, and begins anew when the pace changes; the list of epochs to seal does not.
"""

from datetime import datetime, timedelta

from headwater.barrier.commands import effective, kind_of
from headwater.barrier.events import CommandRequested
from headwater.model.barrier import Barrier, BarrierKind, Pause, Resume
from headwater.model.epoch import Epoch, EpochPair, epoch_time, next_epoch


class Timeline:
    """Makes the boundaries, one after the other; `after` is the last epoch in the ledger."""

    def __init__(self, *, after: Epoch) -> None:
        self.last: EpochPair | None = None
        self.paused = False
        self.unsealed: list[Epoch] = []
        self._after = after
        self._uncheckpointed = 0
        self._wall = epoch_time(after)

    @property
    def opened(self) -> bool:
        """Whether there is an epoch to end."""
        return self.last is not None

    def restart_count(self) -> None:
        """Count the barriers to the next checkpoint from here."""
        self._uncheckpointed = 0

    def went_back(self, wall: datetime) -> timedelta | None:
        """By how much the wall clock has jumped back since it was last looked at."""
        back = self._wall - wall
        self._wall = wall
        return back if back > timedelta(0) else None

    def boundary(
        self, wall: datetime, *, command: CommandRequested | None, frequency: int
    ) -> Barrier:
        """Make the next boundary; what is paused or not from there on is decided here too."""
        prev = self._after if self.last is None else self.last.curr
        kind = (
            BarrierKind.INITIAL
            if self.last is None
            else kind_of(command, uncheckpointed=self._uncheckpointed, frequency=frequency)
        )
        mutation = effective(command.mutation if command else None, paused=self.paused)
        if isinstance(mutation, Pause | Resume):
            self.paused = isinstance(mutation, Pause)
        self.last = EpochPair(prev, next_epoch(prev, wall))
        return Barrier(epoch=self.last, kind=kind, mutation=mutation, sealed=self._seal(prev, kind))

    def _seal(self, epoch: Epoch, kind: BarrierKind) -> tuple[Epoch, ...]:
        if not kind.seals:
            return ()
        self.unsealed.append(epoch)
        self._uncheckpointed += 1
        if not kind.durable:
            return ()
        sealed = tuple(self.unsealed)
        self.unsealed.clear()
        self._uncheckpointed = 0
        return sealed
