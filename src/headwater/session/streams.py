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

from headwater.runtime.blocking import Blocking
from headwater.runtime.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_ROWS = 100_000
_BATCH_ROWS = 8_192
_tags = itertools.count(1)


class Running:
    """A query under way; `cancel` may come from any task at any moment."""

    def __init__(self) -> None:
        self.tag = f"headwater-{os.getpid()}-{next(_tags)}"
        self.cancelled = False
        self._spark: SparkSession | None = None

    @contextmanager
    def tagged(self, spark: "SparkSession") -> Iterator[None]:
        """Run Spark jobs of this thread under the tag."""
        self._spark = spark
        spark.addTag(self.tag)
        try:
            yield
        finally:
            spark.removeTag(self.tag)

    def cancel(self) -> None:
        """Interrupt the jobs; harmless when there are none."""
        self.cancelled = True
        if self._spark is not None:
            self._spark.interruptTag(self.tag)


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
        table = await blocking(_collected, make, running)
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
        await asyncio.shield(blocking(shutil.rmtree, spool, ignore_errors=True))


def _collected(make: "Callable[[], DataFrame]", running: Running) -> pa.Table:
    try:
        frame = make()
        with running.tagged(frame.sparkSession):
            return frame.toArrow()
    except Exception as error:
        raise explained(error) from error


def _spooled(make: "Callable[[], DataFrame]", running: Running, spool: Path) -> None:
    try:
        frame = make()
        # Columns may share a name in a result, which files cannot.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        with running.tagged(frame.sparkSession):
            numbered.write.parquet(str(spool))
    except Exception as error:
        raise explained(error) from error
