"""The contract of an upstream table: a snapshot at an epoch, and its changes without a gap.

Whoever follows a table of another workspace sees it through this. Everything is read-only but the
pin, which is the one thing that a follower leaves there.

Promises that every upstream table keeps
    Fixed         The groups of an epoch, and the rows of a slice, are the same at every call.
    Exact         Changes are those of `model/change.py` that come out of a state table, in the
                  order of their epochs, each with its vnode and its epoch.
    Whole         Between two committed epochs no change is missing: what is no longer kept is
                  `HistoryGone`, never less.
    Read-only     Nothing but a pin is written.

All methods but the properties may block. They are called from threads, and may overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headwater.backfill.snapshot.slices import Group
from headwater.backfill.snapshot.vnode_stream import VnodeSlice
from headwater.model.epoch import Epoch
from headwater.model.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class LoggedEpoch:
    """An epoch that changed the table, and about how much."""

    epoch: Epoch
    rows: int
    bytes: int


class UpstreamTable(Protocol):
    """A table that somebody else writes."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def schema(self) -> Schema:
        """The columns that are followed."""
        ...

    @property
    def committed(self) -> Epoch:
        """The last epoch that can be read, when `refresh` was last called."""
        ...

    @property
    def oldest(self) -> Epoch:
        """The oldest epoch that can be read, at the same moment."""
        ...

    def refresh(self) -> None:
        """Look at the upstream anew.

        Raises `RetryableError` when it cannot be reached now, and another `HeadwaterError` when
        only a person can help: the table was dropped, or a column that is followed.
        """
        ...

    def groups(self, epoch: Epoch) -> Sequence[Group]:
        """The files of a snapshot, by the vnodes that share them; `HistoryGone` if they are."""
        ...

    def snapshot(self, epoch: Epoch, slices: Sequence[VnodeSlice]) -> "pa.Table | DataFrame":
        """The rows of some slices of a snapshot."""
        ...

    def log(self, after: Epoch) -> Sequence[LoggedEpoch]:
        """The epochs after one and up to `committed` that changed the table.

        Raises `HistoryGone` when changes after that epoch are no longer kept.
        """
        ...

    def changes(self, after: Epoch, upto: Epoch) -> "pa.Table | DataFrame":
        """The changes of the epochs after one and up to another, with vnodes and epochs."""
        ...

    def pin(self, epoch: Epoch) -> None:
        """Have the upstream keep everything from an epoch on; a later call moves that on.

        Raises `HistoryGone` when it is too late. Replay: repeatable; the last one counts.
        """
        ...

    def unpin(self) -> None:
        """Let go of it. Replay: repeatable."""
        ...
