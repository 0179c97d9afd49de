"""Rows on their way from Spark, or from a client, to an epoch: in memory, or in files of ours.

A query's rows are computed once, before the statement is answered, so that an error in a row is
the user's and never that of the epoch they go into. Each task hands back its rows while they
are few and writes them to a Parquet file when they are many; the driver gets all rows, or the
names of files.

Files are named like those of tables, in folders that belong to no table: recovery deletes
what an engine that died has left. What is alive goes with the DataFrame that reads it, once the
epoch is acknowledged and nobody holds that any more.

Every row has a number in `_seq`: the task's in the high bits, the row's in the low ones. It
keeps the order of the rows, and numbers them where a table needs that.
"""

import contextlib
import itertools
import os
import pickle
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import HeadwaterError, StorageUnavailable
from headwater.model.reserved import SEQ
from headwater.model.schema import Column
from headwater.model.spelling import quoted
from headwater.runtime.engine import Engine
from headwater.runtime.spark_errors import explained
from headwater.state.file_name import Origin
from headwater.state.row_cache import read_rows
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Finish = Callable[[pa.Table], pa.Table]
"""What is done to each batch of rows, inside the task that computes it."""

_PART_BITS = 40
_SHARES = 256
"""Into how many parts the driver's room is divided: about as many tasks as there are."""
_FILE_BYTES = 64 << 20
_PATTERN = re.compile(r"[\[\]{}*?,\\]")
_ANSWER = "kind string, path string, part int, rows long, body binary"
_ANSWER_ARROW = pa.schema(
    [("kind", pa.string()), ("path", pa.string()), ("part", pa.int32()), ("rows", pa.int64()),
     ("body", pa.binary())]
)  # fmt: skip
_folders = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Spill:
    """Rows in files. `parts` has the number of rows by the high bits of `_seq`."""

    storage: Storage
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    parts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return sum(self.parts)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The rows with `_seq`."""
        types = ", ".join(f"c{i} {column.type.spark}" for i, column in enumerate(self.columns))
        frame = self._files(spark, f"{types}, `{SEQ}` bigint")
        return frame.toDF(*[column.name for column in self.columns], SEQ)

    def held(self, frame: "DataFrame") -> "DataFrame":
        """The DataFrame, with which the files go when nobody has it any more."""
        weakref.finalize(frame, self.remove)
        return frame

    def place_sql(self) -> str:
        """Spark SQL for the place of a row among all, from 0."""
        first = [0, *itertools.accumulate(self.parts)][: max(1, len(self.parts))]
        offsets = f"array({', '.join(f'{each}L' for each in first)})"
        part = f"cast(shiftright(`{SEQ}`, {_PART_BITS}) as int)"
        return f"{offsets}[{part}] + (`{SEQ}` & {(1 << _PART_BITS) - 1}L)"

    def remove(self) -> None:
        """Delete the files. Replay: what is gone is gone."""
        _remove(self.storage)

    def _files(self, spark: "SparkSession", wanted: str) -> "DataFrame":
        root, storage = self.storage.local_root, self.storage
        if root is not None:
            # Brackets and stars in a folder's name are letters, which Spark takes for patterns.
            paths = [_PATTERN.sub(r"\\\g<0>", str(root / path)) for path in self.files]
            return spark.read.schema(wanted).parquet(*paths)
        arrow = _file_schema(self.columns)

        def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path in batch.column(0).to_pylist():
                    yield from read_rows(storage, path, arrow).to_batches(max_chunksize=1 << 16)

        listed = spark.createDataFrame([(path,) for path in self.files], "path string")
        return listed.repartition(len(self.files)).mapInArrow(fetch, wanted)


Gathered: TypeAlias = "pa.Table | Spill"
"""Rows: all of them here, or in files."""


class SpillWriter:
    """Writes rows of one part to files; use as a context manager. Travels to Spark tasks."""

    def __init__(
        self, storage: Storage, origin: Origin, columns: Sequence[Column], part: int = 0
    ) -> None:
        self._storage, self._origin = storage, origin
        self._schema = _file_schema(columns)
        self._next = part << _PART_BITS
        self._writer: pq.ParquetWriter | None = None
        self._temporary: Path | None = None
        self._name = ""
        self.rows = 0
        self.files: list[str] = []

    def __enter__(self) -> "SpillWriter":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def add(self, rows: pa.Table, numbers: pa.ChunkedArray | None = None) -> None:
        """Write rows; they are numbered on, unless they have numbers."""
        if not rows.num_rows:
            return
        if numbers is None:
            numbers = pa.array(np.arange(self._next, self._next + rows.num_rows, dtype=np.int64))
            self._next += rows.num_rows
        self.rows += rows.num_rows
        whole = pa.Table.from_arrays([*rows.columns, numbers], schema=self._schema)
        try:
            if self._writer is None:
                self._name = self._origin.data_file()
                self._temporary = _temporary_file(self._storage, self._name)
                self._writer = pq.ParquetWriter(
                    self._temporary, self._schema, compression="zstd", compression_level=1,
                    store_schema=False,
                )  # fmt: skip
            self._writer.write_table(whole)
            assert self._temporary is not None
            full = self._temporary.stat().st_size >= _FILE_BYTES
        except OSError as error:
            raise _unwritable(error) from error
        if full:
            self.close()

    def close(self) -> None:
        """Put the file in its place, if there is one. Replay: writes a name that is new."""
        if self._writer is None or self._temporary is None:
            return
        writer, temporary = self._writer, self._temporary
        self._writer = self._temporary = None
        try:
            writer.close()
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _unwritable(error) from error
        self._storage.put_file(self._name, temporary)
        self.files.append(self._name)


def spill_writer(engine: Engine, columns: Sequence[Column]) -> SpillWriter:
    """A writer on the driver, in a new folder."""
    return SpillWriter(new_folder(engine), _origin(engine), columns)


def spilled(writer: SpillWriter, columns: Sequence[Column]) -> Spill:
    """What a writer on the driver has written."""
    writer.close()
    return Spill(writer._storage, tuple(columns), tuple(writer.files), (writer.rows,))


def forget(writer: SpillWriter) -> None:
    """Delete what a writer has written."""
    writer.__exit__()
    _remove(writer._storage)


def new_folder(engine: Engine) -> Storage:
    """A place for files that no other statement has."""
    root = engine.store.surroundings.storage
    return root.below(f"_hw_spill_{engine.term}-{next(_folders)}")


def gather(  # noqa: PLR0913
    engine: Engine,
    frame: "DataFrame",
    columns: Sequence[Column],
    *,
    finish: Finish | None = None,
    made: Sequence[Column] | None = None,
    parts: tuple[int, ...] | None = None,
) -> Gathered:
    """Compute the rows of a DataFrame, in its order, each batch through `finish`. Blocking.

    `columns` are the frame's, by place, and `made` those that `finish` gives. With `parts` the
    frame's last column is `_seq`, which the rows keep. Raises what a task met, in PostgreSQL's
    words. Replay: tasks that run twice write files under new names; only those handed back
    count.
    """
    storage = new_folder(engine)
    try:
        task = _Task(
            storage=storage,
            origin=_origin(engine),
            budget=engine.settings.now.driver_bytes // _SHARES,
            columns=tuple(columns),
            made=tuple(columns if made is None else made),
            finish=finish,
            numbered=parts is not None,
        )
        answers = _run(frame, task)
        gathered = _gathered(engine, answers, task.made, storage, parts)
    except Exception as error:
        _remove(storage)
        raise explained(error) from error
    return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What each task is told."""

    storage: Storage
    origin: Origin
    budget: int
    columns: tuple[Column, ...]
    made: tuple[Column, ...]
    finish: Finish | None
    numbered: bool

    def conformed(self, batch: pa.RecordBatch) -> tuple[pa.Table, pa.ChunkedArray | None]:
        whole = pa.Table.from_batches([batch])
        numbers = whole.column(len(self.columns)) if self.numbered else None
        arrow = pa.schema([(column.name, column.type.arrow) for column in self.columns])
        columns = [whole.column(i).cast(field.type) for i, field in enumerate(arrow)]
        table = pa.Table.from_arrays(columns, schema=arrow)
        return (self.finish(table) if self.finish is not None else table), numbers


def _run(frame: "DataFrame", task: _Task) -> pa.Table:
    from headwater.state.stage_on_spark import numbered_columns  # noqa: PLC0415  needs pyspark

    def share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        try:
            with SpillWriter(task.storage, task.origin, task.made, part) as writer:
                yield _share(map(task.conformed, batches), writer, task.budget, part)
        except HeadwaterError as error:
            yield _answer("failure", part=part, body=pickle.dumps(error))

    return numbered_columns(frame).mapInArrow(share, _ANSWER).toArrow()


def _share(
    tables: "Iterator[tuple[pa.Table, pa.ChunkedArray | None]]",
    writer: SpillWriter,
    budget: int,
    part: int,
) -> pa.RecordBatch:
    """What one task hands back: its rows, or the names of its files."""
    held: list[tuple[pa.Table, pa.ChunkedArray | None]] = []
    size = 0
    for table, numbers in tables:
        size += table.nbytes
        held.append((table, numbers))
        if size > budget:
            for each, places in held:
                writer.add(each, places)
            held = []
    if size <= budget:
        rows = [
            each if places is None else each.append_column(SEQ, places) for each, places in held
        ]
        count = sum(each.num_rows for each in rows)
        body = _packed(pa.concat_tables(rows)) if count else b""
        return _answer("rows", part=part, rows=count, body=body)
    writer.close()
    return _answer("files", part=part, rows=writer.rows, path="\n".join(writer.files))


def _gathered(
    engine: Engine,
    answers: pa.Table,
    columns: tuple[Column, ...],
    storage: Storage,
    parts: tuple[int, ...] | None,
) -> Gathered:
    found: list[dict[str, Any]] = answers.to_pylist()
    for each in found:
        if each["kind"] == "failure":
            raise pickle.loads(each["body"])
    files = [path for each in found if each["kind"] == "files" for path in each["path"].split("\n")]
    small = [
        (each["part"], _unpacked(each["body"]))
        for each in sorted(found, key=lambda each: int(each["part"]))
        if each["kind"] == "rows" and each["rows"]
    ]
    if not files:
        _remove(storage)
        return _in_order([rows for _, rows in small], columns, numbered=parts is not None)
    with SpillWriter(storage, _origin(engine), columns) as writer:
        for part, rows in small:
            if parts is not None:
                writer.add(rows.drop_columns([SEQ]), rows.column(SEQ))
            else:
                first = part << _PART_BITS
                places = np.arange(first, first + rows.num_rows, dtype=np.int64)
                writer.add(rows, pa.chunked_array([places]))
        writer.close()
    if parts is None:
        counts = [0] * (1 + max(each["part"] for each in found))
        for each in found:
            counts[each["part"]] += each["rows"]
        parts = tuple(counts)
    return Spill(storage, columns, (*files, *writer.files), parts)


def _in_order(tables: list[pa.Table], columns: tuple[Column, ...], *, numbered: bool) -> pa.Table:
    if not tables:
        return pa.schema([(column.name, column.type.arrow) for column in columns]).empty_table()
    whole = pa.concat_tables(tables)
    if not numbered:
        return whole
    # Names may repeat what Arrow's own sorting looks for, hence by places.
    order = np.argsort(whole.column(SEQ).to_numpy(), kind="stable")
    return whole.take(pa.array(order)).drop_columns([SEQ])


def _answer(
    kind: str, *, part: int = 0, rows: int = 0, path: str = "", body: bytes = b""
) -> pa.RecordBatch:
    row = {"kind": kind, "path": path, "part": part, "rows": rows, "body": body}
    return pa.RecordBatch.from_pylist([row], schema=_ANSWER_ARROW)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def _file_schema(columns: Sequence[Column]) -> pa.Schema:
    """Columns go by number: names of users may be anything."""
    fields = [(f"c{i}", column.type.arrow) for i, column in enumerate(columns)]
    return pa.schema([*fields, (SEQ, pa.int64())])


def _origin(engine: Engine) -> Origin:
    return Origin(engine.term, engine.visible)


def _temporary_file(storage: Storage, name: str) -> Path:
    """Where a file is written: right in its place, if that is a folder; nobody knows it yet."""
    folder = storage.local_root or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _unwritable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"storage cannot be written: {os.strerror(error.errno) if error.errno else error}",
        hint="Free some space or make the storage writable, and try again.",
    )


def _remove(storage: Storage) -> None:
    root = storage.local_root
    if root is not None:
        shutil.rmtree(root, ignore_errors=True)
        return

    def delete() -> None:
        # What cannot be deleted now, recovery deletes.
        with contextlib.suppress(HeadwaterError):
            for path in list(storage.list()):
                storage.delete(path)

    # Whoever drops the last reference, perhaps the event loop, must not wait for a network.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=delete, daemon=True).start()


def select_columns(frame: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """Columns of a frame by name, whatever letters are in it."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    return frame.select(*[F.col(quoted(name)) for name in names])
