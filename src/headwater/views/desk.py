"""What the rules ask of the world: leaves to read from, rows by key, small results.

A leaf is a name that a query can read. Leaves that are held in memory bring their Arrow table
along, which is what later lookups take their keys from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import pyarrow as pa

from headwater.model.ids import TableId
from headwater.sql.algebra import Output
from headwater.views.rounds import Need


class Side(Enum):
    """Before or after the epoch; the value is its bit in the column of sides."""

    OLD = 1
    NEW = 2


@dataclass(frozen=True, slots=True)
class StoreId:
    """One of a view's stores."""

    view: str
    number: int


Source = TableId | StoreId


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows under a name; `table` when they are in memory."""

    name: str
    table: pa.Table | None = None


@dataclass(frozen=True, eq=False)
class Lookup(Need[Leaf | None]):
    """The rows whose columns hold one of these keys, with the column of sides.

    Answered with None when there are too many, or no way to find them but to read everything.
    """

    source: Source
    keys: pa.Table
    columns: tuple[str, ...] | None = None
    """The stored columns that are read, None for all; keys are there in any case."""


@dataclass(frozen=True, eq=False)
class Compute(Need[pa.Table | None]):
    """The rows of a query over memory, if they can be had without a Spark job; else None."""

    sql: str
    outputs: tuple[Output, ...]


@dataclass(frozen=True, eq=False)
class Collect(Need[pa.Table]):
    """The rows of a query, which must be few."""

    sql: str
    outputs: tuple[Output, ...]
    local: bool = False
    """Everything that it reads is in memory."""
    last: bool = False
    """Nothing of the epoch waits for it, so it can wait for what others ask for."""


class Desk(Protocol):
    """Where leaves come from."""

    def changes(self, table: TableId) -> Leaf:
        """A changed table's changes of the epoch, with their weight."""
        ...

    def memory(self, rows: pa.Table, outputs: Sequence[Output]) -> Leaf:
        """Rows that a rule has itself found."""
        ...

    def whole(self, source: Source, side: Side) -> Leaf:
        """All rows of a relation."""
        ...
