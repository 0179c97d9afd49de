"""Bring the rows of a table's files into a sink's log, file by file, without a shuffle.

A table's files know each row's vnode already. Where the sink's key is the table's, the log wants
the same one: a task reads a file, says that its rows are inserts, and writes a segment. That is a
copy, and costs a fraction of sorting the rows anew.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.logstore.items import Segment
from headwater.runtime.sinks.owed import Owing, segment_of_row, segment_row
from headwater.state.manifest import LiveFile
from headwater.state.parquet_file import data_schema
from headwater.state.read import Reader, read_alive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASK_ROWS = 500_000


def copied_segments(  # noqa: PLR0913, PLR0917  what is read, and what is written
    spark: "SparkSession",
    reader: Reader,
    files: Sequence[LiveFile],
    owing: Owing,
    write: Callable[[pa.Table], Segment],
    parallelism: int,
) -> list[Segment]:
    """Have Spark tasks write the rows of files as inserts.

    Replay: tasks that run twice write files under new names; only those handed back count.
    """
    wanted = data_schema(owing.schema)

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for cell in batch.column(0):
                live = pickle.loads(cell.as_py())
                rows = read_alive(reader.storage, live, wanted, reader.dead_rows)
                for start in range(0, rows.num_rows, _TASK_ROWS):
                    yield segment_row(write(owing.inserts(rows.slice(start, _TASK_ROWS))))

    # The largest first, each to the next task.
    alive = sorted((each for each in files if each.live_rows), key=lambda f: -f.live_rows)
    listed = pa.table({"file": pa.array([pickle.dumps(each) for each in alive], pa.binary())})
    frame = spark.createDataFrame(listed).repartition(min(len(alive), 4 * parallelism))
    found = frame.mapInArrow(copy, "segment binary").toArrow()
    return [segment_of_row(row) for row in found.column(0).to_pylist()]
