"""The job of an external database: one reader of its log, a backfill per table, one cut per epoch.

    between barriers    the log is read, and every table hears of it; backfills read chunks
    at a checkpoint     every table says what the epoch does to it; that is staged, and goes into
                        the record together with the log's position and the backfills' states

So rows, position and progress are in the same epoch or in none. Reading stops while what was
read since the last checkpoint fills its bound; barriers are answered whatever the database does.

A change of columns holds the reading, of all tables, until the catalog has it: the actor asks for
the definition, stages it at the barrier that carries it, and reads on from before the change.

A database that is away is asked again with growing pauses. A position that the server has lost
stops the source loudly: nothing is skipped. A table that no longer fits what is stored stops alone.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headwater.backfill.cdc.executor import (
    Surroundings,
)
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.split_reader import SplitReader
from headwater.backfill.cdc.state import decode
from headwater.backfill.cdc.table_backfill import EpochOutput
from headwater.barrier.local import BarrierReceiver, LocalBarrierManager
from headwater.barrier.participant import LocalOutputs, Site
from headwater.cdc.external_table import LogBatch
from headwater.cdc.offset import CdcOffset, serialized
from headwater.cdc.schema_change import decode_seen
from headwater.crash_points import crash_point
from headwater.errors import (
    HeadwaterError,
    RetryableError,
)
from headwater.model.barrier import Barrier, BarrierKind, Define, Stop
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.record import StagedWork
from headwater.model.spelling import sql_quoted
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.events import EventKind
from headwater.runtime.absence import Absence
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_changing import Alter, SchemaChanges
from headwater.runtime.cdc_contact import first_contact, renewed, unpublish_dropped
from headwater.runtime.cdc_joining import Joining
from headwater.runtime.cdc_running import RunningTable
from headwater.runtime.cdc_stage import stage_nothing, stage_output
from headwater.runtime.cdc_start import started
from headwater.runtime.cdc_tables import (
    IDENTITY,
    PROGRESS,
    SEEN,
    STOPPED,
    CdcTable,
    CdcTables,
    CdcUpstream,
    SchemaStep,
    StepKind,
)
from headwater.runtime.cdc_watch import CdcWatch, Watched
from headwater.state.table import StateTable

_FLUSH_READ_S = 1.0
_LOST_S = 30.0
_LAST_LOOK_S = 1.0
_SAY_AGAIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcJob:
    """Builds the actor of one external database."""

    job: JobId
    upstream: CdcUpstream
    tables: CdcTables
    position: Callable[[], str | None]
    """The position in the ledger, asked again at every start."""
    progress: Callable[[str], str | None]
    """What the ledger has under a name of ours."""
    blocking: Blocking
    max_bytes: int
    metrics: CdcBackfillMetrics | None = None
    away: Callable[[str], None] = lambda text: None
    troubled: Callable[[str, str], None] = lambda table, text: None
    tell: Callable[[EventKind, str, str], None] = lambda kind, subject, text: None
    source_metrics: CdcSourceMetrics | None = None
    watch_s: float = 5.0
    alter: Alter | None = None
    hurry: Callable[[], None] = lambda: None
    """Asks for the next barrier."""
    poll_s: float = 0.05
    depends_on: tuple[JobId, ...] = ()
    running: "dict[TableId, RunningTable]" = field(default_factory=dict)
    """What runs now; for whoever shows progress."""

    @property
    def table_ids(self) -> tuple[TableId, ...]:
        """The tables it writes."""
        return self.tables.ids

    @property
    def actor_count(self) -> int:
        """One reader per source: its log has one order."""
        return 1

    async def build(self, site: Site) -> None:
        """Nothing is slow here: the actor starts from the position in the ledger."""

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be the actor, until a barrier stops it."""
        await _CdcActor(self, actor, site.local).run()


class _CdcActor:
    def __init__(self, job: CdcJob, actor: ActorId, local: LocalBarrierManager) -> None:
        self._job = job
        self._actor = actor
        self._local = local
        self._offset: CdcOffset | None = None
        self._recorded: str | None = None
        self._held = 0
        self._idle_until = 0.0
        self._absence = Absence(job.away)
        self._readers = job.upstream.readers
        self._log_of: frozenset[TableId] | None = None
        """The tables that the log was opened for, by this actor."""
        self._reading: asyncio.Task[LogBatch | None] | None = None
        self._facts: dict[str, str] = {}
        """What the next checkpoint files of tables."""
        self._stopped: set[TableId] = set()
        self._read_at = 0.0
        self._said = "", 0.0
        self._watch = CdcWatch(
            Watched(
                upstream=job.upstream,
                position=job.position,
                tables=lambda: [each.table.name for each in job.running.values()],
                tell=job.tell,
                metrics=job.source_metrics,
                every_s=job.watch_s,
            )
        )
        self._changes = SchemaChanges(
            running=job.running, stopped=self._stopped, stop=self._stop, alter=job.alter
        )

    async def run(self) -> None:
        watching = asyncio.ensure_future(self._watch.run())
        self._job.upstream.freshness.restarted()
        barriers = self._local.subscribe_barrier(self._actor)
        waiting: asyncio.Task[Barrier] | None = None
        changed: asyncio.Task[bool] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(_next(barriers))
                changed = changed or asyncio.ensure_future(self._job.tables.changed.wait())
                idle = self._start_reading()
                all_ = (waiting, changed, self._reading, self._changes.task)
                tasks = [task for task in all_ if task is not None]
                await asyncio.wait(tasks, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
                self._take_what_is_read()
                self._take_change()
                if changed.done():
                    changed = None
                    self._job.tables.changed.clear()
                    self._idle_until = 0.0
                if waiting.done():
                    barrier, waiting = waiting.result(), None
                    await self._answer(barrier)
                    stop = barrier.mutation
                    if isinstance(stop, Stop) and self._job.job in stop.jobs:
                        self._watch.forget()
                        return
        finally:
            watching.cancel()
            # It only asks; a server that does not answer must not keep us.
            await asyncio.wait([watching], timeout=_LAST_LOOK_S)
            await self._end([t for t in (waiting, changed, self._reading) if t is not None])

    async def _end(self, tasks: "list[asyncio.Task[object]]") -> None:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        for running in list(self._job.running.values()):
            await running.close()
        self._job.running.clear()

    # Reading the log

    def _start_reading(self) -> float | None:
        """Read if it is time to; answers how long to wait until it is."""
        if self._reading is not None or self._held >= self._job.max_bytes:
            return None
        if not self._job.upstream.known or self._changes.task is not None:
            return None
        wait = self._idle_until - asyncio.get_running_loop().time()
        if wait > 0:
            return wait
        self._reading = asyncio.ensure_future(self._read())
        return None

    async def _read(self) -> LogBatch | None:
        """The next batch; before it, what is new or gone among the tables is noticed."""
        if self._job.upstream.lost is not None:
            raise self._job.upstream.lost
        if await renewed(self._job.upstream, self._job.running.values(), self._reader_of):
            self._log_of = None
        await self._join_tables()
        # Also when joining another table failed half-way: the log must have all that joined.
        if self._log_of != self._job.running.keys():
            await self._open_log()
        await unpublish_dropped(self._job.upstream, self._job.tables, self._job.tell)
        log, offset = self._job.upstream.log, self._offset
        assert log is not None
        assert offset is not None
        room = self._job.max_bytes - self._held
        async with self._job.upstream.using:
            safe = self._job.upstream.take_safe()
            if safe is not None:
                await self._readers(log.acknowledge, safe)
                crash_point("cdc.after_acknowledge")
            self._read_at = time.time()
            return await self._readers(log.read, offset, max_bytes=room)

    async def _join_tables(self) -> None:
        """Begin with tables that are new, let go of those that went."""
        if self._offset is None:
            self._recorded = self._job.position()
            server = self._job.progress(f"{IDENTITY}{self._job.job}")
            self._offset = await first_contact(self._job.upstream, self._recorded, server)
        running = self._job.running
        for id_ in [id_ for id_ in running if id_ not in self._job.tables]:
            await running.pop(id_).close()
        for id_ in self._job.tables.take_redefined():
            self._stopped.discard(id_)
        for table in self._job.tables:
            known = table.id in running or table.id in self._stopped
            if not known and not self._job.progress(f"{STOPPED}{table.id}"):
                await self._join(table)
        self._changes.resting.clear()

    async def _join(self, table: CdcTable) -> None:
        try:
            self._job.running[table.id] = await self._start(table)
        except RetryableError:
            raise
        except HeadwaterError as error:
            self._stop(table, str(error))

    async def _start(self, table: CdcTable) -> RunningTable:
        assert self._offset is not None
        filed = self._job.progress
        state = self._changes.resting.get(table.id)
        if state is None and (stored := filed(f"{PROGRESS}{table.id}")):
            state = decode(stored)
        joined = await self._joining(self._offset).join(table, filed(f"{SEEN}{table.id}"), state)
        surroundings = Surroundings(
            job=JobId(table.id),
            table=table.name,
            reader=joined.reader,
            metrics=self._job.metrics,
            troubled=lambda text: self._job.troubled(table.name, text),
            blocking=self._job.blocking,
            hurry=self._job.hurry,
        )
        # It may have been altered while the source was asked.
        table = replace(table, pace=self._job.tables.pace(table))
        return started(table, joined, self._offset, surroundings)

    async def _reader_of(self, running: RunningTable) -> SplitReader:
        assert self._offset is not None
        seen = decode_seen(running.seen)
        return await self._joining(self._offset).reader(running.table, seen, running.state)

    def _joining(self, offset: CdcOffset) -> Joining:
        begun = self._recorded is not None
        return Joining(upstream=self._job.upstream, offset=offset, begun=begun)

    async def _open_log(self) -> None:
        upstream = self._job.upstream
        async with upstream.using:
            before, upstream.log, self._log_of = upstream.log, None, None
            if before is not None:
                await self._readers(before.close)
        tables = dict(self._job.running)
        schemas = {each.name: each.schema for each in tables.values()}
        commits = any(each.table.included.times for each in tables.values())
        upstream.log = await self._readers(upstream.database.open_log, schemas, commits=commits)
        self._log_of = frozenset(tables)
        if (stored := self._job.position()) is not None:
            # What the log before this one was told may not have reached the server.
            await upstream.acknowledge(stored)

    def _take_what_is_read(self) -> None:
        if self._reading is None or not self._reading.done():
            return
        reading, self._reading = self._reading, None
        now = asyncio.get_running_loop().time()
        try:
            batch = reading.result()
        except RetryableError as error:
            self._job.upstream.away = str(error)
            self._idle_until = now + self._absence.failed(str(error))
        except HeadwaterError as error:
            # Only a person can help: a slot that is gone, a binlog that was purged.
            self._job.upstream.trouble = error
            self._idle_until = now + _LOST_S
            self._say(str(error), now)
        else:
            self._absence.over()
            self._said = "", 0.0
            self._job.upstream.trouble, self._job.upstream.away = None, ""
            if batch is not None:
                self._deliver(batch, now)

    def _say(self, trouble: str, now: float) -> None:
        """Tell of what a person must mend: at once, and again while nobody does."""
        text, at = self._said
        if trouble != text or now - at >= _SAY_AGAIN_S:
            self._said = trouble, now
            self._job.away(trouble)

    def _deliver(self, batch: LogBatch, now: float) -> None:
        if self._changes.hold_back(batch):
            # It is read again, by then with the other columns; a log says some things only once.
            self._log_of = None
            return
        self._offset = batch.offset
        self._job.upstream.freshness.read(
            batch.offset,
            began_at=self._read_at,
            committed_at=batch.committed_at,
            more=batch.more,
        )
        self._held += sum(changes.nbytes for changes in batch.changes.values())
        for running in self._job.running.values():
            running.deliver(batch)
            if running.stopped:
                self._stop(running.table, running.stopped)
        if self._held >= self._job.max_bytes:
            # Nothing more is read before the next barrier.
            self._job.hurry()
        if not batch.more:
            self._idle_until = now + self._job.poll_s

    def _take_change(self) -> None:
        """The catalog has followed, or refuses to."""
        ended, error = self._changes.take()
        if ended:
            # The log is opened anew: it must know the columns that the tables have now.
            self._log_of = None
        if error is not None:
            self._idle_until = asyncio.get_running_loop().time() + self._absence.failed(str(error))

    def _stop(self, table: CdcTable, why: str) -> None:
        if table.id in self._stopped:
            return
        self._stopped.add(table.id)
        name = sql_quoted(table.name)
        why = (
            f"{why}. The table stays as it is; ALTER TABLE {name} REFRESH SCHEMA empties it and "
            "fills it anew with the columns that it has upstream, or drop it and create it again"
        )
        self._facts[f"{STOPPED}{table.id}"] = why
        self._job.troubled(table.name, why)

    async def _read_to_the_end(self) -> None:
        """For a FLUSH: have what the log held when it was asked for, if the source answers."""
        if not await self._ended_reading():
            return
        target = await self._end_of_log()
        while target is not None and self._offset is not None:
            before = self._offset
            if reaches(before, target) or self._held >= self._job.max_bytes:
                return
            self._idle_until = 0.0
            self._start_reading()
            if not await self._ended_reading() or self._offset == before:
                # It does not answer, or cannot: what is here must do.
                return

    async def _ended_reading(self) -> bool:
        """Take what is being read; False when that takes too long."""
        if self._reading is None:
            return True
        await asyncio.wait([self._reading], timeout=_FLUSH_READ_S)
        ended = self._reading.done()
        self._take_what_is_read()
        return ended

    async def _end_of_log(self) -> CdcOffset | None:
        """Where the log ends now; None when the source does not say so soon."""
        log, using = self._job.upstream.log, self._job.upstream.using
        if log is None:
            return None

        async def ask() -> CdcOffset:
            async with using:
                return await self._readers(log.current)

        try:
            # A call that has begun goes on, and keeps others from the connection until it ends.
            return await asyncio.wait_for(
                asyncio.shield(asyncio.ensure_future(ask())), _FLUSH_READ_S
            )
        except (HeadwaterError, TimeoutError):
            return None

    # Barriers

    async def _answer(self, barrier: Barrier) -> None:
        self._take_what_is_read()
        if barrier.kind is BarrierKind.SYNC_CHECKPOINT:
            await self._read_to_the_end()
        step = None
        if isinstance(barrier.mutation, Define):
            step = self._job.tables.steps.get(barrier.mutation.key)
        if step is not None:
            await self._changes.prepare(step)
        # What joins while the epoch is being staged belongs to the next one.
        running = [each for each in self._job.running.values() if not each.stopped]
        offset = self._offset
        outputs = await asyncio.gather(*(each.answer(barrier) for each in running))
        work = StagedWork()
        if barrier.kind.durable and offset is not None:
            pairs = [(r, out) for r, out in zip(running, outputs, strict=True) if out is not None]
            work = await self._stage(barrier.epoch.prev, offset, pairs, step)
            if step is not None:
                crash_point("cdc.after_evolve")
            self._held = 0
            await self._changes.rest(running, step, offset)
        self._local.collect(self._actor, barrier, work)

    async def _stage(
        self,
        epoch: Epoch,
        offset: CdcOffset,
        outputs: "list[tuple[RunningTable, EpochOutput]]",
        step: SchemaStep | None,
    ) -> StagedWork:
        stages = [
            self._job.blocking(stage_output, running.table.store, epoch, output)
            for running, output in outputs
        ]
        if step is not None and step.kind is StepKind.CLEAR:
            stages.append(self._job.blocking(stage_nothing, self._store(step), epoch))
        elif step is not None and step.kind is StepKind.REPLACE:
            rewrite = self._store(step).rewrite
            stages.append(self._job.blocking(rewrite, epoch, step.change.schema, {}))
        # All of them end before the first error is raised: none may stage after a discard.
        ended = await asyncio.gather(*stages, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome
        for running, _ in outputs:
            running.table.store.filling = running.state.snapshotting
        facts = {**self._filed(outputs), **self._facts, **({} if step is None else step.facts)}
        identity, upstream = f"{IDENTITY}{self._job.job}", self._job.upstream
        if self._job.progress(identity) != upstream.identity:
            facts[identity] = upstream.identity
        self._facts = {}
        place = serialized(offset)
        moved = place != self._recorded
        positions = {str(self._job.upstream.name): place} if moved else {}
        self._recorded = place
        commits = tuple(c for c in ended if c is not None and not isinstance(c, BaseException))
        return StagedWork(tables=commits, positions=positions, progress=facts)

    def _filed(self, outputs: "list[tuple[RunningTable, EpochOutput]]") -> dict[str, str]:
        """What has changed of what is filed of tables."""
        found = {n: t for running, output in outputs for n, t in running.facts(output).items()}
        return {name: text for name, text in found.items() if self._job.progress(name) != text}

    def _store(self, step: SchemaStep) -> StateTable:
        return self._job.tables[step.table].store


async def _next(barriers: BarrierReceiver) -> Barrier:
    return await anext(barriers)
