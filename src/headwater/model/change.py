"""The change vocabulary, and the update pairs that must never part.

Words are Spark's and Delta's: `insert`, `delete`, `update_preimage`, `update_postimage`.
A chunk is a table of rows with a `_change_type` each. In a chunk that goes *into* a state table
an `insert` and an `update_postimage` both mean "this is now the row of that key", a `delete`
needs only the key, and a preimage says nothing. A chunk that comes *out* of a state table is
exact: every delete and preimage holds the row that was there, and the preimage of an update
stands right before its postimage.
"""

from enum import IntEnum, StrEnum


class ChangeType(StrEnum):
    """What happened to a row."""

    INSERT = "insert"
    DELETE = "delete"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"

    @property
    def adds(self) -> bool:
        """Whether a row is there after it."""
        return self in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)


class RowOp(IntEnum):
    """The same as a small number, as rows on their way to a sink carry it."""

    INSERT = 1
    DELETE = 2
    UPDATE_INSERT = 3
    UPDATE_DELETE = 4

    @property
    def adds(self) -> bool:
        """Whether a row is there after it."""
        return self in (RowOp.INSERT, RowOp.UPDATE_INSERT)
