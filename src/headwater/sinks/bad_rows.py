"""Which row it was: a value that a target refuses is named by its column and its key."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import SchemaError, UserError
from headwater.sinks.sink import OP

_MOST_CHARACTERS = 80


def key_text(batch: pa.RecordBatch, row: int, key: Sequence[str]) -> str:
    """A row's key for people, as in (id, part) = (7, 'a'); all columns where there is no key."""
    names = list(key) or [name for name in batch.schema.names if name != OP]
    values = [_short(batch.column(name)[row]) for name in names]
    return f"({', '.join(names)}) = ({', '.join(values)})"


def _short(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py()) if pa.types.is_string(value.type) else str(value.as_py())
    except (ValueError, OverflowError):
        # A time that Python does not have.
        text = str(pc.cast(value, pa.string()).as_py())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def row_at(batches: Iterable[pa.RecordBatch], number: int) -> tuple[pa.RecordBatch, int] | None:
    """The row of a number, from 0, over all batches."""
    for batch in batches:
        if number < batch.num_rows:
            return batch, number
        number -= batch.num_rows
    return None


def unfit_value(
    column: str, batch: pa.RecordBatch, row: int, key: Sequence[str], why: str
) -> SchemaError:
    """A value that the target has no place for."""
    value = _short(batch.column(column)[row])
    error = SchemaError(
        f'a value of column "{column}" does not fit the target',
        detail=f"Row {key_text(batch, row, key)}, value {value}: {why}",
        hint="Change the column's type at the target, or the row; then it is tried again.",
    )
    error.sqlstate = "22000"
    return error


def null_in_key(column: str, batch: pa.RecordBatch, row: int, key: Sequence[str]) -> UserError:
    """A row whose key is not whole."""
    return UserError(
        f'key column "{column}" is null in a row for the target',
        detail=f"Row {key_text(batch, row, key)}.",
        hint="Choose a primary_key without nulls, or filter such rows out in the sink's query.",
    )
