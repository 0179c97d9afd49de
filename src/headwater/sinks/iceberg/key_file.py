"""The keys that a part of an upsert changes, written beside its rows as these go by."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.model.change import RowOp
from headwater.sinks.sink import OP, Batches, SinkSpec
from headwater.sinks.target_files import part_file
from headwater.state.storage import Storage


class KeyFile:
    """A file that is being written."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self.count = 0

    def set_rows(self, rows: Batches) -> Iterator[pa.RecordBatch]:
        """The rows that are set; the keys of all rows go into the file."""
        for batch in rows:
            self._writer.write_batch(batch.select(self._schema.names).cast(self._schema))
            self.count += batch.num_rows
            yield batch.filter(pc.equal(batch.column(OP), RowOp.INSERT))


@contextlib.contextmanager
def key_file(storage: Storage, path: str, spec: SinkSpec) -> Iterator[KeyFile]:
    """A file for the keys; durable when the block ends. Replay: written from its beginning."""
    types = {column.name: column.type.arrow for column in spec.columns}
    schema = pa.schema([pa.field(name, types[name]) for name in spec.key])
    with part_file(storage, path) as file, pq.ParquetWriter(file, schema) as writer:
        yield KeyFile(writer, schema)
