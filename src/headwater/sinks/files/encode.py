"""Rows as the bytes of a Parquet, JSON or CSV file, and several such files as one."""

import contextlib
import io
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from headwater.model.schema import Column
from headwater.model.types import Kind
from headwater.sinks.json_text import json_objects, plain_text
from headwater.sinks.parquet_part import write_parquet
from headwater.sinks.sink import Batches
from headwater.sinks.target_files import grouped, part_file
from headwater.state.storage import Storage

_UNQUOTED = frozenset({Kind.BOOLEAN, Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DATE})
"""Kinds that Arrow's CSV writer spells as we do."""

_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="needed")


class Encode(StrEnum):
    """The kinds of files, by the ending of their names."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file that is written and durable."""

    path: str
    rows: int
    head: int = 0
    """How many bytes at its beginning are no rows, but the names of the columns."""


def write_part(
    storage: Storage, path: str, encode: Encode, columns: Sequence[Column], rows: Batches
) -> Part | None:
    """Write all rows into one file; None where there is none. Replay: writes it once more."""
    schema = pa.schema([pa.field(column.name, column.type.arrow) for column in columns])
    if encode is Encode.PARQUET:
        written = write_parquet(storage, path, schema, rows)
        return None if written is None else Part(path=path, rows=written.rows)
    groups = grouped(rows, schema)
    first = next(groups, None)
    if first is None:
        return None
    count = 0
    head = _names(columns) if encode is Encode.CSV else b""
    with part_file(storage, path) as file:
        file.write(head)
        for group in itertools.chain([first], groups):
            count += group.num_rows
            if encode is Encode.JSON:
                lines = json_objects(group, columns)
                file.write(("\n".join(lines.to_pylist()) + "\n").encode())
            else:
                pa.csv.write_csv(_spelled(group, columns), file, _CSV)
    return Part(path=path, rows=count, head=len(head))


def join_parts(
    storage: Storage, path: str, encode: Encode, columns: Sequence[Column], parts: Sequence[Part]
) -> Part:
    """Make one file of several. Replay: writes it once more."""
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(_local_copy(storage, part.path)) for part in parts]
        if encode is Encode.PARQUET:
            files = [pq.ParquetFile(source) for source in sources]
            batches = itertools.chain.from_iterable(each.iter_batches() for each in files)
            # Parts may be older than columns that the sink has got since.
            had = set(files[0].schema_arrow.names)
            own = [column for column in columns if column.name in had]
            joined = write_part(storage, path, encode, own, batches)
            assert joined is not None
            return joined
        with part_file(storage, path) as file:
            for number, (part, source) in enumerate(zip(parts, sources, strict=True)):
                with source.open("rb") as content:
                    content.seek(part.head if number else 0)
                    shutil.copyfileobj(content, file, 1 << 20)
    return Part(path=path, rows=sum(part.rows for part in parts), head=parts[0].head)


def _names(columns: Sequence[Column]) -> bytes:
    names = pa.table([[column.name] for column in columns], [str(n) for n in range(len(columns))])
    written = io.BytesIO()
    pa.csv.write_csv(names, written, _CSV)
    return written.getvalue()


def _spelled(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Text where Arrow's own would differ from ours; text is in quotes, so null is not."""
    arrays = [
        rows.column(column.name)
        if column.type.kind in _UNQUOTED
        else plain_text(rows.column(column.name), column.type)
        for column in columns
    ]
    return pa.table(arrays, names=[str(place) for place in range(len(columns))])


@contextlib.contextmanager
def _local_copy(storage: Storage, path: str) -> Iterator[Path]:
    if storage.local_root is not None:
        yield storage.local_root / path
        return
    with tempfile.TemporaryDirectory(prefix="headwater-join-") as folder:
        copy = Path(folder) / "part"
        storage.get_file(path, copy)
        yield copy
