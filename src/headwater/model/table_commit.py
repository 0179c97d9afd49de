"""What one epoch does to one table, as the names of files.

This is what an actor stages, what the ledger records, and what is later published as one
version of a Delta table; the three cannot differ, because they are the same value. Paths are
relative to the table's folder. Files are immutable and are never named twice by `added`.
"""

from dataclasses import dataclass

from headwater.model.ids import TableId
from headwater.model.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of current rows, sorted by vnode."""

    path: str
    bytes: int
    rows: int
    first_vnode: int
    last_vnode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFile:
    """A Parquet file of exact changes, in the change vocabulary."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Where the positions of a data file's dead rows are kept."""

    path: str
    offset: int
    bytes: int
    cardinality: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """The difference between a table before and after an epoch.

    `dead` replaces the deletion vector of a file that stays. `folded` files leave because
    `added` ones named in `rewritten` hold their rows now; folding changes no row. Without
    `changes`, the epoch's changes are the inserts of all rows in `added` not in `rewritten`.
    """

    table: TableId
    version: int
    added: tuple[DataFile, ...] = ()
    dead: tuple[tuple[str, DeletionVector], ...] = ()
    changes: tuple[ChangeFile, ...] = ()
    folded: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    schema: Schema | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to publish."""
        return not (self.added or self.dead or self.changes or self.folded or self.schema)

    @property
    def inserted(self) -> tuple[DataFile, ...]:
        """The added files that hold rows new in this epoch."""
        rewritten = set(self.rewritten)
        return tuple(file for file in self.added if file.path not in rewritten)
