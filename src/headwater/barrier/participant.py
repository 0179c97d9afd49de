"""What the coordinator knows of other rooms: jobs that take part, and the one who commits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headwater.barrier.exchange import LocalSender
from headwater.barrier.local import LocalBarrierManager
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork


class LocalOutputs:
    """The channels out of one actor; the coordinator puts a new one in when it is asked for.

    Look at `senders` at the first barrier and at every barrier that carries an Add, and send
    from that barrier on. Drop a sender that is `gone`.
    """

    def __init__(self) -> None:
        self.senders: list[LocalSender[Any]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where one life of a job takes place: its actors, its neighbours, its way to be heard."""

    job: JobId
    generation: int
    actors: tuple[ActorId, ...]
    upstream: Mapping[JobId, tuple[ActorId, ...]]
    committed: Epoch
    local: LocalBarrierManager


class Participant(Protocol):
    """One job, as it takes part in epochs. It is built once per life and may have many lives."""

    @property
    def job(self) -> JobId:
        """Its id, the same in every life."""
        ...

    @property
    def depends_on(self) -> tuple[JobId, ...]:
        """The jobs it reads from; it lives and dies with them."""
        ...

    @property
    def actor_count(self) -> int:
        """How many actors its next life has."""
        ...

    async def build(self, site: Site) -> None:
        """Get ready for `run`: everything slow, and the channels from other actors.

        Before every life, the first included; when it raises, it is called again later with
        another site. Start from the ledger as it is at `site.committed` or later: nothing of
        this job is committed between here and its first barrier. Barriers wait for no build.
        """
        ...

    async def run(self, actor: ActorId, site: Site, outputs: LocalOutputs) -> None:
        """Be one actor: take barriers from `site.local`, and collect each of them.

        The first barrier is INITIAL: it ends no data of this life, and carries Pause when the
        engine is paused. Read what a mutation can change (rate limits, splits, order) when it
        comes and not while building: mutations sent while the job was down are not repeated.

        Fix what belongs to an epoch when the barrier that ends it is taken, never before: this
        is why a FLUSH has everything that was there when it was asked for.

        Return after collecting a barrier with a Stop that names this job. Returning at any other
        time is a failure, as is raising; then the whole graph is cancelled and built anew.
        """
        ...


class Committer(Protocol):
    """Who makes epochs durable and visible. It is called for one epoch at a time, in order."""

    async def commit(self, barrier: Barrier, work: StagedWork, sealed: tuple[Epoch, ...]) -> None:
        """Append `barrier.epoch.prev` to the ledger and show it to readers.

        `RetryableError` means that nothing was written, and the same call is repeated later.
        When it is not known whether the ledger has the epoch (`CommitUnknown`), this method
        reads the ledger until it knows, and returns or raises accordingly. After the ledger
        has the epoch this returns, whatever else has still to be published. Any other
        error, `Fenced` first of all, ends the engine.
        """
        ...

    async def discard(self, jobs: tuple[JobId, ...]) -> None:
        """Drop what these jobs have staged and not committed; may be called again.

        Their actors have ended, and no commit under way names a file of theirs.
        """
        ...
