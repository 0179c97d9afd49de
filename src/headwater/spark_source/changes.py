"""A stream of a table's exact changes.

Spark keeps one reader alive on the driver and asks it again and again how far it may go, many
times a second when nothing happens. The reader keeps its connection to the ledger, and reads the
table's list of files anew only when the last epoch has moved.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.errors import HistoryGone
from headwater.model.epoch import Epoch
from headwater.spark_source.columns import CHANGE_COLUMNS, arrow_schema, require_columns
from headwater.spark_source.options import Options, Since
from headwater.spark_source.pieces import Part, Piece, parts, pieces_of_changes, pieces_of_rows
from headwater.spark_source.position import (
    Position,
    advance,
    entries_between,
    first_position,
    require_table,
    snapshot_gone,
)
from headwater.spark_source.rows import Task
from headwater.spark_source.workspace import LookedInto, TableState, user_columns


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes of one table, from where its query is on."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._begin = options.begin
        self._schema = schema
        # Spark also makes a reader for each batch only to hand `read` to the tasks.
        with LookedInto(options.workspace) as looked:
            storage = looked.storage(looked.table(options.table).definition.folder)
        self._task = Task(storage=storage, wanted=arrow_schema(schema))
        self._looked: LookedInto | None = None
        self._seen: TableState | None = None
        self._upto: Epoch | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay on the driver.
        return {"_task": self._task}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; the same for every call."""
        return first_position(self._state(), self._begin).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much one batch may hold."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at what is committed now."""
        self._upto = self._state().head

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        state = self._state()
        upto = state.head if self._upto is None else self._upto
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return advance(state, Position.from_offset(start), upto=upto, max_rows=most).to_offset()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Share one batch out among tasks."""
        state = self._state()
        first, last = Position.from_offset(start), Position.from_offset(end)
        require_table(state, first)
        require_table(state, last)
        pieces = self._pieces(state, first, last)
        known = (*user_columns(state.manifest.schema), *CHANGE_COLUMNS)
        require_columns(self._schema, known, state.definition.name)
        return parts(pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task."""
        assert isinstance(partition, Part)
        return self._task.read(partition)

    def stop(self) -> None:
        """Close the connection to the ledger."""
        if self._looked is not None:
            self._looked.close()

    def _pieces(self, state: TableState, first: Position, last: Position) -> list[Piece]:
        match first.begin:
            case Since.SNAPSHOT:
                try:
                    files = state.manifest.view_at(last.epoch).files
                except HistoryGone as error:
                    raise snapshot_gone(state, last.epoch) from error
                return pieces_of_rows(files, inserted_at=last.epoch)
            case Since.LATEST:
                return []
            case _:
                return pieces_of_changes(entries_between(state, first, last))

    def _state(self) -> TableState:
        if self._looked is None:
            self._looked = LookedInto(self._options.workspace)
        if self._seen is None or self._looked.head() != self._seen.head:
            self._seen = self._looked.table(self._options.table)
        return self._seen
