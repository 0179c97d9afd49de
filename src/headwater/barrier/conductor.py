"""Carry out what the barrier machine decides: on one event loop, with tasks and no threads.

Actors speak through the `LocalBarrierManager`, callers through the coordinator, commits and
rebuilds through their tasks. Each becomes one event, the machine answers with instructions, and
those are carried out at once or as a task. The machine is never asked while it is answering,
so there is no lock.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, assert_never

from headwater.barrier.crew import Crew, most_telling
from headwater.barrier.events import (
    ActorCrashed,
    BarrierCollected,
    CommitFailed,
    EpochCommitted,
    Event,
    GraphRebuilt,
    JobBuilt,
    Moment,
    RebuildFailed,
    Ticked,
)
from headwater.barrier.instructions import (
    CommitEpoch,
    DismissActors,
    InjectBarrier,
    Instruction,
    NotifyDone,
    NotifyFailed,
    NotifyStarted,
    RebuildGraph,
    ReportClockWentBack,
    StopEngine,
    TearDown,
    WakeAt,
)
from headwater.barrier.local import (
    ActorFailureReported,
    BarrierCollectedEvent,
    BarrierSubscribed,
    CdcTableBackfillProgressReported,
    CreateMviewProgressReported,
    LocalBarrierEvent,
    LocalBarrierManager,
    LocalUpstreamOutputRegistered,
)
from headwater.barrier.machine import BarrierMachine
from headwater.barrier.notices import (
    BarrierSent,
    ClockWentBack,
    CommandStarted,
    CommitDelayed,
    EpochDurable,
    GraphFailed,
    GraphStarted,
    RebuildDelayed,
    Watcher,
)
from headwater.barrier.participant import Committer, Participant, Site
from headwater.barrier.progress_board import ProgressBoard
from headwater.model.epoch import Epoch, WallClock
from headwater.model.ids import ActorId, JobId

Outcome = Epoch | BaseException
"""How a command ended: with its epoch, or with an error."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Outside:
    """Whom the conductor tells: each is called on the loop and must not wait."""

    command_ended: Callable[[int, Outcome], None]
    epoch_committed: Callable[[Epoch], None]
    ended: Callable[[BaseException | None], None]
    watch: Watcher


class Conductor:
    """Steps the machine and carries out its instructions."""

    def __init__(  # noqa: PLR0913  one argument per thing it brings together
        self,
        *,
        machine: BarrierMachine,
        committer: Committer,
        local: LocalBarrierManager,
        clock: WallClock,
        error_window: timedelta,
        outside: Outside,
    ) -> None:
        self.participants: dict[JobId, Participant] = {}
        self.board = ProgressBoard()
        self.crew = Crew(local)
        self.machine = machine
        self._committer = committer
        self._local = local
        self._clock = clock
        self._error_window = error_window
        self._outside = outside
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._rebuilding: dict[asyncio.Task[None], None] = {}
        self._clearing: dict[JobId, asyncio.Task[None]] = {}
        self._unborn: list[ActorFailureReported] = []
        self._suspects: dict[tuple[JobId, ...], list[tuple[ActorId, BaseException]]] = {}
        self._generations: dict[JobId, int] = {}
        self._discarding: list[tuple[tuple[JobId, ...], asyncio.Event]] = []
        self._wake: asyncio.TimerHandle | None = None
        self._commit_complaint: str | None = None
        self._over = False

    def start(self) -> None:
        """Listen to actors from now on."""
        self._spawn(self._listen(), name="barrier events")

    def step(self, event: Event, *, not_before: float = 0.0) -> None:
        """Hand one event to the machine and carry out what it says."""
        if self._over:
            return
        now = max(asyncio.get_running_loop().time(), not_before)
        try:
            for instruction in self.machine.handle(event, Moment(now, self._clock())):
                self._carry_out(instruction)
            unborn, self._unborn = self._unborn, []
            for failure in unborn:
                self._on_actor_failure(failure)
        except Exception as error:
            self._end(error)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case InjectBarrier():
                self._inject(instruction)
            case CommitEpoch():
                self._spawn(self._commit(instruction), name="commit")
            case TearDown(jobs=jobs, actors=actors, cause=cause):
                self._outside.watch(GraphFailed(jobs=jobs, cause=cause))
                self._end_actors(jobs, actors)
            case DismissActors(jobs=jobs, actors=actors):
                self._end_actors(jobs, actors)
            case RebuildGraph(torn=torn):
                rebuild = self._spawn(self._rebuild(instruction), name=f"rebuild of {torn}")
                self._rebuilding[rebuild] = None
            case NotifyStarted(command=command, epoch=epoch):
                self._outside.watch(CommandStarted(command=command, epoch=epoch))
            case NotifyDone(command=command, epoch=epoch):
                self._outside.command_ended(command, epoch)
            case NotifyFailed(command=command, error=error):
                self._outside.command_ended(command, error)
            case ReportClockWentBack(by=by):
                self._outside.watch(ClockWentBack(by=by))
            case WakeAt(seconds=seconds):
                self._wake_at(seconds)
            case StopEngine(cause=cause):
                self._end(cause)
            case _ as never:
                assert_never(never)

    def _inject(self, instruction: InjectBarrier) -> None:
        last = frozenset(instruction.last)
        for actor, barrier in instruction.to.items():
            self.crew.deliver(actor, barrier, last=actor in last)
        barrier = instruction.barrier
        self._outside.watch(
            BarrierSent(epoch=barrier.epoch.prev, kind=barrier.kind, actors=len(instruction.to))
        )

    def _wake_at(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        # A loop may fire a timer a clock tick early; the machine must still see it as due.
        self._wake = asyncio.get_running_loop().call_at(
            seconds, lambda: self.step(Ticked(), not_before=seconds)
        )

    # What actors say

    async def _listen(self) -> None:
        while True:
            event = await self._local.next_event()
            try:
                self._hear(event)
            except Exception as error:
                self._end(error)
            finally:
                self._local.done()

    def _hear(self, event: LocalBarrierEvent) -> None:
        match event:
            case BarrierCollectedEvent():
                self._on_barrier_collected(event)
            case ActorFailureReported():
                self._on_actor_failure(event)
            case BarrierSubscribed():
                self.crew.subscribe(event.actor, event.sender)
            case LocalUpstreamOutputRegistered():
                self.crew.connect(event.upstream_actor, event.sender)
            case CreateMviewProgressReported():
                self._on_create_mview_progress(event)
            case CdcTableBackfillProgressReported():
                self._on_cdc_table_backfill_progress(event)
            case _ as never:
                assert_never(never)

    def _on_barrier_collected(self, event: BarrierCollectedEvent) -> None:
        self.crew.note_collected(event.actor)
        self.step(BarrierCollected(actor=event.actor, epoch=event.epoch, work=event.work))

    def _on_actor_failure(self, event: ActorFailureReported) -> None:
        job = self.machine.jobs.job_of(event.actor)
        if job is None and event.actor in self.crew and not self.machine.jobs.is_gone(event.actor):
            # It has failed before the machine was told that it is there.
            self._unborn.append(event)
        if job is None or self.machine.may_end(event.actor):
            return
        failure = (event.actor, event.error)
        for graph, failures in self._suspects.items():
            if job.id in graph:
                failures.append(failure)
                return
        graph = self.machine.jobs.graph_of(job.id)
        self._suspects[graph] = [failure]
        self._spawn(self._judge(graph), name=f"failure of {graph}")

    async def _judge(self, graph: tuple[JobId, ...]) -> None:
        await asyncio.sleep(self._error_window.total_seconds())
        failures = self._suspects.pop(graph)
        cause = most_telling(error for _, error in failures)
        self.step(ActorCrashed(actor=failures[0][0], error=cause))

    def _on_create_mview_progress(self, event: CreateMviewProgressReported) -> None:
        job = self.crew.job_of(event.actor)
        if job is not None:
            in_flight = self.machine.owes(event.actor, event.epoch)
            now = asyncio.get_running_loop().time()
            self.board.take_job_report(job, event, in_flight=in_flight, at=now)

    def _on_cdc_table_backfill_progress(self, event: CdcTableBackfillProgressReported) -> None:
        job = self.crew.job_of(event.actor)
        if job is not None:
            in_flight = self.machine.owes(event.actor, event.epoch)
            self.board.take_table_report(job, event, in_flight=in_flight)

    # Committing

    async def _commit(self, instruction: CommitEpoch) -> None:
        """Have one epoch committed, with the progress that its jobs have reported.

        Replay: the committer repeats the same epoch with the same work, and the ledger takes
        an epoch once.
        """
        epoch = instruction.barrier.epoch.prev
        loop = asyncio.get_running_loop()
        await asyncio.sleep(instruction.delay.total_seconds())
        changes = self.board.changes(epoch)
        work = dataclasses.replace(
            instruction.work, progress=self.board.attach(instruction.work.progress, changes)
        )
        began = loop.time()
        try:
            await self._committer.commit(instruction.barrier, work, instruction.sealed)
        except Exception as error:
            self._complain_once(epoch, error)
            self.step(CommitFailed(epoch=epoch, error=error))
            return
        self._commit_complaint = None
        self.board.committed(epoch, changes)
        self._outside.watch(EpochDurable(epoch=epoch, took=timedelta(seconds=loop.time() - began)))
        self._outside.epoch_committed(epoch)
        self.step(EpochCommitted(epoch=epoch))

    def _complain_once(self, epoch: Epoch, error: Exception) -> None:
        complaint = repr(error)
        if complaint != self._commit_complaint:
            self._commit_complaint = complaint
            self._outside.watch(CommitDelayed(epoch=epoch, error=error))

    # Building and ending actors

    async def build(self, jobs: Iterable[JobId]) -> tuple[JobBuilt, ...]:
        """Give each job a new life; when one cannot be built, none is."""
        wanted = [self.participants[job] for job in jobs if job in self.participants]
        hired = {each.job: self.crew.hire(each.job, each.actor_count) for each in wanted}
        sites: list[Site] = []
        try:
            for participant in wanted:
                site = self._site(participant, hired)
                self.board.begin(site.job, site.generation, site.actors)
                await participant.build(site)
                sites.append(site)
            await self._local.handled()
        except BaseException:
            await self.crew.end(actor for actors in hired.values() for actor in actors)
            raise
        for participant, site in zip(wanted, sites, strict=True):
            self.crew.start(participant, site)
        return tuple(
            JobBuilt(job=each.job, actors=hired[each.job], depends_on=each.depends_on)
            for each in wanted
        )

    def _site(self, participant: Participant, hired: dict[JobId, tuple[ActorId, ...]]) -> Site:
        job = participant.job
        self._generations[job] = self._generations.get(job, 0) + 1
        return Site(
            job=job,
            generation=self._generations[job],
            actors=hired[job],
            upstream={
                upstream: hired.get(upstream) or self.machine.jobs.actors_of((upstream,))
                for upstream in participant.depends_on
            },
            committed=self.machine.committed,
            local=self._local,
        )

    async def _rebuild(self, instruction: RebuildGraph) -> None:
        try:
            await self._clear(instruction.torn)
            await asyncio.sleep(instruction.delay.total_seconds())
            # While it slept, a job may have been stopped, and even added anew.
            built = await self.build(job for job in instruction.jobs if self.machine.is_down(job))
        except Exception as error:
            self._outside.watch(RebuildDelayed(jobs=instruction.jobs, error=error))
            self.step(RebuildFailed(jobs=instruction.jobs, error=error))
            return
        if built:
            self.step(GraphRebuilt(jobs=built))
            self._outside.watch(GraphStarted(jobs=tuple(each.job for each in built)))

    async def _clear(self, jobs: tuple[JobId, ...]) -> None:
        discarded = asyncio.Event()
        self._discarding.append((jobs, discarded))
        try:
            await self._actors_ended(jobs)
            await self._committer.discard(jobs)
        finally:
            self._discarding.remove((jobs, discarded))
            discarded.set()

    def _end_actors(self, jobs: tuple[JobId, ...], actors: tuple[ActorId, ...]) -> None:
        task = self._spawn(self.crew.end(actors), name=f"end of {actors}")
        self._clearing.update(dict.fromkeys(jobs, task))

    async def _actors_ended(self, jobs: Iterable[JobId]) -> None:
        await _all_done(self._clearing[job] for job in jobs if job in self._clearing)

    async def cleared(self, jobs: Iterable[JobId]) -> None:
        """Wait until the past lives of these jobs have ended and nothing of them is staged."""
        wanted = frozenset(jobs)
        # A rebuild that was told just now begins to clear in the next turn of the loop.
        await asyncio.sleep(0)
        await self._actors_ended(sorted(wanted))
        for torn, discarded in tuple(self._discarding):
            if wanted.intersection(torn):
                await discarded.wait()

    async def settled(self) -> None:
        """Wait until every rebuild under way has come to something."""
        await _all_done(self._rebuilding)

    # Ending

    def _end(self, cause: BaseException | None) -> None:
        if not self._over:
            self._over = True
            self._outside.ended(cause)

    async def shut_down(self) -> None:
        """Cancel everything and wait until it has ended; may be called again."""
        self._over = True
        if self._wake is not None:
            self._wake.cancel()
        mine = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.crew.end(self.crew.everyone)

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        self._rebuilding.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)


async def _all_done(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Wait for tasks without cancelling them when the waiting is cancelled."""
    waited = list(tasks)
    if waited:
        await asyncio.wait(waited)
