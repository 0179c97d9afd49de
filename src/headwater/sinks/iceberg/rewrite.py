"""Take rows by key out of an Iceberg table: which files hold them, and those files without them.

pyiceberg writes no delete files, so a file that holds one of the keys is written again without
it. Files are left out by the bounds of their key columns first, then by the hashes of their
keys. Equal hashes are compared by value: nulls are one key, NaN is one, both zeros are one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import UserError
from headwater.model.schema import Column
from headwater.model.types import Kind
from headwater.sinks.iceberg.columns import type_shape
from headwater.sinks.parquet_part import ParquetPart, write_parquet
from headwater.state.key_hash import key_hashes
from headwater.state.lookup import same_values
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table

_BOUNDED = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.VARCHAR, Kind.UUID})
"""Kinds whose bounds in a manifest and in Arrow are the same."""


class Keys:
    """The keys of one delivery, to be looked for in files."""

    def __init__(self, rows: pa.Table, columns: Sequence[Column]) -> None:
        self.rows = rows.select([column.name for column in columns]).combine_chunks()
        self.columns = tuple(columns)
        hashes = key_hashes(self.rows, columns)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def among(self, batch: pa.RecordBatch) -> Any:
        """For each row whether its key is one of these."""
        rows = pa.Table.from_batches([batch]).select(self.rows.column_names)
        hashes = key_hashes(rows, self.columns)
        first = np.searchsorted(self._sorted, hashes, side="left")
        end = np.searchsorted(self._sorted, hashes, side="right")
        found = np.zeros(len(hashes), dtype=np.bool_)
        places = np.flatnonzero(first < end)
        while places.size:
            keys = self.rows.take(pa.array(self._order[first[places]]))
            same = same_values(rows.take(pa.array(places)), keys, self.columns)
            found[places[same]] = True
            first[places] += 1
            places = places[~same & (first[places] < end[places])]
        return found

    def bounds(self) -> "BooleanExpression":
        """What a file must satisfy to hold one of the keys."""
        from pyiceberg.expressions import (  # noqa: PLC0415  an extra
            AlwaysTrue,
            And,
            BooleanExpression,
            GreaterThanOrEqual,
            LessThanOrEqual,
        )

        condition: BooleanExpression = AlwaysTrue()
        for column in self.columns:
            values = self.rows.column(column.name)
            if column.type.kind in _BOUNDED and values.null_count == 0:
                ends = pc.min_max(values).as_py()
                condition = And(
                    condition,
                    GreaterThanOrEqual(column.name, ends["min"]),  # type: ignore[call-arg, arg-type]
                    LessThanOrEqual(column.name, ends["max"]),  # type: ignore[call-arg, arg-type]
                )
        return condition


def files_with(table: "Table", keys: Keys) -> "Iterator[FileScanTask]":
    """The data files that hold at least one of the keys."""
    names = [column.name for column in keys.columns]
    for task in table.scan(row_filter=keys.bounds()).plan_files():
        if any(keys.among(batch).any() for batch in _batches(table, task, names)):
            yield task


def rewritten(
    table: "Table", task: "FileScanTask", keys: Keys, storage: Storage, path: str
) -> ParquetPart | None:
    """A file's rows without those keys, in a new file; None where no row is left.

    Replay: another file; the commit removes the first.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415  an extra

    schema = schema_to_pyarrow(table.schema(), include_field_ids=True)
    if any(_loses_nulls(field.type) for field in schema):
        batches = _plain_batches(table, task, schema)
    else:
        batches = _batches(table, task, list(schema.names))
    kept = (batch.filter(pa.array(~keys.among(batch))) for batch in batches)
    return write_parquet(storage, path, schema, kept)


def _batches(
    table: "Table", task: "FileScanTask", names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """A file's rows as the table has them: by its schema, without rows deleted by others."""
    from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415  an extra
    from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415  an extra

    scan = ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
    return scan.to_record_batches([task])


def _loses_nulls(type_: pa.DataType) -> bool:
    """Whether pyiceberg reads a null of this type as an empty value, as up to 0.12 it does."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.types.is_struct(type_.value_type) or _loses_nulls(type_.value_type)
    if pa.types.is_map(type_):
        return True
    return pa.types.is_struct(type_) and any(_loses_nulls(field.type) for field in type_)


def _plain_batches(
    table: "Table", task: "FileScanTask", schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """A file's rows as they lie in it, where the table's columns are the file's."""
    with table.io.new_input(task.file.file_path).open() as stream:
        file = pq.ParquetFile(stream)
        found = file.schema_arrow
        if task.delete_files or not _same_columns(found, schema):
            raise UserError(
                "rows of a table with lists of structs cannot be changed as it is now",
                detail=f"{task.file.file_path} has deleted rows, or columns of an older schema.",
                hint="Rewrite the table's data files (compact it), then let the sink go on.",
            )
        for batch in file.iter_batches():
            yield batch.rename_columns(schema.names)


def _same_columns(found: pa.Schema, wanted: pa.Schema) -> bool:
    ids = [(field.metadata or {}).get(b"PARQUET:field_id") for field in found]
    return (
        None not in ids
        and ids == [field.metadata[b"PARQUET:field_id"] for field in wanted]
        and [type_shape(field.type) for field in found]
        == [type_shape(field.type) for field in wanted]
    )
