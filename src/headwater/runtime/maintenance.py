"""Housekeeping beside the epochs: folding, retention, Delta checkpoints, pruning.

One round does, for each table in turn: fold what pays, forget epochs that are older than the
retention and that no pin needs, delete the files of forgotten epochs and orphans, and keep the
Delta log short. Rounds never overlap, so a fold under way is never mistaken for an orphan.
Nothing here is needed for correctness; an error is reported and the next round tries again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import timedelta

from headwater.catalog.catalog import Catalog
from headwater.errors import BrokenInvariant, Fenced, HeadwaterError
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch, WallClock, epoch_at
from headwater.model.ids import TableId, Term
from headwater.observe.events import EventKind, EventLog
from headwater.runtime.blocking import Blocking
from headwater.runtime.committer import EpochCommitter
from headwater.runtime.live_settings import LiveSettings
from headwater.runtime.recovery import purge_dropped
from headwater.state.collect import collect_orphans, expire
from headwater.state.delta_checkpoint import checkpoint, trim
from headwater.state.store import StateStore
from headwater.state.table import StateTable

_HEARTBEAT_S = 5.0


class Maintenance:
    """Runs rounds until it is cancelled."""

    def __init__(  # noqa: PLR0913  it looks after all the rooms
        self,
        *,
        store: StateStore,
        ledger: Ledger,
        catalog: Catalog,
        committer: EpochCommitter,
        events: EventLog,
        blocking: Blocking,
        settings: LiveSettings,
        clock: WallClock,
        term: Term,
        reading: Callable[[], Iterable[Epoch]] = tuple,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._catalog = catalog
        self._committer = committer
        self._events = events
        self._blocking = blocking
        self._settings = settings
        self._clock = clock
        self._term = term
        self._reading = reading
        self._checkpointed: dict[TableId, int] = {}
        self._one_round = asyncio.Lock()

    async def run(self) -> None:
        """Make a round every so often."""
        while True:
            await asyncio.sleep(self._settings.now.maintenance_interval_s)
            try:
                await self.round()
            except (Fenced, BrokenInvariant):
                raise
            except Exception as error:
                # Also what Spark raises when a fold's tasks fail; the next round tries again.
                text = f"{type(error).__name__}: {error}"
                await self._blocking(
                    self._events.record, EventKind.STORAGE_UNAVAILABLE, "maintenance", text
                )

    async def heartbeat(self) -> None:
        """Say every so often that this engine lives."""
        while True:
            wait_s = self._settings.now.takeover_wait_s
            await asyncio.sleep(min(_HEARTBEAT_S, wait_s / 3 or 0.1))
            with contextlib.suppress(HeadwaterError):
                # Fenced comes out of the next commit too, which then ends the engine.
                await self._blocking(self._ledger.heartbeat, self._term)

    @property
    def between_rounds(self) -> asyncio.Lock:
        """Hold it to do something that no round may see half done."""
        return self._one_round

    async def round(self) -> None:
        """Look after every table once, then after the ledger."""
        async with self._one_round:
            await self._blocking(self._ledger.heartbeat, self._term)
            horizon = await self._blocking(self._horizon)
            for table in self._store:
                if table.committed == NO_EPOCH:
                    continue
                await self._blocking(self._look_after, table, horizon)
            await self.purge()
            await self._blocking(self._prune)

    async def purge(self) -> None:
        """Delete what dropped relations have left and no query reads; call it `between_rounds`."""
        await self._blocking(purge_dropped, self._catalog, self._store, tuple(self._reading()))

    def _look_after(self, table: StateTable, horizon: Epoch) -> None:
        plan = table.plan_fold()
        if plan is not None:
            table.fold(plan)
        granted = self._committer.granted.pop(table.id, None)
        if granted is not None:
            expire(table, granted)
        collect_orphans(table, self._term, committed=self._committer.visible, alone=False)
        manifest = table.manifest()
        if horizon > manifest.horizon and any(manifest.expired(horizon)):
            self._committer.ask_horizons({table.id: horizon})
        last = self._checkpointed.setdefault(table.id, manifest.version)
        if manifest.version - last >= self._settings.now.delta_checkpoint_every:
            checkpoint(table.storage)
            trim(table.storage, manifest.horizon_version)
            self._checkpointed[table.id] = manifest.version

    def _horizon(self) -> Epoch:
        """The oldest epoch that must stay readable."""
        kept = epoch_at(self._clock() - timedelta(seconds=self._settings.now.retention_s))
        pins = self._ledger.pins().values()
        return Epoch(max(NO_EPOCH, min([kept, self._committer.visible, *pins, *self._reading()])))

    def _prune(self) -> None:
        """Drop records that no restart needs: every table has a newer list of files."""
        needed = self._committer.visible
        for table in self._store:
            stored = self._ledger.manifest(table.id)
            behind = stored is None or stored.epoch < table.committed
            if behind:
                needed = min(needed, stored.epoch if stored else NO_EPOCH)
        if needed > NO_EPOCH:
            self._ledger.prune(needed)
