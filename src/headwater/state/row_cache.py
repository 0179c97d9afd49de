"""A local cache of data files in which rows are found by key without a scan.

Data files never change, so each machine may keep its own form of them: the rows as
memory-mapped Arrow, and beside them the sorted hashes of a key with the row each belongs to.
A lookup is a binary search and a few page reads, and costs the same at one million rows and
at thirty.

Promises
    Disposable   Everything here can be thrown away at any time and is built again on demand.
    Shared       Processes of one machine share the folder: entries appear by rename, whole.
    Checked      An entry that is cut short or mixed up, or is from before the machine went
                 down, is built again.
    Bounded      Entries unused for longest go when the folder outgrows its limit in bytes.
                 A file larger than the limit is searched without being kept.

Small files, which is what every epoch writes, stay in the memory of the process that wrote
them, within `_MEMORY_BYTES`.
"""

import contextlib
import functools
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import DamagedState, StorageUnavailable
from headwater.model.schema import Column, Schema
from headwater.state.fetched_files import FetchedFiles
from headwater.state.key_hash import HASH_VERSION, key_hashes
from headwater.state.parquet_file import read_between
from headwater.state.storage import Storage
from headwater.state.unfinished import UNFINISHED, remove_unfinished

_BATCH_ROWS = 1 << 20
_MEMORY_BYTES = 64 << 20
_SMALL_BYTES = 1 << 20
_OPEN_FILES = 512


@dataclass(slots=True)
class CachedFile:
    """One data file, ready to be searched."""

    batches: Sequence[pa.RecordBatch]
    starts: "np.ndarray[Any, Any]"
    hashes: "np.ndarray[Any, Any]"
    positions: "np.ndarray[Any, Any]"

    def take(
        self, positions: "np.ndarray[Any, Any]", columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows at these positions, in that order; pages of other columns are not touched."""
        schema = self.batches[0].schema
        names = list(columns or schema.names)
        batch_of = np.searchsorted(self.starts, positions, side="right") - 1
        order = np.argsort(batch_of, kind="stable")
        parts: list[pa.RecordBatch] = []
        for batch in np.unique(batch_of):
            inside = positions[order[batch_of[order] == batch]] - self.starts[batch]
            parts.append(self.batches[batch].select(names).take(pa.array(inside)))
        wanted = pa.schema([schema.field(name) for name in names])
        table = pa.Table.from_batches(parts, schema=wanted)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return table.take(pa.array(back))


class RowCache:
    """The cache of one machine. Instances travel to Spark tasks as folder and limit."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit
        self._start()

    def _start(self) -> None:
        self._lock = Lock()
        self._open: OrderedDict[str, CachedFile] = OrderedDict()
        self._memory: OrderedDict[str, tuple[int, CachedFile]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @property
    def bytes(self) -> int:
        """The size of the folder."""
        return sum(size for _, size, _ in self._entries())

    def remember(self, path: str, rows: pa.Table, schema: Schema) -> None:
        """Keep a file that was just written; large ones are built when first needed."""
        if rows.nbytes <= _SMALL_BYTES:
            rows = rows.select(list(schema.names))
            cached = _build(rows.to_batches(), rows.schema, schema.key_columns)
            self._keep_in_memory(_name(path, schema), rows.nbytes, cached)

    def open(self, storage: Storage, path: str, schema: Schema, file_bytes: int) -> CachedFile:
        """The file in searchable form, built if need be."""
        name = _name(path, schema)
        with self._lock:
            for pool in (self._open, self._memory):
                if name in pool:
                    self.hits += 1
                    pool.move_to_end(name)
                    self._touch(name)
                    found: Any = pool[name]
                    return found[1] if isinstance(found, tuple) else found  # type: ignore[no-any-return]
        cached = self._open_stored(name)
        if cached is None:
            self.misses += 1
            cached = self._build_stored(storage, path, schema, name, file_bytes)
        else:
            self.hits += 1
        return cached

    def _keep_in_memory(self, name: str, size: int, cached: CachedFile) -> None:
        with self._lock:
            self._memory[name] = (size, cached)
            total = sum(entry for entry, _ in self._memory.values())
            while total > _MEMORY_BYTES and len(self._memory) > 1:
                _, (gone, _) = self._memory.popitem(last=False)
                total -= gone

    def _keep_open(self, name: str, cached: CachedFile) -> CachedFile:
        with self._lock:
            self._open[name] = cached
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return cached

    def _open_stored(self, name: str) -> CachedFile | None:
        rows_file, index_file = self.folder / f"{name}.arrow", self.folder / f"{name}.index"
        try:
            size = rows_file.stat().st_size
            raw = np.memmap(index_file, dtype=np.uint64, mode="r")
            if raw[0] != _checksum(name, size, raw[1:]):
                return None
            reader = pa.ipc.open_file(pa.memory_map(str(rows_file)))
            batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
        except (OSError, ValueError, pa.ArrowInvalid):
            return None
        count = sum(batch.num_rows for batch in batches)
        if raw.size != 1 + 2 * count:
            return None
        self._touch(name)
        return self._keep_open(name, _cached(batches, raw[1 : 1 + count], raw[1 + count :]))

    def _touch(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{name}.arrow")

    def _build_stored(
        self, storage: Storage, path: str, schema: Schema, name: str, file_bytes: int
    ) -> CachedFile:
        batches = _read_batches(storage, path, schema)
        size = sum(batch.nbytes + 16 * batch.num_rows for batch in batches)
        cached = _build(batches, schema.arrow, schema.key_columns)
        if file_bytes <= _SMALL_BYTES and size <= _SMALL_BYTES:
            self._keep_in_memory(name, size, cached)
            return cached
        if size > self._limit:
            return cached
        self._make_room(size)
        self._store(name, cached)
        return self._open_stored(name) or cached

    def _store(self, name: str, cached: CachedFile) -> None:
        """Write an entry. Replay: the same entry replaces itself."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            token = secrets.token_hex(4)
            rows_file = self.folder / f"{name}.arrow.{token}{UNFINISHED}"
            index_file = self.folder / f"{name}.index.{token}{UNFINISHED}"
            try:
                with pa.OSFile(str(rows_file), "wb") as sink:
                    with pa.ipc.new_file(sink, cached.batches[0].schema) as writer:
                        for batch in cached.batches:
                            writer.write_batch(batch)
                index = np.concatenate([cached.hashes, cached.positions.astype(np.uint64)])
                checksum = _checksum(name, rows_file.stat().st_size, index)
                with index_file.open("wb") as file:
                    file.write(np.uint64(checksum).tobytes())
                    file.write(index.tobytes())
                # In this order: rows without an index are counted, and go when they are unused.
                rows_file.replace(self.folder / f"{name}.arrow")
                index_file.replace(self.folder / f"{name}.index")
            finally:
                rows_file.unlink(missing_ok=True)
                index_file.unlink(missing_ok=True)

    def _make_room(self, wanted: int) -> None:
        remove_unfinished(self.folder)
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries) + wanted
        for _, size, name in entries:
            if total <= self._limit:
                break
            for suffix in (".arrow", ".index"):
                with contextlib.suppress(OSError):
                    (self.folder / f"{name}{suffix}").unlink()
            with self._lock:
                self._open.pop(name, None)
            total -= size

    def _entries(self) -> list[tuple[float, int, str]]:
        """(last used, bytes, name) of each entry."""
        entries = []
        with contextlib.suppress(OSError):
            for item in os.scandir(self.folder):
                if item.name.endswith(".arrow"):
                    with contextlib.suppress(OSError):
                        status = item.stat()
                        name = item.name.removesuffix(".arrow")
                        size = status.st_size
                        with contextlib.suppress(OSError):
                            size += (self.folder / f"{name}.index").stat().st_size
                        entries.append((status.st_mtime, size, name))
        return entries


def _checksum(name: str, rows_bytes: int, index: "np.ndarray[Any, Any]") -> int:
    seed = zlib.crc32(f"{name} {rows_bytes} {_boot()}".encode())
    return zlib.crc32(np.ascontiguousarray(index).data, seed)


@functools.cache
def _boot() -> str:
    # Entries are not forced to disk; those from before the machine went down are not trusted.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


def _name(path: str, schema: Schema) -> str:
    # Another schema reads the same file differently, so it is another entry.
    digest = zlib.crc32(f"{HASH_VERSION} {schema}".encode())
    return f"{path.rsplit('/', 1)[-1].removesuffix('.parquet')}.{digest:08x}"


def _build(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, key: Sequence[Column]
) -> CachedFile:
    parts = [key_hashes(batch, key) for batch in batches]
    hashes = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    filled = batches or [pa.RecordBatch.from_pylist([], schema=schema)]
    return _cached(filled, hashes[order], order.astype(np.uint64))


def _cached(batches: Sequence[pa.RecordBatch], hashes: Any, positions: Any) -> CachedFile:
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]
    return CachedFile(batches, starts, hashes, positions)


def _read_batches(storage: Storage, path: str, schema: Schema) -> list[pa.RecordBatch]:
    table = read_rows(storage, path, schema.arrow)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
    return batches


def read_rows(
    storage: Storage,
    path: str,
    wanted: pa.Schema,
    fetched: FetchedFiles | None = None,
    only: tuple[int, int] | None = None,
) -> pa.Table:
    """Read a file's rows in the wanted schema: missing columns are null, narrower types widen.

    What has to be `fetched` may be shared with other readers of this machine. `only` are the
    rows from one place up to another.
    """
    try:
        if storage.local_root is not None:
            source: Any = pa.memory_map(str(storage.local_root / path))
        elif fetched is not None:
            source = fetched.open(storage, path)
        else:
            source = pa.BufferReader(storage.get(path))
        file = pq.ParquetFile(source, page_checksum_verification=True)
        present = set(file.schema_arrow.names)
        columns = [name for name in wanted.names if name in present]
        table = file.read(columns=columns) if only is None else read_between(file, columns, only)
    except FileNotFoundError as error:
        raise DamagedState(
            "a file of a committed epoch is missing",
            detail=f"{storage.url}/{path}",
            hint="Restore it from a backup. Nothing was skipped; the table waits for the file.",
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        if fetched is not None and fetched.forget(storage, path):
            # It was the copy, or it is not: the store's own file tells.
            return read_rows(storage, path, wanted, only=only)
        # Arrow's errors about content are OSErrors too, but only the system's have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageUnavailable(
                f"storage cannot be used: {os.strerror(error.errno)}",
                detail=f"File {path}.",
                hint="The work goes on by itself when it can be reached.",
            ) from error
        raise DamagedState(
            "a file of a committed epoch is corrupt", detail=f"{storage.url}/{path}: {error}"
        ) from error
    found = [
        table.column(f.name).cast(f.type) if f.name in present else pa.nulls(table.num_rows, f.type)
        for f in wanted
    ]
    return pa.Table.from_arrays(found, schema=wanted)
