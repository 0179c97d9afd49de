"""The views that are being created in one engine: who they are, how far, and how they end.

A view in the making is an object of the catalog, which holds its name, and stores that nobody
sees. An engine that starts finds it there and goes on. It ends in one of three ways:

    it joins       the epoch that takes it along makes it a materialized view like the others
    it fails       its query cannot be computed over the rows there are: it goes, with an event
    it is dropped  by DROP, CANCEL JOBS, or together with a table that it reads
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headwater.backfill.snapshot.order import decoded
from headwater.barrier.coordinator import Coordinator
from headwater.catalog.relation import ObjectDef, ObjectKind
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import CommitUnknown, HeadwaterError, RetryableError, UserError
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId, TableId
from headwater.observe.events import EventKind
from headwater.runtime.blocking import Blocking
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.creating.job import BACKFILL, SLICES_AT_ONCE, Lent, ViewJob, job_key
from headwater.runtime.live_settings import LiveSettings
from headwater.runtime.view_keeper import ViewKeeper
from headwater.runtime.view_plan import reopened_making
from headwater.runtime.view_world import KeptView, SparkSource
from headwater.sql.algebra import tables_of
from headwater.state.store import StateStore
from headwater.views.layout import Layout

_CANCELLED = "57014"


@dataclass(slots=True, kw_only=True)
class Creating:
    """A view on its way."""

    intent: ObjectDef
    view: KeptView
    job: ViewJob
    done: "asyncio.Future[Epoch]"
    """The epoch from which on it is there, or why it never will be."""
    over: bool = False
    """Whether nothing may be done for it any more."""
    joined: Epoch | None = None
    error: HeadwaterError | None = None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def said(self, name: str) -> int | None:
        """A number that somebody has set for it: rows a second, slices at a time."""
        value = self.intent.settings.get(name, "")
        return int(value) if value else None

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        return str(self.job.progress or "0.0%")


Join = Callable[[Creating, Epoch], Awaitable[Epoch]]
Drop = Callable[[Sequence[ObjectDef]], Awaitable[object]]


class CreatingViews:
    """Views by the id of their intent."""

    def __init__(  # noqa: PLR0913  one argument per thing that it is lent
        self,
        *,
        store: StateStore,
        spark: SparkSource,
        committer: EpochCommitter,
        coordinator: Coordinator,
        keeper: ViewKeeper,
        ledger: Ledger,
        blocking: Blocking,
        settings: LiveSettings,
    ) -> None:
        self.running: dict[int, Creating] = {}
        self._keeper = keeper
        self._ledger = ledger
        self._blocking = blocking
        self._settings = settings
        self._committer = committer
        self._track = coordinator.track
        self._threads = Blocking(2 * SLICES_AT_ONCE, niceness=settings.now.background_niceness)
        self._lent = Lent(
            store=store,
            spark=spark,
            blocking=self._threads,
            staging=blocking,
            stored=committer.progress.get,
            last=lambda: committer.visible,
            pin=lambda name, epoch: blocking(ledger.pin, name, epoch),
            pinned=lambda name: blocking(lambda: ledger.pins().get(name)),
            wait_committed=coordinator.wait_committed,
            hurry=coordinator.hasten,
            slice_bytes=settings.now.backfill_slice_bytes,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._attached = asyncio.Event()

    @property
    def lent(self) -> Lent:
        """What is lent to jobs that fill something."""
        return self._lent

    def attach(self, join: Join, drop: Drop) -> None:
        """Have those who define relations; what happens before waits for them."""
        self._join, self._drop = join, drop
        self._attached.set()

    def open(self, intent: ObjectDef, view: KeptView) -> Creating:
        """A view that is to be filled; its job is the caller's to start."""
        done: asyncio.Future[Epoch] = asyncio.get_running_loop().create_future()
        # Nobody has to wait for it.
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        creating: Creating
        job = ViewJob(
            job=JobId(intent.id),
            view=view,
            lent=self._lent,
            merge=lambda after: self._spawn(self._merge(creating, after)),
            failed=lambda error: self._spawn(self._fail(creating, error)),
            over=lambda: creating.over,
            said=lambda name: creating.said(name),  # noqa: PLW0108  it is made below
            order=decoded(intent.settings.get("backfill_order", "")),
        )
        creating = Creating(intent=intent, view=view, job=job, done=done)
        for store in view.stores:
            store.receipted = True
        stores = tuple(store.id for store in view.stores)
        self._committer.register(job.job, None, lambda: stores)
        self._track(job.counted)
        self.running[intent.id] = creating
        return creating

    def is_small(self, layout: Layout) -> bool:
        """Whether a view can be filled inside one commit, without holding the others back."""
        reads = tables_of(layout.view.plan)
        return (
            sum(self._lent.store[table].view().rows for table in reads)
            <= self._settings.now.fill_at_once_rows
        )

    async def reopen(self, snapshot: CatalogSnapshot) -> list[ViewJob]:
        """The jobs of views that an earlier engine began.

        Replay: pins that nobody needs are let go again.
        """
        found = []
        making = {job_key(each.id) for each in snapshot.objects}
        if snapshot.materialized_views:
            # One of them may have joined right before the engine died.
            for pin in await self._blocking(self._ledger.pins):
                if pin.startswith(BACKFILL) and pin not in making:
                    await self._blocking(self._ledger.unpin, pin)
        for intent in intents(snapshot):
            try:
                view = reopened_making(intent, snapshot, self._lent.store)
            except HeadwaterError as error:
                # One that cannot be planned any more must not keep the others away.
                self._keeper.tell(EventKind.JOB_FAILED, intent.name, str(error))
                continue
            found.append(self.open(intent, view).job)
        return found

    def forget(self, id_: int) -> None:
        """It is not being created any more: `joined` or `error` says why."""
        creating = self.running.pop(id_, None)
        if creating is None:
            return
        creating.over = True
        for store in creating.view.stores:
            store.prepared()
            # From now on its receipts are garbage like other files that nothing names.
            store.receipted = False
        if creating.done.done():
            return
        if creating.joined is not None:
            creating.done.set_result(creating.joined)
        else:
            creating.done.set_exception(creating.error or _cancelled(creating.intent.name))

    def disturbed(self, table: TableId, text: str) -> None:
        """A table has got other columns: a view that is read from before and after cannot be."""
        for creating in list(self.running.values()):
            if table in creating.view.reads:
                error = UserError(
                    f'view "{creating.intent.name}" could not be created: {text}',
                    hint="Create it again.",
                )
                self._spawn(self._fail(creating, error))

    async def wait(self, name: str | None = None) -> None:
        """Until all of them are there or gone, or those of that name."""
        ends = [c.done for c in self.running.values() if name in (None, c.intent.name)]
        await asyncio.gather(*(asyncio.shield(each) for each in ends), return_exceptions=True)

    async def cancel(self, id_: int) -> bool:
        """Stop creating something; nothing is left of it. False when there is no such job."""
        creating = self.running.get(id_)
        if creating is None:
            return False
        await self._drop([creating.intent])
        return True

    async def close(self) -> None:
        """Leave them to the next engine."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.close()

    # Inside

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _merge(self, creating: Creating, after: Epoch) -> None:
        executor = creating.job.executor
        await self._attached.wait()
        try:
            if self._keeper.reads_failed(creating.view):
                raise RetryableError("a view that it reads has failed")
            await self._join(creating, after)
        except (RetryableError, CommitUnknown):
            # Also when the engine had to recover: the job has another executor then.
            if executor is not None and executor is creating.job.executor:
                executor.merge_failed()
        except HeadwaterError as error:
            await self._fail(creating, error)

    async def _fail(self, creating: Creating, error: HeadwaterError) -> None:
        if creating.over or creating.error is not None:
            return
        creating.error = error
        self._keeper.tell(EventKind.JOB_FAILED, creating.intent.name, str(error))
        await self._attached.wait()
        with contextlib.suppress(HeadwaterError):
            # An engine that ends leaves it to the next one, which meets the same error.
            await self._drop([creating.intent])


def intents(snapshot: CatalogSnapshot) -> list[ObjectDef]:
    """The views that an earlier engine began to create."""
    return [
        each
        for each in snapshot.objects
        if each.kind is ObjectKind.CREATING and each.query is not None and each.query.stores
    ]


def _cancelled(name: str) -> UserError:
    error = UserError(f'creating view "{name}" was cancelled')
    error.sqlstate = _CANCELLED
    return error
