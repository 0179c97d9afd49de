"""The data source itself: what Spark calls, on the driver and in its tasks.

    on the driver    options, schema, epochs and files, from the ledger
    in the tasks     rows, from the files; neither the ledger nor its password travels there

A batch is fixed to one epoch when it is loaded, so that all actions on a DataFrame, and both
sides of a join with itself, see the same rows. Where the user gives a schema, Spark makes the
source only at the first action, and that is when it is fixed.

Why filters are not taken from Spark (`pushFilters`): Spark 4.3 keeps what it planned for the first
query over a DataFrame, filters included, and uses it for the next query over the same DataFrame,
which then lacks rows. Spark filters by itself what a task has read.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.model.epoch import Epoch
from headwater.spark_source.changes import ChangesReader
from headwater.spark_source.columns import (
    CHANGE_COLUMNS,
    arrow_schema,
    require_columns,
    spark_schema,
)
from headwater.spark_source.options import Options
from headwater.spark_source.pieces import Part, parts, pieces_of_rows
from headwater.spark_source.rows import Task
from headwater.spark_source.workspace import LookedInto, user_columns
from headwater.state.manifest import TableView
from headwater.state.storage import Storage


class HeadwaterSource(DataSource):
    """Tables and materialized views of a workspace, as rows or as a stream of changes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Here and not in `schema`, which Spark passes over when the user gives one.
        self._options = Options.parse(options)
        with LookedInto(self._options.workspace) as looked:
            state = looked.table(self._options.table)
        self._epoch: Epoch = state.head if self._options.epoch is None else self._options.epoch
        self._columns = user_columns(state.view(self._epoch).schema)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headwater"

    def schema(self) -> StructType:
        """The user's columns, and those of changes where a stream is asked for."""
        if self._options.since is None:
            return spark_schema(self._columns)
        return spark_schema((*self._columns, *CHANGE_COLUMNS))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the rows at the epoch that `load` found."""
        self._options.require_batch()
        with LookedInto(self._options.workspace) as looked:
            state = looked.table(self._options.table)
            storage = looked.storage(state.definition.folder)
        view = state.view(self._epoch)
        require_columns(schema, user_columns(view.schema), self._options.table)
        return RowsReader(view, storage, schema)

    def streamReader(self, schema: StructType) -> ChangesReader:
        """Read the changes."""
        return ChangesReader(self._options, schema)


class RowsReader(DataSourceReader):
    """The rows of a table at one epoch."""

    def __init__(self, view: TableView, storage: Storage, schema: StructType) -> None:
        self._view = view
        self._task = Task(storage=storage, wanted=arrow_schema(schema))

    def __getstate__(self) -> dict[str, Any]:
        # A task needs its own files only, which it is told; the table may have very many.
        return {"_task": self._task}

    def partitions(self) -> list[InputPartition]:
        """Share the files out among tasks."""
        # Spark makes a part of its own where there is none, and hands it to `read`.
        return list(parts(pieces_of_rows(self._view.files))) or [Part(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Part)
        return self._task.read(partition)
