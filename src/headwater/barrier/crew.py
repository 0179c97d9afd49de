"""The actors at work: their tasks, their barriers, the channels between them."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headwater.barrier.exchange import LocalSender
from headwater.barrier.local import LocalBarrierManager
from headwater.barrier.participant import LocalOutputs, Participant, Site
from headwater.errors import ActorFailed, BrokenInvariant, HeadwaterError, UserError
from headwater.model.barrier import Barrier
from headwater.model.ids import ActorId, JobId


@dataclass(slots=True, kw_only=True)
class _Actor:
    """One actor, from its id to the end of its task."""

    job: JobId
    outputs: LocalOutputs = field(default_factory=LocalOutputs)
    pending: list[Barrier] | None = field(default_factory=list)
    """The barriers for subscribers to come; None once the actor has collected."""
    subscribers: list[LocalSender[Barrier]] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None
    last_sent: bool = False
    dismissed: bool = False


class Crew:
    """Starts actors, hands them barriers, and ends them."""

    def __init__(self, local: LocalBarrierManager) -> None:
        self._local = local
        self._ids = itertools.count(1)
        self._actors: dict[ActorId, _Actor] = {}

    def __contains__(self, actor: ActorId) -> bool:
        return actor in self._actors

    @property
    def everyone(self) -> tuple[ActorId, ...]:
        """All actors that have not ended."""
        return tuple(self._actors)

    def hire(self, job: JobId, count: int) -> tuple[ActorId, ...]:
        """New actors of a job, without tasks yet; ids are never used twice."""
        actors = tuple(ActorId(next(self._ids)) for _ in range(count))
        self._actors.update({actor: _Actor(job=job) for actor in actors})
        return actors

    def job_of(self, actor: ActorId) -> JobId | None:
        """The job of an actor that has not ended."""
        known = self._actors.get(actor)
        return None if known is None else known.job

    def start(self, participant: Participant, site: Site) -> None:
        """Let the actors of one job run."""
        for actor in site.actors:
            known = self._actors[actor]
            known.task = asyncio.create_task(
                self._run(participant, actor, site, known),
                name=f"actor {actor} of job {site.job}",
            )

    def deliver(self, actor: ActorId, barrier: Barrier, *, last: bool) -> None:
        """Send one barrier to an actor, now and to those of its parts that ask later."""
        known = self._actors[actor]
        known.last_sent |= last
        if known.pending is not None:
            known.pending.append(barrier)
        for subscriber in known.subscribers:
            subscriber.send_nowait(barrier)
            if last:
                subscriber.close()

    def note_collected(self, actor: ActorId) -> None:
        """From an actor's first collection on, nobody can subscribe to its barriers."""
        if actor in self._actors:
            self._actors[actor].pending = None

    def subscribe(self, actor: ActorId, sender: LocalSender[Barrier]) -> None:
        """Send an actor's barriers there, those already sent included."""
        known = self._actors.get(actor)
        if known is None:
            sender.close()
        elif known.pending is None:
            sender.fail(
                BrokenInvariant(f"actor {actor} asked for barriers after it had collected one")
            )
        else:
            known.subscribers.append(sender)
            for barrier in known.pending:
                sender.send_nowait(barrier)
            if known.last_sent:
                sender.close()

    def connect(self, upstream: ActorId, sender: LocalSender[Any]) -> None:
        """Give an actor one more output."""
        known = self._actors.get(upstream)
        if known is None:
            sender.fail(ActorFailed(f"actor {upstream}, which was to be read from, has ended"))
        else:
            known.outputs.senders.append(sender)

    async def end(self, actors: Iterable[ActorId]) -> None:
        """Cancel actors and wait until they have ended; those that have are passed over."""
        ending = {actor: self._actors[actor] for actor in actors if actor in self._actors}
        for known in ending.values():
            known.dismissed = True
            if known.task is not None:
                known.task.cancel()
        tasks = [known.task for known in ending.values() if known.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for actor, known in ending.items():
            self._actors.pop(actor, None)
            for subscriber in known.subscribers:
                subscriber.close()
            for sender in known.outputs.senders:
                sender.fail(ActorFailed(f"actor {actor}, which was read from, has ended"))

    async def _run(
        self, participant: Participant, actor: ActorId, site: Site, known: _Actor
    ) -> None:
        """Run one actor and report its end, whatever it is; who listens knows what to expect."""
        error: BaseException
        try:
            await participant.run(actor, site, known.outputs)
        except asyncio.CancelledError as cancelled:
            if known.dismissed:
                raise
            error = cancelled
        except Exception as raised:
            error = raised
        else:
            error = BrokenInvariant(f"actor {actor} of job {site.job} ended without being told to")
        if not known.dismissed:
            self._local.notify_failure(actor, error)


def most_telling(errors: Iterable[BaseException]) -> BaseException:
    """Of several errors of one graph, the likeliest cause; of equals the first."""
    return min(errors, key=_distance_from_cause)


def _distance_from_cause(error: BaseException) -> int:
    ranks: tuple[Callable[[], bool], ...] = (
        lambda: isinstance(error, UserError),
        lambda: isinstance(error, HeadwaterError) and not isinstance(error, ActorFailed),
        lambda: not isinstance(error, ActorFailed | asyncio.CancelledError),
        lambda: isinstance(error, ActorFailed),
    )
    return next((rank for rank, holds in enumerate(ranks) if holds()), len(ranks))
