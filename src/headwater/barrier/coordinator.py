"""The coordinator: what the rest of the engine asks for when it wants epochs.

It takes jobs in and lets them go, flushes, pauses and stops, and says which epoch is committed.
The decisions are in `machine.py`, the deeds in `conductor.py`; here are the promises:

    Failures     An actor that raises, or returns without being told to, takes its graph down.
                 Errors of one graph that come close together are one failure, and the most
                 telling of them is its cause. The graph is built again, after a wait that
                 doubles, from what is committed. Other graphs do not notice.
    Commits      One at a time and in order. A commit that can be repeated is, for as long as
                 it takes; any other error ends the engine and resolves `failure`.
    Progress     What jobs have reported up to an epoch is durable with that epoch.
    Cancelling   A caller that gives up waiting changes nothing: its command goes on.
    Determined   Time comes from the loop and from the wall clock handed in; nothing depends
                 on chance or on the order of a set, so a virtual loop replays a run exactly.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

from headwater.barrier.cdc_progress import CdcTableBackfillProgress
from headwater.barrier.conductor import Conductor, Outcome, Outside
from headwater.barrier.events import (
    BarrierWanted,
    CommandRequested,
    JobBuilt,
    JobPlan,
    JobsRecovered,
    Pace,
    SettingsChanged,
    StopRequested,
)
from headwater.barrier.local import LocalBarrierManager
from headwater.barrier.machine import BarrierMachine
from headwater.barrier.notices import Watcher, log_notice
from headwater.barrier.participant import Committer, Participant
from headwater.barrier.progress import JobProgress
from headwater.barrier.timer import Backoff
from headwater.errors import HeadwaterError, RelationError, UserError
from headwater.model.barrier import (
    Add,
    AssignSplits,
    Define,
    Mutation,
    Pause,
    Rescale,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
)
from headwater.model.epoch import Epoch, WallClock, system_clock
from headwater.model.ids import ActorId, FragmentId, JobId
from headwater.model.vnode import VnodeBitmap

ERROR_WINDOW = timedelta(milliseconds=50)
"""How long after a failure further errors of the same graph are taken to be part of it."""


class Coordinator:
    """Runs all jobs along one line of epochs; `after` is the last epoch in the ledger."""

    def __init__(  # noqa: PLR0913  one argument per thing it is given
        self,
        committer: Committer,
        *,
        after: Epoch,
        pace: Pace | None = None,
        backoff: Backoff | None = None,
        clock: WallClock = system_clock,
        watch: Watcher = log_notice,
        error_window: timedelta = ERROR_WINDOW,
        local: LocalBarrierManager | None = None,
    ) -> None:
        machine = BarrierMachine(after=after, pace=pace or Pace(), backoff=backoff or Backoff())
        self._conductor = Conductor(
            machine=machine,
            committer=committer,
            local=local or LocalBarrierManager(),
            clock=clock,
            error_window=error_window,
            outside=Outside(
                command_ended=self._on_command_ended,
                epoch_committed=self._on_epoch_committed,
                ended=self._on_ended,
                watch=watch,
            ),
        )
        self._committed = after
        self._commands = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Epoch]] = {}
        self._awaited: list[tuple[Epoch, asyncio.Future[Epoch]]] = []
        self._over = asyncio.Event()
        self._cause: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[BaseException] | None = None

    @property
    def committed(self) -> Epoch:
        """The last epoch that is durable and visible."""
        return self._committed

    @property
    def failure(self) -> "asyncio.Future[BaseException]":
        """Resolves with the error that ended the engine, if one ever does."""
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
            if self._cause is not None:
                self._failure.set_result(self._cause)
        return self._failure

    def progress(self, job: JobId) -> JobProgress | None:
        """How far the job's backfill is, if it is followed."""
        return self._conductor.board.of_job(job)

    def cdc_progress(self, job: JobId) -> CdcTableBackfillProgress | None:
        """How far the table's splits are, if they are followed."""
        return self._conductor.board.of_table(job)

    def track(
        self, tracker: JobProgress | CdcTableBackfillProgress, *, durable: str | None = None
    ) -> None:
        """Follow a job's progress, from before it is started; `durable` is what the ledger has."""
        self._conductor.board.track(tracker, durable=durable)

    def __contains__(self, job: object) -> bool:
        """Whether a job takes part, or will."""
        return job in self._conductor.participants

    def story(self) -> list[str]:
        """The latest events and instructions, one line each."""
        return self._conductor.machine.story()

    async def start(self, participants: Sequence[Participant] = ()) -> None:
        """Run these jobs; upstream ones come before those that read from them.

        Returns when each has started or has failed to; those that have not are tried again.
        """
        self._conductor.start()
        self._conductor.participants.update({each.job: each for each in participants})
        plans = tuple(JobPlan(job=each.job, depends_on=each.depends_on) for each in participants)
        self._conductor.step(JobsRecovered(jobs=plans))
        await self._conductor.settled()

    async def add(self, participants: Sequence[Participant]) -> Epoch:
        """Let new jobs join; upstream ones come first. When it raises, nothing of them is left."""
        known = self._conductor.participants
        for each in participants:
            if each.job in known:
                raise RelationError(f"job {each.job} is there already")
        jobs = tuple(each.job for each in participants)
        known.update({each.job: each for each in participants})
        built: tuple[JobBuilt, ...] = ()
        try:
            await self._conductor.cleared(jobs)
            built = await self._unless_over(self._conductor.build(jobs))
            actors = tuple(actor for each in built for actor in each.actors)
            done = self._request(Add(jobs=jobs, actors=actors), built=built)
        except BaseException:
            await self._undo_add(jobs, built)
            raise
        try:
            return await done
        except HeadwaterError:
            await self._undo_add(jobs, built)
            raise

    async def _unless_over(
        self, work: Coroutine[Any, Any, tuple[JobBuilt, ...]]
    ) -> tuple[JobBuilt, ...]:
        over = asyncio.create_task(self._over.wait(), name="wait for the end")
        task = asyncio.create_task(work, name="build")
        try:
            await asyncio.wait((task, over), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._farewell()
            return task.result()
        finally:
            over.cancel()
            task.cancel()
            await asyncio.gather(task, over, return_exceptions=True)

    async def _undo_add(self, jobs: tuple[JobId, ...], built: tuple[JobBuilt, ...]) -> None:
        for job in jobs:
            self._conductor.participants.pop(job, None)
            self._conductor.board.forget(job)
        await self._conductor.crew.end(actor for each in built for actor in each.actors)
        await self._conductor.cleared(jobs)

    async def stop_jobs(self, jobs: Sequence[JobId]) -> Epoch:
        """Let jobs go; their last epoch is committed when this returns."""
        epoch = await self._ask(Stop(jobs=tuple(jobs)))
        await self._conductor.cleared(jobs)
        for job in jobs:
            self._conductor.participants.pop(job, None)
            self._conductor.board.forget(job)
        return epoch

    async def flush(self) -> Epoch:
        """Return the epoch that has everything from before this call, once it is visible."""
        return await self._ask(None, sync=True)

    async def pause(self) -> Epoch:
        """Stop reading from the outside; barriers go on."""
        return await self._ask(Pause())

    async def resume(self) -> Epoch:
        """The opposite of `pause`."""
        return await self._ask(Resume())

    async def throttle(self, limits: Mapping[JobId, int | None]) -> Epoch:
        """Change rate limits, which the caller has stored already."""
        return await self._ask(Throttle(limits=limits))

    async def rescale(self, bitmaps: Mapping[ActorId, VnodeBitmap]) -> Epoch:
        """Give vnodes new owners."""
        return await self._ask(Rescale(bitmaps=bitmaps), sync=True)

    async def start_fragment_backfill(self, fragments: Sequence[FragmentId]) -> Epoch:
        """Let fragments read that waited for others."""
        return await self._ask(StartFragmentBackfill(fragments=tuple(fragments)))

    async def define(self, key: int) -> Epoch:
        """Let what was proposed under `key` take effect; returns the epoch that has it."""
        return await self._ask(Define(key=key))

    async def assign_splits(
        self, generation: int, splits: Mapping[ActorId, tuple[str, ...]]
    ) -> Epoch:
        """Give source splits new owners."""
        return await self._ask(AssignSplits(generation=generation, splits=splits))

    def hasten(self) -> None:
        """Send the next barrier now, as far as barriers under way leave room for it."""
        if not self._over.is_set():
            self._conductor.step(BarrierWanted())

    def change_settings(self, pace: Pace) -> None:
        """Send barriers at another pace from now on."""
        self._conductor.step(SettingsChanged(pace=pace))

    async def wait_committed(self, epoch: Epoch) -> Epoch:
        """Wait until `epoch` is visible; returns the last epoch that is."""
        if epoch <= self._committed:
            return self._committed
        self._refuse_when_over()
        future: asyncio.Future[Epoch] = asyncio.get_running_loop().create_future()
        self._awaited.append((epoch, future))
        return await future

    async def stop(self, *, grace: timedelta | None = None) -> None:
        """Commit one last epoch and end, without it when that takes longer than `grace`."""
        try:
            if not self._over.is_set():
                self._conductor.step(StopRequested())
                limit = None if grace is None else grace.total_seconds()
                async with asyncio.timeout(limit):
                    await self._over.wait()
        except TimeoutError:
            pass
        finally:
            self._on_ended(None)
            if self._closing is not None:
                await self._closing

    async def _ask(self, mutation: Mutation | None, *, sync: bool = False) -> Epoch:
        return await self._request(mutation, sync=sync)

    def _request(
        self, mutation: Mutation | None, *, sync: bool = False, built: tuple[JobBuilt, ...] = ()
    ) -> "asyncio.Future[Epoch]":
        self._refuse_when_over()
        command = next(self._commands)
        future: asyncio.Future[Epoch] = asyncio.get_running_loop().create_future()
        # A caller may have gone away; its error then has nobody to be told to.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[command] = future
        self._conductor.step(
            CommandRequested(command=command, mutation=mutation, sync=sync, built=built)
        )
        return future

    def _refuse_when_over(self) -> None:
        if self._over.is_set():
            raise self._farewell()

    def _farewell(self) -> HeadwaterError:
        if isinstance(self._cause, HeadwaterError):
            return self._cause
        return UserError("the engine has stopped", detail=str(self._cause or ""))

    def _on_command_ended(self, command: int, outcome: Outcome) -> None:
        _settle(self._waiting.pop(command), outcome)

    def _on_epoch_committed(self, epoch: Epoch) -> None:
        self._committed = epoch
        for awaited, future in self._awaited:
            if awaited <= epoch:
                _settle(future, epoch)
        self._awaited = [each for each in self._awaited if each[0] > epoch]

    def _on_ended(self, cause: BaseException | None) -> None:
        if self._over.is_set():
            return
        self._cause = cause
        self._over.set()
        if cause is not None and not self.failure.done():
            self.failure.set_result(cause)
        for future in (*self._waiting.values(), *(future for _, future in self._awaited)):
            _settle(future, self._farewell())
        self._waiting.clear()
        self._awaited.clear()
        self._closing = asyncio.create_task(self._conductor.shut_down(), name="shut down")


def _settle(future: "asyncio.Future[Epoch]", outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
