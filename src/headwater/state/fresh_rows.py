"""Write rows whose keys are all new, as they come: the first rows of a view.

Nothing has to be looked up for them and none of them meets another, so no row has to move from
one task to another and nothing is sorted by key. Each task writes what it computes as files of a
snapshot (`snapshot_files.py`): filling a view costs what running its query costs.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError
from headwater.model.spelling import quoted
from headwater.state.snapshot_files import SnapshotPlan, write_snapshot
from headwater.state.stage import PART_SCHEMA, StagedPart, failure_row, part_from_rows, part_rows
from headwater.state.stage_on_spark import numbered_columns
from headwater.state.task_process import settle_in

_FILE_BYTES = 128 << 20
"""Of rows in memory, which a task holds until they are a file."""


def stage_fresh(plan: SnapshotPlan, frame: DataFrame) -> StagedPart:
    """Write all rows of a frame; no key may be there already, nor twice.

    Replay: tasks that run twice write files under new names; only those handed back count.
    """
    crash_point("stage.before_files")
    names = list(plan.schema.names)

    def write(rows: list[pa.RecordBatch]) -> StagedPart:
        table = pa.Table.from_batches(rows).rename_columns(names).cast(plan.schema.arrow)
        return StagedPart((write_snapshot(plan, table),))

    def write_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_in()
        try:
            held: list[pa.RecordBatch] = []
            size = 0
            for batch in batches:
                if batch.num_rows:
                    held.append(batch)
                    size += batch.nbytes
                if size >= _FILE_BYTES:
                    yield part_rows(write(held))
                    held, size = [], 0
            if held:
                yield part_rows(write(held))
        except HeadwaterError as error:
            yield failure_row(error)

    wanted = frame.select(*[F.col(quoted(name)) for name in names])
    return part_from_rows(numbered_columns(wanted).mapInArrow(write_share, PART_SCHEMA).toArrow())
