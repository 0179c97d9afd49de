"""Bring the rows of a Spark query to the client, in bounded memory, so that it can be cancelled.

    the result is expected to be    it comes
    small                           in one piece, as Arrow
    large                           from files that Spark's tasks write and that are deleted
                                    once the client has read them, or has gone away

A query carries a tag of its own, and cancelling interrupts the Spark jobs under that tag.
"""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import HeadwaterError, UserError
from headwater.runtime.blocking import Blocking
from headwater.runtime.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_ROWS = 100_000
_BATCH_ROWS = 8_192
_INTERRUPT_AGAIN_S = 0.25
_tags = itertools.count(1)


class Running:
    """A query under way; `cancel` may come from any task at any moment."""

    def __init__(self) -> None:
        self.tag = f"headwater-{os.getpid()}-{next(_tags)}"
        self.cancelled = False
        self.over = False
        self._spark: SparkSession | None = None

    @contextmanager
    def tagged(self, spark: "SparkSession") -> Iterator[None]:
        """Run Spark jobs of this thread under the tag."""
        # The session's own tags are known only to the thread that set them.
        spark.sparkContext.addJobTag(self.tag)
        spark.sparkContext.setInterruptOnCancel(True)
        self._spark = spark
        try:
            if self.cancelled:
                # It was cancelled before there was a job to interrupt.
                raise cancellation()
            yield
        finally:
            spark.sparkContext.removeJobTag(self.tag)

    def cancel(self) -> None:
        """Interrupt the jobs; harmless when there are none."""
        if not self.cancelled:
            self.cancelled = True
            self._interrupt()

    def _interrupt(self) -> None:
        if self.over:
            return
        loop = asyncio.get_running_loop()
        if self._spark is not None:
            loop.run_in_executor(None, self._spark.sparkContext.cancelJobsWithTag, self.tag)
        # A query that Spark still plans has no job yet that could be interrupted.
        loop.call_later(_INTERRUPT_AGAIN_S, self._interrupt)


async def stream(
    make: "Callable[[], DataFrame]",
    *,
    rows: int,
    blocking: Blocking,
    folder: Path,
    running: Running,
) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a query in batches; `rows` is how many may come."""
    if rows <= SMALL_ROWS:
        try:
            table = await blocking(_collected, make, running)
        finally:
            running.over = True
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield batch
        return
    spool = folder / f"result-{running.tag}"
    try:
        await blocking(_spooled, make, running, spool)
        for file in sorted(spool.glob("part-*.parquet")):
            reader = await blocking(pq.ParquetFile, file)
            batches = reader.iter_batches(batch_size=_BATCH_ROWS)
            while (batch := await blocking(next, batches, None)) is not None:
                yield batch
    finally:
        running.over = True
        await asyncio.shield(blocking(shutil.rmtree, spool, ignore_errors=True))


def _collected(make: "Callable[[], DataFrame]", running: Running) -> pa.Table:
    try:
        frame = make()
        with running.tagged(frame.sparkSession):
            return frame.toArrow()
    except Exception as error:
        raise _told(error, running) from error


def _spooled(make: "Callable[[], DataFrame]", running: Running, spool: Path) -> None:
    try:
        frame = make()
        # Columns may share a name in a result, which files cannot.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        with running.tagged(frame.sparkSession):
            numbered.write.parquet(str(spool))
    except Exception as error:
        raise _told(error, running) from error


def _told(error: Exception, running: Running) -> HeadwaterError:
    return cancellation() if running.cancelled else explained(error)


def cancellation() -> UserError:
    """What a client gets for a statement that was cancelled."""
    error = UserError("canceling statement due to user request")
    error.sqlstate = "57014"
    return error
