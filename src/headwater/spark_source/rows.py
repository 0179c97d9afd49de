"""Read files inside a Spark task, batch by batch, without an engine and without the ledger.

A file is never held whole on local storage: its rows come in batches of `_BATCH_ROWS`, dead ones
are left out by their position, columns that the file does not have yet are null, and narrower
types widen. Files are named by the ledger and never change, so a task that runs twice reads the
same rows.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import DamagedState, HistoryGone, StorageUnavailable
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch, epoch_time
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.spark_source.pieces import Part, Piece
from headwater.state.deletion_vector import unpack
from headwater.state.storage import Storage

_BATCH_ROWS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that a task needs beside its part; travels to the executors."""

    storage: Storage
    wanted: pa.Schema

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part as Spark wants them."""
        for piece in part.pieces:
            yield from self._read(piece)

    def _read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._alive(piece)
        except FileNotFoundError as error:
            # The ledger named the file when the read was planned, so the engine has deleted it.
            raise HistoryGone(
                "a file of this read is gone",
                detail=f"{self.storage.url}/{piece.path}, or its deletion vector. The epoch that "
                "needs it left the retention after the read was planned.",
                hint="Load the table again, and raise retention_s above the time that a read may "
                "take.",
            ) from error

    def _alive(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        dead = self._dead(piece)
        file = _open(self.storage, piece.path)
        present = set(file.schema_arrow.names)
        names = [name for name in self.wanted.names if name in present]
        start = 0
        # The vnode is in every file; with it, rows are counted also when no other column is.
        for batch in _batches(file, [*names, VNODE], piece.path):
            low, high = np.searchsorted(dead, [start, start + len(batch)])
            alive = np.ones(len(batch), dtype=np.bool_)
            alive[dead[low:high] - start] = False
            start += len(batch)
            yield self._shaped(batch.filter(pa.array(alive)), present, piece.inserted_at)

    def _dead(self, piece: Piece) -> "np.ndarray[Any, np.dtype[np.int64]]":
        if piece.dead is None:
            return np.empty(0, dtype=np.int64)
        dead = unpack(self.storage.get(piece.dead.path), piece.dead)
        return np.array(dead.to_array(), dtype=np.int64)

    def _shaped(
        self, batch: pa.RecordBatch, present: set[str], inserted_at: Epoch | None
    ) -> pa.RecordBatch:
        said = {} if inserted_at is None else _insert_columns(inserted_at)
        columns = []
        for field in self.wanted:
            if field.name in said:
                columns.append(pa.repeat(said[field.name], len(batch)).cast(field.type))
            elif field.name in present:
                columns.append(batch.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(len(batch), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)


def _insert_columns(epoch: Epoch) -> dict[str, pa.Scalar]:
    return {
        CHANGE_TYPE: pa.scalar(ChangeType.INSERT.value, pa.string()),
        COMMIT_VERSION: pa.scalar(epoch, pa.int64()),
        COMMIT_TIMESTAMP: pa.scalar(epoch_time(epoch), pa.timestamp("us", tz="UTC")),
    }


def _open(storage: Storage, path: str) -> pq.ParquetFile:
    try:
        if storage.local_root is not None:
            source: Any = pa.memory_map(str(storage.local_root / path))
        else:
            source = pa.BufferReader(storage.get(path))
        return pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise _trouble(error, path) from error


def _batches(file: pq.ParquetFile, columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise _trouble(error, path) from error


def _trouble(error: Exception, path: str) -> Exception:
    if isinstance(error, FileNotFoundError):
        return error
    # Arrow's errors about content are OSErrors too, but only the system's have a number.
    if isinstance(error, OSError) and error.errno is not None:
        return StorageUnavailable(
            f"storage cannot be used: {os.strerror(error.errno)}", detail=f"File {path}."
        )
    return DamagedState("a file of a committed epoch is corrupt", detail=f"{path}: {error}")
