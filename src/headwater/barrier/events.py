"""What can happen to the barrier machine: frozen values in the past tense.

Time is no event. Every event is handed in together with the `Moment` it happened at, so the
machine never asks a clock.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from headwater.errors import ConfigError
from headwater.model.barrier import Mutation
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on two clocks: seconds that never go back, and the time on the wall."""

    seconds: float
    wall: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often barriers are sent, how many of them commit, how many may be under way."""

    interval: timedelta = timedelta(seconds=1)
    frequency: int = 1
    cap: int = 16

    def __post_init__(self) -> None:
        if self.interval <= timedelta(0) or self.frequency < 1 or self.cap < 1:
            raise ConfigError(
                "barrier interval, checkpoint frequency and in-flight barriers must be positive",
                detail=f"They are {self.interval}, {self.frequency} and {self.cap}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job and the jobs whose output it reads."""

    job: JobId
    depends_on: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBuilt:
    """A job whose actors are ready for their first barrier."""

    job: JobId
    actors: tuple[ActorId, ...]
    depends_on: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed and nothing else has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRecovered:
    """The catalog was read: these jobs are to run, and have no actors yet."""

    jobs: tuple[JobPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequested:
    """Somebody wants a barrier of their own; without a mutation it is a checkpoint."""

    command: int
    mutation: Mutation | None = None
    sync: bool = False
    built: tuple[JobBuilt, ...] = ()
    """For `Add`: the new jobs, with what they read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierCollected:
    """An actor has finished the epoch; at a checkpoint it hands over what it staged."""

    actor: ActorId
    epoch: Epoch
    work: StagedWork = field(default_factory=StagedWork)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCrashed:
    """An actor ended without being told to."""

    actor: ActorId
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted:
    """The ledger has the epoch, and readers see it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """The ledger does not have the epoch."""

    epoch: Epoch
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRebuilt:
    """A graph that was down has new actors, ready for their first barrier."""

    jobs: tuple[JobBuilt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildFailed:
    """A graph could not be built; it is still down."""

    jobs: tuple[JobId, ...]
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """The pace is different from now on."""

    pace: Pace


@dataclass(frozen=True, slots=True)
class BarrierWanted:
    """Somebody waits for the next barrier: it need not wait for its time."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The engine is to end after one last checkpoint."""


Event = (
    Ticked
    | JobsRecovered
    | CommandRequested
    | BarrierCollected
    | ActorCrashed
    | EpochCommitted
    | CommitFailed
    | GraphRebuilt
    | RebuildFailed
    | SettingsChanged
    | BarrierWanted
    | StopRequested
)
