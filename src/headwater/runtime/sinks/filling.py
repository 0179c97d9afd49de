"""Fill the log of a new sink with the rows that its relation has, beside the epochs.

It is the executor of snapshot backfill that does it, as for a new view: slices of the snapshot,
then the change log, then the sink joins those that are live. Here a slice is some segments of
the sink's log; what is in the log is delivered meanwhile, epoch by epoch.

    a slice of the snapshot     becomes
    whole files, unlimited      lent segments: nothing is read or written (`lent_rows.py`)
    parts of files              copies, a task for each file (`copying.py`)
    with another key            segments that are sorted anew (`owed.py`)

Lending takes no time, so that a whole table could be owed in one epoch, which would be one
transaction of the target. So lent slices are bounded in size, and an epoch takes one of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.backfill.snapshot.machine import CatchUp, LogEpoch, Pace, Read, Step
from headwater.backfill.snapshot.slices import Group
from headwater.backfill.snapshot.state import TableProgress
from headwater.backfill.snapshot.target import Prepared, Ready, Target
from headwater.catalog.relation import ObjectDef
from headwater.crash_points import crash_point
from headwater.errors import BrokenInvariant, HeadwaterError, UserError
from headwater.logstore.items import Segment
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import StagedWork
from headwater.runtime.creating.job import FillingJob
from headwater.runtime.creating.steps import Reading
from headwater.runtime.sinks.copying import copied_segments
from headwater.runtime.sinks.definition import SinkSettings
from headwater.runtime.sinks.keeper import LiveSink, append
from headwater.runtime.sinks.lent_rows import lent_segment
from headwater.runtime.sinks.owed import Owing, owed_segments
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_fill import as_inserts
from headwater.runtime.view_world import SparkSource
from headwater.state.file_parts import only
from headwater.state.manifest import TableView
from headwater.state.store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILLING = "filling"
"""The setting of a sink whose job is not done."""
_MANY = 1 << 20
_LARGEST_SLICE = 8
"""How many times the usual size a slice has at most."""


@dataclass(kw_only=True)
class SinkJob(FillingJob):
    """The job that fills one sink's log."""

    sink: LiveSink
    owing: Callable[[LiveSink], Owing]
    keep: Callable[[Epoch], Awaitable[None]]
    """Keeps the rows of an epoch for as long as its log may have been lent them."""
    parallel_tasks: int
    loop: asyncio.AbstractEventLoop

    @property
    def reads(self) -> frozenset[TableId]:
        """The relation that it delivers."""
        return frozenset({self.sink.table})

    @property
    def pace(self) -> Pace:
        """Slices of a bounded size: each is a transaction of the target."""
        bytes_ = self.lent.slice_bytes
        return Pace(slice_bytes=bytes_, largest_bytes=_LARGEST_SLICE * bytes_)

    @property
    def lends(self) -> bool:
        """Whether whole files of its relation may be lent to its log.

        Not where a delivery has several epochs: there, rows of one key may have to be folded.
        """
        owing = self.owing(self.sink)
        alone = SinkSettings.of(self.sink.definition).checkpoints == 1
        limited = self.said("backfill_rate_limit") is not None
        return alone and not limited and owing.key == owing.schema.key

    async def _pinned(self, progress: Mapping[TableId, TableProgress]) -> Epoch:
        epoch = await super()._pinned(progress)
        if not progress or not all(each.finished for each in progress.values()):
            # Limits come and go while it is filled; a pin that is not needed is let go soon.
            await self.keep(epoch)
        return epoch

    def reading(self, snapshot: Mapping[TableId, TableView]) -> Reading:
        """In as many slices as it has room for: no two have a row in common."""
        return Reading((Step(tuple(snapshot), _MANY),), fresh=True)

    def target(
        self,
        snapshot: Mapping[TableId, TableView],
        groups: Mapping[TableId, list[Group]],
        reading: Reading,
    ) -> Target:
        """The sink's log; what an earlier life of this job has staged is dropped."""
        self.sink.discard()
        return SinkTarget(self, snapshot[self.sink.table])


class SinkTarget:
    """Satisfies the backfill room's `Target`."""

    in_turn = False
    exists = True
    sweeps = False

    def __init__(self, job: SinkJob, snapshot: TableView) -> None:
        self._job = job
        self._sink = job.sink
        self._store: StateStore = job.lent.store
        self._spark: SparkSource = job.lent.spark
        self._snapshot = snapshot
        self._interrupted = False

    @property
    def fresh(self) -> bool:
        """Whether slices do not wait for each other; those that take no time do."""
        return not self._job.lends

    def sweep(
        self,
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
        ready: Ready,
        over: Callable[[], bool],
    ) -> None:
        """Nothing is swept."""
        raise BrokenInvariant("a sink's log is filled slice by slice")

    def read(self, read: Read, so_far: Mapping[TableId, TableProgress], epoch: Epoch) -> Prepared:
        """Lend the rows of slices, or write them. Replay: writes files under new names."""
        slices = only(self._snapshot, [part for _, each in read.slices for part in each.parts])
        if self._job.lends and all(live.only is None for live in slices.files):
            alive = (live for live in slices.files if live.live_rows)
            segments = [lent_segment(self._snapshot, live, epoch) for live in alive]
        else:
            segments = self._copied(slices, epoch)
        crash_point("snapshot.after_slice")
        return Prepared(segments, read.rows)

    def catch_up(self, step: CatchUp, epoch: Epoch) -> Prepared:
        """The same for a stretch of the change log."""
        table = self._store[self._sink.table]
        upcoming = table.upcoming(step.upto, step.after)
        changes = table.changes_of(upcoming.after, upcoming.entries)
        segments = self._written(changes, epoch)
        crash_point("snapshot.after_slice")
        return Prepared(segments, sum(step.rows.values()))

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> StagedWork:
        """Let an epoch's part of the log have what is prepared. Replay: as `append`."""
        found = [segment for each in prepared for segment in each.parts]
        if not found:
            return StagedWork()
        writing = append(self._sink, epoch, None, found)
        end = asyncio.run_coroutine_threadsafe(writing, self._job.loop).result()
        return StagedWork(log_ends={self._sink.log: end})

    def log(self, after: Epoch) -> Sequence[LogEpoch]:
        """The committed epochs after one that changed the relation, and how much."""
        id_ = self._sink.table
        entries = self._store[id_].log(after, self._job.lent.last())
        return [LogEpoch(entry.epoch, {id_: entry.rows}) for entry in entries]

    def interrupt(self) -> None:
        """End the Spark job that runs."""
        self._interrupted = True
        with suppress(Exception):
            self._spark().sparkContext.cancelJobsWithTag(self._job.tag)

    # Inside

    def _copied(self, slices: TableView, epoch: Epoch) -> list[Segment]:
        table = self._store[self._sink.table]
        rows = table.rows_of(slices)
        owing, write = self._job.owing(self._sink), self._sink.segment_writer(epoch)
        if isinstance(rows, pa.Table) or owing.key != owing.schema.key:
            return self._written(as_inserts(rows), epoch)
        with self._working() as spark:
            return copied_segments(
                spark, table.reader, slices.files, owing, write, self._job.parallel_tasks
            )

    def _written(self, changes: "pa.Table | DataFrame", epoch: Epoch) -> list[Segment]:
        owing = self._job.owing(self._sink)
        write = self._sink.segment_writer(epoch)
        if isinstance(changes, pa.Table):
            rows = owing.rows(changes)
            return [write(rows)] if rows.num_rows else []
        with self._working():
            return owed_segments(owing, changes, self._job.parallel_tasks, write)

    @contextmanager
    def _working(self) -> "Iterator[SparkSession]":
        spark = self._spark()
        spark.sparkContext.addJobTag(self._job.tag)
        try:
            yield spark
        except Exception as error:
            why = explained(error)
            if isinstance(why, SparkGone):
                self._spark.lost()
            elif self._interrupted:
                why = SparkGone("the work was interrupted")
            raise why from error
        finally:
            with suppress(Exception):
                spark.sparkContext.removeJobTag(self._job.tag)


@dataclass(slots=True, kw_only=True)
class FillingSink:
    """A sink whose log is being filled."""

    sink: ObjectDef
    job: SinkJob
    done: "asyncio.Future[Epoch]"
    over: bool = False
    error: HeadwaterError | None = None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        return str(self.job.progress or "0.0%")

    def end(self, epoch: Epoch) -> None:
        """It is live."""
        if not self.done.done():
            self.done.set_result(epoch)

    def cancelled(self) -> None:
        """It is gone."""
        if not self.done.done():
            error = self.error or UserError(f'creating sink "{self.sink.name}" was cancelled')
            if self.error is None:
                error.sqlstate = "57014"
            self.done.set_exception(error)
