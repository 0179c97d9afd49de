"""Somebody who sends commands to the engine at random moments, and checks the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from headwater.errors import (
    BrokenInvariant,
    CommitUnknown,
    DamagedState,
    Fenced,
    HeadwaterError,
    RetryableError,
    UserError,
)
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.testing.simulator.process import ProcessDied, SimProcess
from headwater.testing.simulator.sim_engine import SimEngine
from headwater.testing.simulator.upstream import SCHEMA, Upstream
from headwater.testing.simulator.world import World

_NAMES = ("s0", "s1", "s2")
_AT_ONCE = 4

Operation = Callable[[SimEngine], Awaitable[None]]


class User:
    """Sends commands to whichever engine runs."""

    def __init__(self, world: World, random: Random) -> None:
        self.tasks: list[asyncio.Task[bool]] = []
        self._world = world
        self._random = random
        self._latest = NO_EPOCH
        self._pins = 0

    async def run(self, engine: Callable[[], SimEngine | None]) -> None:
        """Send commands until cancelled; several may be under way at once."""
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.15))
            self.tasks = [task for task in self.tasks if not task.done()]
            running = engine()
            if running is not None and len(self.tasks) < _AT_ONCE:
                operation = self._random.choices(
                    (
                        self.flush,
                        self.pause,
                        self.throttle,
                        self.change_settings,
                        self.create,
                        self.drop,
                        self.read,
                        self.maintain,
                        self.pin,
                    ),
                    (6, 2, 2, 2, 4, 2, 6, 3, 2),
                )[0]
                self.tasks.append(asyncio.create_task(self.attempt(running, operation)))

    async def attempt(self, engine: SimEngine, operation: Operation) -> bool:
        """Do one thing; an error that a user may meet is no divergence. Whether it worked."""
        name = getattr(operation, "__name__", "?")
        try:
            await operation(engine)
        except ProcessDied:
            return False
        except (BrokenInvariant, DamagedState) as error:
            if isinstance(error, DamagedState) and not self._leads(engine):
                # Whoever took over may have deleted what a zombie still reads.
                return False
            self._world.observer.fail(f"{name}: {type(error).__name__}: {error}")
        except (RetryableError, UserError, CommitUnknown, Fenced) as error:
            self._world.tell(f"{name} was refused: {type(error).__name__}: {error.message}")
            return False
        except HeadwaterError as error:
            self._world.observer.fail(f"{name}: {type(error).__name__}: {error}")
        self._world.tell(f"{name} is done")
        return True

    # Commands

    async def flush(self, engine: SimEngine) -> None:
        """FLUSH: what it returns is new, committed and visible."""
        observer = self._world.observer
        before = observer.head
        ends = {s.name: (s.upstream, s.upstream.end) for s in observer.sources.values()}
        calm = self._world.calm
        epoch = await engine.process.call(engine.flush())
        if epoch <= before:
            observer.fail(f"FLUSH returned epoch {epoch}, but {before} was committed before it")
        observer.expect_visible(epoch)
        if self._leads(engine) and engine.visible < epoch:
            observer.fail(f"FLUSH returned epoch {epoch}, but readers see {engine.visible}")
        for name, (upstream, end) in ends.items() if calm else ():
            source = observer.source_named(name)
            if source and source.upstream is upstream and observer.positions.get(name, 0) < end:
                observer.fail(
                    f"FLUSH returned, but of {end} transactions of {name} some are not there"
                )

    async def pause(self, engine: SimEngine) -> None:
        """Pause for a while."""
        await engine.process.call(engine.pause())
        await asyncio.sleep(self._random.uniform(0, 0.4))
        await engine.process.call(engine.resume())

    async def resume(self, engine: SimEngine) -> None:
        """Read on."""
        await engine.process.call(engine.resume())

    async def throttle(self, engine: SimEngine) -> None:
        """Limit a source for a while."""
        names = [source.name for source in self._world.observer.sources.values()]
        if names:
            name = self._random.choice(names)
            await engine.process.call(engine.throttle(name, self._random.choice((0, 5, 50))))
            await asyncio.sleep(self._random.uniform(0, 0.4))
            await engine.process.call(engine.throttle(name, None))

    async def lift_limits(self, engine: SimEngine) -> None:
        """Take every limit away."""
        for source in tuple(self._world.observer.sources.values()):
            await engine.process.call(engine.throttle(source.name, None))

    async def change_settings(self, engine: SimEngine) -> None:
        """Change the pace."""
        random = self._random
        values = {
            "barrier_interval_ms": random.choice((15, 40, 100)),
            "checkpoint_frequency": random.choice((1, 2, 3, 5)),
            "in_flight_barriers": random.choice((1, 2, 8)),
            "retention_s": random.choice((0, 1, 60)),
        }
        await engine.process.call(engine.change_settings(values))

    async def slow_down(self, engine: SimEngine) -> None:
        """Few epochs, so that waiting for something is cheap."""
        values = {"barrier_interval_ms": 400, "checkpoint_frequency": 1, "in_flight_barriers": 10}
        values |= {"maintenance_interval_s": 5, "retention_s": 60}
        await engine.process.call(engine.change_settings(values))

    async def create(self, engine: SimEngine) -> None:
        """Create a source with some tables."""
        world = self._world
        name = self._random.choice(_NAMES)
        tables = tuple(f"{name}_{letter}" for letter in "abc"[: self._random.choice((1, 2, 2, 3))])
        number = len(world.upstreams)
        upstream = Upstream(name, number, tables, Random(self._random.random()))
        world.upstreams.append(upstream)
        for _ in range(self._random.choice((0, 2, 10))):
            upstream.write()
        epoch = await engine.process.call(
            engine.create_source(
                name, "simulated", {"number": number}, tables=dict.fromkeys(tables, SCHEMA)
            )
        )
        if number not in world.observer.created:
            world.observer.fail(f"{name} was created at epoch {epoch} and never existed")
        world.observer.expect_visible(epoch)

    async def drop(self, engine: SimEngine) -> None:
        """Drop a source."""
        observer = self._world.observer
        if observer.sources:
            source = self._random.choice(list(observer.sources.values()))
            await engine.process.call(engine.drop_source(source.name))
            if source.upstream.number not in observer.dropped:
                observer.fail(f"{source.name} was dropped and is still there")

    async def read(self, engine: SimEngine) -> None:
        """Read every table through the engine, at one epoch, and compare with the oracle."""
        loop = asyncio.get_running_loop()

        async def look() -> None:
            await loop.run_in_executor(None, self._look, engine)

        await engine.process.call(look())

    async def maintain(self, engine: SimEngine) -> None:
        """Fold and collect now."""
        await engine.process.call(engine.maintain())

    async def pin(self, engine: SimEngine) -> None:
        """Keep the epoch that is visible now for a while."""
        self._pins += 1
        name = f"pin {self._pins}"
        epoch = engine.visible
        loop, ledger = asyncio.get_running_loop(), engine.ledger

        async def in_ledger(call: Callable[..., None], *args: object) -> None:
            await loop.run_in_executor(None, lambda: call(*args))

        await engine.process.call(in_ledger(ledger.pin, name, epoch))
        await asyncio.sleep(self._random.uniform(0, 0.5))
        for table in tuple(self._world.observer.tables.values()):
            if min(table.versions.values()) <= epoch:
                self._world.observer.check_history(table, epoch)
        await engine.process.call(in_ledger(ledger.unpin, name))

    # Inside

    def _look(self, engine: SimEngine) -> None:
        observer = self._world.observer
        epoch = engine.visible
        leads = self._leads(engine)
        if epoch > observer.head:
            observer.fail(f"readers see epoch {epoch}, the ledger has {observer.head}")
        if leads:
            if epoch < self._latest:
                observer.fail(f"readers see epoch {epoch} after {self._latest}")
            self._latest = epoch
        for table in engine.catalog.snapshot().tables:
            if table.id not in engine.store or table.created > epoch:
                continue
            stored = engine.store[table.id]
            for at in (epoch, None):
                shown = Epoch(stored.committed if at is None else at)
                rows = stored.rows(at)
                now = Epoch(stored.committed if at is None else at)
                seen = observer.tables.get(table.id)
                if seen is None or shown != now:
                    continue
                found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
                expected = observer.expected_rows(seen, shown)
                if len(found) != rows.num_rows or found != expected:
                    observer.fail(
                        f"a reader of {table.name} at epoch {shown} sees {found}, not {expected}"
                    )

    def _leads(self, engine: SimEngine) -> bool:
        process: SimProcess = engine.process
        return self._world.owner is process and not process.frozen
