"""One life of an engine that creates views: the jobs are the real ones, the rest is a model.

Work runs when the scenario says so, and sees what is durable at that moment. Definitions go
through in turn, as in `runtime/ddl.py`: each waits for barriers that carry what it asks for, and
may be killed between any two of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast

from headwater.barrier.local import CreateMviewProgressReported
from headwater.barrier.participant import Site
from headwater.barrier.progress import ConsumingUpstreamTableOrSource
from headwater.barrier.progress_board import ProgressBoard
from headwater.errors import HeadwaterError, HistoryGone
from headwater.model.barrier import Barrier, Mutation, Pause, Resume, Stop, Throttle
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.record import StagedWork
from headwater.runtime.creating.job import BACKFILL, Lent
from headwater.runtime.creating.views import intents
from headwater.testing.snapshot_simulator.job import Local, ModelJob, Running, Store
from headwater.testing.snapshot_simulator.target import UNDER_WAY
from headwater.testing.snapshot_simulator.upstream import View
from headwater.testing.snapshot_simulator.world import (
    Begin,
    Definition,
    Drop,
    Join,
    Making,
    Set,
    World,
)

_SLICE_BYTES = 50
_CATCH_UP_ROWS, _MERGE_ROWS = 6, 3


@dataclass(slots=True)
class Work:
    """A call that runs when the scenario says so, again as long as it is under way."""

    call: Callable[[], Any]
    future: "asyncio.Future[Any]"

    def run(self, error: HeadwaterError | None = None) -> None:
        """Go on with it, or end it with an error."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
            return
        try:
            found = self.call()
            if found is not UNDER_WAY:
                self.future.set_result(found)
        except BaseException as error_of_it:
            self.future.set_exception(error_of_it)


@dataclass(slots=True, eq=False)
class Command:
    """What waits for a barrier of its own, and for its epoch."""

    done: "asyncio.Future[Epoch]"
    mutation: Mutation | None = None
    definition: Definition | None = None
    adds: Running | None = None


class Life:
    """An engine from its start to its end."""

    def __init__(self, world: World, dice: Random, tell: Callable[..., None]) -> None:
        self.world = world
        self.works: list[Work] = []
        self.errors: list[BaseException] = []
        self.commands: deque[Command] = deque()
        self.jobs: dict[int, ModelJob] = {}
        self.running: dict[int, Running] = {}
        self.joined = self.cancelled = 0
        self.paused = False
        self.calm = False
        self._limits: dict[int, int | None] = {}
        self._dice = dice
        self._tell = tell
        self._board = ProgressBoard()
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: list[tuple[Epoch, asyncio.Future[None]]] = []
        self._in_flight: Epoch | None = None
        self._actors = 0
        loop = asyncio.get_running_loop()
        self._lent = Lent(
            store=cast(Any, Store(world)),
            spark=cast(Any, None),
            blocking=cast(Any, None),
            staging=cast(Any, None),
            stored=world.facts.get,
            last=lambda: world.last,
            pin=self._pin,
            pinned=self._pinned,
            wait_committed=self._wait,
            hurry=lambda: None,
            slice_bytes=_SLICE_BYTES,
            clock=loop.time,
        )

    async def start(self) -> None:
        """Go on with what an earlier life has begun, and let go of what nobody needs."""
        made = {making.key for making in self.world.making.values()}
        for name in [each for each in self.world.pins if each.startswith(BACKFILL)]:
            if name not in made:
                del self.world.pins[name]
        for intent in intents(self.world.catalog()):
            job = self._open(self.world.making[intent.id])
            try:
                self._run(await self._built(job))
            except HistoryGone:
                assert job.making.let_go, "history is gone that a view needs"

    async def die(self) -> None:
        """Killed: what was under way has not happened."""
        tasks = [*self._tasks, *(each.task for each in self.running.values() if each.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def idle(self) -> bool:
        """Whether nothing is being defined."""
        return not self._tasks

    def check(self) -> None:
        """Raise what a task has met, and check what is promised of progress."""
        for error in self.errors:
            raise error
        for running in self.running.values():
            if running.task is not None and running.task.done():
                running.task.result()
            progress = running.job.progress
            assert progress is not None
            assert 0.0 <= progress.percent <= 100.0, f"progress is {progress.percent}"
            assert progress.percent >= running.shown, (
                f"progress falls from {running.shown} to {progress.percent}"
            )
            assert progress.rows <= progress.total, "more rows are read than there are"
            running.shown = progress.percent

    # Barriers

    async def pass_(self, barrier: Barrier, command: Command | None) -> dict[int, Any]:
        """Send a barrier to every job; each answers at once, whatever is under way."""
        if command is not None and command.adds is not None:
            self._run(command.adds)
        self._in_flight = barrier.epoch.prev
        self._heed(barrier.mutation, lifts=True)
        for running in self.running.values():
            # A first barrier tells a newcomer that the engine is paused.
            news = running.sent is None and self.paused
            running.sent = replace(barrier, mutation=Pause()) if news else barrier
            running.work = StagedWork()
            running.barriers.put_nowait(running.sent)
        await self.settle()
        found: dict[int, Any] = {}
        for id_, running in self.running.items():
            if running.task is not None and running.task.done():
                running.task.result()
            assert running.collected is running.sent, f"a barrier waits for job {id_}"
            if running.work.progress:
                assert barrier.kind.durable, "a plain barrier stores something"
                rows = running.job.filled.staged.get(barrier.epoch.prev)
                found[id_] = (rows, running.work.progress[running.job.key])
        self._heed(barrier.mutation, lifts=False)
        self._mislead()
        self._in_flight = None
        return found

    def commit(
        self, epoch: Epoch, filled: Mapping[int, tuple[View | None, str]], command: Command | None
    ) -> None:
        """The ledger has the epoch."""
        definition = None if command is None else command.definition
        self.world.commit(epoch, filled, definition)
        self._board.committed(epoch, {})
        if command is not None and not command.done.done():
            command.done.set_result(epoch)
        for at, future in self._waits:
            if at <= epoch and not future.done():
                future.set_result(None)
        self._waits = [each for each in self._waits if not each[1].done()]

    async def settle(self) -> None:
        """Let everything happen that can."""
        await asyncio.sleep(1e-6)

    def _heed(self, mutation: Mutation | None, *, lifts: bool) -> None:
        """What holds of jobs before all have a barrier, and after that."""
        match mutation:
            case Pause() if not lifts:
                self.paused = True
            case Resume() if lifts:
                self.paused = False
            case Throttle(limits=limits):
                altered = {int(job): n for job, n in limits.items()}
                self._limits |= {job: n for job, n in altered.items() if lifts is (n != 0)}
            case _:
                pass

    def _mislead(self) -> None:
        """Reports that must not count: of another life, of a stranger, of another epoch."""
        for running in self.running.values():
            if self._dice.random() < 0.9:
                continue
            counted = running.job.counted
            before = (counted.rows, counted.percentage)
            says = ConsumingUpstreamTableOrSource(rows=1 << 40)
            now = self._lent.clock()
            for actor, generation, in_flight in (
                (running.actor, running.generation - 1, True),
                (ActorId(1 << 30), running.generation, True),
                (running.actor, running.generation, False),
            ):
                report = CreateMviewProgressReported(
                    actor=actor, generation=generation, epoch=Epoch(self.world.last), state=says
                )
                self._board.take_job_report(running.job.job, report, in_flight=in_flight, at=now)
                assert before == (counted.rows, counted.percentage), "a report counts that must not"

    # What the scenario and jobs ask for; each as `runtime/ddl.py` does it

    def begin(self, making: Making) -> None:
        """Create a view."""
        self._spawn(self._begin(making))

    def cancel(self, id_: int) -> None:
        """Drop a view in the making."""
        self._spawn(self._cancel(id_))

    def drop(self, table: TableId) -> None:
        """Drop a view that is live."""
        self._spawn(self._drop(table))

    def limit(self, id_: int, rows_per_s: int | None) -> None:
        """Alter how fast a view is filled."""
        self._spawn(self._limit(id_, rows_per_s))

    def scale(self, id_: int, slices: int | None) -> None:
        """Alter how many slices of a view are read at a time."""
        self._spawn(self._scale(id_, slices))

    async def _begin(self, making: Making) -> None:
        async with self._one:
            if self.world.catalog().relation(making.intent.name) is not None:
                return
            if not self.world.live.keys() | {1, 2} >= set(making.plan.tables):
                return
            job = self._open(making)
            await self._ask(Begin(making), adds=await self._built(job))

    async def _join(self, job: ModelJob, after: Epoch) -> None:
        executor = job.executor
        assert executor is not None
        async with self._one:
            if job.gone:
                return
            if not self.calm and self._dice.random() < 0.3:
                self._tell("the join is refused")
                executor.merge_failed()
                return
            epoch = await self._ask(Join(job.making, after))
            self._tell("joined", job.making.intent.name, after, epoch)
            self.joined += 1
            job.gone = True
            await self._end(job)

    async def _cancel(self, id_: int) -> None:
        async with self._one:
            job = self.jobs.get(id_)
            if job is None or job.gone:
                return
            job.gone = True
            job.making.let_go = True
            await self._end(job)
            epoch = await self._ask(Drop(id_))
            self._tell("dropped", job.making.intent.name, epoch)
            self.cancelled += 1

    async def _end(self, job: ModelJob) -> None:
        if job.making.id in self.running:
            await self._ask(mutation=Stop(jobs=(job.job,)))
            running = self.running.pop(job.making.id)
            assert running.task is not None
            assert running.task.done(), "a job goes on that was stopped"
        self._board.forget(job.job)
        self.jobs.pop(job.making.id)
        self.world.pins.pop(job.key, None)

    async def _drop(self, table: TableId) -> None:
        async with self._one:
            if table in self.world.live and not self.world.catalog().dependents([table]):
                await self._ask(Drop(table))
                self._tell("dropped live", table)

    async def _limit(self, id_: int, rows_per_s: int | None) -> None:
        async with self._one:
            if (job := self._made(id_)) is not None:
                await self._ask(Set(id_, "backfill_rate_limit", rows_per_s))
                await self._ask(mutation=Throttle(limits={job.job: rows_per_s}))

    async def _scale(self, id_: int, slices: int | None) -> None:
        async with self._one:
            if (job := self._made(id_)) is not None:
                await self._ask(Set(id_, "backfill_parallelism", slices))
                job.scale()

    def _made(self, id_: int) -> ModelJob | None:
        job = self.jobs.get(id_)
        return None if job is None or job.gone or id_ not in self.world.making else job

    async def _ask(
        self,
        definition: Definition | None = None,
        *,
        mutation: Mutation | None = None,
        adds: Running | None = None,
    ) -> Epoch:
        done: asyncio.Future[Epoch] = asyncio.get_running_loop().create_future()
        self.commands.append(Command(done, mutation, definition, adds))
        return await done

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    # Jobs

    def _open(self, making: Making) -> ModelJob:
        job: ModelJob
        late = cast(Any, partial(self._blocking, making.id))
        job = ModelJob(
            job=JobId(making.id),
            lent=replace(self._lent, blocking=late, staging=late),
            merge=lambda after: self._spawn(self._join(job, after)),
            failed=lambda error: self._failed(job, error),
            over=lambda: job.gone,
            said=lambda name: _number(making, name),
            world=self.world,
            making=making,
            slices=self._dice.choice((1, 2, 1000)),
        )
        self.jobs[making.id] = job
        self._board.track(job.counted)
        return job

    def _failed(self, job: ModelJob, error: HeadwaterError) -> None:
        self._tell("failed", job.making.intent.name, error)
        assert isinstance(error, HistoryGone), error
        assert job.making.let_go, f"view {job.making.intent.name} needs what is gone: {error}"
        self.cancel(job.making.id)

    async def _built(self, job: ModelJob) -> Running:
        """Give a job its actor, which does nothing before it runs."""
        self._actors += 1
        running = Running(job, ActorId(self._actors), generation=self._actors)
        running.site = Site(
            job=job.job,
            generation=running.generation,
            actors=(running.actor,),
            upstream={},
            committed=self.world.last,
            local=cast(Any, Local(running, self._board, lambda: self._in_flight)),
        )
        self._board.begin(job.job, running.generation, (running.actor,))
        await job.build(running.site)
        assert job.executor is not None
        pace = job.executor.machine.pace
        pace.catch_up_rows, pace.merge_rows = _CATCH_UP_ROWS, _MERGE_ROWS
        stored = sum(each.rows for each in self.world.progress(job.making).values())
        assert job.counted.rows >= stored, "progress is less than what the ledger has"
        return running

    def _run(self, running: Running) -> None:
        job = running.job
        self.running[job.making.id] = running
        self._limits[job.making.id] = job.said("backfill_rate_limit")
        work = job.run(running.actor, running.site, cast(Any, None))
        running.task = asyncio.ensure_future(work)

    async def _pin(self, name: str, epoch: Epoch) -> None:
        self.world.pin(name, epoch)

    async def _pinned(self, name: str) -> Epoch | None:
        return self.world.pins.get(name)

    async def _blocking(self, id_: int, call: Callable[..., Any], *arguments: Any) -> Any:
        if call.__name__ in ("stage", "reading", "_seams"):
            return call(*arguments)
        assert not self.paused, "something is read in a pause"
        assert not self.jobs[id_].gone, "something is read for a view that goes"
        assert self._limits[id_] != 0, "something is read under a limit of 0"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        work = Work(lambda: call(*arguments), future)
        if call.__name__ == "sweep":
            steps = self.jobs[id_].filled.swept(*arguments)
            work.call = lambda: next(steps, None)
        self.works.append(work)
        return await work.future

    async def _wait(self, epoch: Epoch) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append((epoch, future))
        await future


def _number(making: Making, name: str) -> int | None:
    text = making.intent.settings.get(name, "")
    return int(text) if text else None
