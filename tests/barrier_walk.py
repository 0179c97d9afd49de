"""Random histories of the barrier machine, judged by a model that knows only the promises.

The model keeps what it saw: who was sent which barrier, who collected it with what, who was torn
down, what was committed. It shares no code with the machine.
"""

import random
from dataclasses import dataclass, field
from datetime import timedelta

from barrier_bench import Bench
from headwater.barrier.events import (
    BarrierWanted,
    CommandRequested,
    GraphRebuilt,
    JobBuilt,
    JobPlan,
    JobsRecovered,
    Pace,
    RebuildFailed,
    SettingsChanged,
)
from headwater.barrier.instructions import (
    CommitEpoch,
    DismissActors,
    InjectBarrier,
    Instruction,
    NotifyDone,
    NotifyFailed,
    NotifyStarted,
    RebuildGraph,
    TearDown,
)
from headwater.errors import SourceUnavailable, StorageUnavailable
from headwater.model.barrier import Add, BarrierKind, Mutation, Pause, Resume, Stop, Throttle
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import StagedWork


@dataclass
class Sent:
    """One barrier as the model saw it."""

    inject: InjectBarrier
    command: int | None
    open: set[ActorId]
    handed: dict[ActorId, str] = field(default_factory=dict)
    committing: bool = False
    committed: bool = False

    @property
    def epoch(self) -> Epoch:
        return self.inject.barrier.epoch.prev

    @property
    def durable(self) -> bool:
        return self.inject.barrier.kind.durable


class Walk:
    """One random history; every step is judged."""

    def __init__(self, seed: int, *, check: bool = True) -> None:
        self.random = random.Random(seed)
        self.pace = Pace(
            interval=timedelta(seconds=1),
            frequency=self.random.choice([1, 1, 2, 3, 5]),
            cap=self.random.choice([1, 2, 4, 16]),
        )
        self.bench = Bench(
            interval=self.pace.interval, frequency=self.pace.frequency, cap=self.pace.cap
        )
        if not check:
            self.bench.machine.check = lambda: None
        self.sent: list[Sent] = []
        self.job_of: dict[ActorId, JobId] = {}
        self.reads: dict[JobId, tuple[JobId, ...]] = {}
        self.torn: set[ActorId] = set()
        self.dismissed: set[ActorId] = set()
        self.seen_first: set[ActorId] = set()
        self.depends: dict[JobId, tuple[JobId, ...]] = {}
        self.rebuilds: list[RebuildGraph] = []
        self.asked: dict[int, CommandRequested] = {}
        self.answered: set[int] = set()
        self.commit: CommitEpoch | None = None
        self.in_commit: set[ActorId] = set()
        self.since_checkpoint: list[Epoch] = []
        self.count = 0
        self.ids = 0
        self.events = 0

    # Steps

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.drain()

    def step(self) -> None:
        moves = [
            (6, self.tick),
            (14, self.collect),
            (7, self.finish_commit),
            (2, self.finish_rebuild),
            (1, self.crash),
            (1, self.add),
            (1, self.command),
            (0.5, self.stop_job),
            (0.3, self.change_pace),
            (0.5, self.hasten),
            (0.3, self.ghost),
        ]
        weights = [weight for weight, _ in moves]
        self.random.choices([move for _, move in moves], weights)[0]()

    def tick(self) -> None:
        self.bench.pass_time(self.random.choice([0.1, 0.5, 1.0, 1.0, 3.0]))
        if self.random.random() < 0.05:
            self.bench.wall -= timedelta(seconds=self.random.randint(1, 1000))
        self.judge(self.bench.tick(0))

    def collect(self) -> None:
        owing = sorted({actor for each in self.sent for actor in each.open})
        if not owing:
            return
        actor = self.random.choice(owing)
        each = next(each for each in self.sent if actor in each.open)
        work = StagedWork()
        if each.inject.to[actor].kind.durable:
            token = f"{actor}@{each.epoch}"
            work = StagedWork(positions={token: "x"})
            each.handed[actor] = token
        each.open.discard(actor)
        self.judge(self.bench.collect(actor, each.epoch, work))

    def finish_commit(self) -> None:
        if self.commit is None:
            return
        epoch = self.commit.barrier.epoch.prev
        if self.random.random() < 0.2:
            expected, self.commit = self.commit, None
            out = self.bench.commit_failed(epoch, StorageUnavailable("full"))
            self.judge(out, retried=expected)
            return
        self.commit = None
        next(each for each in self.sent if each.epoch == epoch).committed = True
        out = self.bench.committed(epoch)
        assert self.bench.machine.committed == epoch
        self.judge(out)

    def finish_rebuild(self) -> None:
        if not self.rebuilds:
            return
        rebuild = self.rebuilds.pop(self.random.randrange(len(self.rebuilds)))
        if self.random.random() < 0.3:
            failed = RebuildFailed(jobs=rebuild.jobs, error=SourceUnavailable("away"))
            self.judge(self.bench.do(failed))
            return
        # Jobs that were stopped meanwhile may or may not be built for nothing.
        late = self.random.random() < 0.5
        wanted = [job for job in rebuild.jobs if late or self.bench.machine.is_down(job)]
        built = tuple(self.hire(job, self.depends[job]) for job in wanted)
        self.judge(self.bench.do(GraphRebuilt(jobs=built)))

    def crash(self) -> None:
        alive = self.alive()
        if alive:
            self.judge(self.bench.crash(self.random.choice(alive)))

    def ghost(self) -> None:
        """An actor that was torn down speaks once more."""
        recent = {
            actor for job in self.reads for actor in self.last_life(job) if actor in self.torn
        }
        if recent:
            self.judge(self.bench.collect(self.random.choice(sorted(recent)), Epoch(1)))

    def add(self) -> None:
        if len(self.reads) > 12:
            return
        known = sorted(self.reads)
        upstream = tuple(self.random.sample(known, min(len(known), self.random.randint(0, 2))))
        self.ids += 1
        built = [self.hire(JobId(self.ids), upstream)]
        if self.random.random() < 0.3:
            self.ids += 1
            built.append(self.hire(JobId(self.ids), ()))
        mutation = Add(jobs=tuple(each.job for each in built))
        self.ask(mutation, built=tuple(built))

    def command(self) -> None:
        jobs = sorted(self.reads)
        choices: list[Mutation | None] = [None, Pause(), Resume()]
        if jobs:
            choices.append(Throttle(limits={self.random.choice(jobs): 5}))
        self.ask(self.random.choice(choices), sync=self.random.random() < 0.3)

    def stop_job(self) -> None:
        if self.reads:
            self.ask(Stop(jobs=(self.random.choice(sorted(self.reads)),)))

    def change_pace(self) -> None:
        self.pace = Pace(
            interval=self.pace.interval,
            frequency=self.random.choice([1, 2, 3]),
            cap=self.random.choice([1, 2, 4, 16]),
        )
        self.count = 0 if self.bench.machine._pace.frequency != self.pace.frequency else self.count
        self.judge(self.bench.do(SettingsChanged(pace=self.pace)))

    def hasten(self) -> None:
        self.judge(self.bench.do(BarrierWanted()))

    def start(self, jobs: int) -> None:
        plans = []
        for _ in range(jobs):
            self.ids += 1
            known = sorted(self.reads)
            reads = tuple(self.random.sample(known, min(len(known), self.random.randint(0, 1))))
            self.reads[JobId(self.ids)] = reads
            self.depends[JobId(self.ids)] = reads
            plans.append(JobPlan(job=JobId(self.ids), depends_on=reads))
        self.judge(self.bench.do(JobsRecovered(jobs=tuple(plans))))

    def drain(self) -> None:
        """Let everything answer: nothing may be stuck."""
        for _ in range(100_000):
            if self.commit is not None:
                self.finish_commit()
            elif any(each.open for each in self.sent):
                self.collect()
            else:
                break
        assert self.bench.machine.under_way.oldest is None
        assert not self.unresolved()
        assert self.answered == self.asked.keys()

    # Judging

    def judge(  # noqa: PLR0912  one arm per instruction
        self, out: list[Instruction], *, retried: CommitEpoch | None = None
    ) -> None:
        self.events += 1
        for position, each in enumerate(out):
            match each:
                case InjectBarrier():
                    following = out[position + 1] if position + 1 < len(out) else None
                    command = following.command if isinstance(following, NotifyStarted) else None
                    self.judge_barrier(each, command)
                case CommitEpoch():
                    self.judge_commit(each, retried)
                case TearDown(actors=actors, jobs=jobs):
                    self.judge_teardown(jobs, actors)
                case DismissActors(actors=actors):
                    self.dismissed.update(actors)
                case RebuildGraph(jobs=jobs, torn=torn):
                    self.judge_rebuild(torn)
                    if jobs:
                        self.rebuilds.append(each)
                case NotifyDone(command=command, epoch=epoch):
                    self.judge_done(command, epoch)
                case NotifyFailed(command=command):
                    self.answer(command)
                    asked = self.asked[command].mutation
                    if isinstance(asked, Add):
                        for job in asked.jobs:
                            if not self.runs_elsewhere(job, command):
                                self.reads.pop(job, None)
                case _:
                    pass

    def judge_barrier(self, inject: InjectBarrier, command: int | None) -> None:
        barrier = inject.barrier
        if self.sent:
            assert barrier.epoch.prev == self.sent[-1].inject.barrier.epoch.curr
        assert barrier.epoch.curr > barrier.epoch.prev
        if command is None and barrier.kind is not BarrierKind.INITIAL:
            assert len(self.unresolved()) < self.pace.cap, "a periodic barrier beyond the cap"
        for actor, seen in inject.to.items():
            assert actor not in self.torn | self.dismissed
            first = actor not in self.seen_first
            assert (seen.kind is BarrierKind.INITIAL) == (
                first or barrier.kind is BarrierKind.INITIAL
            )
            assert seen.epoch == barrier.epoch
            self.seen_first.add(actor)
        if barrier.kind.seals:
            self.since_checkpoint.append(barrier.epoch.prev)
            self.count += 1
        if barrier.kind.durable:
            assert barrier.sealed == tuple(self.since_checkpoint)
            self.since_checkpoint, self.count = [], 0
        else:
            assert barrier.sealed == ()
            assert self.count < self.pace.frequency or barrier.kind is BarrierKind.INITIAL
        self.sent.append(Sent(inject, command, set(inject.to)))
        if isinstance(barrier.mutation, Stop):
            assert set(inject.last) == {
                actor for actor in inject.to if self.job_of[actor] in barrier.mutation.jobs
            }

    def judge_commit(self, commit: CommitEpoch, retried: CommitEpoch | None) -> None:
        epoch = commit.barrier.epoch.prev
        assert self.commit is None, "two commits at once"
        each = next(each for each in self.sent if each.epoch == epoch)
        assert each.durable, "a barrier that is no checkpoint was committed"
        earlier = [other for other in self.unresolved() if other.epoch < epoch]
        assert not earlier, "committed before its turn"
        if retried is not None:
            assert (commit.barrier, commit.work) == (retried.barrier, retried.work)
        else:
            assert not each.open, "committed without waiting for every actor"
            assert set(commit.work.positions) == set(each.handed.values())
            self.in_commit = set(each.handed)
        each.committing = True
        self.commit = commit

    def judge_teardown(self, jobs: tuple[JobId, ...], actors: tuple[ActorId, ...]) -> None:
        assert not set(actors) & self.torn, "torn down twice"
        members = set(jobs)
        for job in jobs:
            assert members.issuperset(upstream for upstream in self.known_reads(job))
        for job, reads in self.reads.items():
            if job not in members and self.lives(job):
                assert not members.intersection(reads), "part of a graph was left running"
        self.torn.update(actors)
        for each in self.sent:
            if not each.committing:
                each.open.difference_update(actors)
                for actor in actors:
                    each.handed.pop(actor, None)

    def judge_rebuild(self, torn: tuple[JobId, ...]) -> None:
        """Nothing of a graph may be under commit when its staged files are dropped."""
        if self.commit is not None:
            assert not {self.job_of[actor] for actor in self.in_commit}.intersection(torn)

    def judge_done(self, command: int, epoch: Epoch) -> None:
        self.answer(command)
        each = next(each for each in self.sent if each.epoch == epoch)
        assert each.command == command
        assert each.committed if each.durable else not each.open
        match self.asked[command].mutation:
            case Stop(jobs=jobs):
                for job in jobs:
                    self.reads.pop(job, None)
            case _:
                pass

    def answer(self, command: int) -> None:
        assert command not in self.answered, "answered twice"
        self.answered.add(command)

    # What the model knows

    def ask(
        self, mutation: Mutation | None, *, sync: bool = False, built: tuple[JobBuilt, ...] = ()
    ) -> None:
        self.asked[self.bench.commands + 1] = CommandRequested(
            command=self.bench.commands + 1, mutation=mutation, sync=sync
        )
        for each in built:
            self.reads[each.job] = self.depends[each.job] = each.depends_on
        self.judge(self.bench.command(mutation, sync=sync, built=built))

    def hire(self, job: JobId, reads: tuple[JobId, ...]) -> JobBuilt:
        actors = []
        for _ in range(self.random.randint(1, 2)):
            self.ids += 1
            actors.append(ActorId(self.ids))
            self.job_of[actors[-1]] = job
        return JobBuilt(job=job, actors=tuple(actors), depends_on=reads)

    def unresolved(self) -> list[Sent]:
        """Barriers that are not complete, or not committed, or behind such a one."""
        for position, each in enumerate(self.sent):
            if each.open or (each.durable and not each.committed):
                return self.sent[position:]
        return []

    def alive(self) -> list[ActorId]:
        gone = self.torn | self.dismissed
        return sorted(actor for actor in self.seen_first if actor not in gone)

    def lives(self, job: JobId) -> bool:
        return any(self.job_of[actor] == job for actor in self.alive())

    def last_life(self, job: JobId) -> list[ActorId]:
        known = self.bench.machine.jobs._gone.get(job, frozenset())
        return sorted(known)

    def known_reads(self, job: JobId) -> list[JobId]:
        return [each for each in self.reads.get(job, ()) if self.lives(each)]

    def runs_elsewhere(self, job: JobId, command: int) -> bool:
        return any(
            isinstance(asked.mutation, Add) and job in asked.mutation.jobs and other != command
            for other, asked in self.asked.items()
        )
