"""Cells: where the values of a column lie in a buffer, and whose they are.

A cell is a start and a length in a buffer of bytes from the server; a negative length is null.
COPY and pgoutput both come apart into cells before anything is copied or interpreted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Cells:
    """Places of one column's values in a buffer; null where the length is negative."""

    data: "np.ndarray[Any, np.dtype[np.uint8]]"
    starts: "np.ndarray[Any, np.dtype[np.int64]]"
    lengths: "np.ndarray[Any, np.dtype[np.int32]]"

    def __len__(self) -> int:
        return int(self.starts.size)


@dataclass(frozen=True, slots=True)
class Place:
    """Whose values are read, for errors, and what to do about those without a place."""

    table: str
    column: str
    bad_as_null: bool = False

    def refuse(self, what: str) -> SchemaError:
        """The error that names this column."""
        return SchemaError(
            f'column "{self.column}" of {self.table} has a value that cannot be kept',
            detail=what,
            hint="Change the value upstream, leave the column out, or set the option "
            '"unrepresentable.values" to "null".',
        )
