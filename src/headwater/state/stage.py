"""Write an epoch's changes as files that nobody can see yet.

One piece of code stages changes, on the driver for a small batch and inside Spark tasks for a
large one: `PartWriter` takes changes chunk by chunk, looks the stored rows up, and writes new
rows and exact changes. `seal` puts the parts together into the `TableCommit` that the ledger
will name. Until then the files are garbage by definition.

A large batch is divided by vnode and sorted by key and order inside each task, so that all
changes of one key meet in one task, next to each other, and no task holds more than a chunk
in memory however large the batch is.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.model.table_commit import ChangeFile, DataFile, DeletionVector, TableCommit
from headwater.state.dead_rows import DeadRows
from headwater.state.deletion_vector import pack
from headwater.state.file_name import Origin
from headwater.state.lookup import Lookup, same_values
from headwater.state.manifest import LiveFile
from headwater.state.merge import Merged, conform, merge, net
from headwater.state.parquet_file import (
    ParquetWriter,
    as_change_file,
    as_change_rows,
    change_schema,
    data_schema,
    with_own_columns,
)
from headwater.state.row_cache import RowCache
from headwater.state.storage import Storage

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """All that a task needs to stage its share. Travels to Spark tasks."""

    schema: Schema
    origin: Origin
    files: tuple[LiveFile, ...]
    storage: Storage
    cache: RowCache
    dead_rows: DeadRows
    target_file_bytes: int
    explicit: bool = False
    """Whether changes are written out even where all of them are inserts."""

    @property
    def epoch(self) -> Epoch:
        """The epoch that the changes belong to."""
        return self.origin.epoch


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The files that one task wrote, and the rows that die."""

    added: tuple[DataFile, ...] = ()
    changes: tuple[ChangeFile, ...] = ()
    dead: Mapping[str, BitMap] | None = None


class PartWriter:
    """Stages one share of an epoch; use as a context manager."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._lookup = Lookup(plan.storage, plan.cache, plan.dead_rows)
        self._stack = ExitStack()
        self._data: ParquetWriter | None = None
        self._log: ParquetWriter | None = None
        self._added: list[DataFile] = []
        self._changes: list[ChangeFile] = []
        self._dead: dict[str, BitMap] = {}
        self._remembered: pa.Table | None = None

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, changes: pa.Table, *, only: bool = False) -> None:
        """Stage a chunk; no key may appear in two chunks. `only` says that no other follows.

        Replay: writes files under new names.
        """
        plan = self._plan
        incoming = net(conform(changes, plan.schema), plan.schema)
        keys = incoming.rows.select(list(plan.schema.key))
        stored = self._lookup.find(keys, plan.schema, plan.files)
        merged = merge(incoming, stored, plan.schema)
        for index in np.unique(merged.dead_file):
            positions = merged.dead_position[merged.dead_file == index]
            dead = self._dead.setdefault(plan.files[index].file.path, BitMap())
            dead.update(positions.tolist())
        self._write_rows(merged)
        # The changes of an insert-only epoch are its rows; only a whole epoch can tell.
        insert_only = not plan.files or (only and not merged.dead_file.size)
        if plan.explicit or not insert_only:
            self._write_changes(merged)

    def finish(self) -> StagedPart:
        """Close the files."""
        if self._data is not None:
            self._close_data()
        if self._log is not None:
            self._changes.append(as_change_file(self._log.finish()))
        return StagedPart(tuple(self._added), tuple(self._changes), self._dead)

    def _write_rows(self, merged: Merged) -> None:
        if not merged.new_rows.num_rows:
            return
        plan = self._plan
        if self._data is None:
            path = plan.origin.data_file()
            writer = ParquetWriter(plan.storage, path, data_schema(plan.schema))
            self._data = self._stack.enter_context(writer)
        self._data.write(
            with_own_columns(merged.new_rows, plan.schema, merged.new_vnodes, plan.epoch)
        )
        # Only a file of one chunk is worth remembering; larger ones must not gather in memory.
        alone = self._data.rows == merged.new_rows.num_rows
        self._remembered = merged.new_rows if alone else None
        if self._data.bytes >= plan.target_file_bytes:
            self._close_data()

    def _close_data(self) -> None:
        assert self._data is not None
        file = self._data.finish()
        self._added.append(file)
        if self._remembered is not None:
            self._plan.cache.remember(file.path, self._remembered, self._plan.schema)
        self._data, self._remembered = None, None

    def _write_changes(self, merged: Merged) -> None:
        if not merged.changes.num_rows:
            return
        plan = self._plan
        if self._log is None:
            path = plan.origin.change_file()
            writer = ParquetWriter(plan.storage, path, change_schema(plan.schema))
            self._log = self._stack.enter_context(writer)
        self._log.write(
            as_change_rows(
                merged.changes, merged.change_types, plan.schema, merged.change_vnodes, plan.epoch
            )
        )


def stage_table(plan: StagePlan, changes: pa.Table) -> StagedPart:
    """Stage a small batch here and now. Replay: writes files under new names."""
    crash_point("stage.before_files")
    with PartWriter(plan) as writer:
        writer.add(changes, only=True)
        return writer.finish()


def chunks_by_key(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.Table]:
    """Cut sorted batches into chunks of bounded size that never part the changes of one key."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size < CHUNK_BYTES:
            continue
        table = pa.Table.from_batches(held).combine_chunks()
        cut = _last_key_start(table, schema)
        if cut == 0:
            continue
        yield table.slice(0, cut)
        rest = table.slice(cut)
        held, size = rest.to_batches(), rest.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _last_key_start(table: pa.Table, schema: Schema) -> int:
    """Where the run of rows with the last row's key begins."""
    low, high = 0, table.num_rows - 1
    last = table.slice(high, 1)
    while low < high:
        middle = (low + high) // 2
        if same_values(table.slice(middle, 1), last, schema.key_columns).all():
            high = middle
        else:
            low = middle + 1
    return low


def together(parts: Sequence[StagedPart]) -> StagedPart:
    """Several parts as one."""
    dead: dict[str, BitMap] = {}
    for part in parts:
        for path, positions in (part.dead or {}).items():
            dead.setdefault(path, BitMap()).update(positions)
    return StagedPart(
        tuple(file for part in parts for file in part.added),
        tuple(file for part in parts for file in part.changes),
        dead,
    )


def seal(
    plan: StagePlan,
    table: TableId,
    version: int,
    part: StagedPart,
    schema: Schema | None = None,
) -> TableCommit:
    """Write the deletion vectors and say what the epoch does. Replay: writes a new name."""
    vectors = write_vectors(plan, part.dead or {})
    return TableCommit(
        table=table,
        version=version,
        added=part.added,
        changes=part.changes,
        dead=tuple(vectors.items()),
        schema=schema,
    )


def write_vectors(plan: StagePlan, dead: Mapping[str, BitMap]) -> dict[str, DeletionVector]:
    """Add positions to the vectors of files. Replay: writes a new name."""
    known = {live.file.path: live.dead for live in plan.files}
    whole = {
        path: BitMap(plan.dead_rows.of(known.get(path)) or ()) | positions
        for path, positions in dead.items()
        if positions
    }
    if not whole:
        return {}
    name = plan.origin.vector_file()
    content, vectors = pack(name, whole)
    plan.storage.put(name, content)
    for path, vector in vectors.items():
        plan.dead_rows.remember(vector, whole[path])
    return vectors


def staged_paths(commit: TableCommit) -> Iterator[str]:
    """The files that a commit brings with it."""
    yield from (file.path for file in commit.added)
    yield from (file.path for file in commit.changes)
    yield from {vector.path for _, vector in commit.dead}


PART_SCHEMA = "kind string, path string, bytes long, rows long, first int, last int, dead binary"


def part_rows(part: StagedPart) -> pa.RecordBatch:
    """A part as rows that a Spark task can hand back."""
    rows: list[dict[str, Any]] = [
        {
            "kind": "data",
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "first": file.first_vnode,
            "last": file.last_vnode,
        }
        for file in part.added
    ]
    rows += [
        {"kind": "change", "path": file.path, "bytes": file.bytes, "rows": file.rows}
        for file in part.changes
    ]
    rows += [
        {"kind": "dead", "path": path, "dead": positions.serialize()}
        for path, positions in (part.dead or {}).items()
    ]
    types = [pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.int32(), pa.binary()]
    names = ["kind", "path", "bytes", "rows", "first", "last", "dead"]
    schema = pa.schema(list(zip(names, types, strict=True)))
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def failure_row(error: HeadwaterError) -> pa.RecordBatch:
    """An error as a row that a Spark task can hand back: thrown, it would lose its kind."""
    empty = part_rows(StagedPart()).schema
    row = {"kind": "failure", "path": "", "dead": pickle.dumps(error)}
    return pa.RecordBatch.from_pylist([row], schema=empty)


def part_from_rows(table: pa.Table) -> StagedPart:
    """Read back what `part_rows` wrote, from all tasks together; raises what one of them met."""
    added, changes = [], []
    dead: dict[str, BitMap] = {}
    for row in table.to_pylist():
        match row["kind"]:
            case "failure":
                raise pickle.loads(row["dead"])
            case "data":
                added.append(
                    DataFile(
                        path=row["path"],
                        bytes=row["bytes"],
                        rows=row["rows"],
                        first_vnode=row["first"],
                        last_vnode=row["last"],
                    )
                )
            case "change":
                changes.append(ChangeFile(path=row["path"], bytes=row["bytes"], rows=row["rows"]))
            case "dead":
                positions = BitMap.deserialize(row["dead"])
                dead.setdefault(row["path"], BitMap()).update(positions)
    return StagedPart(tuple(added), tuple(changes), dead)
