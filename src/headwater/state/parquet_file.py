"""Parquet files: how rows and changes are written.

Data files hold the relation's columns and two that the Delta schema does not declare, so that
only we see them: `_vnode`, by which the rows are sorted, and `_commit_version`, the epoch that
wrote the row, null in files of snapshots, which are older than their epoch. Change files hold
`_change_type` before them.

A file is written to a temporary place on the local disk, batch by batch, and moved into
storage when it is whole; a crash leaves at most a file that no ledger record names.
"""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import StorageUnavailable
from headwater.model.epoch import Epoch, epoch_time
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.model.schema import Schema
from headwater.model.table_commit import ChangeFile, DataFile
from headwater.state.storage import Storage

ROW_GROUP_ROWS = 1 << 18
_SAMPLE_ROWS = 4096
_DICTIONARY_SHARE = 0.25
"""Share of distinct values in a sample up to which a column is written by dictionary."""

_OWN_FIELDS = [pa.field(VNODE, pa.int16()), pa.field(COMMIT_VERSION, pa.int64())]


def data_schema(schema: Schema) -> pa.Schema:
    """The columns of a data file."""
    return pa.schema([*schema.arrow, *_OWN_FIELDS])


def change_schema(schema: Schema) -> pa.Schema:
    """The columns of a change file."""
    stamp = pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"))
    return pa.schema([*schema.arrow, pa.field(CHANGE_TYPE, pa.string()), *_OWN_FIELDS, stamp])


def with_own_columns(
    rows: pa.Table,
    schema: Schema,
    vnodes: "np.ndarray[tuple[int], np.dtype[np.uint8]]",
    epoch: Epoch | None,
) -> pa.Table:
    """Rows of one epoch as a data file holds them; None where the epoch is not known yet."""
    count = rows.num_rows
    columns = [rows.column(name) for name in schema.names]
    stamp = pa.nulls(count, pa.int64()) if epoch is None else pa.repeat(pa.scalar(epoch), count)
    own = [pa.array(vnodes.astype(np.int16)), stamp]
    return pa.Table.from_arrays([*columns, *own], schema=data_schema(schema))


def as_change_rows(
    rows: pa.Table,
    change_types: pa.Array,
    schema: Schema,
    vnodes: "np.ndarray[tuple[int], np.dtype[np.uint8]]",
    epoch: Epoch,
) -> pa.Table:
    """Changes of one epoch as a change file holds them."""
    count = rows.num_rows
    columns = [rows.column(name) for name in schema.names]
    stamp = pa.array([epoch_time(epoch)], pa.timestamp("us", tz="UTC"))
    own = [
        change_types,
        pa.array(vnodes.astype(np.int16)),
        pa.array(np.full(count, epoch, dtype=np.int64)),
        stamp.take(pa.array(np.zeros(count, dtype=np.int64))),
    ]
    return pa.Table.from_arrays([*columns, *own], schema=change_schema(schema))


class ParquetWriter:
    """One file on its way into storage; use as a context manager.

    Leaving the block without `finish` throws the file away.
    """

    def __init__(self, storage: Storage, path: str, schema: pa.Schema) -> None:
        self._storage = storage
        self._path = path
        self._schema = schema
        self._temporary = _temporary_file(storage, path)
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0
        self._first_vnode = 255
        self._last_vnode = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing writes a footer, which fails where the rows did; the file goes either way.
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Append rows, which must have the file's schema; those with vnodes come in their order."""
        if rows.num_rows == 0:
            return
        if VNODE in rows.column_names:
            vnodes = rows.column(VNODE).to_numpy()
            self._first_vnode = min(self._first_vnode, int(vnodes.min()))
            self._last_vnode = max(self._last_vnode, int(vnodes.max()))
        try:
            self._opened(rows).write_table(rows, row_group_size=ROW_GROUP_ROWS)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self.rows += rows.num_rows

    @property
    def bytes(self) -> int:
        """How large the file is so far, about."""
        return self._temporary.stat().st_size

    def finish(self) -> DataFile:
        """Close the file and move it into storage. Replay: writes a name that is new."""
        try:
            self._opened(self._schema.empty_table()).close()
        except OSError as error:
            raise _unwritable(self._path, error) from error
        size = self._temporary.stat().st_size
        self._storage.put_file(self._path, self._temporary)
        return DataFile(
            path=self._path,
            bytes=size,
            rows=self.rows,
            first_vnode=min(self._first_vnode, self._last_vnode),
            last_vnode=self._last_vnode,
        )

    def _opened(self, first: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._temporary,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=repetitive(first),
                write_statistics=True,
                write_page_checksum=True,
                store_schema=False,
            )
        return self._writer


def repetitive(rows: pa.Table) -> list[str]:
    """The columns that are worth a dictionary.

    One that grows until it is given up costs more than all the rest of writing.
    """
    step = max(1, rows.num_rows // _SAMPLE_ROWS)
    sample = rows.take(pa.array(np.arange(0, rows.num_rows, step)))
    chosen = []
    for name, column in zip(rows.column_names, sample.columns, strict=True):
        if not pa.types.is_nested(column.type):
            distinct = pc.count_distinct(column, mode="all").as_py()
            if distinct <= max(1, sample.num_rows * _DICTIONARY_SHARE):
                chosen.append(name)
    return chosen


def row_group_starts(path: Path) -> tuple[int, ...]:
    """The places in a file from which on it can be read without reading what is before them."""
    footer = pq.read_metadata(path)
    counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    return tuple(int(start) for start in np.cumsum([0, *counts])[:-1])


def read_between(
    file: pq.ParquetFile, columns: Sequence[str], between: tuple[int, int]
) -> pa.Table:
    """The rows of an open file from one place up to another."""
    start, stop = between
    chosen: list[int] = []
    first = place = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if place < stop and place + rows > start:
            if not chosen:
                first = place
            chosen.append(number)
        place += rows
    rows = file.read_row_groups(chosen, columns=list(columns), use_threads=False)
    return rows.slice(start - first, stop - start)


def write_file(storage: Storage, path: str, rows: pa.Table) -> DataFile:
    """Write a whole file at once. Replay: writes a name that is new."""
    with ParquetWriter(storage, path, rows.schema) as writer:
        writer.write(rows)
        return writer.finish()


def as_change_file(file: DataFile) -> ChangeFile:
    """The same file, named as one of changes."""
    return ChangeFile(path=file.path, bytes=file.bytes, rows=file.rows)


def _temporary_file(storage: Storage, path: str) -> Path:
    # A file that will be moved must already lie on the file system it is moved to.
    folder = (
        (storage.local_root / ".staging") if storage.local_root else Path(tempfile.gettempdir())
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(
            prefix=path.rsplit("/", 1)[-1] + ".", suffix=".tmp", dir=folder
        )
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    return Path(name)


def _unwritable(path: str, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"storage cannot be written: {os.strerror(error.errno) if error.errno else error}",
        detail=f"File {path}.",
        hint="Free some space or make the storage writable; the work goes on by itself.",
    )
