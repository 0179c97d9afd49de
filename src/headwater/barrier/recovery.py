"""Take a failed graph down and bring it back, while the others go on.

What happens when an actor crashes, by what its graph has under way:

    a barrier not being committed    goes on without the graph; what the graph handed over is
                                     dropped, so no epoch holds a part of it
    the commit under way             goes on as it is: the graph's work in it is whole. The
                                     graph is rebuilt after it, from what it made durable
    an Add                           fails, and leaves nothing of its jobs
    orders to actors that are gone   fail
    a Stop                           holds: the jobs are not rebuilt
    anything else                    holds, for the other graphs and for the actors to come

The wait before a rebuild doubles with every failure in a row. It begins anew once actors of the
graph have taken part in a commit as more than newcomers.
"""

import dataclasses
from collections.abc import Callable

from headwater.barrier.commands import dies_with
from headwater.barrier.events import (
    ActorCrashed,
    GraphRebuilt,
    JobBuilt,
    JobsRecovered,
    RebuildFailed,
)
from headwater.barrier.graph import Job, JobPhase, Jobs
from headwater.barrier.in_flight import BarriersUnderWay, BarrierUnderWay
from headwater.barrier.instructions import (
    DismissActors,
    Instruction,
    NotifyFailed,
    RebuildGraph,
    TearDown,
)
from headwater.barrier.timer import Backoff
from headwater.errors import ActorFailed, BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId


class Recovery:
    """The part of the machine that handles failures; it shares the machine's state."""

    def __init__(
        self,
        *,
        jobs: Jobs,
        under_way: BarriersUnderWay,
        backoff: Backoff,
        tell: Callable[[Instruction], None],
    ) -> None:
        self._jobs = jobs
        self._under_way = under_way
        self._backoff = backoff
        self._tell = tell
        self._held: list[tuple[tuple[JobId, ...], tuple[JobId, ...]]] = []
        self._given_up = False

    def give_up(self) -> None:
        """Bring nothing back from now on: the engine ends."""
        self._given_up = True

    def recover(self, event: JobsRecovered) -> None:
        """Take in the jobs that ran when the engine last ended."""
        for plan in event.jobs:
            if plan.job in self._jobs:
                raise BrokenInvariant(f"job {plan.job} was recovered twice")
            self._jobs.add(Job(id=plan.job, depends_on=plan.depends_on, phase=JobPhase.DOWN))
        for graph in self._jobs.graphs(plan.job for plan in event.jobs):
            self._rebuild(graph, torn=graph)

    def crash(self, event: ActorCrashed, job: Job) -> None:
        """Take down the graph of `job`, of which one actor has crashed."""
        torn = self._jobs.graph_of(job.id)
        actors = self._jobs.actors_of(torn)
        self._tell(TearDown(jobs=torn, actors=actors, cause=event.error))
        in_commit = self._under_way.committing
        for entry in self._under_way:
            if entry is not in_commit:
                self._drop_from(entry, torn, actors, event.error)
        rebuilt = tuple(job for job in torn if self._tear(self._jobs[job], in_commit))
        if in_commit is not None and any(actor in in_commit.works for actor in actors):
            self._held.append((rebuilt, torn))
        else:
            self._rebuild(rebuilt, torn=torn)

    def committed(self) -> None:
        """The commit under way is resolved: graphs that waited for it can be rebuilt."""
        held, self._held = self._held, []
        for jobs, torn in held:
            # Since then a job may have been stopped, or its id taken by a new one.
            dead = tuple(job for job in torn if job not in self._jobs or self.is_down(job))
            self._rebuild(tuple(job for job in jobs if self.is_down(job)), torn=dead)

    def fail_rebuild(self, event: RebuildFailed) -> None:
        """Try again later."""
        down = tuple(job for job in event.jobs if self.is_down(job))
        for job in down:
            self._jobs[job].failures += 1
        for graph in self._jobs.graphs(down):
            self._rebuild(tuple(job for job in graph if job in down), torn=graph)

    def rebuilt(self, event: GraphRebuilt) -> None:
        """Let the new actors wait for the next barrier; those that nobody wants any more end."""
        unwanted: list[JobBuilt] = []
        for built in event.jobs:
            if self.is_down(built.job) and not self._given_up:
                self._refuse_used(built)
                self._jobs.staff(self._jobs[built.job], built.actors)
            else:
                unwanted.append(built)
        if unwanted:
            actors = tuple(actor for built in unwanted for actor in built.actors)
            self._tell(DismissActors(jobs=tuple(built.job for built in unwanted), actors=actors))

    def join(self, newcomers: tuple[JobBuilt, ...], *, added_at: Epoch) -> None:
        """Take in new jobs; until the barrier of their Add is resolved they may be undone."""
        for built in newcomers:
            self._refuse_used(built)
            self._jobs.add(
                Job(
                    id=built.job,
                    depends_on=built.depends_on,
                    phase=JobPhase.WAITING,
                    actors=built.actors,
                    added_at=added_at,
                )
            )

    def _drop_from(
        self,
        entry: BarrierUnderWay,
        jobs: tuple[JobId, ...],
        actors: tuple[ActorId, ...],
        cause: BaseException,
    ) -> None:
        entry.drop(actors)
        command = entry.command
        if command is not None and dies_with(command.mutation, jobs, actors):
            entry.command = None
            # Whoever commits the epoch must not carry out what was undone.
            entry.barrier = dataclasses.replace(entry.barrier, mutation=None)
            error = ActorFailed(
                f"the job stopped before its command was done: {cause}",
                detail=f"{type(cause).__name__} in the graph of jobs {', '.join(map(str, jobs))}.",
            )
            error.__cause__ = cause
            self._tell(NotifyFailed(command=command.command, error=error))

    def _tear(self, job: Job, in_commit: BarrierUnderWay | None) -> bool:
        """Take a job down; whether it is to come back."""
        committing = None if in_commit is None else in_commit.epoch
        undone = job.added_at is not None and job.added_at != committing
        if undone or job.phase is JobPhase.STOPPING:
            self._jobs.remove(job)
            return False
        self._jobs.unstaff(job)
        job.failures += 1
        return True

    def _rebuild(self, jobs: tuple[JobId, ...], *, torn: tuple[JobId, ...]) -> None:
        wanted = () if self._given_up else jobs
        failures = max((self._jobs[job].failures for job in wanted), default=0)
        self._tell(RebuildGraph(jobs=wanted, torn=torn, delay=self._backoff.after(failures)))

    def is_down(self, job: JobId) -> bool:
        """Whether the job is there and has no actors for the time being."""
        return job in self._jobs and self._jobs[job].phase is JobPhase.DOWN

    def _refuse_used(self, built: JobBuilt) -> None:
        for actor in built.actors:
            if self._jobs.is_used(actor):
                raise BrokenInvariant(
                    f"job {built.job} was built with actor {actor}, an id used before"
                )
