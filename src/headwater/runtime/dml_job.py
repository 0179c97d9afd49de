"""The tables that users write, and the one job that feeds them all.

The job starts with the first such table. Tables come and go while it runs; a table's schema
changes at the barrier that carries the definition, staged by the same actor that stages rows.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from headwater.model.ids import JobId, TableId
from headwater.model.schema import Schema
from headwater.runtime.dml import DmlSource
from headwater.state.table import StateTable

DML_JOB = JobId(0)
"""Relations are numbered from one, so no source's job has this id."""


class DmlTables:
    """The tables that users write, by id."""

    def __init__(self, source: DmlSource) -> None:
        self.source = source
        self.tables: dict[str, StateTable] = {}
        """What the job sees; changed while it runs."""
        self._schemas: dict[int, Mapping[TableId, Schema]] = {}
        self._add_job: Callable[[], Awaitable[object]] | None = None

    def started_by(self, add_job: Callable[[], Awaitable[object]]) -> None:
        """Say how the job is added once the first table needs it."""
        self._add_job = add_job

    async def start(self) -> None:
        """Have the job run. Replay: a job that runs is left alone."""
        add, self._add_job = self._add_job, None
        if add is not None:
            try:
                await add()
            except BaseException:
                self._add_job = add
                raise

    def add(self, table: StateTable) -> None:
        """Feed a table from now on; the ledger has it."""
        self.tables[str(table.id)] = table

    def remove(self, tables: Iterable[TableId]) -> None:
        """Feed these no more; what still waits for them is dropped."""
        for table in tables:
            self.tables.pop(str(table), None)

    def alter(self, key: int, schemas: Mapping[TableId, Schema]) -> None:
        """Change schemas at the barrier that carries this key."""
        self._schemas = {key: schemas}

    def schemas(self, key: int) -> Mapping[str, Schema]:
        """The schemas that the definition with this key gives to tables."""
        return {str(table): schema for table, schema in self._schemas.get(key, {}).items()}

    @property
    def ids(self) -> tuple[TableId, ...]:
        """The tables fed now."""
        return tuple(table.id for table in self.tables.values())
