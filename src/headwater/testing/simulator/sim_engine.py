"""A real engine that stands in the simulated world."""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwater.ledger.backoff import Backoff
from headwater.ledger.fence import Owner
from headwater.ledger.ledger import Also, Ledger
from headwater.model.ids import SourceName, TableId
from headwater.model.record import EpochRecord
from headwater.runtime.engine import Engine
from headwater.state.manifest import Manifest
from headwater.state.row_cache import RowCache
from headwater.state.store import StateStore, TableSpec
from headwater.state.surroundings import Surroundings
from headwater.state.table import StateTable
from headwater.testing.simulator.light_table import LightCache, LightTable
from headwater.testing.simulator.process import SimProcess, TurnLock
from headwater.testing.simulator.upstream import SimSource
from headwater.testing.simulator.world import World

_PATIENCE = Backoff(first_s=0.02, longest_s=0.2, total_s=0.5)
_CACHE_BYTES = 1 << 24


class SimLedger(Ledger):
    """The ledger; it waits in virtual time."""

    world: World

    def append_resolved(
        self,
        record: EpochRecord,
        *,
        manifests: Mapping[TableId, bytes] | None = None,
        also: Also | None = None,
        backoff: Backoff = _PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """As the real one, less patient. Replay: as the real one."""
        super().append_resolved(
            record,
            manifests=manifests or {},
            also=also,
            backoff=_PATIENCE,
            sleep=self.world.loop.linger,
        )


class SimStore(StateStore):
    """The store, with tables that fit the seed."""

    def __init__(self, surroundings: Surroundings, world: World) -> None:
        super().__init__(surroundings)
        self._world = world

    def _open(self, spec: TableSpec, manifest: Manifest) -> StateTable:
        kind = StateTable if self._world.parquet else LightTable
        table = kind(spec.name, spec.folder, manifest, self.surroundings)
        # A strand that waits for a real lock would never give the baton back.
        for name in ("_lock", "_writing"):
            if hasattr(table, name):
                setattr(table, name, TurnLock(self._world.loop))
        self._tables[spec.id] = table
        return table


class SimEngine(Engine):
    """An engine in one simulated process."""

    def __init__(
        self,
        world: World,
        process: SimProcess,
        workspace: Path,
        settings: Mapping[str, Any],
        *,
        take_over: bool,
    ) -> None:
        self.world = world
        self.process = process
        super().__init__(
            workspace,
            settings=settings,
            connectors={"simulated": functools.partial(_connect, world, process)},
            take_over=take_over,
            clock=world.loop.wall_clock,
        )

    def _owner(self) -> Owner:
        # Each process has a machine of its own: the heartbeat says whether it is alive.
        name = self.process.name
        return Owner(host=name, pid=1, machine=f"simulated {name}", started="0", token=name)

    def _open_ledger(self) -> Ledger:
        ledger = SimLedger(self.world.ledger(self.process), clock=self._clock)
        ledger.world = self.world
        return ledger

    def _open_store(self) -> StateStore:
        folder = self.workspace.path / "cache"
        cache = (RowCache if self.world.parquet else LightCache)(folder, _CACHE_BYTES)
        surroundings = Surroundings(
            storage=self.world.storage(self.process),
            cache=cache,
            settings=self.workspace.settings,
            term=self.term,
        )
        return SimStore(surroundings, self.world)

    def _open(self) -> None:
        super()._open()
        self.world.owner = self.process
        self.events._lock = TurnLock(self.world.loop)  # type: ignore[assignment]


def _connect(
    world: World, process: SimProcess, name: SourceName, options: Mapping[str, Any]
) -> SimSource:
    return world.source(process, dict(options))
