"""The rows of an external table as a batch: splits become Spark's partitions.

    how it is read               tasks         the rows are
    per chunk (the default)      many          each chunk one moment; chunks of different moments
    snapshot.name (PostgreSQL)   many          all of the moment of the snapshot that is held
    consistent (PostgreSQL)      one           all of one moment
    a table without a key        one           all of one moment, or by a snapshot that is held

Per chunk, a row whose key stays as it is while the read goes on is there exactly once. A row that
is inserted or deleted meanwhile may be there or not, an update may be seen or not, and a row whose
key is changed meanwhile may be there twice (under both keys) or not at all. Two rows that one
transaction wrote may be seen apart.

Why one moment is not the default: it needs a transaction upstream that stays open from the first
chunk to the last. Spark plans a read in a process that ends when it is planned, plans it once for
all queries over a DataFrame, and never says when the last of them is over. So nothing of ours can
hold the transaction for many tasks and let go of it in time. The user can, who knows when he is
done: `held_snapshot`. One task can as well, for itself.

A DataFrame is planned once, and read again by each action, at the time of that action.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.cdc.external_table import Split
from headwater.cdc.offset import CdcOffset
from headwater.spark_source.columns import arrow_schema
from headwater.spark_source.external.options import ReadOptions
from headwater.spark_source.external.upstream import Upstream, UpstreamTable, reaches

CHUNK_ROWS = 1 << 16
CHUNK_BYTES = 16 << 20
"""A chunk is what a task has in memory at a time."""
_PAUSE_S = 0.05
_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class SplitPart(InputPartition):
    """What one task reads."""

    split: Split
    snapshot: str | None = None
    alone: bool = False
    """Whether the task takes a snapshot of its own for all of it."""


class RowsReader(DataSourceReader):
    """The rows of one table."""

    def __init__(self, upstream: Upstream, options: ReadOptions, schema: StructType) -> None:
        self._upstream = upstream
        self._options = options
        self._table = upstream.open_table(options.table, schema.names)
        self._wanted = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """One partition per split, or one for all."""
        options = self._options
        if options.snapshot is not None:
            return [
                SplitPart(split, options.snapshot) for split in self._table.splits(options.splits)
            ]
        if options.consistent or not self._table.schema.key:
            return [SplitPart(self._upstream.whole(self._table), alone=True)]
        return [SplitPart(split) for split in self._table.splits(options.splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, SplitPart)
        with self._of_one_moment(partition) as table:
            for rows in chunks(table, partition.split):
                yield from shaped(rows, self._wanted)

    @contextmanager
    def _of_one_moment(self, part: SplitPart) -> Iterator[UpstreamTable]:
        if part.snapshot is not None:
            yield self._upstream.at(self._table, part.snapshot)
        elif part.alone:
            with self._upstream.held() as snapshot:
                yield self._upstream.at(self._table, snapshot)
        else:
            yield self._table


def chunks(
    table: UpstreamTable, split: Split, *, floor: CdcOffset | None = None
) -> Iterator[pa.Table]:
    """A split chunk by chunk; each must see all that committed before `floor`."""
    after: tuple[str, ...] | None = None
    try:
        while True:
            chunk = table.read_chunk(split, after, max_rows=CHUNK_ROWS, max_bytes=CHUNK_BYTES)
            if floor is not None and not reaches(chunk.low, floor):
                # In the log and not visible yet: nobody would deliver it later.
                time.sleep(_PAUSE_S)
                continue
            yield chunk.rows
            after = chunk.cursor
            if after is None:
                return
    finally:
        table.close()


def shaped(
    rows: pa.Table, wanted: pa.Schema, said: dict[str, Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows as Spark wants them; `said` are columns that have one value for all of them."""
    columns = [
        pa.repeat(pa.scalar(said[field.name], field.type), rows.num_rows)
        if said is not None and field.name in said
        else rows.column(field.name).cast(field.type)
        for field in wanted
    ]
    yield from pa.Table.from_arrays(columns, schema=wanted).to_batches(max_chunksize=_BATCH_ROWS)
