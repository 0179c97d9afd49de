"""Read a table at an epoch, and its changes between two epochs.

On storage that Spark can open in place, rows come from Spark's own Parquet reader. Dead rows
are dropped by one broadcast of bits: each file with dead rows brings its deletion vector as an
array of 64-bit words, and a row is dead when the bit of its position is set. On object storage
the tasks fetch the files themselves, so that no connector jar is needed.

`read_table` does the same without Spark, for what fits the driver.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.model.change import ChangeType
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_millis, epoch_time
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.model.schema import Schema
from headwater.model.spelling import quoted
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.state.dead_rows import DeadRows
from headwater.state.fetched_files import FetchedFiles
from headwater.state.file_name import is_snapshot
from headwater.state.manifest import LiveFile, LogEntry, TableView
from headwater.state.parquet_file import change_schema, data_schema
from headwater.state.row_cache import read_rows
from headwater.state.storage import Storage

_PATTERN = re.compile(r"[\[\]{}*?,\\]")
_OWN_SPARK = f"`{VNODE}` smallint, `{COMMIT_VERSION}` bigint"
_CHANGE_SPARK = f"`{CHANGE_TYPE}` string, {_OWN_SPARK}, `{COMMIT_TIMESTAMP}` timestamp"


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads files of one table."""

    storage: Storage
    dead_rows: DeadRows
    fetched: FetchedFiles | None = None
    """What tasks have fetched from an object store, for others who read it."""

    def frame(
        self, spark: SparkSession, view: TableView, vnodes: VnodeBitmap | None = None
    ) -> DataFrame:
        """The rows at an epoch, with `_vnode`; only those of some vnodes if asked."""
        files = [live for live in view.files if _touches(live, vnodes)]
        if not files:
            return spark.createDataFrame([], f"{view.schema.spark}, `{VNODE}` smallint")
        if self.storage.local_root is None:
            frame = self._fetched(spark, view.schema, files)
        else:
            frame = self._native(spark, view.schema, files)
        frame = frame.select(*[F.col(quoted(name)) for name in view.schema.names], VNODE)
        return frame if vnodes is None else frame.where(_in_vnodes(vnodes))

    def changes(
        self,
        spark: SparkSession,
        schema: Schema,
        entries: Sequence[LogEntry],
        vnodes: VnodeBitmap | None = None,
    ) -> DataFrame:
        """The exact changes of some epochs, unordered across keys, with their epoch."""
        wanted = f"{schema.spark}, {_CHANGE_SPARK}"
        exact = [file.path for entry in entries for file in entry.changes]
        frames = []
        if exact:
            frames.append(self.files(spark, wanted, change_schema(schema), exact))
        for epoch, paths in _inserts_by_epoch(entries):
            rows = self.files(spark, f"{schema.spark}, {_OWN_SPARK}", data_schema(schema), paths)
            frames.append(_as_inserts(rows, epoch))
        if not frames:
            return spark.createDataFrame([], wanted)
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        return frame if vnodes is None else frame.where(_in_vnodes(vnodes))

    def read_table(self, view: TableView, vnodes: VnodeBitmap | None = None) -> pa.Table:
        """The rows at an epoch as one Arrow table, read here."""
        wanted = data_schema(view.schema)
        parts = [
            read_alive(self.storage, live, wanted, self.dead_rows, vnodes) for live in view.files
        ]
        table = pa.concat_tables(parts) if parts else wanted.empty_table()
        return table.select([*view.schema.names, VNODE])

    def read_changes(self, schema: Schema, entries: Sequence[LogEntry]) -> pa.Table:
        """The exact changes of some epochs as one Arrow table, in epoch order, read here."""
        wanted = change_schema(schema)
        parts = []
        for entry in entries:
            for file in entry.changes:
                parts.append(read_rows(self.storage, file.path, wanted))
            for inserted in entry.inserts:
                rows = read_rows(self.storage, inserted.path, wanted)
                parts.append(_stamp_inserts(rows, entry.epoch))
        return pa.concat_tables(parts) if parts else wanted.empty_table()

    def _native(self, spark: SparkSession, schema: Schema, files: Sequence[LiveFile]) -> DataFrame:
        wanted = f"{schema.spark}, {_OWN_SPARK}"
        whole = [live.file.path for live in files if live.whole]
        holed = [live for live in files if not live.whole]
        frames = []
        if whole:
            frames.append(self.files(spark, wanted, data_schema(schema), whole))
        if holed:
            rows = self.files(spark, wanted, data_schema(schema), [f.file.path for f in holed])
            frames.append(self._alive(spark, rows, holed))
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    def _alive(self, spark: SparkSession, rows: DataFrame, files: Sequence[LiveFile]) -> DataFrame:
        words = [
            (live.file.path.rsplit("/", 1)[-1], _words(self.dead_rows.of_file(live)))
            for live in files
        ]
        dead = spark.createDataFrame(words, "_hw_file string, _hw_words array<bigint>")
        # A user's column may be called `_metadata` or `file_name` as well.
        about = rows.metadataColumn("_metadata")
        return (
            rows.withColumns({"_hw_name": about["file_name"], "_hw_row": about["row_index"]})
            .join(F.broadcast(dead), F.col("_hw_name") == F.col("_hw_file"))
            .where(
                "_hw_row >= 64 * size(_hw_words) or "
                "getbit(_hw_words[cast(_hw_row div 64 as int)], cast(_hw_row % 64 as int)) = 0"
            )
            .drop("_hw_name", "_hw_row", "_hw_file", "_hw_words")
        )

    def files(
        self, spark: SparkSession, wanted: str, arrow: pa.Schema, paths: Sequence[str]
    ) -> DataFrame:
        """The rows of some files, in the columns that are wanted."""
        root = self.storage.local_root
        if root is not None:
            # Brackets and stars in a folder's name are letters, which Spark takes for patterns.
            literal = [_PATTERN.sub(r"\\\g<0>", str(root / path)) for path in paths]
            return spark.read.schema(wanted).parquet(*literal)
        storage, fetched = self.storage, self.fetched

        def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path in batch.column(0).to_pylist():
                    rows = read_rows(storage, path, arrow, fetched)
                    yield from rows.to_batches(max_chunksize=1 << 16)

        listed = spark.createDataFrame([(path,) for path in paths], "path string")
        return listed.repartition(len(paths)).mapInArrow(fetch, wanted)

    def _fetched(self, spark: SparkSession, schema: Schema, files: Sequence[LiveFile]) -> DataFrame:
        storage, dead_rows, fetched = self.storage, self.dead_rows, self.fetched
        by_path = {live.file.path: live for live in files}
        arrow = data_schema(schema)

        def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path in batch.column(0).to_pylist():
                    rows = read_rows(storage, path, arrow, fetched)
                    alive = _without_dead(rows, dead_rows.of_file(by_path[path]))
                    yield from alive.to_batches(max_chunksize=1 << 16)

        listed = spark.createDataFrame([(path,) for path in by_path], "path string")
        wanted = f"{schema.spark}, {_OWN_SPARK}"
        return listed.repartition(len(by_path)).mapInArrow(fetch, wanted)


def read_alive(  # noqa: PLR0913  what to read, and with what
    storage: Storage,
    live: LiveFile,
    wanted: pa.Schema,
    dead_rows: DeadRows,
    vnodes: VnodeBitmap | None = None,
    *,
    fetched: FetchedFiles | None = None,
) -> pa.Table:
    """The live rows of one file, or of a part of it; those of some vnodes if asked."""
    if not _touches(live, vnodes):
        return wanted.empty_table()
    rows = read_rows(storage, live.file.path, wanted, fetched, live.only)
    rows = _without_dead(rows, dead_rows.of(live.dead), live.only[0] if live.only else 0)
    if vnodes is None or len(vnodes) == VNODE_COUNT:
        return rows
    return rows.filter(pc.is_in(rows.column(VNODE), pa.array(list(vnodes), pa.int16())))


def _touches(live: LiveFile, vnodes: VnodeBitmap | None) -> bool:
    if live.live_rows == 0:
        return False
    if vnodes is None:
        return True
    span = (2 << live.file.last_vnode) - (1 << live.file.first_vnode)
    return bool(vnodes.bits & span)


def _in_vnodes(vnodes: VnodeBitmap) -> str:
    if len(vnodes) == VNODE_COUNT:
        return "true"
    return f"`{VNODE}` in ({', '.join(str(vnode) for vnode in vnodes) or 'null'})"


def _words(dead: BitMap | None) -> list[int]:
    """The set as 64-bit words, least significant bit first."""
    if not dead:
        return []
    bits = np.zeros((dead.max() // 64 + 1) * 64, dtype=np.uint8)
    bits[np.array(dead.to_array(), dtype=np.int64)] = 1
    packed = np.packbits(bits, bitorder="little").view(np.int64)
    words: list[int] = packed.tolist()
    return words


def _without_dead(rows: pa.Table, dead: BitMap | None, start: int = 0) -> pa.Table:
    """Rows that are at a place of their file from `start` on, without the dead ones."""
    if not dead:
        return rows
    places = np.array(dead.to_array(), dtype=np.int64) - start
    alive = np.ones(rows.num_rows, dtype=np.bool_)
    alive[places[(places >= 0) & (places < rows.num_rows)]] = False
    return rows.filter(pa.array(alive))


def _inserts_by_epoch(
    entries: Sequence[LogEntry],
) -> Iterator[tuple[Epoch | None, list[str]]]:
    """Files of inserts that are read together: their rows say their epoch, or it is given."""
    stamped = [f.path for e in entries for f in e.inserts if not is_snapshot(f.path)]
    if stamped:
        yield None, stamped
    for entry in entries:
        if paths := [file.path for file in entry.inserts if is_snapshot(file.path)]:
            yield entry.epoch, paths


def _as_inserts(rows: DataFrame, epoch: Epoch | None) -> DataFrame:
    if epoch is not None:
        rows = rows.withColumn(COMMIT_VERSION, F.lit(epoch).cast("bigint"))
    # The time follows from the epoch.
    millis = f"{epoch_millis(NO_EPOCH)} + shiftright(`{COMMIT_VERSION}`, 16)"
    return rows.withColumn(CHANGE_TYPE, F.lit(ChangeType.INSERT.value)).withColumn(
        COMMIT_TIMESTAMP, F.expr(f"timestamp_millis({millis})")
    )


def _stamp_inserts(rows: pa.Table, epoch: Epoch) -> pa.Table:
    count = rows.num_rows
    kinds = pa.array([ChangeType.INSERT.value]).take(pa.array(np.zeros(count, dtype=np.int64)))
    stamp = pa.array([epoch_time(epoch)], pa.timestamp("us", tz="UTC"))
    times = stamp.take(pa.array(np.zeros(count, dtype=np.int64)))
    said = {
        CHANGE_TYPE: kinds,
        COMMIT_VERSION: pa.repeat(pa.scalar(epoch, pa.int64()), count),
        COMMIT_TIMESTAMP: times,
    }
    for name, values in said.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows
