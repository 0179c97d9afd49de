"""Results that are made here: a few rows, a tag, a notice."""

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from headwater.model.types import VARCHAR, DataType
from headwater.pgwire.session import Done, Notice, ResultColumn, Rows


def done(tag: str, *notices: str) -> Done:
    """A statement that gives no rows."""
    return Done(tag=tag, notices=tuple(Notice(message=notice) for notice in notices))


def texts(names: Sequence[str], rows: Sequence[Sequence[str | None]], tag: str = "SELECT ") -> Rows:
    """Rows of text."""
    columns = tuple(ResultColumn(name=name, type=VARCHAR) for name in names)
    return of_rows(columns, rows, tag)


def typed(
    names: Sequence[tuple[str, DataType]], rows: Sequence[Sequence[object]], tag: str = "SELECT "
) -> Rows:
    """Rows of any values."""
    columns = tuple(ResultColumn(name=name, type=type_) for name, type_ in names)
    return of_rows(columns, rows, tag)


def of_rows(
    columns: tuple[ResultColumn, ...], rows: Sequence[Sequence[object]], tag: str = "SELECT "
) -> Rows:
    """Rows of values by column."""
    arrays = [
        pa.array([row[place] for row in rows], column.type.arrow)
        for place, column in enumerate(columns)
    ]
    names = [f"c{place}" for place in range(len(columns))]
    return of_table(columns, pa.Table.from_arrays(arrays, names=names), tag)


def of_table(columns: tuple[ResultColumn, ...], table: pa.Table, tag: str = "SELECT ") -> Rows:
    """Rows that are here already."""
    return Rows(columns=columns, batches=_batches(table), tag=tag)


async def _batches(table: pa.Table) -> AsyncIterator[pa.RecordBatch]:
    for batch in table.to_batches():
        yield batch
