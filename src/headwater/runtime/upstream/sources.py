"""The workspaces that an engine follows: their jobs, their tables, and how far these are.

    CREATE SOURCE other WITH (connector = 'headwater', workspace = '/srv/other');
    CREATE TABLE orders FROM other TABLE 'public.orders';

A table can be any table or materialized view of that workspace. Those of one source keep together:
once they are filled, an epoch here has all of them as of one epoch there.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from headwater.backfill.snapshot.upstream.followed import Followed, Following
from headwater.backfill.snapshot.upstream.stream import Pace, Phase
from headwater.barrier.coordinator import Coordinator
from headwater.catalog.relation import SourceDef, TableDef
from headwater.errors import CommitUnknown, ConfigError, HeadwaterError
from headwater.model.epoch import epoch_millis
from headwater.model.ids import JobId, SourceName, TableId
from headwater.model.schema import Schema
from headwater.observe.events import EventKind
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.upstream.job import (
    PROGRESS,
    STOPPED,
    UpstreamJob,
    stored_id,
    stored_states,
)
from headwater.runtime.upstream.local_table import LocalStateTable
from headwater.runtime.upstream.workspace_table import UpstreamWorkspace, WorkspaceTable
from headwater.runtime.view_world import SparkSource
from headwater.state.store import StateStore

KIND = "headwater"
_OPTIONS = ("workspace", "pin")
_POLL_S = 0.1


def is_workspace(kind: str) -> bool:
    """Whether a kind of source is another workspace."""
    return kind == KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """What WITH (...) says about another workspace."""

    workspace: str
    pin: bool = True

    @classmethod
    def of(cls, definition: SourceDef) -> "UpstreamOptions":
        """The options of a source, checked."""
        given = {key: str(json.loads(value)) for key, value in definition.options.items()}
        for name in given:
            if name not in _OPTIONS:
                raise ConfigError(
                    f'there is no option "{name}" for a source of another workspace',
                    detail=f"Options: {', '.join(_OPTIONS)}.",
                )
        if not given.get("workspace"):
            raise ConfigError(
                "option workspace is missing",
                hint="Give the folder of the workspace that is to be followed.",
            )
        pin = given.get("pin", "true").lower()
        if pin not in ("true", "false"):
            raise ConfigError(f'pin cannot be "{pin}"', hint="Give true or false.")
        return cls(workspace=given["workspace"], pin=pin == "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedProgress:
    """How far one followed table is, for people."""

    table: TableId
    backfilled: bool
    rows: int = 0
    total: int = 0
    lag: timedelta | None = None
    stopped: str = ""
    trouble: str = ""
    stalled: bool = False
    """Whether it waits for an upstream that does not answer."""

    @property
    def percent(self) -> float:
        """Of the snapshot; less than 100 as long as it is not read."""
        if self.backfilled:
            return 100.0
        return min(99.9, 100 * self.rows / self.total) if self.total else 0.0

    def __str__(self) -> str:
        if self.stopped:
            return f"stopped: {self.stopped}"
        text = f"{self.percent:.1f}%"
        if not self.backfilled:
            text += f" ({self.rows:,} of {self.total:,} rows)"
        return f"{text} ({self.trouble})" if self.trouble else text


class UpstreamSources:
    """The followed workspaces of one engine."""

    def __init__(
        self,
        store: StateStore,
        spark: SparkSource,
        committer: EpochCommitter,
        coordinator: Coordinator,
    ) -> None:
        self._store = store
        self._spark = spark
        self._committer = committer
        self._coordinator = coordinator
        self._settings = store.surroundings.settings
        self.tell: Callable[[EventKind, str, str], None] = lambda kind, subject, text: None
        """Has an event written; set by the engine."""
        self._definitions: dict[TableId, TableDef] = {}
        self._options: dict[SourceName, UpstreamOptions] = {}
        self._shown: dict[TableId, float] = {}
        self.jobs: dict[SourceName, UpstreamJob] = {}

    def check(self, definition: SourceDef) -> None:
        """Raise unless the options are right and there is such a workspace."""
        options = UpstreamOptions.of(definition)
        workspace = UpstreamWorkspace(options.workspace)
        try:
            looked = workspace.look()
            looked.head()
            if looked.storage("").url.rstrip("/") == self._here:
                raise ConfigError(
                    "a workspace cannot follow itself",
                    hint="Create a materialized view over the table instead.",
                )
        finally:
            workspace.close()

    def job(self, definition: SourceDef, tables: Sequence[TableDef] = ()) -> UpstreamJob:
        """The job of a source, which the committer then knows."""
        options = UpstreamOptions.of(definition)
        self._options[definition.name] = options
        job = UpstreamJob(
            job=JobId(definition.id),
            name=definition.name,
            workspace=UpstreamWorkspace(options.workspace),
            coordinator=self._coordinator,
            tell=lambda table, text: self.tell(
                EventKind.SOURCE_UNAVAILABLE, f"{definition.name}: {table}", text
            ),
            pace=self._pace,
            again=lambda id_: self._following(self._definitions[id_]),
        )
        self.jobs[definition.name] = job
        for table in tables:
            self._definitions[table.id] = table
            job.tables[table.id] = self._following(table)
        self._committer.register(job.job, None, lambda: job.table_ids)
        return job

    def follow(self, table: TableDef) -> None:
        """Follow a table that was created."""
        assert table.source is not None
        self._definitions[table.id] = table
        self.jobs[table.source].follow(self._following(table))

    async def forget(self, tables: Sequence[TableId]) -> None:
        """Follow tables no more, and let go of what is kept for them upstream, if that answers.

        Replay: repeatable.
        """
        for job in self.jobs.values():
            for id_ in tables:
                following = job.forget(id_)
                if following is None:
                    continue
                try:
                    await job.blocking(following.upstream.unpin)
                except (HeadwaterError, CommitUnknown) as error:
                    name = self._pin_name(id_)
                    text = f'pin "{name}" in {job.workspace.path} could not be let go: {error}'
                    self.tell(EventKind.SOURCE_UNAVAILABLE, job.name, text)

    def facts_of(self, tables: Sequence[TableId]) -> dict[str, str]:
        """What the ledger is to forget with these tables."""
        mine = [id_ for id_ in tables if id_ in self._definitions]
        return {f"{prefix}{id_}": "" for id_ in mine for prefix in (PROGRESS, STOPPED)}

    async def drop(self, name: SourceName) -> None:
        """A source is gone."""
        job = self.jobs.pop(name)
        self._options.pop(name, None)
        await job.close()

    def throttle(self, table: TableDef, rows_per_s: int | None) -> None:
        """Change a table's rate limit now, and whenever it begins to run."""
        known = self._definitions[table.id]
        detail = replace(known.detail, rate_limit=rows_per_s)
        self._definitions[table.id] = replace(known, detail=detail)
        for job in self.jobs.values():
            if job.executor is not None:
                job.executor.throttle(table.id, rows_per_s)

    def progress(self, table: TableId) -> FollowedProgress:
        """How far a table is; what readers see counts."""
        seen = self._committer.visible_progress
        stopped = seen.get(f"{STOPPED}{table}", "")
        states = stored_states(seen.get(f"{PROGRESS}{table}"))
        done = bool(states) and all(state.finished for state in states)
        rows = sum(state.rows for state in states)
        followed = self._followed(table)
        stream = None if followed is None else followed.stream
        total = rows if stream is None or stream.phase is Phase.LOG else max(rows, stream.total)
        lag = None
        if done and stream is not None:
            behind = epoch_millis(stream.committed) - epoch_millis(stream.position)
            lag = timedelta(milliseconds=max(0, behind))
        return FollowedProgress(
            table=table,
            backfilled=done,
            rows=rows,
            total=total,
            lag=lag,
            stopped=stopped,
            trouble="" if followed is None else followed.trouble,
            stalled=followed is not None and followed.stalled,
        )

    async def wait(self, tables: Callable[[], Sequence[TableId]]) -> None:
        """Until these tables are filled, dropped or stopped."""
        while any(not (p.backfilled or p.stopped) for p in map(self.progress, tables())):
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Let go of all workspaces."""
        for job in self.jobs.values():
            await job.close()

    # Inside

    def _following(self, table: TableDef) -> Following:
        assert table.source is not None
        options, job = self._options[table.source], self.jobs[table.source]
        key = f"{PROGRESS}{table.id}"
        stored: Mapping[str, str] = self._committer.progress
        return Following(
            id=table.id,
            upstream=WorkspaceTable(
                job.workspace,
                table.upstream,
                table.schema,
                known=lambda: stored_id(stored.get(key)),
                pin_name=self._pin_name(table.id),
                spark=self._spark,
                driver_bytes=self._settings.driver_bytes,
            ),
            local=LocalStateTable(self._store[table.id], self._spark),
            stored=lambda: stored_states(stored.get(key)),
            limit=lambda: self._definitions[table.id].detail.rate_limit,
            pins=options.pin,
            stopped=stored.get(f"{STOPPED}{table.id}", ""),
        )

    def _followed(self, table: TableId) -> Followed | None:
        found = (job.followed(table) for job in self.jobs.values())
        return next((each for each in found if each is not None), None)

    def _pin_name(self, table: TableId) -> str:
        """Says to whoever looks at that workspace's pins who it is that needs them."""
        return f"follower/{socket.gethostname()}/{self._here}/{table}"

    @property
    def _here(self) -> str:
        """Where the tables of this workspace lie; no other workspace has the same."""
        return self._store.surroundings.storage.url.rstrip("/")

    def _pace(self) -> Pace:
        now = self._settings
        return Pace(slice_bytes=now.backfill_slice_bytes, stretch_bytes=now.driver_bytes // 4)


def upstream_schema(workspace: UpstreamWorkspace, name: str) -> Schema:
    """The stored columns and the key of a table or materialized view of another workspace."""
    return workspace.look().table(name).manifest.schema
