"""What a task of a sweep does: read a slice, compute what it brings, write it, leave a receipt.

    the view's slices bring     the task writes
    rows                        a file of them, beside the receipt
    groups                      their states, into the receipt

Tables that the slices meet are read once by each process that runs tasks, and kept there until
it runs tasks of another view.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.model.ids import TableId
from headwater.state.dead_rows import DeadRows
from headwater.state.fetched_files import FetchedFiles
from headwater.state.manifest import LiveFile
from headwater.state.read import read_alive
from headwater.state.receipts import Receipt, leave
from headwater.state.snapshot_files import SnapshotPlan, write_snapshot
from headwater.state.stage import PART_SCHEMA, StagedPart, failure_row, part_rows
from headwater.state.storage import Storage
from headwater.state.task_process import settle_in
from headwater.views.on_arrow.slices import SliceDesk, SliceQuery

MANY_GROUPS = "there are many groups"
NOT_HERE = "only Spark can compute it"
_FEW_GROUPS, _FEW = 10_000, 0.1
"""So many groups are few, and so many for each row of a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """A table's files, or some of them, and how they are read. Travels to tasks."""

    storage: Storage
    dead_rows: DeadRows
    fetched: FetchedFiles | None
    files: tuple[LiveFile, ...]

    def rows(self, wanted: pa.Schema, files: Sequence[LiveFile]) -> pa.Table:
        """The rows of some files, in one table."""
        parts = [
            read_alive(self.storage, live, wanted, self.dead_rows, fetched=self.fetched)
            for live in files
        ]
        return pa.concat_tables(parts) if parts else wanted.empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """All that tasks need to know. Travels to them."""

    life: str
    """Names the query and the tables that slices meet: what is kept of them is kept for it."""
    query: SliceQuery
    tables: Mapping[TableId, TableFiles]
    slices: Sequence[tuple[str, tuple[LiveFile, ...]]]
    """Key and files of each."""
    plan: SnapshotPlan
    """Where rows are written, and receipts."""
    states: bool
    most_groups: int

    def run(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the slices of some numbers. Replay: files and receipts have new names."""
        settle_in()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    leave(self.plan.storage, self.plan.origin, self._read(number))
                    yield part_rows(StagedPart())
                except HeadwaterError as error:
                    yield failure_row(error)

    def _read(self, number: int) -> Receipt:
        key, files = self.slices[number]
        query = self.query
        rows = self.tables[query.sliced].rows(query.tables[query.sliced], files)
        found = _desk(self).over(rows)
        if found is None:
            return Receipt(key=key, refused=NOT_HERE)
        if self.states:
            most = min(self.most_groups, max(_FEW_GROUPS, _FEW * rows.num_rows))
            if found.num_rows > most:
                return Receipt(key=key, refused=MANY_GROUPS)
            return Receipt(key=key, groups=found)
        if not found.num_rows:
            return Receipt(key=key)
        return Receipt(key=key, files=(write_snapshot(self.plan, found),))


RESULT = PART_SCHEMA
_kept: dict[str, SliceDesk] = {}


def _desk(task: SliceTask) -> SliceDesk:
    """Where the query is computed in this process, with the tables that all slices meet."""
    if task.life not in _kept:
        _kept.clear()
        others = {
            table: files.rows(task.query.tables[table], files.files).combine_chunks()
            for table, files in task.tables.items()
            if table != task.query.sliced
        }
        _kept[task.life] = SliceDesk(task.query, others)
    return _kept[task.life]
