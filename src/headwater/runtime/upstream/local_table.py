"""The table here that follows another: rows and changes become files that wait for their epoch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.backfill.snapshot.target import Prepared
from headwater.errors import HeadwaterError, SourceUnavailable
from headwater.model.change import ChangeType
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.table_commit import TableCommit
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_fill import as_inserts
from headwater.runtime.view_world import SparkSource
from headwater.state.net_changes import net_changes
from headwater.state.stage import StagedPart
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LocalStateTable:
    """Satisfies the backfill room's `LocalTable`."""

    def __init__(self, table: StateTable, spark: SparkSource) -> None:
        self._table = table
        self._spark = spark

    @property
    def exists(self) -> bool:
        """Whether the ledger has it."""
        return self._table.committed > NO_EPOCH

    def insert(self, rows: "pa.Table | DataFrame", epoch: Epoch) -> Prepared:
        """Write rows whose keys are all new. Replay: writes files under new names."""
        with self._explained():
            part = self._table.prepare(epoch, as_inserts(rows), fresh=True)
        return Prepared({0: part}, sum(file.rows for file in part.added))

    def apply(self, changes: "pa.Table | DataFrame", epoch: Epoch) -> Prepared:
        """Write changes. Replay: as of `insert`."""
        with self._explained():
            if isinstance(changes, pa.Table):
                return Prepared({0: self._table.prepare(epoch, changes)}, changes.num_rows)
            part = self._table.prepare(epoch, self._net(changes))
        return Prepared({0: part}, _rows(part))

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> TableCommit | None:
        """Let an epoch have what is prepared. Replay: as of `StateTable.stage`."""
        return self._table.stage(epoch, parts=[each.parts[0] for each in prepared])

    def _net(self, changes: "DataFrame") -> "DataFrame":
        """One change for each key; what was there before is looked up here."""
        net = net_changes(changes, self._table.schema)
        return net.where(net[CHANGE_TYPE] != ChangeType.UPDATE_PREIMAGE.value)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except HeadwaterError:
            raise
        except Exception as error:
            why = explained(error)
            if isinstance(why, SparkGone):
                self._spark.lost()
                raise why from error
            # Rows that are stored somewhere can be read and stored here: whatever it is, it
            # passes, or the upstream says at the next look what has become of them.
            raise SourceUnavailable(
                f"rows could not be taken over: {why.message}",
                detail=why.detail,
                hint="It is tried again by itself.",
            ) from error


def _rows(part: StagedPart) -> int:
    return sum(f.rows for f in part.changes) + sum(f.rows for f in part.added)
