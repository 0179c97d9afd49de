"""`LocalBarrierManager`: the only bridge from actors to the coordinator.

An actor never calls the coordinator. Everything it has to say becomes a `LocalBarrierEvent` in
one queue, and the coordinator has one handler for each variant: the type checker refuses a
variant without one. So whatever an actor said before it collected a barrier is known before
the collection is.

    collect                                  the epoch is finished; here is the staged work
    notify_failure                           the actor has ended with an error
    subscribe_barrier                        where to send the actor's barriers
    register_local_upstream_output           a channel from another actor
    report_create_mview_progress             how far a backfill is
    report_cdc_table_backfill_progress       which splits of a table are done

The queue is the one unbounded queue of this room. What is in it is bounded by what actors can
say per barrier, and periodic barriers are held back when too many are under way.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from headwater.barrier.cdc_progress import CdcTableBackfillState
from headwater.barrier.exchange import LocalReceiver, LocalSender, open_channel
from headwater.barrier.progress import BackfillState
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId
from headwater.model.record import StagedWork

BarrierReceiver = LocalReceiver[Barrier]
"""The barriers of one actor, as an asynchronous iterator that ends when the actor should."""

DEFAULT_CHANNEL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierCollectedEvent:
    """An actor has finished the epoch that a barrier ends."""

    actor: ActorId
    epoch: Epoch
    work: StagedWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFailureReported:
    """An actor has ended without being told to."""

    actor: ActorId
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierSubscribed:
    """An actor wants its barriers, those already sent included."""

    actor: ActorId
    sender: LocalSender[Barrier]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUpstreamOutputRegistered:
    """An actor wants what another actor puts out."""

    actor: ActorId
    upstream_actor: ActorId
    sender: LocalSender[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMviewProgressReported:
    """How far an actor's backfill is in the epoch that it collects next."""

    actor: ActorId
    generation: int
    epoch: Epoch
    state: BackfillState


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcTableBackfillProgressReported:
    """Which splits an actor has finished in the epoch that it collects next."""

    actor: ActorId
    generation: int
    epoch: Epoch
    state: CdcTableBackfillState


LocalBarrierEvent = (
    BarrierCollectedEvent
    | ActorFailureReported
    | BarrierSubscribed
    | LocalUpstreamOutputRegistered
    | CreateMviewProgressReported
    | CdcTableBackfillProgressReported
)


class LocalBarrierManager:
    """What actors hold in order to be heard; no method waits."""

    def __init__(self, *, channel_bytes: int = DEFAULT_CHANNEL_BYTES) -> None:
        self._events: asyncio.Queue[LocalBarrierEvent] = asyncio.Queue()
        self._channel_bytes = channel_bytes

    def collect(self, actor: ActorId, barrier: Barrier, work: StagedWork | None = None) -> None:
        """Say that the epoch ended by `barrier` is finished, once and in order.

        Work is handed over at a checkpoint and at no other kind. Its files must be written:
        the ledger may name them as soon as this is called.
        """
        self._events.put_nowait(
            BarrierCollectedEvent(actor=actor, epoch=barrier.epoch.prev, work=work or StagedWork())
        )

    def notify_failure(self, actor: ActorId, error: BaseException) -> None:
        """Say that the actor cannot go on; its whole graph will be restarted."""
        self._events.put_nowait(ActorFailureReported(actor=actor, error=error))

    def subscribe_barrier(self, actor: ActorId) -> BarrierReceiver:
        """Ask for the actor's barriers; several parts of one actor may.

        The receiver gets every barrier that the actor was sent. It must be asked for before the
        actor collects its first one, else it raises `BrokenInvariant` when read.
        """
        sender: LocalSender[Barrier]
        sender, receiver = open_channel()
        self._events.put_nowait(BarrierSubscribed(actor=actor, sender=sender))
        return receiver

    def register_local_upstream_output(
        self, actor: ActorId, upstream_actor: ActorId
    ) -> LocalReceiver[Any]:
        """Open a channel from `upstream_actor` and hand its other end to that actor.

        While a job is built. The upstream finds the sender among its outputs, and sends from
        the barrier on that carries the Add.
        """
        sender: LocalSender[Any]
        sender, receiver = open_channel(self._channel_bytes)
        self._events.put_nowait(
            LocalUpstreamOutputRegistered(actor=actor, upstream_actor=upstream_actor, sender=sender)
        )
        return receiver

    def report_create_mview_progress(
        self, actor: ActorId, *, generation: int, epoch: Epoch, state: BackfillState
    ) -> None:
        """Say how far the backfill is, before the barrier that ends `epoch` is collected."""
        self._events.put_nowait(
            CreateMviewProgressReported(
                actor=actor, generation=generation, epoch=epoch, state=state
            )
        )

    def report_cdc_table_backfill_progress(
        self, actor: ActorId, *, generation: int, epoch: Epoch, state: CdcTableBackfillState
    ) -> None:
        """Say which splits are done, before the barrier that ends `epoch` is collected."""
        self._events.put_nowait(
            CdcTableBackfillProgressReported(
                actor=actor, generation=generation, epoch=epoch, state=state
            )
        )

    async def next_event(self) -> LocalBarrierEvent:
        """The oldest event; for the coordinator, which calls `done` after each."""
        return await self._events.get()

    def done(self) -> None:
        """The event last taken has been handled."""
        self._events.task_done()

    async def handled(self) -> None:
        """Wait until everything said so far has been handled."""
        await self._events.join()
