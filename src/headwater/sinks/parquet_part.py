"""One part of a delivery as a Parquet file, with what its footer says about it."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.sinks.target_files import grouped, part_file
from headwater.state.parquet_file import repetitive
from headwater.state.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPart:
    """A file that is written and durable."""

    path: str
    rows: int
    bytes: int
    footer: pq.FileMetaData


def write_parquet(
    storage: Storage, path: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]
) -> ParquetPart | None:
    """Write the schema's columns of all batches into one file; None where there is no row.

    Replay: the file is written from its beginning.
    """
    groups = grouped(rows, schema)
    first = next(groups, None)
    if first is None:
        return None
    footers: list[pq.FileMetaData] = []
    count = 0
    with part_file(storage, path) as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=repetitive(first),
            write_page_checksum=True,
            store_schema=False,
            metadata_collector=footers,
        ) as writer:
            for group in itertools.chain([first], groups):
                writer.write_table(group)
                count += group.num_rows
        size = file.tell()
    return ParquetPart(path=path, rows=count, bytes=size, footer=footers[0])
