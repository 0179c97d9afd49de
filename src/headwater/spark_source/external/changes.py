"""A stream of an external table: its rows as inserts, then every change.

Spark keeps one reader alive on the driver, which reads the log; rows of the snapshot are read by
tasks. The log's changes are handed to one task with the partition itself: a slot has one reader.
How the two are put together, and what a batch has that is asked for again: `follower.py`.

    column               of a row of the snapshot            of a change
    _change_type         insert                              insert, delete, update_preimage,
                                                             update_postimage
    _commit_position     the log's place before it was read  where its transaction ends in the log
    _commit_timestamp    null                                when it committed, if the log tells
    _seq                 0                                   its order inside its transaction

A later change of a key has a greater `_commit_position`, or the same one and a greater `_seq`, also
than the key's row of the snapshot. Rows of a batch come in no order after a shuffle; sort by both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.cdc.external_table import Split
from headwater.cdc.offset import CdcOffset
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, SEQ
from headwater.spark_source.columns import arrow_schema
from headwater.spark_source.external.follower import Follower, RowsToRead
from headwater.spark_source.external.options import ReadOptions
from headwater.spark_source.external.position import Position
from headwater.spark_source.external.rows import chunks, shaped
from headwater.spark_source.external.upstream import COMMIT_POSITION, Upstream, UpstreamTable


@dataclass(frozen=True)
class RowsPart(InputPartition):
    """One split of the snapshot."""

    table: UpstreamTable
    split: Split
    snapshot: str | None
    floor: CdcOffset | None
    position: str


@dataclass(frozen=True, repr=False)
class ChangesPart(InputPartition):
    """The changes of a batch, as an Arrow stream."""

    data: bytes


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one table, from where its query is on."""

    def __init__(self, upstream: Upstream, options: ReadOptions, schema: StructType) -> None:
        # Spark also makes a reader for each batch only to hand `read` to the tasks.
        _ = options.begin
        upstream.require_stream()
        self._upstream = upstream
        self._wanted = arrow_schema(schema)
        self._follower: Follower | None = Follower(upstream, options, self._wanted)
        self._to_the_end = False
        self._upto: CdcOffset | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay on the driver.
        return {"_upstream": self._upstream, "_wanted": self._wanted, "_follower": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; the same for every call."""
        return self._driver.first().to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Batches are bounded by splits and bytes of their own."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop once the snapshot is read, and the log up to where it ends now."""
        self._to_the_end, self._upto = True, None

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        position = Position.from_offset(start)
        if self._to_the_end and self._upto is None and position.begin is None:
            self._upto = self._driver.end_of_log(position)
        return self._driver.advance(position, self._upto).to_offset()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Share one batch out among tasks."""
        first, last = Position.from_offset(start), Position.from_offset(end)
        rows = self._driver.rows_between(first, last)
        if rows is not None:
            return _parts(rows)
        changes = self._driver.changes_between(first, last)
        return [ChangesPart(_packed(changes))] if changes.num_rows else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows or changes of one task."""
        if isinstance(partition, ChangesPart):
            yield from pa.ipc.open_stream(partition.data)
            return
        assert isinstance(partition, RowsPart)
        table = partition.table
        if partition.snapshot is not None:
            table = self._upstream.at(table, partition.snapshot)
        said = {
            CHANGE_TYPE: ChangeType.INSERT.value,
            COMMIT_POSITION: partition.position,
            COMMIT_TIMESTAMP: None,
            SEQ: 0,
        }
        for rows in chunks(table, partition.split, floor=partition.floor):
            yield from shaped(rows, self._wanted, said)

    def commit(self, end: Mapping[str, Any]) -> None:
        """The batch is in the checkpoint."""
        self._driver.committed(Position.from_offset(end))

    def stop(self) -> None:
        """Let go of connections."""
        if self._follower is not None:
            self._follower.close()

    @property
    def _driver(self) -> Follower:
        assert self._follower is not None, "tasks have no follower"
        return self._follower


def _parts(rows: RowsToRead) -> list[InputPartition]:
    return [
        RowsPart(rows.table, split, rows.snapshot, rows.floor, rows.position)
        for split in rows.splits
    ]


def _packed(changes: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema) as writer:
        writer.write_table(changes)
    return bytes(sink.getvalue())
