"""Barriers: the boundaries between epochs, their kinds, and the mutations they may carry.

    kind             seals prev    makes it durable    the caller waits until it is visible
    Initial          no            no                  -     first after a start or recovery
    Barrier          yes           no                  -
    Checkpoint       yes           yes                 no
    SyncCheckpoint   yes           yes                 yes   FLUSH, planned stop, rescale, WAIT

A mutation changes the running graph and takes effect at the barrier that carries it: the epoch
that ends still runs the old way, the epoch that begins runs the new way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import ActorId, FragmentId, JobId
from headwater.model.vnode import VnodeBitmap


class BarrierKind(StrEnum):
    """What a barrier does to the epoch that it ends."""

    INITIAL = "initial"
    BARRIER = "barrier"
    CHECKPOINT = "checkpoint"
    SYNC_CHECKPOINT = "sync_checkpoint"

    @property
    def seals(self) -> bool:
        """Whether the epoch that ends holds data."""
        match self:
            case BarrierKind.INITIAL:
                return False
            case BarrierKind.BARRIER | BarrierKind.CHECKPOINT | BarrierKind.SYNC_CHECKPOINT:
                return True
            case _ as never:
                assert_never(never)

    @property
    def durable(self) -> bool:
        """Whether everything up to it is committed to the ledger."""
        match self:
            case BarrierKind.CHECKPOINT | BarrierKind.SYNC_CHECKPOINT:
                return True
            case BarrierKind.INITIAL | BarrierKind.BARRIER:
                return False
            case _ as never:
                assert_never(never)


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """New jobs join the graph; the barrier is the first that their actors see."""

    jobs: tuple[JobId, ...]
    actors: tuple[ActorId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """These jobs end; the barrier is the last that their actors collect."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Sources, DML and snapshot reads stop; barriers go on."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The opposite of Pause; on a graph that runs it does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """New rate limits in rows per second; 0 pauses, None lifts the limit."""

    limits: Mapping[JobId, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """New owners of vnodes; state moves with its vnodes."""

    bitmaps: Mapping[ActorId, VnodeBitmap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFragmentBackfill:
    """Fragments that waited for others in a backfill order may start reading."""

    fragments: tuple[FragmentId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignSplits:
    """New source splits by actor, under a new generation."""

    generation: int
    splits: Mapping[ActorId, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Define:
    """Relations appear, change or go with the epoch that ends; `key` names what was proposed."""

    key: int


Mutation = (
    Add | Stop | Pause | Resume | Throttle | Rescale | StartFragmentBackfill | AssignSplits | Define
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """One boundary on its way through the graph."""

    epoch: EpochPair
    kind: BarrierKind
    mutation: Mutation | None = None
    sealed: tuple[Epoch, ...] = ()
    """At a checkpoint: the epochs since the last one, `epoch.prev` included, oldest first."""
