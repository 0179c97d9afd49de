"""The engine: one workspace, its jobs, and the loop that drives them.

    async with Engine("shop") as engine:
        await engine.create_source("orders", "generated", {...}, tables={"orders": schema})
        epoch = await engine.flush()
        rows = engine.table("orders").rows(epoch)

Starting takes the workspace over, recovers it, and starts the jobs of its catalog. Stopping
makes one last checkpoint and gives the workspace up. An engine that is fenced, or meets a bug
of ours while it commits, ends by itself, and `failure` says why. A job that fails is restarted
for as long as it takes, and the event log says why.
`session/synchronous.py` has the same engine for code without an event loop.
"""

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.participant import Participant
from headwater.barrier.timer import Backoff
from headwater.catalog.catalog import Catalog
from headwater.config import Settings
from headwater.errors import HeadwaterError
from headwater.ledger.fence import Owner
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch, WallClock, system_clock
from headwater.model.ids import JobId
from headwater.model.schema import Schema
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.events import EventKind, EventLog
from headwater.observe.metrics import Metrics
from headwater.observe.sink_metrics import SinkMetrics
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_sources import CdcSources
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.connectors import Connector, find_connector, is_database
from headwater.runtime.creating.views import CreatingViews
from headwater.runtime.ddl_base import Surroundings as DdlSurroundings
from headwater.runtime.ddl_sinks import SinkDdl
from headwater.runtime.dml import DML, DmlSource
from headwater.runtime.dml_job import DmlTables
from headwater.runtime.live_settings import LiveSettings, pace_of
from headwater.runtime.maintenance import Maintenance
from headwater.runtime.readers import Readers
from headwater.runtime.recovery import recover
from headwater.runtime.session import SparkHandle
from headwater.runtime.sinks.keeper import SinkKeeper
from headwater.runtime.sinks.sinks import Sinks
from headwater.runtime.source_jobs import SourceJobs
from headwater.runtime.upstream.sources import UpstreamSources, is_workspace
from headwater.runtime.view_keeper import ViewKeeper
from headwater.runtime.view_plan import reopened_view
from headwater.runtime.watch import Watch
from headwater.runtime.workspace import Workspace
from headwater.state.store import StateStore
from headwater.state.surroundings import Surroundings
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE = ".writable"
_STOP_GRACE = timedelta(seconds=30)


class Engine:
    """An engine on one workspace; an asynchronous context manager."""

    def __init__(  # noqa: PLR0913  each is a choice of its own
        self,
        workspace: Path | str,
        *,
        settings: Mapping[str, Any] | None = None,
        connectors: Mapping[str, Connector] | None = None,
        spark: "SparkSession | None" = None,
        take_over: bool = False,
        clock: WallClock = system_clock,
    ) -> None:
        self.workspace = Workspace.open(workspace, settings)
        self._given = frozenset(settings or {})
        self.settings = LiveSettings(self.workspace.settings)
        self.metrics = Metrics()
        self._connectors = connectors
        self._force = take_over
        self._clock = clock
        self._spark = SparkHandle(self.workspace.settings, spark)
        self._tasks: list[asyncio.Task[None]] = []
        self._readers = Readers()
        self.reading = self._readers.reading

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()

    # Life

    async def start(self) -> None:
        """Take the workspace over, recover it, start its jobs."""
        started = time.monotonic()
        self._blocking = Blocking()
        self.dml = DmlTables(
            DmlSource(lambda: self.committer.positions.get(DML), self._batch_bytes())
        )
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._blocking(self._open)
            await self._start_jobs()
        except BaseException:
            await self._let_go()
            raise
        self.metrics.recovery_latency.observe(time.monotonic() - started)
        await self._blocking(
            self.events.record,
            EventKind.RECOVERY_FINISHED,
            str(self.workspace.path),
            f"running as term {self.term}, {self._recovered.published} versions published, "
            f"{self._recovered.collected} orphan files deleted",
            epoch=self._recovered.last,
        )

    async def stop(self) -> None:
        """Make one last checkpoint, end all jobs, give the workspace up. May be called twice."""
        if self._blocking.closed:
            return
        try:
            if self.failure is None and self.dml.source.last:
                # What users were told is accepted should be there after a planned stop.
                with contextlib.suppress(HeadwaterError, TimeoutError):
                    await asyncio.wait_for(self.flush(), _STOP_GRACE.total_seconds() / 2)
            # An engine that has failed ends without a last checkpoint.
            grace = _STOP_GRACE if self.failure is None else timedelta(0)
            await self._coordinator.stop(grace=grace)
        finally:
            await self._let_go()

    @property
    def failure(self) -> BaseException | None:
        """Why the engine ended by itself; None while it runs."""
        if self._failed.done():
            return self._failed.exception()
        return None

    async def wait_failed(self) -> None:
        """Return never, unless the engine ends by itself; then raise why."""
        await asyncio.shield(self._failed)

    # Relations

    async def create_source(
        self,
        name: str,
        kind: str,
        options: Mapping[str, Any],
        *,
        tables: Mapping[str, Schema],
        defined_at: str = "",
    ) -> Epoch:
        """Create a source and its tables; they exist, empty, from the epoch returned on.

        Replay: done with that epoch or not at all; a second time it exists already.
        """
        return await self.ddl.create_source(
            name, kind, options, tables=tables, defined_at=defined_at
        )

    async def drop_source(self, name: str) -> Epoch:
        """Drop a source with its tables and their files. Replay: whole or not at all."""
        return await self.ddl.drop_source(name)

    def table(self, name: str) -> StateTable:
        """A table by name. Read it at `visible`, or at another epoch that is kept."""
        return self.store[self.catalog.snapshot().table(name).id]

    @property
    def visible(self) -> Epoch:
        """The last epoch that is committed and published."""
        return self.committer.visible

    def position(self, source: str) -> str | None:
        """How far a source is in the ledger."""
        return self.committer.positions.get(source)

    # Commands

    async def flush(self) -> Epoch:
        """Commit an epoch that begins now, and return it when it is visible.

        Large writes of users take an epoch each: all that were accepted before are waited for.
        """
        written, position = self.dml.source, self.position(DML)
        last = written.last
        epoch = await self._coordinator.flush()
        while written.has_upto(last) and self.position(DML) != position:
            position = self.position(DML)
            epoch = await self._coordinator.flush()
        return epoch

    async def pause(self) -> None:
        """Stop reading sources; barriers go on."""
        await self._coordinator.pause()

    async def resume(self) -> None:
        """Read on."""
        await self._coordinator.resume()

    async def throttle(self, source: str, rows_per_s: int | None) -> None:
        """Limit how fast a source is read; 0 stops it, None lifts the limit."""
        snapshot = await self._blocking(self.catalog.snapshot)
        job = JobId(snapshot.source(source).id)
        await self._coordinator.throttle({job: rows_per_s})

    async def change_settings(self, values: Mapping[str, Any]) -> Settings:
        """Change live settings; they hold until the engine ends."""
        changed = self.settings.change(values)
        text = ", ".join(f"{name} = {value}" for name, value in values.items())
        await self._blocking(self.events.record, EventKind.SETTINGS_CHANGED, "settings", text)
        return changed

    async def maintain(self) -> None:
        """Make one round of folding and collection now."""
        await self._maintenance.round()

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        return self._spark.parallelism

    def tell(self, kind: EventKind, subject: str, text: str) -> None:
        """Have an event written; never waits."""
        self._notices.tell(kind, subject, text)

    def spark(self) -> "SparkSession":
        """The Spark session; it starts when it is first asked for."""
        return self._spark()

    def spark_lost(self) -> None:
        """The Spark session does not answer; the next who asks gets another."""
        self._spark.lost()

    # Inside

    def _open(self) -> None:
        settings = self.workspace.settings
        self.ledger = self._open_ledger()
        self.term = self.ledger.take_over(
            self._owner(), force=self._force, wait_s=settings.takeover_wait_s
        )
        shutil.rmtree(self.workspace.scratch, ignore_errors=True)
        self.events = EventLog(self.ledger, clock=self._clock)
        self.catalog = Catalog(self.ledger)
        # What ALTER SYSTEM SET has set; what the caller gave is stronger.
        self.settings.take_over(self.catalog.snapshot().settings, given=self._given)
        self.store = self._open_store()
        self._recovered = recover(self.ledger, self.catalog, self.store, self.term)
        self.keeper = ViewKeeper(self.store, self._spark)
        self.keeper.remember(self._recovered.facts.progress)
        for view in self._recovered.catalog.materialized_views:
            try:
                self.keeper.keep(reopened_view(view, self._recovered.catalog, self.store))
            except HeadwaterError as error:
                # One view that cannot be planned any more must not keep the others away.
                self.keeper.give_up(view, error, self._recovered.last)
        self._sink_keeper = SinkKeeper(self.store, self._spark.parallelism)
        self.committer = EpochCommitter(
            ledger=self.ledger,
            catalog=self.catalog,
            store=self.store,
            keeper=self.keeper,
            sinks=self._sink_keeper,
            term=self.term,
            last=self._recovered.last,
            positions=self._recovered.facts.positions,
            progress=self._recovered.facts.progress,
            settings=settings,
            blocking=self._blocking,
            metrics=self.metrics,
            events=self.events,
        )

    # What an engine stands on; the simulator puts other things in their place.

    def _owner(self) -> Owner:
        return Owner.this_process()

    def _open_ledger(self) -> Ledger:
        return Ledger.open(
            self.workspace.ledger_url,
            clock=self._clock,
            wait_s=self.workspace.settings.takeover_wait_s,
            force=self._force,
        )

    def _open_store(self) -> StateStore:
        storage = self.workspace.storage()
        # Better now and plainly than with the first epoch, which would wait for it for ever.
        storage.put(_PROBE, b"")
        storage.delete(_PROBE)
        return StateStore(
            Surroundings(
                storage=storage,
                cache=self.workspace.cache(),
                settings=self.workspace.settings,
                term=self.term,
                spark=self._spark,
                parallelism=self._spark.parallelism,
            )
        )

    async def _start_jobs(self) -> None:
        settings = self.workspace.settings
        watch = self._notices = Watch(self.events, self.metrics)
        self._coordinator = Coordinator(
            self.committer,
            after=self._recovered.last,
            pace=pace_of(self.settings.now),
            backoff=Backoff(
                first=timedelta(milliseconds=settings.restart_backoff_ms),
                longest=timedelta(milliseconds=settings.restart_backoff_max_ms),
            ),
            clock=self._clock,
            watch=watch,
        )
        self.settings.listen(lambda now: self._coordinator.change_settings(pace_of(now)))
        self.keeper.tell = watch.tell
        self._jobs = SourceJobs(
            store=self.store,
            committer=self.committer,
            blocking=self._blocking,
            dml=self.dml,
            max_bytes=self._batch_bytes(),
            tell=watch.tell,
        )
        jobs: list[Participant] = []
        written = [table for table in self._recovered.catalog.tables if table.writable]
        if written:
            for table in written:
                self.dml.add(self.store[table.id])
            jobs.append(self._jobs.dml_job())
        else:
            self.dml.started_by(lambda: self._coordinator.add([self._jobs.dml_job()]))
        self.cdc = CdcSources(
            self.store,
            self.committer,
            self._blocking,
            max_bytes=self._batch_bytes(),
            metrics=CdcBackfillMetrics(self.metrics.registry),
            source_metrics=CdcSourceMetrics(self.metrics.registry),
            watch_s=settings.cdc_watch_interval_s,
            tell=watch.tell,
            hurry=self._coordinator.hasten,
        )
        self.upstreams = UpstreamSources(self.store, self._spark, self.committer, self._coordinator)
        self.upstreams.tell = watch.tell
        for definition in self._recovered.catalog.sources:
            tables = self._recovered.catalog.tables_of(definition.name)
            if is_database(definition.kind) or is_workspace(definition.kind):
                kept = self.cdc if is_database(definition.kind) else self.upstreams
                jobs.append(kept.job(definition, tables))
                continue
            connector = find_connector(definition.kind, self._connectors)
            options = {key: json.loads(value) for key, value in definition.options.items()}
            jobs.append(self._jobs.job(definition, tables, connector(definition.name, options)))
        self.creating = CreatingViews(
            store=self.store,
            spark=self._spark,
            committer=self.committer,
            coordinator=self._coordinator,
            keeper=self.keeper,
            ledger=self.ledger,
            blocking=self._blocking,
            settings=self.settings,
        )
        jobs += await self.creating.reopen(self._recovered.catalog)
        self.sinks = self._open_sinks()
        jobs += await self.sinks.reopen(self._recovered.catalog, self._recovered.facts.log_ends)
        await self._coordinator.start(jobs)
        self._open_ddl()
        self.sinks.start_all()
        if any(view.sinks_own for view in self._recovered.catalog.materialized_views):
            self._watch(self.ddl.drop_lost_views())
        self._watch(self._follow_coordinator())
        self._watch(watch.run(self._blocking))
        self._watch(self._maintenance.run())
        self._watch(self._maintenance.heartbeat())

    def _open_ddl(self) -> None:
        self._maintenance = Maintenance(
            store=self.store,
            ledger=self.ledger,
            catalog=self.catalog,
            committer=self.committer,
            events=self.events,
            blocking=self._blocking,
            settings=self.settings,
            clock=self._clock,
            term=self.term,
            reading=lambda: self._readers.epochs,
        )
        self.ddl = SinkDdl(
            DdlSurroundings(
                catalog=self.catalog,
                store=self.store,
                committer=self.committer,
                coordinator=self._coordinator,
                maintenance=self._maintenance,
                blocking=self._blocking,
                connectors=self._connectors,
                sources=self._jobs.sources,
                job=self._jobs.job,
                dml=self.dml,
                cdc=self.cdc,
                creating=self.creating,
                sinks=self.sinks,
                upstreams=self.upstreams,
                unpin=self.ledger.unpin,
            )
        )
        self.creating.attach(self.ddl.join_view, self.ddl.drop)
        self.sinks.attach(self.ddl.join_sink, self.ddl.drop)
        self.cdc.alter = self.ddl.follow_change

    def _open_sinks(self) -> Sinks:
        return Sinks(
            keeper=self._sink_keeper,
            committer=self.committer,
            coordinator=self._coordinator,
            ledger=self.ledger,
            term=self.term,
            blocking=self._blocking,
            settings=self.settings,
            metrics=SinkMetrics(self.metrics.registry),
            lent=self.creating.lent,
            catalog=self.catalog,
            dml=self.dml.source,
            tell=self._notices.tell,
        )

    def _batch_bytes(self) -> int:
        return max(1 << 16, self.workspace.settings.driver_bytes)

    async def _follow_coordinator(self) -> None:
        raise await asyncio.shield(self._coordinator.failure)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside everything; an error ends the engine."""

        async def watched() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if not self._failed.done():
                    self._failed.set_exception(error)
                    # Whoever cares asks `failure`; nobody must.
                    self._failed.exception()

        self._tasks.append(asyncio.get_running_loop().create_task(watched()))

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if hasattr(self, "sinks"):
            await self.sinks.close()
        if hasattr(self, "creating"):
            await self.creating.close()
        if hasattr(self, "_jobs"):
            for source in self._jobs.sources.values():
                with contextlib.suppress(HeadwaterError):
                    await source.close()
            self._jobs.sources.clear()
        if hasattr(self, "cdc"):
            with contextlib.suppress(HeadwaterError):
                await self.cdc.close()
                await self.upstreams.close()
        ledger: Ledger | None = getattr(self, "ledger", None)
        if ledger is not None:
            if hasattr(self, "term"):
                with contextlib.suppress(HeadwaterError):
                    await self._blocking(ledger.release, self.term)
            ledger.close()
        self._spark.stop()
        self._blocking.close()
