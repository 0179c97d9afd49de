"""Decide when epochs end, when they commit, and who restarts.

One timeline of epochs runs through the whole engine; many jobs, each run by actors, move along
it. A barrier is sent to all actors; when each has answered, the epoch that it ends is complete;
at a checkpoint what the actors staged is committed as one. This module makes every decision
on that way: events go in, instructions come out, and another file carries them out.

    the engine is
        running     barriers are sent, commands are accepted
        ending      the last checkpoint is on its way; commands are refused
        ended       nothing happens any more

    a barrier is flowing, collected, committing or resolved     barrier/in_flight.py
    a job is waiting, running, stopping or down                 barrier/graph.py
    a command is refused or tied to one barrier                 barrier/commands.py
    a crashed actor takes its graph down, and only that         barrier/recovery.py

Promises
    Pure         No clock, no I/O, no tasks: the same events give the same instructions.
    In order     Epochs grow, each barrier begins where the last one ended, and barriers are
                 resolved in the order they were sent. One commit at a time.
    Whole        Nothing is committed unless every actor that its barrier went to has collected
                 it, or has been torn down together with everything it handed over.
    Apart        A graph that fails stops no other graph.
    Patient      Periodic barriers are held back when too many are under way, and are not made
                 up for. Commands always pass.

An illegal step raises `BrokenInvariant` with the story that led to it. `check` says whether the
state makes sense; tests call it after every event.
"""

import dataclasses
from collections import deque
from enum import StrEnum
from typing import assert_never

from headwater.barrier import story
from headwater.barrier.commands import refusal
from headwater.barrier.events import (
    ActorCrashed,
    BarrierCollected,
    BarrierWanted,
    CommandRequested,
    CommitFailed,
    EpochCommitted,
    Event,
    GraphRebuilt,
    JobsRecovered,
    Moment,
    Pace,
    RebuildFailed,
    SettingsChanged,
    StopRequested,
    Ticked,
)
from headwater.barrier.graph import Job, JobPhase, Jobs
from headwater.barrier.in_flight import BarriersUnderWay, BarrierUnderWay
from headwater.barrier.instructions import (
    CommitEpoch,
    DismissActors,
    InjectBarrier,
    Instruction,
    NotifyDone,
    NotifyFailed,
    NotifyStarted,
    ReportClockWentBack,
    StopEngine,
    WakeAt,
)
from headwater.barrier.recovery import Recovery
from headwater.barrier.timeline import Timeline
from headwater.barrier.timer import Backoff, BarrierTimer, Rhythm
from headwater.errors import BrokenInvariant, RetryableError, UserError
from headwater.model.barrier import Barrier, BarrierKind, Pause, Stop
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork

_STORY_LENGTH = 200


class EnginePhase(StrEnum):
    """Where the engine is in its life; the module says what each means."""

    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


class BarrierMachine:
    """All decisions about barriers; `after` is the last epoch in the ledger."""

    def __init__(self, *, after: Epoch, pace: Pace, backoff: Backoff) -> None:
        self.committed = after
        self.phase = EnginePhase.RUNNING
        self.under_way = BarriersUnderWay()
        self.jobs = Jobs()
        self._pace = pace
        self._backoff = backoff
        self._timer = BarrierTimer(pace.interval)
        self._rhythm = Rhythm()
        self._wake: float | None = None
        self._timeline = Timeline(after=after)
        self._recovery = Recovery(
            jobs=self.jobs, under_way=self.under_way, backoff=backoff, tell=self._tell
        )
        self._story: deque[Event | Instruction] = deque(maxlen=_STORY_LENGTH)
        self._out: list[Instruction] = []

    def handle(self, event: Event, at: Moment) -> list[Instruction]:
        """Take in one event and say what is to be done, in this order."""
        self._story.append(event)
        if self.phase is EnginePhase.ENDED:
            return []
        self._out = []
        try:
            self._dispatch(event, at)
            self._resolve_oldest(at)
        except BrokenInvariant as fault:
            raise BrokenInvariant(fault.message, story=self.story()) from fault
        self._run_timer(at)
        return self._out

    def owes(self, actor: ActorId, epoch: Epoch) -> bool:
        """Whether the actor has been sent the barrier that ends `epoch` and not collected it."""
        return epoch in self.under_way.owed_by(actor)

    def may_end(self, actor: ActorId) -> bool:
        """Whether the actor has nothing more to do: gone, or done with its last barrier."""
        job = self.jobs.job_of(actor)
        stopping = job is not None and job.phase is JobPhase.STOPPING
        return job is None or (stopping and not self.under_way.owed_by(actor))

    def is_down(self, job: JobId) -> bool:
        """Whether the job has failed or was just recovered, and waits to be built."""
        return self._recovery.is_down(job)

    def story(self) -> list[str]:
        """The latest events and instructions, oldest first, one readable line each."""
        return [story.line(step) for step in self._story]

    def check(self) -> None:
        """Raise `BrokenInvariant` unless the state makes sense."""
        for fault in story.faults(
            under_way=self.under_way,
            jobs=self.jobs,
            last=self._timeline.last,
            committed=self.committed,
            unsealed=self._timeline.unsealed,
        ):
            raise BrokenInvariant(fault, story=self.story())

    def _dispatch(self, event: Event, at: Moment) -> None:  # noqa: PLR0912  one case per event
        match event:
            case Ticked():
                pass
            case JobsRecovered():
                self._recovery.recover(event)
            case CommandRequested():
                self._command(event, at)
            case BarrierCollected():
                self._collect(event, at)
            case ActorCrashed():
                self._crash(event)
            case EpochCommitted():
                self._commit(event, at)
            case CommitFailed():
                self._fail_commit(event)
            case GraphRebuilt():
                self._recovery.rebuilt(event)
            case RebuildFailed():
                self._recovery.fail_rebuild(event)
            case SettingsChanged():
                self._change_pace(event.pace, at)
            case BarrierWanted():
                self._timer.hasten(at.seconds)
            case StopRequested():
                self._end(at)
            case _ as never:
                assert_never(never)

    # Sending barriers

    def _run_timer(self, at: Moment) -> None:
        receivers = self.jobs.in_phase(JobPhase.RUNNING, JobPhase.WAITING)
        if self.phase is EnginePhase.RUNNING and any(job.actors for job in receivers):
            self._timer.start(at.seconds)
            in_time = at.seconds >= self._held_until()
            if self._timer.is_due(at.seconds) and in_time and len(self.under_way) < self._pace.cap:
                self._send(at)
        else:
            self._timer.stop()
        # A barrier held back at its time is sent with the event that makes room for it.
        due = self._timer.due
        wake = due if due is None else max(due, self._held_until())
        if wake is not None and wake != self._wake:
            self._tell(WakeAt(seconds=wake))
        self._wake = wake

    def _held_until(self) -> float:
        committing = self.under_way.committing
        return 0.0 if committing is None else self._rhythm.next_after(committing.committing_since)

    def _send(
        self, at: Moment, command: CommandRequested | None = None, *, final: bool = False
    ) -> None:
        if command is not None and not self._timeline.opened:
            self._send(at)
        if (back := self._timeline.went_back(at.wall)) is not None:
            self._tell(ReportClockWentBack(by=back))
        barrier = self._timeline.boundary(at.wall, command=command, frequency=self._pace.frequency)
        epoch = barrier.epoch.prev
        if command is not None:
            self._recovery.join(command.built, added_at=epoch)
        to = self._address(barrier)
        self.under_way.push(
            BarrierUnderWay(
                barrier=barrier,
                kinds={actor: seen.kind for actor, seen in to.items()},
                waiting=dict.fromkeys(to),
                command=command,
                sent_at=at.seconds,
                final=final,
            )
        )
        self._timer.restart(at.seconds)
        self._tell(InjectBarrier(barrier=barrier, to=to, last=self._let_go(barrier)))
        if command is not None and not final:
            self._tell(NotifyStarted(command=command.command, epoch=epoch))

    def _address(self, barrier: Barrier) -> dict[ActorId, Barrier]:
        # A first barrier tells a newcomer that the engine is paused; all else it reads itself.
        told = Pause() if self._timeline.paused else barrier.mutation
        initial = dataclasses.replace(barrier, kind=BarrierKind.INITIAL, sealed=(), mutation=told)
        to: dict[ActorId, Barrier] = {}
        for job in self.jobs.in_phase(JobPhase.RUNNING, JobPhase.WAITING):
            seen = initial if job.phase is JobPhase.WAITING else barrier
            to.update(dict.fromkeys(job.actors, seen))
            job.phase = JobPhase.RUNNING
        return to

    def _let_go(self, barrier: Barrier) -> tuple[ActorId, ...]:
        if not isinstance(barrier.mutation, Stop):
            return ()
        for job in barrier.mutation.jobs:
            self.jobs[job].phase = JobPhase.STOPPING
            self.jobs[job].stopped_at = barrier.epoch.prev
        return self.jobs.actors_of(barrier.mutation.jobs)

    # Commands

    def _command(self, command: CommandRequested, at: Moment) -> None:
        error = (
            refusal(command, self.jobs)
            if self.phase is EnginePhase.RUNNING
            else UserError("the engine is stopping and takes no more commands")
        )
        if error is not None:
            self._tell(NotifyFailed(command=command.command, error=error))
            return
        if isinstance(command.mutation, Stop):
            self._dismiss_waiting(command.mutation.jobs)
        self._send(at, command)

    def _end(self, at: Moment) -> None:
        if self.phase is EnginePhase.ENDING:
            return
        self.phase = EnginePhase.ENDING
        self._recovery.give_up()
        self._dismiss_waiting(tuple(job.id for job in self.jobs))
        running = tuple(job.id for job in self.jobs.in_phase(JobPhase.RUNNING))
        last = Stop(jobs=running) if running else None
        self._send(at, CommandRequested(command=-1, mutation=last, sync=True), final=True)

    def _dismiss_waiting(self, jobs: tuple[JobId, ...]) -> None:
        # Actors that never saw a barrier have nothing to finish: a last barrier that is also
        # the first would only be a trap.
        waiting = [job for job in self.jobs.in_phase(JobPhase.WAITING) if job.id in jobs]
        if waiting:
            ids = tuple(job.id for job in waiting)
            self._tell(DismissActors(jobs=ids, actors=self.jobs.actors_of(ids)))
        for job in waiting:
            self.jobs.unstaff(job)

    def _change_pace(self, pace: Pace, at: Moment) -> None:
        if (pace.interval, pace.frequency) != (self._pace.interval, self._pace.frequency):
            self._timeline.restart_count()
        if pace.interval != self._pace.interval:
            self._timer.interval = pace.interval
            if self._timer.due is not None:
                self._timer.restart(at.seconds)
        self._pace = pace

    # Collecting and committing

    def _collect(self, event: BarrierCollected, at: Moment) -> None:
        actor, epoch = event.actor, event.epoch
        if self._job_of(actor) is None:
            return
        owed = self.under_way.owed_by(actor)
        entry = self.under_way.find(epoch)
        if entry is None or owed[:1] != [epoch]:
            raise BrokenInvariant(
                f"actor {actor} collected epoch {epoch}; the epochs it owes are {owed}"
            )
        kind = entry.kinds[actor]
        if not kind.durable and event.work != StagedWork():
            raise BrokenInvariant(
                f"actor {actor} handed over work at the {kind} barrier of epoch {epoch}"
            )
        entry.collect(actor, event.work)
        if entry.complete:
            self._rhythm.collected(at.seconds - entry.sent_at)

    def _resolve_oldest(self, at: Moment) -> None:
        while (oldest := self.under_way.oldest) is not None and oldest.complete:
            if oldest.barrier.kind.durable:
                if not oldest.committing:
                    oldest.committing, oldest.committing_since = True, at.seconds
                    self._tell(self._commit_of(oldest))
                return
            self._resolve()

    def _commit_of(self, entry: BarrierUnderWay) -> CommitEpoch:
        return CommitEpoch(
            barrier=entry.barrier,
            work=entry.merged(),
            sealed=entry.barrier.sealed,
            delay=self._backoff.after(entry.failed_commits),
        )

    def _resolve(self) -> None:
        entry = self.under_way.pop()
        for job in self.jobs:
            if job.added_at == entry.epoch:
                job.added_at = None
        stopped = [job for job in self.jobs if job.stopped_at == entry.epoch]
        if stopped:
            ids = tuple(job.id for job in stopped)
            self._tell(DismissActors(jobs=ids, actors=self.jobs.actors_of(ids)))
        for job in stopped:
            self.jobs.remove(job)
        if entry.final:
            self._stop(cause=None)
        elif entry.command is not None:
            self._tell(NotifyDone(command=entry.command.command, epoch=entry.epoch))

    def _commit(self, event: EpochCommitted, at: Moment) -> None:
        entry = self._committing(event.epoch)
        self._rhythm.committed(at.seconds - entry.committing_since)
        self.committed = entry.epoch
        for actor, kind in entry.kinds.items():
            job = self.jobs.job_of(actor)
            if job is not None and kind.seals:
                job.failures = 0
        self._resolve()
        self._recovery.committed()

    def _fail_commit(self, event: CommitFailed) -> None:
        entry = self._committing(event.epoch)
        if isinstance(event.error, RetryableError):
            entry.failed_commits += 1
            self._tell(self._commit_of(entry))
        else:
            self._stop(cause=event.error)

    def _committing(self, epoch: Epoch) -> BarrierUnderWay:
        entry = self.under_way.committing
        if entry is None or entry.epoch != epoch:
            now = "none is" if entry is None else f"{entry.epoch} is"
            raise BrokenInvariant(
                f"the commit of epoch {epoch} was answered, but {now} being committed"
            )
        return entry

    def _job_of(self, actor: ActorId) -> Job | None:
        """The actor's job, or None when the actor was torn down; what it still sends is void."""
        job = self.jobs.job_of(actor)
        if job is None and not self.jobs.is_gone(actor):
            raise BrokenInvariant(f"actor {actor} was heard of, but there is no such actor")
        return job

    def _crash(self, event: ActorCrashed) -> None:
        job = self._job_of(event.actor)
        if job is not None and not self.may_end(event.actor):
            self._recovery.crash(event, job)

    def _stop(self, *, cause: BaseException | None) -> None:
        self.phase = EnginePhase.ENDED
        self._tell(StopEngine(cause=cause))

    def _tell(self, instruction: Instruction) -> None:
        self._story.append(instruction)
        self._out.append(instruction)
