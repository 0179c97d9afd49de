"""One seed: a world, engines that come and go in it, and a quiet end in which all must be well.

    storm    engines run, are killed, frozen and replaced; upstreams write; a user sends commands;
             everything that can fail does, in the mix of this seed
    calm     faults stop. Within bounded virtual time every command is answered, every zombie is
             fenced, every change has arrived
    apart    (some seeds) one upstream stays away; the others must not notice
    end      old epochs that are kept can be read; after maintenance no file is left that nothing
             needs; the engine stops; one that starts again finds the same rows

`run_seed` raises `SeedFailed` with the trace and the command that replays it.
"""

import asyncio
import functools
import os
import tempfile
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from headwater import crash_points
from headwater.errors import CommitUnknown, Fenced, RetryableError, WorkspaceInUse
from headwater.testing.many_seeds import SeedFailed
from headwater.testing.simulator.process import ProcessDied, SimLoop, SimProcess
from headwater.testing.simulator.sim_engine import SimEngine
from headwater.testing.simulator.user import User
from headwater.testing.simulator.world import World

PARQUET_SHARE = 40
"""Every how many seeds one runs with real Parquet files."""
STRAND_SHARE = 10
"""Every how many seeds one interleaves blocking calls step by step."""

_CALM = {
    "barrier_interval_ms": 400,
    "checkpoint_frequency": 1,
    "in_flight_barriers": 10,
    "maintenance_interval_s": 5.0,
    "retention_s": 60,
}
_TRACE_SHOWN = 60
_PATIENCE_S = 60.0
_TIME_LIMIT_S = 400.0
_ROUND_LIMIT = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one seed did."""

    seed: int
    digest: int
    """A checksum of the whole trace: the same seed always gives the same."""
    epochs: int
    lives: int
    virtual_s: float


def run_seed(seed: int) -> Report:
    """Run one seed to its end; `SeedFailed` if anything is wrong."""
    loop = SimLoop(
        seed,
        strands=seed % STRAND_SHARE == 1,
        time_limit=_TIME_LIMIT_S,
        round_limit=_ROUND_LIMIT,
    )
    world = World(seed, loop, parquet=seed % PARQUET_SHARE == 2)
    scenario = Scenario(seed, world)
    crash_points.install_hook(world.pass_crash_point)
    try:
        loop.run_until_complete(scenario.run())
    except BaseException as error:
        cause = loop.death or error
        if isinstance(cause, KeyboardInterrupt):
            raise
        raise SeedFailed(_story(seed, world, cause)) from cause
    finally:
        crash_points.install_hook(None)
        loop.end()
    return Report(
        seed=seed,
        digest=zlib.crc32("\n".join(world.trace).encode()),
        epochs=len(world.observer.history),
        lives=len(scenario.processes),
        virtual_s=loop.time(),
    )


def replay_command(seed: int) -> str:
    """What to type to see a seed again."""
    return f"python -m headwater.testing.simulator --seeds 1 --seed0 {seed} --verbose"


def _story(seed: int, world: World, error: BaseException) -> str:
    trace = "\n".join(world.trace[-_TRACE_SHOWN:])
    return (
        f"seed {seed} failed: {type(error).__name__}: {error}\n"
        f"replay: {replay_command(seed)}\n{trace}"
    )


@functools.cache
def _workspace(pid: int) -> Path:
    """An empty folder for each worker: engines ask for one and write nothing to it."""
    return Path(tempfile.mkdtemp(prefix="headwater-simulator-"))


class Scenario:
    """Plays one seed."""

    def __init__(self, seed: int, world: World) -> None:
        self.processes: list[SimProcess] = []
        self.engine: SimEngine | None = None
        self._world = world
        self._loop = world.loop
        self._random = Random(f"{seed}/scenario")
        self._user = User(world, Random(f"{seed}/user"))
        self._zombies: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._settings = self._draw_settings()

    async def run(self) -> None:
        """The whole seed."""
        await self._storm()
        await self._calm()
        if self._random.random() < 0.25:
            await self._apart()
        await self._end()

    # Storm

    async def _storm(self) -> None:
        seconds = self._random.uniform(0.3, 1.0)
        beside = [
            asyncio.create_task(self._write()),
            asyncio.create_task(self._user.run(lambda: self.engine)),
            asyncio.create_task(self._disturb()),
        ]
        wanted = self._random.choice((1, 2, 2, 3))
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            await self._have_engine()
            if len(self._world.upstreams) < wanted:
                await self._attempt(self._user.create)
            await asyncio.sleep(0.02)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    async def _have_engine(self) -> None:
        """Start an engine if none runs; one that ended by itself must have had a reason."""
        engine = self.engine
        if engine is not None and engine.process.dead:
            self.engine = None
        elif engine is not None and engine.failure is not None:
            await self._bury(engine)
        if self.engine is None:
            await self._start()

    async def _bury(self, engine: SimEngine) -> None:
        """The engine has ended by itself: only because another has taken over."""
        error = engine.failure
        if not isinstance(error, Fenced):
            self._world.observer.fail(f"the engine ended by itself: {error!r}")
        if engine.term == self._term():
            self._world.observer.fail("the engine was fenced though nobody took over")
        self._world.tell(f"{engine.process.name} is fenced")
        if self.engine is engine:
            self.engine = None
        await self._stop(engine)

    async def _stop(self, engine: SimEngine) -> None:
        try:
            await self._within(engine.process.call(engine.stop()), "the engine does not stop")
        except ProcessDied:
            return
        self._world.tell(f"{engine.process.name} has stopped")

    async def _start(self, *, take_over: bool | None = None) -> None:
        """Have an engine, however often it takes."""
        began = self._loop.time()
        async with self._starting:
            await self._start_one(began, take_over)

    async def _start_one(self, began: float, take_over: bool | None) -> None:
        while self.engine is None:
            process = SimProcess(self._loop, f"p{len(self.processes)}")
            self.processes.append(process)
            force = self._random.random() < 0.7 if take_over is None else take_over
            try:
                engine = await process.call(self._open(process, force))
            except ProcessDied:
                continue
            except (RetryableError, CommitUnknown, WorkspaceInUse, Fenced) as error:
                self._world.tell(f"{process.name} does not start: {type(error).__name__}")
                await asyncio.sleep(0.1)
            else:
                self._world.tell(f"{process.name} runs as term {engine.term}")
                self.engine = engine
            if self._loop.time() - began > _PATIENCE_S:
                self._world.observer.fail("no engine can be started")

    async def _open(self, process: SimProcess, force: bool) -> SimEngine:
        engine = SimEngine(
            self._world, process, _workspace(os.getpid()), self._settings, take_over=force
        )
        await engine.start()
        return engine

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.06))
            if self._world.upstreams:
                self._random.choice(self._world.upstreams[-4:]).write()

    async def _disturb(self) -> None:
        """Freeze engines and move the clock."""
        while True:
            await asyncio.sleep(self._random.uniform(0.02, 0.3))
            if self._world.happens(self._world.faults.clock):
                by = self._random.choice((-5.0, -0.5, -0.01, 0.3, 3.0))
                self._loop.clock_skew += timedelta(seconds=by)
                self._world.tell(f"the clock jumps by {by} s")
            engine = self.engine
            alive = engine is not None and not engine.process.dead and engine.failure is None
            if engine is not None and alive and self._world.happens(self._world.faults.freeze):
                self.engine = None
                self._zombies.append(asyncio.create_task(self._freeze(engine)))

    async def _freeze(self, engine: SimEngine) -> None:
        """Freeze an engine, let another take over, and wake the first one up."""
        process = engine.process
        self._world.tell(f"{process.name} is frozen")
        self._loop.freeze(process)
        await self._start(take_over=True)
        await asyncio.sleep(self._random.uniform(0, 0.5))
        if process.dead:
            return
        self._world.tell(f"{process.name} wakes up")
        self._loop.thaw(process)
        watching = process.spawn(engine.wait_failed())
        await asyncio.wait(
            (watching, process.gone), timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
        if process.dead:
            return
        if not watching.done():
            self._world.observer.fail(f"{process.name} goes on though another has taken over")
        await self._bury(engine)

    # Calm

    async def _calm(self) -> None:
        world = self._world
        world.quiet()
        world.tell("calm")
        await self._within(self._settle(), "commands or zombies do not come to an end")
        self._settings = {**self._settings, **_CALM}
        await self._do(self._user.slow_down)
        await self._do(self._user.resume)
        await self._do(self._user.lift_limits)
        await self._within(self._caught_up(), "changes do not arrive")
        world.calm = True
        for upstream in world.upstreams[-3:]:
            upstream.write()
        await self._do(self._user.flush)
        await self._do(self._user.read)

    async def _settle(self) -> None:
        while True:
            waiting = [t for t in (*self._zombies, *self._user.tasks) if not t.done()]
            await self._have_engine()
            if not waiting:
                break
            await asyncio.wait(waiting, timeout=0.5)
        for task in (*self._zombies, *self._user.tasks):
            task.result()

    async def _caught_up(self, away: str = "") -> None:
        observer = self._world.observer
        while any(
            observer.positions.get(source.name, 0) < source.upstream.end
            for source in observer.sources.values()
            if source.name != away
        ):
            await asyncio.sleep(0.05)

    async def _apart(self) -> None:
        """One upstream is away; the others go on."""
        sources = list(self._world.observer.sources.values())
        if len(sources) < 2:
            return
        away = self._random.choice(sources)
        self._world.tell(f"{away.name} stays away")
        away.upstream.away = True
        self._world.calm = False
        for source in sources:
            source.upstream.write()
        await self._within(self._caught_up(away.name), f"others wait for {away.name}")
        await self._do(self._user.flush)
        away.upstream.away = False
        await self._within(self._caught_up(), f"{away.name} does not come back")
        self._world.calm = True

    # End

    async def _end(self) -> None:
        engine, observer = self._engine(), self._world.observer
        for table in observer.tables.values():
            for epoch, _ in observer.history:
                if epoch >= max(table.manifest.horizon, min(table.versions.values())):
                    observer.check_history(table, epoch)
        await engine.process.call(engine.change_settings({"retention_s": 0}))
        for _ in range(3):
            self._loop.clock_skew += timedelta(seconds=10)
            await self._do(self._user.flush)
            await self._do(self._user.maintain)
        self._check_orphans(strays=False)
        await self._stop(engine)
        self.engine = None
        await self._start(take_over=False)
        self._check_orphans(strays=True)
        await self._do(self._user.read)
        await self._do(self._user.flush)
        await self._stop(self._engine())
        self._world.tell(f"{len(observer.history)} epochs")

    def _check_orphans(self, *, strays: bool) -> None:
        """Every file is needed by an epoch, or by a fold that waits for one."""
        observer = self._world.observer
        tables = observer.tables
        busy = {
            f"{tables[table.id].folder}/{path}"
            for table in self._engine().store
            if table.id in tables
            for path in table.busy_paths()
        }
        left = [path for path in observer.unneeded_files(strays=strays) if path not in busy]
        if left:
            shown = ", ".join(sorted(left)[:5])
            self._world.observer.fail(f"{len(left)} files are left that nothing needs: {shown}")

    # Inside

    def _engine(self) -> SimEngine:
        if self.engine is None:
            self._world.observer.fail("no engine runs")
        return self.engine

    async def _attempt(self, operation: Callable[[SimEngine], Awaitable[None]]) -> bool:
        engine = self.engine
        return engine is not None and await self._user.attempt(engine, operation)

    async def _do(self, operation: Callable[[SimEngine], Awaitable[None]]) -> None:
        """Do something that must work now."""
        name = getattr(operation, "__name__", "?")
        done = await self._within(self._attempt(operation), f"{name} is not answered")
        if not done:
            self._world.observer.fail(f"{name} is refused though nothing is wrong")

    async def _within(self, work: Awaitable[Any], complaint: str) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await work
        except TimeoutError:
            self._world.observer.fail(f"{complaint} within {_PATIENCE_S:g} s")

    def _term(self) -> int:
        query = "SELECT term FROM hw_fence"
        return int(self._world.database.connection.execute(query).fetchone()[0])

    def _draw_settings(self) -> dict[str, Any]:
        random = self._random
        return {
            "barrier_interval_ms": random.choice((15, 40, 80, 150)),
            "checkpoint_frequency": random.choice((1, 1, 2, 4)),
            "in_flight_barriers": random.choice((1, 2, 3, 10)),
            "restart_backoff_ms": random.choice((5, 20)),
            "restart_backoff_max_ms": 200,
            "maintenance_interval_s": random.choice((0.1, 0.4, 2.0)),
            "retention_s": random.choice((0, 0, 1, 60)),
            "manifest_every": random.choice((1, 3, 10)),
            "fold_files": random.choice((2, 3, 6)),
            "delta_checkpoint_every": 1_000_000,
            "takeover_wait_s": random.choice((0.6, 2.0)),
        }
