"""Make epochs durable, visible and known to the world, in that order.

    1  bring the views up to date          from what the tables have staged
    2  append the record to the ledger     before this, nothing has happened
    3  confirm the tables                  readers in this process see the epoch
    4  publish the Delta versions          other tools see it
    5  acknowledge the sources             upstream may forget what we have

Each step can be repeated. What a crash leaves undone after step 2 is done by recovery.

A command that creates, changes or drops relations proposes its catalog changes, or attaches
them to the job it adds or stops. They are written in the transaction of the epoch whose barrier
carries the command, so a relation exists from one epoch on, or not at all. A proposal that cannot
be carried out, such as a view whose query divides by zero, is refused, and the epoch goes on
without it.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from headwater.catalog.catalog import Catalog
from headwater.catalog.change import AlterObject, CatalogChange
from headwater.catalog.relation import ObjectKind
from headwater.cdc.source import Upstream
from headwater.config import Settings
from headwater.crash_points import crash_point
from headwater.errors import (
    BrokenInvariant,
    CommitUnknown,
    DamagedState,
    HeadwaterError,
    LedgerConflict,
    LedgerUnavailable,
    RetryableError,
    UserError,
)
from headwater.ledger.ledger import Ledger
from headwater.model.barrier import Add, Barrier, Define, Stop
from headwater.model.epoch import Epoch, epoch_millis
from headwater.model.ids import JobId, SourceName, TableId, Term
from headwater.model.record import EpochRecord, StagedWork
from headwater.model.table_commit import TableCommit
from headwater.observe.events import EventKind, EventLog
from headwater.observe.metrics import Metrics
from headwater.runtime.blocking import Blocking
from headwater.runtime.sinks.keeper import Entry, Owed, SinkKeeper
from headwater.runtime.spark_errors import explained
from headwater.runtime.view_keeper import Kept, ViewKeeper
from headwater.runtime.view_succession import Successor
from headwater.runtime.view_world import KeptView
from headwater.state.store import StateStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_R = TypeVar("_R")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a command changes in the catalog, and the tables that it brings or takes."""

    changes: Sequence[CatalogChange]
    creates: tuple[TableId, ...] = ()
    rows: "Callable[[], pa.Table | DataFrame] | None" = None
    """The first rows of the one table that it creates."""
    forgets: tuple[SourceName, ...] = ()
    views: tuple[KeptView, ...] = ()
    """Views to fill, and to keep current from then on."""
    joins: tuple[tuple[KeptView, Epoch], ...] = ()
    """Views that are filled up to an epoch, and are kept current from then on."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the ledger then has of the progress of jobs."""
    drops: tuple[TableId, ...] = ()
    """Views that are not kept current any more."""
    replans: tuple[KeptView, ...] = ()
    """Views that are kept by another plan from the next epoch on."""
    owed: tuple[Owed, ...] = ()
    """What sinks are owed besides what the epoch changes."""
    ends: tuple[int, ...] = ()
    """Sinks that are owed nothing any more."""
    successors: tuple[Successor, ...] = ()
    """Views that take the places of others."""
    renamed: tuple[KeptView, ...] = ()
    """Views that nobody can ask for by their new names before this epoch."""


@dataclass(slots=True)
class Proposal:
    """A definition on its way; `refused` says why it did not happen."""

    key: int
    definition: Definition
    refused: HeadwaterError | None = None


@dataclass(slots=True)
class _Stored:
    """How far the stored manifests are behind."""

    epochs: int = 0
    tables: set[TableId] = field(default_factory=set)


class EpochCommitter:
    """Commits one epoch at a time; satisfies the barrier room's `Committer` by shape."""

    def __init__(  # noqa: PLR0913  it stands where all the rooms meet
        self,
        *,
        ledger: Ledger,
        catalog: Catalog,
        store: StateStore,
        keeper: ViewKeeper,
        sinks: SinkKeeper,
        term: Term,
        last: Epoch,
        positions: Mapping[str, str],
        progress: Mapping[str, str],
        settings: Settings,
        blocking: Blocking,
        metrics: Metrics,
        events: EventLog,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._store = store
        self._keeper = keeper
        self._sinks = sinks
        self._term = term
        self._settings = settings
        self._blocking = blocking
        self._metrics = metrics
        self._events = events
        self._definitions: dict[JobId, Definition] = {}
        self._proposals: dict[int, Proposal] = {}
        self._keys = itertools.count(1)
        self._tables: dict[JobId, Callable[[], Iterable[TableId]]] = {}
        self._sources: dict[SourceName, Upstream] = {}
        self._horizons: dict[TableId, Epoch] = {}
        self._unstored = _Stored()
        self.granted: dict[TableId, Epoch] = {}
        """Horizons that the ledger has; older files may go."""
        self.last = last
        """The last epoch in the ledger."""
        self.visible = last
        """The last epoch that is published everywhere."""
        self.defined = last
        """The last epoch that brought definitions; it may not be visible yet."""
        self.positions: dict[str, str] = dict(positions)
        self.progress: dict[str, str] = dict(progress)
        """What jobs have stored of how far they are; always that of `positions`."""
        self.visible_progress: dict[str, str] = dict(progress)
        """The same, as far as readers see the epochs that it came with."""

    def register(
        self, job: JobId, source: Upstream | None, tables: Callable[[], Iterable[TableId]]
    ) -> None:
        """Say which tables a job writes, which may change, and which source it reads."""
        self._tables[job] = tables
        if source is not None:
            self._sources[source.name] = source

    def define(self, job: JobId, definition: Definition) -> None:
        """Attach catalog changes to the command that adds or stops this job."""
        self._definitions[job] = definition

    def undefine(self, job: JobId) -> None:
        """The command failed: its changes will not be made."""
        self._definitions.pop(job, None)

    def propose(self, definition: Definition) -> Proposal:
        """Ask for a definition; the barrier that carries its key brings it about."""
        proposal = Proposal(next(self._keys), definition)
        self._proposals[proposal.key] = proposal
        return proposal

    def withdraw(self, proposal: Proposal) -> None:
        """The command is over, whichever way."""
        self._proposals.pop(proposal.key, None)

    def ask_horizons(self, horizons: Mapping[TableId, Epoch]) -> None:
        """Ask that the next epoch forgets what is older than these."""
        self._horizons.update(horizons)

    async def commit(self, barrier: Barrier, work: StagedWork, sealed: tuple[Epoch, ...]) -> None:
        """Commit an epoch; it is durable and published on return.

        Raises `RetryableError` when the ledger does not have the epoch. Once it has, an error
        is no reason to come back: publishing is repeated here until it succeeds.
        Replay: nothing that the last call wrote is named by the ledger unless it returned.
        """
        started = time.monotonic()
        definitions = self._definitions_of(barrier)
        self._sinks.discard()
        record, kept, owed = await self._blocking(self._record, barrier, work, sealed, definitions)
        ends = await self._sinks.log(record.epoch, owed)
        record = replace(record, log_ends={**record.log_ends, **ends})
        await self._append(record, definitions, kept)
        await self._until_done(self._publish, record)
        self.visible = record.epoch
        self.visible_progress.update(record.progress)
        for job in _jobs_of(barrier):
            self._definitions.pop(job, None)
        await self._acknowledge(record.positions)
        self._metrics.epochs_committed.inc()
        self._metrics.committed_epoch_seconds.set(epoch_millis(record.epoch) / 1000)
        self._metrics.commit_duration.observe(time.monotonic() - started)

    async def discard(self, jobs: Iterable[JobId]) -> None:
        """Drop what these jobs have staged. Replay: nothing staged is left."""
        for job in jobs:
            for table in self._tables.get(job, tuple)():
                if table in self._store:
                    await self._blocking(self._store[table].discard)

    def _record(
        self,
        barrier: Barrier,
        work: StagedWork,
        sealed: tuple[Epoch, ...],
        definitions: "list[Definition]",
    ) -> tuple[EpochRecord, Kept, list[Entry]]:
        epoch = barrier.epoch.prev
        tables: list[TableCommit] = list(work.tables)
        for definition in definitions:
            if definition.rows is None:
                for table in definition.creates:
                    # A source's job has staged its tables at its first barrier.
                    commit = self._store[table].staged(epoch) or self._store[table].stage(epoch)
                    if commit is not None:
                        tables.append(commit)
        kept = self._maintained(barrier, definitions, epoch)
        tables += kept.tables
        tables += self._fill(barrier, definitions, epoch)
        positions = dict(work.positions)
        for definition in definitions:
            positions.update(dict.fromkeys(definition.forgets, ""))
        facts = {**work.progress, **kept.facts}
        for definition in definitions:
            facts.update(definition.facts)
        owed = [each for definition in definitions for each in definition.owed]
        gone = frozenset(sink for definition in definitions for sink in definition.ends)
        altered = [
            change.object
            for definition in definitions
            for change in definition.changes
            if isinstance(change, AlterObject) and change.object.kind is ObjectKind.SINK
        ]
        entries = self._sinks.entries(epoch, owed, gone, altered)
        whole = replace(work, tables=tuple(tables), positions=positions, progress=facts)
        return self._recorded(epoch, sealed, whole), kept, entries

    def _maintained(self, barrier: Barrier, definitions: "list[Definition]", epoch: Epoch) -> Kept:
        """The views, and those that take their places; one that cannot is refused."""
        self._keeper.discard()
        dropped = frozenset(table for each in definitions for table in each.drops)
        successors = [each for definition in definitions for each in definition.successors]
        try:
            return self._keeper.maintain(epoch, without=dropped, successors=successors)
        except (UserError, BrokenInvariant, DamagedState) as error:
            if not successors:
                raise
            self._refuse(barrier, error)
            definitions[:] = [each for each in definitions if not each.successors]
            return self._maintained(barrier, definitions, epoch)

    def _fill(
        self, barrier: Barrier, definitions: "list[Definition]", epoch: Epoch
    ) -> list[TableCommit]:
        """Fill what is new; a definition whose rows cannot be had is refused."""
        found: list[TableCommit] = []
        for definition in list(definitions):
            try:
                if definition.rows is not None:
                    (table,) = definition.creates
                    found += self._first_rows(table, epoch, definition.rows)
                for view in definition.views:
                    for store in view.stores:
                        store.discard()
                    found += self._keeper.fill(view, epoch)
                for view, after in definition.joins:
                    for store in view.stores:
                        store.discard()
                    found += self._keeper.join(view, after, epoch)
            except (UserError, BrokenInvariant, DamagedState) as error:
                # A bug that shows in a view that is only about to join must not stop the others.
                if not isinstance(error, UserError) and not definition.joins:
                    raise
                self._refuse(barrier, error)
                definitions.remove(definition)
        return found

    def _first_rows(
        self, table: TableId, epoch: Epoch, rows: "Callable[[], pa.Table | DataFrame]"
    ) -> list[TableCommit]:
        store = self._store[table]
        store.discard()
        try:
            commit = store.stage(epoch, rows())
        except Exception as error:
            store.discard()
            raise explained(error) from error
        return [] if commit is None else [commit]

    def _refuse(self, barrier: Barrier, error: HeadwaterError) -> None:
        if isinstance(barrier.mutation, Define):
            proposal = self._proposals.pop(barrier.mutation.key, None)
            if proposal is not None:
                proposal.refused = error

    def _recorded(self, epoch: Epoch, sealed: tuple[Epoch, ...], work: StagedWork) -> EpochRecord:
        return EpochRecord(
            epoch=epoch,
            after=self.last,
            term=self._term,
            sealed=sealed,
            tables=work.tables,
            positions=work.positions,
            progress=work.progress,
            log_ends=work.log_ends,
            sinks=work.sinks,
            horizons={int(table): epoch for table, epoch in self._horizons.items()},
        )

    async def _append(
        self, record: EpochRecord, definitions: Sequence[Definition], kept: Kept
    ) -> None:
        changes = [change for each in definitions for change in each.changes]
        also = self._catalog.writer(changes, record.epoch) if changes else None
        if changes:
            self.defined = record.epoch
        manifests = await self._blocking(self._due_manifests, record)

        def append() -> None:
            crash_point("epoch.before_ledger")
            with self._metrics.ledger_append_duration.time():
                self._ledger.append_resolved(record, manifests=manifests, also=also)
            crash_point("epoch.after_ledger")

        try:
            await self._blocking(append)
        except LedgerConflict as conflict:
            # A pin that came after the horizon was chosen; another one is chosen later.
            self._horizons.clear()
            if not record.horizons:
                raise BrokenInvariant(
                    f"the ledger refuses epoch {record.epoch}", story=[str(conflict)]
                ) from conflict
            raise
        except CommitUnknown:
            if not await self._until_done(self._ledger.resolve, record):
                raise LedgerUnavailable(
                    f"epoch {record.epoch} did not reach the ledger",
                    hint="It is tried again by itself.",
                ) from None
        await self._blocking(self._confirm, record, manifests)
        self._keeper.confirm(kept)
        self._sinks.confirm(record.epoch, [sink for each in definitions for sink in each.ends])
        for definition in definitions:
            for table in definition.drops:
                self._keeper.forget(table)
            joined = (view for view, _ in definition.joins)
            for view in (*definition.views, *joined, *definition.renamed):
                self._keeper.keep(replace(view, table=replace(view.table, created=record.epoch)))
            for view in (*definition.replans, *(each.view for each in definition.successors)):
                self._keeper.keep(view)

    def _confirm(self, record: EpochRecord, manifests: Mapping[TableId, bytes]) -> None:
        """The ledger has the record: follow it in memory."""
        self.last = record.epoch
        self._unstored.epochs += 1
        self._unstored.tables |= {commit.table for commit in record.tables}
        if manifests:
            self._unstored = _Stored()
        self.progress.update(record.progress)
        for name, position in record.positions.items():
            if position:
                self.positions[name] = position
            else:
                self.positions.pop(name, None)
        for table, horizon in record.horizons.items():
            self.granted[TableId(table)] = horizon
            self._horizons.pop(TableId(table), None)
        for commit in record.tables:
            self._store[commit.table].confirm(record.epoch)

    async def _until_done(self, call: Callable[..., _R], *args: object) -> _R:
        """Repeat a call that must succeed in the end, with growing pauses."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self._blocking(call, *args)
            except (RetryableError, CommitUnknown) as error:
                await self._blocking(
                    self._events.record, EventKind.STORAGE_UNAVAILABLE, "commit", str(error)
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _publish(self, record: EpochRecord) -> None:
        for index, commit in enumerate(record.tables):
            if index:
                crash_point("publish.between_tables")
            self._store[commit.table].publish(record, commit)
        crash_point("publish.after")

    async def _acknowledge(self, positions: Mapping[str, str]) -> None:
        for name, position in positions.items():
            source = self._sources.get(SourceName(name))
            if source is None or not position:
                continue
            try:
                await source.acknowledge(position)
            except Exception as error:
                # The epoch is committed whatever a connector says; it hears of the next one.
                text = f"{type(error).__name__}: {error}"
                await self._blocking(self._events.record, EventKind.SOURCE_UNAVAILABLE, name, text)
        if positions:
            crash_point("source.after_acknowledge")

    def _definitions_of(self, barrier: Barrier) -> list[Definition]:
        if isinstance(barrier.mutation, Define):
            proposal = self._proposals.get(barrier.mutation.key)
            return [] if proposal is None else [proposal.definition]
        found = [self._definitions.get(job) for job in _jobs_of(barrier)]
        return [definition for definition in found if definition is not None]

    def _due_manifests(self, record: EpochRecord) -> dict[TableId, bytes]:
        """Whole lists of files, stored every so many epochs so that old records can go."""
        if self._unstored.epochs + 1 < self._settings.manifest_every:
            return {}
        commits = {commit.table: commit for commit in record.tables}
        manifests: dict[TableId, bytes] = {}
        for table in self._unstored.tables | commits.keys():
            if table in self._store:
                manifest = self._store[table].manifest()
                if table in commits:
                    manifest.apply(record.epoch, commits[table])
                manifests[table] = manifest.encode()
        return manifests


def _jobs_of(barrier: Barrier) -> tuple[JobId, ...]:
    match barrier.mutation:
        case Add(jobs=jobs) | Stop(jobs=jobs):
            return jobs
        case _:
            return ()
