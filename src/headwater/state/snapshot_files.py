"""Rows of a snapshot: written as files by whoever reads them, adopted later by an epoch.

Whoever reads part of an external table, mostly a Spark task, writes its rows as a data file at
once (`write_snapshot`); they go nowhere else. When the epoch that they belong to ends, it takes
the file as it is (`adopt`). Two kinds of rows are hidden by a deletion vector from the start:

    rows that the log has made out of date    the caller says which
    rows whose key the log wrote before       they are changed like any other row, beside the file

To find the latter no file of another snapshot is searched: parts of a table that are read one
by one have no key in common. That is why such files have a name of their own, and why a table
that is being filled does not fold them together with others.

While the log brings nothing for the table, an epoch only names files. Otherwise its changes must
be written out in full, as Delta's change data feed wants it; tasks do that as well.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headwater.errors import HeadwaterError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, VNODE
from headwater.model.schema import Schema
from headwater.model.table_commit import ChangeFile, DataFile
from headwater.state.file_name import Origin, is_snapshot
from headwater.state.key_hash import key_hashes, vnodes
from headwater.state.merge import conform
from headwater.state.parquet_file import (
    ParquetWriter,
    as_change_file,
    as_change_rows,
    change_schema,
    data_schema,
    with_own_columns,
)
from headwater.state.row_cache import read_rows
from headwater.state.stage import (
    PART_SCHEMA,
    StagedPart,
    StagePlan,
    failure_row,
    part_from_rows,
    part_rows,
)
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """All that a task needs to write a file of rows. Travels to Spark tasks."""

    schema: Schema
    origin: Origin
    storage: Storage

    @classmethod
    def of(cls, plan: StagePlan) -> "SnapshotPlan":
        """What there is of it in the plan of an epoch."""
        return cls(schema=plan.schema, origin=plan.origin, storage=plan.storage)


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file that waits for its epoch, and the places of rows that nobody may see."""

    file: DataFile
    hidden: Numbers


@dataclass(frozen=True, slots=True)
class Adopted:
    """What an epoch makes of files that waited for it."""

    part: StagedPart
    changes: pa.Table
    """The epoch's other changes, and after them the rows that had to leave their files."""


def write_snapshot(plan: SnapshotPlan, rows: pa.Table) -> DataFile:
    """Write rows as a file that nobody sees yet. Replay: writes a new name."""
    slots = vnodes(rows, plan.schema)
    order = np.argsort(slots, kind="stable")
    ordered = rows.combine_chunks().take(pa.array(order))
    whole = with_own_columns(ordered, plan.schema, slots[order], None)
    path = plan.origin.snapshot_file()
    with ParquetWriter(plan.storage, path, data_schema(plan.schema)) as writer:
        writer.write(whole)
        return writer.finish()


def snapshot_keys(storage: Storage, file: DataFile, schema: Schema) -> pa.Table:
    """The keys of a file's rows, in its order."""
    return read_rows(storage, file.path, pa.schema([schema.arrow.field(n) for n in schema.key]))


def snapshot_rows(storage: Storage, file: DataFile, schema: Schema, places: Numbers) -> pa.Table:
    """Some rows of a file, by place."""
    return read_rows(storage, file.path, schema.arrow).take(pa.array(places))


def adopt(
    plan: StagePlan,
    changes: pa.Table,
    files: Sequence[ReadyFile],
    *,
    driver_bytes: int,
    spark: "Callable[[], SparkSession] | None" = None,
) -> Adopted:
    """Take files into an epoch that also makes `changes`, which come before their rows.

    Replay: writes files under new names.
    """
    conformed = conform(changes, plan.schema)
    files, leaving = _parted(plan, conformed, files)
    clean = not changes.num_rows and not any(ready.hidden.size for ready in files)
    written = StagedPart()
    if not clean:
        inside = sum(ready.file.bytes for ready in files)
        if spark is None or inside <= driver_bytes:
            written = StagedPart(changes=tuple(_write_shown(plan, each) for each in files))
        else:
            written = _write_shown_on_spark(spark(), plan, files)
    dead = {each.file.path: BitMap(each.hidden) for each in files if each.hidden.size}
    part = StagedPart(tuple(each.file for each in files), written.changes, dead)
    return Adopted(part, pa.concat_tables([changes, *leaving], promote_options="permissive"))


def _parted(
    plan: StagePlan, changes: pa.Table, files: Sequence[ReadyFile]
) -> tuple[list[ReadyFile], list[pa.Table]]:
    """The files without the rows whose key is there already, and those rows as changes."""
    known = _known_hashes(plan, changes)
    if not known.size:
        return list(files), []
    parted, leaving = [], []
    for ready in files:
        hashes = key_hashes(
            snapshot_keys(plan.storage, ready.file, plan.schema), plan.schema.key_columns
        )
        place = np.minimum(np.searchsorted(known, hashes), known.size - 1)
        # A hash that only looks the same does no harm: the row is changed the long way.
        meets = known[place] == hashes
        meets[ready.hidden] = False
        if meets.any():
            places = np.flatnonzero(meets)
            rows = snapshot_rows(plan.storage, ready.file, plan.schema, places)
            leaving.append(rows.append_column(CHANGE_TYPE, _inserts(rows.num_rows)))
            hidden = np.union1d(ready.hidden, places)
            parted.append(ReadyFile(ready.file, hidden))
        else:
            parted.append(ready)
    return parted, leaving


def _known_hashes(plan: StagePlan, changes: pa.Table) -> Numbers:
    """Hashes of the keys that the log has written, in this epoch or before."""
    parts = [key_hashes(changes, plan.schema.key_columns)] if changes.num_rows else []
    for live in plan.files:
        if live.live_rows and not is_snapshot(live.file.path):
            parts.append(
                plan.cache.open(plan.storage, live.file.path, plan.schema, live.file.bytes).hashes
            )
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.uint64)


def _inserts(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(ChangeType.INSERT.value), count)


def _write_shown(plan: StagePlan, ready: ReadyFile) -> ChangeFile:
    """The rows of a file that are seen, as changes. Replay: writes a new name."""
    rows = read_rows(plan.storage, ready.file.path, data_schema(plan.schema))
    shows = np.ones(rows.num_rows, dtype=np.bool_)
    shows[ready.hidden] = False
    rows = rows.filter(pa.array(shows))
    slots = rows.column(VNODE).to_numpy().astype(np.uint8)
    changes = as_change_rows(rows, _inserts(rows.num_rows), plan.schema, slots, plan.epoch)
    path = plan.origin.change_file()
    with ParquetWriter(plan.storage, path, change_schema(plan.schema)) as writer:
        writer.write(changes)
        return as_change_file(writer.finish())


def _write_shown_on_spark(
    spark: "SparkSession", plan: StagePlan, files: Sequence[ReadyFile]
) -> StagedPart:
    """The same, a task per file. Replay: tasks that run twice write new names."""

    def write_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                try:
                    yield part_rows(StagedPart(changes=(_write_shown(plan, files[index]),)))
                except HeadwaterError as error:
                    yield failure_row(error)

    shares = spark.range(0, len(files), 1, len(files))
    return part_from_rows(shares.mapInArrow(write_share, PART_SCHEMA).toArrow())
