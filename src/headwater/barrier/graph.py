"""Jobs, their actors, and the graphs that they form.

Jobs that read from one another share their fate: a view must not commit an epoch that its table
lost. A *graph* is everything connected in that way, computed when it is needed, so that a
graph grows with an added job and falls apart with a stopped one by itself. The jobs of one
Add command belong together until it is resolved, for they come or go as one.

    waiting     built; its actors have not been sent a barrier
    running     its actors are sent every barrier
    stopping    its last barrier is sent and not resolved
    down        it has no actors; a rebuild is planned or under way
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId


class JobPhase(StrEnum):
    """Where a job is in its life; the module says what each means."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DOWN = "down"


@dataclass(slots=True, kw_only=True)
class Job:
    """One job as the machine knows it."""

    id: JobId
    depends_on: tuple[JobId, ...]
    phase: JobPhase
    actors: tuple[ActorId, ...] = ()
    added_at: Epoch | None = None
    """The epoch ended by its Add barrier, while that is not resolved."""
    stopped_at: Epoch | None = None
    """The epoch ended by its last barrier."""
    failures: int = 0
    """In a row, since its actors last took part in a commit."""


class Jobs:
    """All jobs by id, and by actor."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._by_actor: dict[ActorId, JobId] = {}
        self._gone: dict[JobId, frozenset[ActorId]] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, job: JobId) -> bool:
        return job in self._jobs

    def __getitem__(self, job: JobId) -> Job:
        return self._jobs[job]

    def in_phase(self, *phases: JobPhase) -> list[Job]:
        """The jobs in one of these phases, in the order they came."""
        return [job for job in self._jobs.values() if job.phase in phases]

    def job_of(self, actor: ActorId) -> Job | None:
        """The job that a living actor works for."""
        job = self._by_actor.get(actor)
        return None if job is None else self._jobs[job]

    def is_gone(self, actor: ActorId) -> bool:
        """Whether the actor was one of ours, in its job's latest past life."""
        return any(actor in actors for actors in self._gone.values())

    def is_used(self, actor: ActorId) -> bool:
        """Whether the id belongs to a living actor or to one of the latest dead."""
        return actor in self._by_actor or self.is_gone(actor)

    def add(self, job: Job) -> None:
        """Take in a job, with its actors if it has some."""
        self._jobs[job.id] = job
        self._by_actor.update(dict.fromkeys(job.actors, job.id))

    def staff(self, job: Job, actors: tuple[ActorId, ...]) -> None:
        """Give a job that was down its new actors."""
        job.actors, job.phase = actors, JobPhase.WAITING
        self._by_actor.update(dict.fromkeys(actors, job.id))

    def unstaff(self, job: Job) -> None:
        """Take a job's actors away; what they still send is ignored from now on."""
        for actor in job.actors:
            del self._by_actor[actor]
        if job.actors:
            self._gone[job.id] = frozenset(job.actors)
        job.actors, job.phase = (), JobPhase.DOWN

    def remove(self, job: Job) -> None:
        """Forget a job and take its actors away."""
        self.unstaff(job)
        del self._jobs[job.id]

    def graph_of(self, *jobs: JobId) -> tuple[JobId, ...]:
        """Everything connected with these jobs, themselves included, in the order they came."""
        neighbours = self._neighbours()
        reached: set[JobId] = set()
        frontier = [job for job in jobs if job in self._jobs]
        while frontier:
            job = frontier.pop()
            if job not in reached:
                reached.add(job)
                frontier.extend(neighbours[job])
        return tuple(job for job in self._jobs if job in reached)

    def graphs(self, jobs: Iterable[JobId]) -> list[tuple[JobId, ...]]:
        """The graphs that these jobs belong to, each once."""
        found: dict[tuple[JobId, ...], None] = {}
        for job in jobs:
            found[self.graph_of(job)] = None
        return list(found)

    def actors_of(self, jobs: Collection[JobId]) -> tuple[ActorId, ...]:
        """The living actors of these jobs."""
        known = (self._jobs[job] for job in jobs if job in self._jobs)
        return tuple(actor for job in known for actor in job.actors)

    def _neighbours(self) -> dict[JobId, list[JobId]]:
        neighbours: dict[JobId, list[JobId]] = defaultdict(list)
        added: dict[Epoch, JobId] = {}
        for job in self._jobs.values():
            linked = [upstream for upstream in job.depends_on if upstream in self._jobs]
            if job.added_at is not None:
                linked.append(added.setdefault(job.added_at, job.id))
            for other in linked:
                neighbours[job.id].append(other)
                neighbours[other].append(job.id)
        return neighbours
