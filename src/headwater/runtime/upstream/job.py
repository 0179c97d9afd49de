"""The job of another workspace that is followed: an actor between barriers and its executor."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.backfill.snapshot.state import BackfillState, TableProgress, decoded, encoded
from headwater.backfill.snapshot.upstream.executor import (
    Consumed,
    Surroundings,
    UpstreamTableExecutor,
)
from headwater.backfill.snapshot.upstream.followed import Followed, Following
from headwater.backfill.snapshot.upstream.stream import Pace
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.participant import LocalOutputs, Site
from headwater.model.ids import ActorId, JobId, SourceName, TableId
from headwater.model.record import StagedWork
from headwater.runtime.blocking import Blocking
from headwater.runtime.upstream.workspace_table import UpstreamWorkspace, WorkspaceTable

PROGRESS = "upstream-table/"
"""What the ledger files under how far a table is, before its id."""
STOPPED = "upstream-stopped/"
"""What it files the reason under for which a table is not followed any more."""
_THREADS = 8


def stored_states(text: str | None) -> Sequence[BackfillState]:
    """What the ledger has of how far a table is; nothing before its first rows."""
    if not text:
        return ()
    (progress,) = decoded(text).values()
    return progress.states


def stored_id(text: str | None) -> TableId | None:
    """The id that the table which is followed has in its own workspace."""
    return next(iter(decoded(text))) if text else None


@dataclass(slots=True, kw_only=True)
class UpstreamJob:
    """Builds the actor of one followed workspace; it may be built again after a failure."""

    job: JobId
    name: SourceName
    workspace: UpstreamWorkspace
    coordinator: Coordinator
    tell: Callable[[str, str], None]
    pace: Callable[[], Pace]
    tables: dict[TableId, Following] = field(default_factory=dict)
    again: Callable[[TableId], Following]
    """A table as it is to be followed now, at the start of a life."""
    depends_on: tuple[JobId, ...] = ()
    executor: UpstreamTableExecutor | None = field(default=None, init=False)
    blocking: Blocking = field(default_factory=lambda: Blocking(_THREADS), init=False)
    """Threads of its own: a slow upstream holds nobody else back."""

    @property
    def table_ids(self) -> tuple[TableId, ...]:
        """The tables that it writes."""
        return tuple(self.tables)

    @property
    def actor_count(self) -> int:
        """One driver; its reads are Spark tasks."""
        return 1

    async def build(self, site: Site) -> None:
        """Nothing is slow here: the upstream is looked at beside the barriers."""
        (actor,) = site.actors
        around = Surroundings(
            job=self.job,
            actor=actor,
            wait_committed=self.coordinator.wait_committed,
            pace=self.pace(),
            blocking=self.blocking,
            hurry=self.coordinator.hasten,
            tell=self.tell,
            clock=time.monotonic,
        )
        self.tables = {id_: self.again(id_) for id_ in self.tables}
        self.executor = UpstreamTableExecutor(around, self.tables.values())

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be the actor, until a barrier stops it."""
        executor = self.executor
        assert executor is not None
        work = StagedWork()
        async for message in executor.execute(site.local.subscribe_barrier(actor)):
            if isinstance(message, Consumed):
                work = self._work(message)
                continue
            site.local.collect(actor, message, work)
            work = StagedWork()

    def follow(self, following: Following) -> None:
        """Follow one more table from now on."""
        self.tables[following.id] = following
        if self.executor is not None:
            self.executor.follow(following)

    def forget(self, table: TableId) -> Following | None:
        """Follow a table no more."""
        if self.executor is not None:
            self.executor.forget(table)
        return self.tables.pop(table, None)

    def followed(self, table: TableId) -> Followed | None:
        """A table while it is followed."""
        return None if self.executor is None else self.executor.tables.get(table)

    async def close(self) -> None:
        """Let go of connections and threads."""
        self.workspace.close()
        self.blocking.close()

    def _work(self, message: Consumed) -> StagedWork:
        facts = {}
        for id_, states in message.states.items():
            if id_ not in self.tables:
                # It is about to be dropped, and what the ledger has of it goes with it.
                continue
            upstream = self.tables[id_].upstream
            assert isinstance(upstream, WorkspaceTable)
            facts[f"{PROGRESS}{id_}"] = encoded({upstream.id: TableProgress(states)})
        facts |= {f"{STOPPED}{id_}": why for id_, why in message.stopped.items()}
        return StagedWork(tables=tuple(message.commits), progress=facts)
