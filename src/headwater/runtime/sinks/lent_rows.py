"""A table's file as a segment of a sink's log: what it is called, and how its rows are read.

Tasks import this, so it imports little. Who lends, and for how long: `lending.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.logstore.items import LENT, Segment
from headwater.model.epoch import Epoch
from headwater.model.reserved import VNODE
from headwater.model.vnode import VnodeBitmap
from headwater.runtime.sinks.owed import Owing
from headwater.state.manifest import LiveFile, TableView
from headwater.state.parquet_file import data_schema
from headwater.state.read import Reader, read_alive


def lent_segment(snapshot: TableView, live: LiveFile, epoch: Epoch) -> Segment:
    """A whole file of a snapshot as a segment of an epoch of the log."""
    span = range(live.file.first_vnode, live.file.last_vnode + 1)
    return Segment(
        name=f"{LENT}{snapshot.epoch}:{live.file.path}",
        epoch=epoch,
        first_seq=0,
        rows=live.live_rows,
        # As a file of the log it would be about half as large again.
        bytes=live.file.bytes * 3 // 2,
        vnodes=VnodeBitmap.of(span),
    )


def file_of(segment: Segment) -> tuple[Epoch, str]:
    """The epoch and the path that a lent segment's name says."""
    number, _, path = segment.name.removeprefix(LENT).partition(":")
    return Epoch(int(number)), path


@dataclass(frozen=True, slots=True)
class LentFiles:
    """Some files of a table, for those who read them as segments. Travels to Spark tasks."""

    reader: Reader
    files: Mapping[str, tuple[LiveFile, Owing]]

    def __call__(self, segment: Segment) -> pa.Table:
        """The rows of a segment, as the log has rows."""
        live, owing = self.files[segment.name]
        names = [VNODE, *(column.name for column in owing.columns)]
        stored = data_schema(owing.schema)
        wanted = pa.schema([stored.field(name) for name in names])
        return owing.inserts(read_alive(self.reader.storage, live, wanted, self.reader.dead_rows))
