"""The external databases of an engine: their jobs, their tables, and how far these are."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from headwater.backfill.cdc.executor import Progress
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.split_reader import KeyedTable
from headwater.backfill.cdc.state import BackfillState, decode
from headwater.catalog.relation import SourceDef, TableDef
from headwater.cdc.external_table import ExternalDatabase, SplitOptions
from headwater.cdc.included import IncludingTable, included
from headwater.cdc.schema_change import SchemaPolicy, policy_of, without_policy
from headwater.errors import BrokenInvariant, ConfigError
from headwater.model.epoch import NO_EPOCH
from headwater.model.ids import JobId, SourceName, TableId
from headwater.model.rate_limit import RateLimit
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.events import EventKind
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_budget import OPTIONS, WalBudget, parse_budget
from headwater.runtime.cdc_job import CdcJob
from headwater.runtime.cdc_running import RunningTable
from headwater.runtime.cdc_tables import (
    PROGRESS,
    STOPPED,
    CdcTable,
    CdcTables,
    CdcUpstream,
    SchemaStep,
)
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.connectors import find_database, keeps_log
from headwater.sql.parse import parse_one
from headwater.sql.statement import CreateTable
from headwater.state.store import StateStore

_POLL_S = 0.1
_MOST_READERS = 256
_TABLE_OPTIONS = (
    "snapshot",
    "snapshot.interval",
    "snapshot.batch_size",
    "backfill.parallelism",
    "backfill.num_rows_per_split",
    "backfill.as_even_splits",
    "backfill.split_pk_column_index",
    "backfill_rate_limit",
)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What WITH (...) says about reading one external table."""

    snapshot: bool
    pace: Pace
    splits: SplitOptions


def table_options(given: Mapping[str, str], rate_limit: int | None = None) -> TableOptions:
    """The options of CREATE TABLE ... FROM; unknown ones are refused."""
    for name in given:
        if name not in _TABLE_OPTIONS:
            raise ConfigError(
                f'there is no option "{name}" for a table of a source',
                detail=f"Options: {', '.join(_TABLE_OPTIONS)}.",
            )
    readers = _number(given, "backfill.parallelism", 4, 0, _MOST_READERS)
    stated = _number(given, "backfill_rate_limit", -1, -1, 1 << 40)
    limit = rate_limit if rate_limit is not None or stated < 0 else stated
    return TableOptions(
        snapshot=_flag(given, "snapshot", default=True),
        pace=Pace(parallelism=max(1, readers), limit=RateLimit(rows_per_s=limit)),
        splits=SplitOptions(
            rows_per_split=_number(given, "backfill.num_rows_per_split", 500_000, 1, 1 << 40),
            even=_flag(given, "backfill.as_even_splits", default=True),
            column=_number(given, "backfill.split_pk_column_index", 0, 0, 100),
        ),
    )


def _number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.lstrip("-").isdigit() or not low <= int(text) <= high:
        raise ConfigError(f'{name} cannot be "{text}"', hint=f"Give {low} to {high}.")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f'{name} cannot be "{text}"', hint="Give true or false.")
    return text == "true"


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far one table is."""

    table: TableId
    backfilled: bool
    progress: Progress | None
    percent: float
    stopped: str = ""
    fill: tuple[str, ...] = ()
    """Columns that were added upstream, and whose values are being read."""

    def __str__(self) -> str:
        if self.stopped:
            return f"stopped: {self.stopped}"
        text = f"{self.percent:.1f}%"
        if self.fill:
            text += f" of new column {', '.join(self.fill)}"
        if self.progress is None or self.backfilled:
            return text
        text += f" ({self.progress.rows:,} rows, {self.progress.rows_per_second:,.0f} rows/s"
        if self.progress.remaining is not None:
            text += f", {round(self.progress.remaining.total_seconds())} s left"
        return f"{text})" + (f" {self.progress.trouble}" if self.progress.trouble else "")


_decoded = lru_cache(maxsize=256)(decode)


class CdcSources:
    """The external databases of one engine."""

    def __init__(  # noqa: PLR0913  one argument per thing that it is lent
        self,
        store: StateStore,
        committer: EpochCommitter,
        blocking: Blocking,
        *,
        max_bytes: int,
        metrics: CdcBackfillMetrics,
        source_metrics: CdcSourceMetrics | None = None,
        watch_s: float = 5.0,
        tell: Callable[[EventKind, str, str], None],
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        self._hurry = hurry
        self._store = store
        self._committer = committer
        self._blocking = blocking
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._source_metrics = source_metrics
        self._watch_s = watch_s
        self.tell = tell
        self._shown: dict[tuple[TableId, tuple[str, ...]], float] = {}
        self._policies: dict[SourceName, SchemaPolicy] = {}
        self.alter: Callable[[SchemaStep], Awaitable[object]] | None = None
        """Has the catalog follow a change of columns; set by who defines relations."""
        self.jobs: dict[SourceName, CdcJob] = {}

    def database(self, definition: SourceDef) -> ExternalDatabase:
        """The database behind a source."""
        self.budget(definition)
        options = {key: json.loads(value) for key, value in definition.options.items()}
        policy_of(options)
        theirs = {key: value for key, value in options.items() if key not in OPTIONS}
        return find_database(definition.kind)(definition.name, without_policy(theirs))

    def budget(self, definition: SourceDef) -> WalBudget:
        """How much log the server of a source may keep for us."""
        options = {key: str(json.loads(value)) for key, value in definition.options.items()}
        return parse_budget(options, slots=keeps_log(definition.kind))

    def renew(self, definition: SourceDef, database: ExternalDatabase) -> None:
        """Reach a source's database in another way from now on; its job does so by itself."""
        job = self.jobs[definition.name]
        job.upstream.database = database
        job.upstream.budget = self.budget(definition)
        job.upstream.renewed.set()
        job.tables.changed.set()

    def job(self, definition: SourceDef, tables: Sequence[TableDef] = ()) -> CdcJob:
        """The job of a source, which the committer then knows."""
        budget = self.budget(definition)
        upstream = CdcUpstream(definition.name, self.database(definition), budget)
        upstream.known = definition.created != NO_EPOCH
        options = {key: json.loads(value) for key, value in definition.options.items()}
        self._policies[definition.name] = policy_of(options)
        job = CdcJob(
            job=JobId(definition.id),
            upstream=upstream,
            tables=CdcTables(self.table(each, upstream) for each in tables),
            position=lambda: self._committer.positions.get(definition.name),
            progress=self._committer.progress.get,
            blocking=self._blocking,
            max_bytes=self._max_bytes,
            metrics=self._metrics,
            away=lambda text: self.tell(EventKind.SOURCE_UNAVAILABLE, definition.name, text),
            troubled=self._troubled,
            tell=self.tell,
            source_metrics=self._source_metrics,
            watch_s=self._watch_s,
            alter=self._altered,
            hurry=self._hurry,
        )
        self.jobs[definition.name] = job
        self._committer.register(job.job, upstream, lambda: job.table_ids)
        return job

    def table(self, definition: TableDef, upstream: CdcUpstream) -> CdcTable:
        """A table of the catalog as its job reads it."""
        statement = parse_one(definition.detail.definition)
        assert isinstance(statement, CreateTable)
        options = table_options(dict(statement.options), definition.detail.rate_limit)
        pace = options.pace
        if definition.detail.parallelism is not None:
            pace = replace(pace, parallelism=definition.detail.parallelism)
        said = [(each.kind, each.name) for each in statement.includes]
        added = included(said, upstream.database.origin(definition.upstream))
        names = tuple(each.name for each in definition.columns if each.name not in added.names)
        assert definition.source is not None

        def opened(columns: Sequence[str] = names) -> KeyedTable:
            external = upstream.database.open_table(definition.upstream, columns)
            # Only a log that leaves values out makes anybody read by key: PostgreSQL's.
            keyed: KeyedTable = external  # type: ignore[assignment]
            return IncludingTable(keyed, added) if added else keyed

        return CdcTable(
            id=definition.id,
            name=definition.name,
            upstream=definition.upstream,
            store=self._store[definition.id],
            open=opened,
            open_some=opened,
            policy=self._policies[definition.source],
            named=bool(statement.columns),
            included=added,
            pace=pace,
            splits=options.splits,
            snapshot=options.snapshot,
        )

    def throttle(self, table: TableId, rows_per_s: int | None) -> None:
        """Change a table's rate limit now, and whenever it begins to run."""
        for job in self.jobs.values():
            job.tables.repace(
                table, lambda pace: replace(pace, limit=replace(pace.limit, rows_per_s=rows_per_s))
            )
        running = self._running(table)
        if running is not None:
            machine = running.executor.backfill.machine
            now = asyncio.get_running_loop().time()
            machine.throttled(replace(machine.limit, rows_per_s=rows_per_s), now)

    def scale(self, table: TableId, readers: int | None) -> None:
        """Change how many splits of a table are read at a time, now; None is the default."""
        for job in self.jobs.values():
            job.tables.repace(
                table, lambda pace: replace(pace, parallelism=readers or Pace().parallelism)
            )
        running = self._running(table)
        if running is not None:
            running.executor.set_parallelism(readers or Pace().parallelism)

    def progress(self, table: TableId) -> TableProgress:
        """How far a table is; the percentage never falls in one life of the engine."""
        seen = self._committer.visible_progress
        stopped = seen.get(f"{STOPPED}{table}", "")
        running = self._running(table)
        # Only what readers see counts: the last rows may be on their way.
        stored = seen.get(f"{PROGRESS}{table}")
        state = _decoded(stored) if stored else BackfillState()
        done = state.complete
        share = 100.0 if done else 0.0
        if running is not None and not done:
            found = running.progress
            rows = found.rows - running.state.done_rows
            most = max(found.about_rows or 0, rows, 1)
            share = min(99.9, 100.0 * rows / most) if found.about_rows else 0.0
        if not stored:
            self._forget_shown(table)
        what = (table, state.fill)
        self._shown[what] = share = max(share, self._shown.get(what, 0.0))
        progress = None if running is None else running.progress
        return TableProgress(table, done, progress, share, stopped, state.fill)

    def _forget_shown(self, table: TableId) -> None:
        self._shown = {what: share for what, share in self._shown.items() if what[0] != table}

    async def wait(self, tables: Callable[[], Sequence[TableId]]) -> None:
        """Until these tables are filled, dropped or stopped."""
        while any(self._fills(self.progress(table)) for table in tables()):
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Let go of all connections."""
        for job in self.jobs.values():
            await job.upstream.close()

    @staticmethod
    def _fills(progress: TableProgress) -> bool:
        return not (progress.backfilled or progress.stopped)

    def _running(self, table: TableId) -> RunningTable | None:
        return next((j.running[table] for j in self.jobs.values() if table in j.running), None)

    async def _altered(self, step: SchemaStep) -> object:
        if self.alter is None:
            raise BrokenInvariant("columns change before anybody can define relations")
        return await self.alter(step)

    def _troubled(self, table: str, text: str) -> None:
        if text:
            self.tell(EventKind.SOURCE_UNAVAILABLE, table, text)
