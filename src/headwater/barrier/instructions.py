"""What the barrier machine tells the coordinator to do: frozen values in the imperative."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headwater.errors import HeadwaterError
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """Send each actor its view of one boundary.

    The boundary is the same for all; an actor that sees its first barrier gets it as INITIAL
    while the same boundary may be a checkpoint for the others.
    """

    barrier: Barrier
    to: Mapping[ActorId, Barrier]
    last: tuple[ActorId, ...] = ()
    """Actors for which no barrier comes after this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEpoch:
    """Append `barrier.epoch.prev` to the ledger, after `delay` when it failed before."""

    barrier: Barrier
    work: StagedWork
    sealed: tuple[Epoch, ...]
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TearDown:
    """Cancel these actors and wait until they have ended: their graph has failed."""

    jobs: tuple[JobId, ...]
    actors: tuple[ActorId, ...]
    cause: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissActors:
    """These actors are not needed any more; end those that have not ended by themselves."""

    jobs: tuple[JobId, ...]
    actors: tuple[ActorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildGraph:
    """Drop what the `torn` jobs have staged, wait for `delay`, and build `jobs` again.

    It comes only when no commit under way can name a staged file of these jobs.
    """

    jobs: tuple[JobId, ...]
    torn: tuple[JobId, ...]
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyStarted:
    """The command's barrier is on its way."""

    command: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyDone:
    """The command's barrier is complete and, if it is a checkpoint, `epoch` is committed."""

    command: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyFailed:
    """The command has had no effect."""

    command: int
    error: HeadwaterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportClockWentBack:
    """The wall clock has jumped back by this much; epochs go on growing by one."""

    by: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Tick at this time, in monotonic seconds; it replaces the wake-up asked for before."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEngine:
    """End everything; without a cause the engine has ended as it should."""

    cause: BaseException | None


Instruction = (
    InjectBarrier
    | CommitEpoch
    | TearDown
    | DismissActors
    | RebuildGraph
    | NotifyStarted
    | NotifyDone
    | NotifyFailed
    | ReportClockWentBack
    | WakeAt
    | StopEngine
)
