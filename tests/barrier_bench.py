"""A bench for the barrier machine: short verbs, a clock that moves when told, checks always."""

from datetime import UTC, datetime, timedelta

from headwater.barrier.events import (
    ActorCrashed,
    BarrierCollected,
    CommandRequested,
    CommitFailed,
    EpochCommitted,
    Event,
    GraphRebuilt,
    JobBuilt,
    JobPlan,
    JobsRecovered,
    Moment,
    Pace,
    Ticked,
)
from headwater.barrier.instructions import (
    CommitEpoch,
    InjectBarrier,
    Instruction,
    NotifyDone,
    NotifyFailed,
    RebuildGraph,
)
from headwater.barrier.machine import BarrierMachine
from headwater.barrier.timer import Backoff
from headwater.model.barrier import Add, BarrierKind, Mutation
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork

WALL = datetime(2026, 1, 1, tzinfo=UTC)
BACKOFF = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=8))


def job(number: int, *actors: int, reads: tuple[int, ...] = ()) -> JobBuilt:
    return JobBuilt(
        job=JobId(number),
        actors=tuple(ActorId(actor) for actor in actors),
        depends_on=tuple(JobId(upstream) for upstream in reads),
    )


def staged(name: str) -> StagedWork:
    return StagedWork(positions={name: "1"})


class Bench:
    def __init__(self, *, after: Epoch = NO_EPOCH, **pace: object) -> None:
        settings = {"interval": timedelta(seconds=1), "frequency": 1, "cap": 16, **pace}
        self.machine = BarrierMachine(after=after, pace=Pace(**settings), backoff=BACKOFF)
        self.seconds = 100.0
        self.wall = WALL
        self.commands = 0
        self.log: list[Instruction] = []

    def do(self, event: Event) -> list[Instruction]:
        out = self.machine.handle(event, Moment(self.seconds, self.wall))
        self.machine.check()
        self.log.extend(out)
        return out

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds)

    def tick(self, seconds: float = 1.0) -> list[Instruction]:
        self.pass_time(seconds)
        return self.do(Ticked())

    def start(self, *jobs: JobBuilt) -> list[Instruction]:
        plans = tuple(JobPlan(job=each.job, depends_on=each.depends_on) for each in jobs)
        self.do(JobsRecovered(jobs=plans))
        return self.do(GraphRebuilt(jobs=jobs))

    def run(self, *jobs: JobBuilt) -> None:
        """Start jobs and get their first barrier out of the way."""
        [initial] = injected(self.start(*jobs))
        for actor in initial.to:
            self.collect(actor, initial.barrier.epoch.prev)

    def command(
        self,
        mutation: Mutation | None = None,
        *,
        sync: bool = False,
        built: tuple[JobBuilt, ...] = (),
    ) -> list[Instruction]:
        self.commands += 1
        return self.do(
            CommandRequested(command=self.commands, mutation=mutation, sync=sync, built=built)
        )

    def add(self, *jobs: JobBuilt) -> list[Instruction]:
        mutation = Add(
            jobs=tuple(each.job for each in jobs),
            actors=tuple(actor for each in jobs for actor in each.actors),
        )
        return self.command(mutation, built=jobs)

    def collect(
        self, actor: int, epoch: Epoch, work: StagedWork | None = None
    ) -> list[Instruction]:
        return self.do(
            BarrierCollected(actor=ActorId(actor), epoch=epoch, work=work or StagedWork())
        )

    def crash(self, actor: int, error: BaseException | None = None) -> list[Instruction]:
        return self.do(ActorCrashed(actor=ActorId(actor), error=error or ValueError("boom")))

    def committed(self, epoch: Epoch) -> list[Instruction]:
        return self.do(EpochCommitted(epoch=epoch))

    def commit_failed(self, epoch: Epoch, error: Exception) -> list[Instruction]:
        return self.do(CommitFailed(epoch=epoch, error=error))


def injected(out: list[Instruction]) -> list[InjectBarrier]:
    return [each for each in out if isinstance(each, InjectBarrier)]


def commits(out: list[Instruction]) -> list[CommitEpoch]:
    return [each for each in out if isinstance(each, CommitEpoch)]


def done(out: list[Instruction]) -> list[int]:
    return [each.command for each in out if isinstance(each, NotifyDone)]


def failed(out: list[Instruction]) -> dict[int, Exception]:
    return {each.command: each.error for each in out if isinstance(each, NotifyFailed)}


def rebuilds(out: list[Instruction]) -> list[RebuildGraph]:
    return [each for each in out if isinstance(each, RebuildGraph)]


def kinds(inject: InjectBarrier) -> dict[int, BarrierKind]:
    return {actor: seen.kind for actor, seen in inject.to.items()}
