"""The contract of a source: a log of changes to some tables, read by position.

One source feeds all tables that come from it, and is cut once per epoch, so that a transaction
over several tables lands in one epoch.

Promises that every source keeps
    Repeatable    Reading after the same position again gives the same changes in the same order,
                  for as long as that position has not been acknowledged. The engine may stop at
                  any moment and read again from the last position in the ledger.
    Bounded       A batch holds about `max_bytes` at most, and whole transactions only.
    Patient       Nothing to read is an empty batch, at once; the engine asks again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headwater.model.ids import SourceName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """Changes in commit order, by table, and the position right after the last of them.

    Changes have the relation's columns and `_change_type`; see `model/change.py` for what a
    change means on the way in. A batch too large for the driver comes as DataFrames, whose
    rows stay in Spark; `_seq` then orders the changes of one key. It makes an epoch of its own.
    """

    position: str
    changes: "Mapping[str, pa.Table | DataFrame]" = field(default_factory=dict)
    more: bool = False
    """Whether more is there already, so that waiting makes no sense."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else the ledger is to have with these changes, beside the position."""

    @property
    def bulk(self) -> bool:
        """Whether rows of it are in Spark."""
        return any(not isinstance(changes, pa.Table) for changes in self.changes.values())


class Upstream(Protocol):
    """Whoever has to hear which position is safe in the ledger."""

    @property
    def name(self) -> SourceName:
        """What the ledger files the position under."""
        ...

    async def acknowledge(self, position: str) -> None:
        """Hear that everything up to `position` is in the ledger and will not be read again.

        May be called again with the same or an older position after a crash.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Source(Upstream, Protocol):
    """One upstream log, as the engine reads it."""

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """Read what follows `after`; None is the beginning.

        Raises `SourceUnavailable` when the upstream cannot be reached now, and `UserError`
        when only the user can help.
        """
        ...
