"""The sinks of one engine: their logs, who delivers, and who is still being filled.

    a sink is     which means
    open          its log is open; nothing is owed to it yet
    live          every epoch owes it what it changes (`keeper.py`)
    filling       its job brings the rows that were there into its log (`filling.py`)
    delivering    an executor takes from its log what is committed, and brings it to the target

Delivering never holds anything up: it has threads of its own, and what fails is tried again.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from headwater.barrier.coordinator import Coordinator
from headwater.catalog.catalog import Catalog
from headwater.catalog.relation import ObjectDef, ObjectKind
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import CommitUnknown, Fenced, HeadwaterError, RetryableError, UserError
from headwater.ledger.deliveries import DeliveryBook
from headwater.ledger.ledger import Ledger
from headwater.logstore.kv_log_store import KvLogStoreFactory, LogStoreOptions
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId, Term
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.observe.events import EventKind
from headwater.observe.sink_metrics import SinkMetrics
from headwater.runtime.blocking import Blocking
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.creating.job import Lent
from headwater.runtime.dml import DmlSource
from headwater.runtime.live_settings import LiveSettings
from headwater.runtime.sinks.courier import SparkCourier
from headwater.runtime.sinks.definition import SinkSettings, spec_of
from headwater.runtime.sinks.delivering import Delivering
from headwater.runtime.sinks.filling import FILLING, FillingSink, SinkJob
from headwater.runtime.sinks.into_table import TableCourier, TableTargets
from headwater.runtime.sinks.keeper import LiveSink, SinkKeeper, log_key
from headwater.runtime.sinks.lending import Loans, TableLender
from headwater.runtime.sinks.log_files import LogFiles
from headwater.runtime.sinks.settling import settled
from headwater.sinks.connectors import make_sink
from headwater.sinks.courier import Courier
from headwater.sinks.executor import SinkExecutor, Surroundings
from headwater.sinks.fold import Folding
from headwater.sinks.machine import DeliveryMachine
from headwater.sinks.sink import Sink, StagedSink
from headwater.sinks.steps import SinkStatus
from headwater.sinks.trouble import Trouble
from headwater.state.store import StateStore

FOLDER = "sink_logs"
_THREADS = 16
_COLLECT_S = 10.0
_STOP_S = 5.0

Tell = Callable[[EventKind, str, str], None]
Join = Callable[[FillingSink, Epoch], Awaitable[Epoch]]
Drop = Callable[[list[ObjectDef]], Awaitable[object]]


class Sinks:
    """Sinks by their id in the catalog."""

    def __init__(  # noqa: PLR0913  one argument per thing that it is lent
        self,
        *,
        keeper: SinkKeeper,
        committer: EpochCommitter,
        coordinator: Coordinator,
        ledger: Ledger,
        term: Term,
        blocking: Blocking,
        settings: LiveSettings,
        metrics: SinkMetrics,
        lent: Lent,
        catalog: Catalog,
        dml: DmlSource,
        tell: Tell,
    ) -> None:
        self.filling: dict[int, FillingSink] = {}
        self.delivering: dict[int, Delivering] = {}
        self._store = lent.store
        self._spark = lent.spark
        self._parallelism = keeper.parallelism
        self._keeper = keeper
        self._committer = committer
        self._coordinator = coordinator
        self._book = DeliveryBook(ledger, term)
        self._loans = Loans(ledger, blocking)
        self._term = term
        self._blocking = blocking
        self._settings = settings
        self._metrics = metrics
        self._lent = lent
        self._tables = TableTargets(
            catalog=catalog,
            source=dml,
            position=committer.positions.get,
            blocking=blocking,
            term=term,
        )
        self._tell = tell
        self._threads = Blocking(_THREADS)
        """Threads of their own: a target that hangs must not keep the epochs waiting."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._attached = asyncio.Event()

    @property
    def at_once_rows(self) -> int:
        """Up to so many rows are owed inside the epoch that creates a sink."""
        return self._settings.now.fill_at_once_rows

    def attach(self, join: Join, drop: Drop) -> None:
        """Have those who define relations; what happens before waits for them."""
        self._join, self._drop = join, drop
        self._attached.set()

    # Life

    async def reopen(self, snapshot: CatalogSnapshot, log_ends: Mapping[str, str]) -> list[SinkJob]:
        """Open the sinks that an earlier engine has left; gives the jobs of those being filled.

        Replay: files that no log needs are collected.
        """
        sinks = [each for each in snapshot.objects if each.kind is ObjectKind.SINK]
        known = {each.id for each in sinks}
        await self._loans.reopen(known)
        if sinks:
            await self._blocking(_delete_strays, self._store, known)
        jobs = []
        for sink in sinks:
            live = await self.open(sink, log_ends.get(log_key(sink.id)))
            self._keeper.live[sink.id] = live
            if FILLING in sink.settings:
                jobs.append(self.fill(sink).job)
        return jobs

    def start_all(self) -> None:
        """Begin to deliver."""
        for id_ in self.delivering:
            self.start(id_)
        self._spawn(self._collect())

    async def open(self, sink: ObjectDef, log_end: str | None = None) -> LiveSink:
        """Open a sink's log; nothing is owed to it yet."""
        own = SinkSettings.of(sink)
        storage = self._store.surroundings.storage.below(f"{FOLDER}/{sink.id}")
        assert sink.table is not None
        live: LiveSink
        lender = TableLender(self._store, sink.table, lambda: live.definition.columns)
        factory = KvLogStoreFactory(
            storage,
            sink.name,
            blocking=self._blocking,
            term=self._term,
            lender=lender,
            options=LogStoreOptions.of(self._settings.now),
        )
        stored = await self._blocking(self._book.of, own.ident)
        reader, writer = await factory.open(log_end, delivered=stored.delivered)
        live = LiveSink(definition=sink, writer=writer, storage=storage, term=self._term)
        self.delivering[sink.id] = Delivering(
            live=live, reader=reader, log=factory.log, lender=lender
        )
        return live

    def start(self, id_: int) -> None:
        """Begin to deliver what its log has."""
        delivering = self.delivering[id_]
        delivering.task = self._spawn(self._deliver(delivering))

    async def forget(self, id_: int, *, gone: bool = False) -> None:
        """Let a sink go; one that is dropped leaves nothing behind, here and at its target."""
        self._keeper.live.pop(id_, None)
        self.filling.pop(id_, None)
        delivering = self.delivering.pop(id_, None)
        if delivering is None:
            return
        await self._stop(delivering)
        with contextlib.suppress(HeadwaterError):
            # A pin that stays is let go by the next engine.
            await self._loans.forget(id_)
        sink = delivering.live.definition
        self._metrics.forget(sink.name)
        if gone:
            self._spawn(self._clean_up(sink))

    async def altered(self, sink: ObjectDef) -> None:
        """A sink has other options or limits."""
        delivering = self.delivering[sink.id]
        delivering.live.definition = sink
        own = SinkSettings.of(sink)
        if delivering.executor is not None:
            delivering.executor.alter(
                sink=self._target(sink),
                limit=RateLimit(rows_per_s=own.rate_limit),
                interval=own.checkpoints,
            )
        elif delivering.failure is not None:
            delivering.failure = None
            self.start(sink.id)

    def renamed(self, sink: ObjectDef) -> None:
        """A sink has another name or owner, and goes on as it is."""
        delivering = self.delivering[sink.id]
        delivering.live.definition = sink
        if delivering.executor is not None:
            delivering.executor.rename(sink.name)

    async def owed_again(self, id_: int) -> None:
        """A sink's log has once more what its target may have lost; a stalled one tries at once.

        Replay: one that a crash keeps from being told is stalled as before, and is rewound again.
        """
        delivering = self.delivering[id_]
        ident = SinkSettings.of(delivering.live.definition).ident
        await self._blocking(self._book.owed_again, ident)
        if delivering.executor is not None:
            delivering.executor.alter(sink=self._target(delivering.live.definition))

    async def evolved(self, sinks: Iterable[ObjectDef]) -> None:
        """Sinks have got columns, which their targets get before what they are owed next."""
        for sink in sinks:
            if (filling := self.filling.get(sink.id)) is not None:
                error = UserError(
                    f'sink "{sink.name}" could not be created: its relation has got columns',
                    hint="Create it again.",
                )
                self._begin(self._fail(filling, error))
                continue
            delivering = self.delivering[sink.id]
            if delivering.executor is not None:
                folding, courier = self._ways(delivering)
                delivering.executor.evolve(self._target(sink), folding, courier)
            elif delivering.failure is not None:
                delivering.failure = None
                self.start(sink.id)

    async def close(self) -> None:
        """Leave them to the next engine."""
        self._tables.ended.set()
        stopping = [asyncio.ensure_future(self._stop(each)) for each in self.delivering.values()]
        if stopping:
            # A target that hangs must not keep the engine from ending: what was under way is
            # asked about by the next one.
            await asyncio.wait(stopping, timeout=_STOP_S)
        left = [*stopping, *self._tasks]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        self._threads.close()

    # Filling

    def fill(self, sink: ObjectDef) -> FillingSink:
        """A sink whose log is to be filled; its job is the caller's to start."""
        done: asyncio.Future[Epoch] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        live = self.delivering[sink.id].live
        live.filling = True
        self._keeper.live[sink.id] = live
        filling: FillingSink
        job = SinkJob(
            job=JobId(sink.id),
            lent=self._lent,
            merge=lambda after: self._begin(self._merge(filling, after)),
            failed=lambda error: self._begin(self._fail(filling, error)),
            over=lambda: filling.over,
            said=lambda name: _number(live.definition, name),
            sink=live,
            owing=self._keeper.owing,
            keep=lambda epoch: self._loans.keep(sink.id, epoch),
            parallel_tasks=self._parallelism,
            loop=asyncio.get_running_loop(),
        )
        filling = FillingSink(sink=sink, job=job, done=done)
        self._committer.register(job.job, None, tuple)
        self._coordinator.track(job.counted)
        self.filling[sink.id] = filling
        return filling

    async def wait(self, name: str | None = None) -> None:
        """Until all of them are filled or gone, or those of that name."""
        ends = [f.done for f in self.filling.values() if name in (None, f.sink.name)]
        await asyncio.gather(*(asyncio.shield(each) for each in ends), return_exceptions=True)

    async def cancel(self, id_: int) -> bool:
        """Stop creating a sink; nothing is left of it. False when there is no such job."""
        filling = self.filling.get(id_)
        if filling is None:
            return False
        await self._drop([self.delivering[id_].live.definition])
        return True

    async def through_tables(self, epoch: Epoch, flush: Callable[[], Awaitable[Epoch]]) -> Epoch:
        """After a FLUSH: let later epochs take what it owes to tables; gives the last of them."""
        return await settled(self.delivering.values(), self._tables, epoch, flush)

    # What is told

    def status(self, id_: int) -> SinkStatus | None:
        """How a sink is doing; None before it has begun."""
        delivering = self.delivering.get(id_)
        if delivering is None or delivering.executor is None:
            return None
        return delivering.executor.status

    def lag_seconds(self, id_: int) -> float:
        """How old the newest epoch is that the target has."""
        delivering = self.delivering.get(id_)
        if delivering is None or delivering.executor is None:
            return 0.0
        return delivering.executor.lag_seconds()

    # Inside

    async def _deliver(self, delivering: Delivering) -> None:
        sink = delivering.live.definition
        own = SinkSettings.of(sink)
        try:
            target = self._target(sink)
            delivering.executor = self._executor(delivering, target, own)
            await delivering.executor.run()
        except asyncio.CancelledError:
            raise
        except Fenced:
            # The engine hears of it from its ledger as well.
            self._tell(EventKind.SINK_FAILED, sink.name, "another engine delivers instead")
        except Exception as error:
            # Also a bug of ours must not stop the engine: the sink waits until it is altered.
            text = f"{type(error).__name__}: {error}"
            failure = error if isinstance(error, HeadwaterError) else HeadwaterError(text)
            if delivering.executor is not None:
                delivering.opened = delivering.executor.opened
            delivering.failure, delivering.executor = failure, None
            self._tell(EventKind.SINK_FAILED, sink.name, text)

    def _ways(self, delivering: Delivering) -> tuple[Folding, Courier]:
        """How its changes are folded, and who brings many of them."""
        live = delivering.live
        sink, spec = live.definition, spec_of(live.definition)
        relation = self._store[live.table].schema
        named = {column.name for column in spec.columns}
        folding = Folding.of(
            spec,
            ignore_delete=SinkSettings.of(sink).ignore_delete,
            own_key=bool(spec.key) and spec.key != relation.key,
        )
        order = spec.key or tuple(name for name in relation.key if name in named)
        folding = replace(folding, order=order)
        log = LogFiles(live.storage, delivering.lender)
        if sink.into is not None:
            return folding, TableCourier(folding, log, self._spark, self._threads)
        courier = SparkCourier(
            folding,
            log,
            self._spark,
            parallelism=self._parallelism,
            blocking=self._threads,
        )
        return folding, courier

    def _executor(self, delivering: Delivering, target: Sink, own: SinkSettings) -> SinkExecutor:
        settings = self._settings.now
        folding, courier = self._ways(delivering)
        around = Surroundings(
            book=self._book,
            wait_committed=self._committed,
            courier=courier,
            driver_bytes=settings.sink_driver_bytes,
            blocking=self._threads,
            metrics=self._metrics,
            # A crash may have come between the columns of a relation and those of its target.
            checks=own.evolves,
            opened=delivering.opened,
        )
        machine = DeliveryMachine(
            sink=own.ident,
            term=self._term,
            staged=isinstance(target, StagedSink),
            limiter=RateLimiter(RateLimit(rows_per_s=own.rate_limit), time.monotonic()),
            trouble=Trouble(random.random),
            interval=own.checkpoints,
        )
        return SinkExecutor(target, folding, delivering.reader, machine, around)

    def _target(self, sink: ObjectDef) -> Sink:
        if sink.into is not None:
            return self._tables.target(sink)
        return make_sink(SinkSettings.of(sink).connector, spec_of(sink))

    async def _committed(self, epoch: Epoch) -> None:
        await self._coordinator.wait_committed(epoch)

    async def _stop(self, delivering: Delivering) -> None:
        if delivering.executor is not None and delivering.task is not None:
            if not delivering.task.done():
                await delivering.executor.stop()
        elif delivering.task is not None:
            delivering.task.cancel()
        await delivering.log.close()

    async def _clean_up(self, sink: ObjectDef) -> None:
        """Remove what a dropped sink has left, here and at its target.

        Replay: what a crash leaves of its log goes when an engine with sinks starts; its rows
        in the ledger and at the target are no longer asked for.
        """
        own = SinkSettings.of(sink)
        await self._blocking(_delete_log, self._store, sink.id)
        with contextlib.suppress(HeadwaterError):
            await self._blocking(self._book.forget, own.ident)
        try:
            await self._threads(self._target(sink).drop)
        except Exception as error:
            # The target may be away for ever; the sink is dropped all the same.
            self._tell(EventKind.SINK_FAILED, sink.name, f"its target was not cleaned up: {error}")

    async def _collect(self) -> None:
        """Let go of what is delivered, every so often: files of the logs, and lent rows."""
        while True:
            await asyncio.sleep(_COLLECT_S)
            for id_, each in list(self.delivering.items()):
                with contextlib.suppress(HeadwaterError):
                    await each.log.collect()
                    await self._loans.settle(id_, each.log, filling=each.live.filling)

    async def _merge(self, filling: FillingSink, after: Epoch) -> None:
        executor = filling.job.executor
        await self._attached.wait()
        try:
            await self._join(filling, after)
        except (RetryableError, CommitUnknown):
            # Also when the engine had to recover: the job has another executor then.
            if executor is not None and executor is filling.job.executor:
                executor.merge_failed()
        except HeadwaterError as error:
            await self._fail(filling, error)

    async def _fail(self, filling: FillingSink, error: HeadwaterError) -> None:
        if filling.over or filling.error is not None:
            return
        filling.error = error
        self._tell(EventKind.JOB_FAILED, filling.sink.name, str(error))
        await self._attached.wait()
        with contextlib.suppress(HeadwaterError):
            # An engine that ends leaves it to the next one, which meets the same error.
            await self._drop([self.delivering[filling.sink.id].live.definition])

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _number(sink: ObjectDef, name: str) -> int | None:
    value = sink.settings.get(name, "")
    return int(value) if value else None


def _delete_log(store: StateStore, id_: int) -> None:
    folder = store.surroundings.storage.below(f"{FOLDER}/{id_}")
    for path in list(folder.list()):
        folder.delete(path)


def _delete_strays(store: StateStore, known: set[int]) -> None:
    """Delete logs of sinks that do not exist. Replay: what is gone is gone."""
    storage = store.surroundings.storage
    for path in list(storage.list(FOLDER)):
        owner = path.removeprefix(f"{FOLDER}/").partition("/")[0]
        if not owner.isdecimal() or int(owner) not in known:
            storage.delete(path)
