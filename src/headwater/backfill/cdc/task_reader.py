"""Read the chunks of a large table in Spark tasks, which write the rows where they stay.

The driver asks for one chunk per Spark job, as many at a time as the table has readers; Spark
runs them wherever there is room. A task opens its own connection, reads, writes one file of the
table's folder and hands back what the chunk saw and the file's name. Rows never pass the driver.
What is small is read in threads of the driver: a job costs more than it brings there.

A chunk that is asked for again is written again under another name; a file whose chunk is not
accepted is garbage, which the table collects once it is filled.
"""

import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.backfill.cdc.key_match import Numbers
from headwater.backfill.cdc.machine import ReadChunk
from headwater.backfill.cdc.split_reader import KeyedTable, ReadResult, ThreadSplitReader
from headwater.cdc.external_table import SnapshotChunk, Split
from headwater.errors import HeadwaterError
from headwater.model.schema import Schema
from headwater.model.table_commit import DataFile
from headwater.state.snapshot_files import (
    SnapshotPlan,
    snapshot_keys,
    snapshot_rows,
    write_snapshot,
)
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_ROWS = 50_000
"""Chunks up to this size are read in the driver."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """A chunk's rows in a file that a task has written."""

    storage: Storage
    file: DataFile
    schema: Schema
    size: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.file.rows

    @property
    def nbytes(self) -> int:
        """None of them is in memory."""
        return 0

    def keys(self) -> pa.Table:
        """The key's columns of all rows, in the file's order."""
        return snapshot_keys(self.storage, self.file, self.schema)

    def take(self, places: Numbers) -> pa.Table:
        """Some whole rows, by place."""
        return snapshot_rows(self.storage, self.file, self.schema, places)


@dataclass(frozen=True, slots=True)
class _Brought:
    """What a task hands back."""

    chunk: SnapshotChunk
    file: DataFile | None
    size: int


class TaskSplitReader:
    """Reads large chunks in Spark tasks and small ones in threads of the driver."""

    def __init__(
        self,
        table: KeyedTable,
        blocking: Callable[..., Awaitable[object]],
        *,
        spark: "Callable[[], SparkSession]",
        plan: Callable[[], SnapshotPlan],
    ) -> None:
        self._table = table
        self._here = ThreadSplitReader(table, blocking)
        self._blocking = blocking
        self._spark = spark
        self._plan = plan

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """The next rows of a split."""
        expected = request.max_rows
        if request.split.rows is not None:
            expected = min(expected, request.split.rows)
        if request.probe or expected <= _SMALL_ROWS:
            return await self._here.read_chunk(request)
        brought = await self._blocking(lambda: self._read_in_task(request))
        assert isinstance(brought, _Brought)
        plan = self._plan()
        if brought.file is None:
            return ReadResult(brought.chunk)
        rows = FileRows(plan.storage, brought.file, plan.schema, brought.size)
        return ReadResult(brought.chunk, rows)

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows that have these keys."""
        return await self._here.read_keys(keys)

    async def divide(self, split: Split) -> Sequence[Split]:
        """Part of a table in several splits."""
        return await self._here.divide(split)

    def _read_in_task(self, request: ReadChunk) -> _Brought:
        table, plan = self._table, self._plan()

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                try:
                    outcome: object = _written(table, plan, request)
                except HeadwaterError as error:
                    # Thrown, it would lose its kind on the way.
                    outcome = error
                yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})

        job = self._spark().range(0, 1, 1, 1).mapInArrow(read, "outcome binary")
        outcome = pickle.loads(job.toArrow().column(0)[0].as_py())
        if isinstance(outcome, HeadwaterError):
            raise outcome
        assert isinstance(outcome, _Brought)
        return outcome


def _written(table: KeyedTable, plan: SnapshotPlan, request: ReadChunk) -> _Brought:
    """In the task: read a chunk and write its rows. Replay: writes a new name."""
    chunk = table.read_chunk(
        request.split, request.after, max_rows=request.max_rows, max_bytes=request.max_bytes
    )
    table.close()
    rows = chunk.rows.select(list(plan.schema.names)).cast(plan.schema.arrow)
    file = write_snapshot(plan, rows) if rows.num_rows else None
    return _Brought(replace(chunk, rows=chunk.rows.slice(0, 0)), file, chunk.rows.nbytes)
