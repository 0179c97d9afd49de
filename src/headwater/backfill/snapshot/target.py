"""What snapshot backfill fills, a view or the log of a sink: its contract with the executor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headwater.backfill.snapshot.machine import CatchUp, LogEpoch, Read
from headwater.backfill.snapshot.state import TableProgress
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import StagedWork


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files that wait for their epoch."""

    parts: Any
    """What the target that wrote them needs to stage them."""
    rows: int
    """How many rows were read for them."""
    in_one: bool = False
    """Whether slices do not pay after all, and everything is to be read in one."""
    again: bool = False
    """Whether it has to be read again, once an epoch has all that was read before it."""


Ready = Callable[[Sequence[tuple[int, Prepared]]], None]
"""Hears which slices of a sweep are read, by their place in it; from any thread.

Neighbours that are told of together go into the same epoch: the last may bring what all have.
"""


class Target(Protocol):
    """What is filled: a view, or the log of a sink.

    Its methods block; only fresh slices are read side by side.
    """

    @property
    def exists(self) -> bool:
        """Whether the ledger has its stores."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether no slice of the snapshot waits until an epoch has another; it may end."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether slices are read one after the other all the same."""
        ...

    def read(self, read: Read, so_far: Mapping[TableId, TableProgress], epoch: Epoch) -> Prepared:
        """Compute what slices bring, and write it. Replay: writes files under new names."""
        ...

    @property
    def sweeps(self) -> bool:
        """Whether unlimited slices are read by `sweep`, many at once; it may end."""
        ...

    def sweep(
        self,
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
        ready: Ready,
        over: Callable[[], bool],
    ) -> None:
        """The same for slices that need nothing of each other, in one job.

        Each is told of when it is read, in any order. When it returns all of them are, unless it
        is `over` before its time, or some are told to be read again; then those and what comes
        after them are not. Replay: as `read`.
        """
        ...

    def catch_up(self, step: CatchUp, epoch: Epoch) -> Prepared:
        """The same for a stretch of the change log."""
        ...

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> StagedWork:
        """Let an epoch have what is prepared. Replay: an epoch that is staged again is whole."""
        ...

    def log(self, after: Epoch) -> Sequence[LogEpoch]:
        """The committed epochs after one that changed the view's tables, and how much."""
        ...

    def interrupt(self) -> None:
        """End the method that runs, with an error; from another thread."""
        ...
