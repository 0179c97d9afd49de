"""Barriers under way: sent, and neither complete nor committed.

flowing       some actor that it was sent to has not collected it
collected     every actor has; an earlier barrier is not resolved yet
committing    it is the oldest, a checkpoint, and the ledger is being written
resolved      complete (not a checkpoint) or committed; it is not kept any more
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from headwater.barrier.events import CommandRequested
from headwater.model.barrier import Barrier, BarrierKind
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId
from headwater.model.record import StagedWork, merge_work


@dataclass(slots=True, kw_only=True)
class BarrierUnderWay:
    """One barrier, who still owes an answer, and what the others have handed over."""

    barrier: Barrier
    kinds: dict[ActorId, BarrierKind]
    waiting: dict[ActorId, None]
    works: dict[ActorId, StagedWork] = field(default_factory=dict)
    command: CommandRequested | None = None
    sent_at: float
    final: bool = False
    """Whether the engine ends with it."""
    committing_since: float = 0.0
    committing: bool = False
    failed_commits: int = 0

    @property
    def epoch(self) -> Epoch:
        """The epoch that it ends, by which it is known."""
        return self.barrier.epoch.prev

    @property
    def complete(self) -> bool:
        """Whether every actor that it was sent to has collected it."""
        return not self.waiting

    def collect(self, actor: ActorId, work: StagedWork) -> None:
        """Take one actor's answer."""
        del self.waiting[actor]
        self.works[actor] = work

    def drop(self, actors: Collection[ActorId]) -> None:
        """Forget these actors: they owe nothing, and what they handed over is void."""
        for actor in actors:
            self.waiting.pop(actor, None)
            self.works.pop(actor, None)
            self.kinds.pop(actor, None)

    def merged(self) -> StagedWork:
        """The work of all actors together."""
        return merge_work(self.works.values())


class BarriersUnderWay:
    """All barriers under way, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[BarrierUnderWay] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[BarrierUnderWay]:
        return iter(self._queue)

    @property
    def oldest(self) -> BarrierUnderWay | None:
        """The one that is resolved next."""
        return self._queue[0] if self._queue else None

    @property
    def committing(self) -> BarrierUnderWay | None:
        """The one whose epoch is being written to the ledger; it is always the oldest."""
        return self._queue[0] if self._queue and self._queue[0].committing else None

    def push(self, entry: BarrierUnderWay) -> None:
        """Take in a barrier that has just been sent."""
        self._queue.append(entry)

    def pop(self) -> BarrierUnderWay:
        """Let go of the oldest: it is resolved."""
        return self._queue.popleft()

    def find(self, epoch: Epoch) -> BarrierUnderWay | None:
        """The barrier that ends `epoch`, if it is under way."""
        return next((entry for entry in self._queue if entry.epoch == epoch), None)

    def owed_by(self, actor: ActorId) -> list[Epoch]:
        """The epochs whose barrier the actor was sent and has not collected, oldest first."""
        return [entry.epoch for entry in self._queue if actor in entry.waiting]
