"""The jobs that read sources which are no databases, and what users write."""

from collections.abc import Callable, Sequence

from headwater.catalog.relation import SourceDef, TableDef
from headwater.cdc.source import Source
from headwater.model.ids import JobId, SourceName
from headwater.observe.events import EventKind
from headwater.runtime.blocking import Blocking
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.dml import DML
from headwater.runtime.dml_job import DML_JOB, DmlTables
from headwater.runtime.source_job import SourceJob
from headwater.state.store import StateStore

Tell = Callable[[EventKind, str, str], None]


class SourceJobs:
    """Makes these jobs, and knows the sources that they read."""

    def __init__(  # noqa: PLR0913  one argument per thing that it is lent
        self,
        *,
        store: StateStore,
        committer: EpochCommitter,
        blocking: Blocking,
        dml: DmlTables,
        max_bytes: int,
        tell: Tell,
    ) -> None:
        self.sources: dict[SourceName, Source] = {}
        self._store = store
        self._committer = committer
        self._blocking = blocking
        self._dml = dml
        self._max_bytes = max_bytes
        self._tell = tell

    def dml_job(self) -> SourceJob:
        """The job that takes what users write."""
        dml = self._dml
        job = SourceJob(
            job=DML_JOB,
            source=dml.source,
            tables=dml.tables,
            position=lambda: self._committer.positions.get(DML),
            blocking=self._blocking,
            max_bytes=self._max_bytes,
            at_once=True,
            schemas=dml.schemas,
        )
        self._committer.register(job.job, dml.source, lambda: dml.ids)
        return job

    def job(self, definition: SourceDef, tables: Sequence[TableDef], source: Source) -> SourceJob:
        """The job that reads one source."""
        job = SourceJob(
            job=JobId(definition.id),
            source=source,
            tables={table.upstream: self._store[table.id] for table in tables},
            position=lambda: self._committer.positions.get(definition.name),
            blocking=self._blocking,
            max_bytes=self._max_bytes,
            away=lambda text: self._tell(EventKind.SOURCE_UNAVAILABLE, definition.name, text),
        )
        self.sources[definition.name] = source
        self._committer.register(job.job, source, lambda: job.table_ids)
        return job
