"""How the barrier machine tells its story, and what must hold at every line of it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields

from headwater.barrier.events import Event
from headwater.barrier.graph import JobPhase, Jobs
from headwater.barrier.in_flight import BarriersUnderWay
from headwater.barrier.instructions import CommitEpoch, InjectBarrier, Instruction
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.record import StagedWork


def line(step: Event | Instruction) -> str:
    """One event or instruction as a line for people."""
    match step:
        case InjectBarrier(barrier=barrier, to=to):
            seen = ", ".join(f"{actor}:{view.kind}" for actor, view in to.items())
            return f"  -> InjectBarrier {_barrier(barrier)} to [{seen}]"
        case CommitEpoch(barrier=barrier, sealed=sealed):
            return f"  -> CommitEpoch {barrier.epoch.prev} sealing {list(sealed)}"
        case _:
            parts = [f"{field.name}={_value(getattr(step, field.name))}" for field in fields(step)]
            arrow = "  -> " if isinstance(step, Instruction) else ""
            return f"{arrow}{type(step).__name__} {' '.join(parts)}".rstrip()


def _barrier(barrier: Barrier) -> str:
    carried = f" carrying {barrier.mutation}" if barrier.mutation is not None else ""
    return f"{barrier.kind} {barrier.epoch.prev} -> {barrier.epoch.curr}{carried}"


def _value(value: object) -> str:
    if isinstance(value, StagedWork):
        return f"{len(value.tables)} tables, positions of {sorted(value.positions)}"
    return f"{value!r}" if not isinstance(value, BaseException) else f"{type(value).__name__}"


def faults(
    *,
    under_way: BarriersUnderWay,
    jobs: Jobs,
    last: EpochPair | None,
    committed: Epoch,
    unsealed: Sequence[Epoch],
) -> Iterator[str]:
    """Everything about the state that cannot be."""
    yield from _order(under_way, last, committed)
    yield from _sealing(under_way, unsealed, last)
    yield from _answers(under_way, jobs)
    yield from _phases(under_way, jobs)


def _answers(under_way: BarriersUnderWay, jobs: Jobs) -> Iterator[str]:
    for entry in under_way:
        if entry.waiting.keys() & entry.works.keys():
            yield f"epoch {entry.epoch} both waits for an actor and has its work"
        if entry.waiting.keys() | entry.works.keys() != entry.kinds.keys():
            yield f"epoch {entry.epoch} has lost sight of an actor it was sent to"
        for actor in entry.waiting:
            if jobs.job_of(actor) is None:
                yield f"epoch {entry.epoch} waits for actor {actor}, which is not there"
        if not entry.committing:
            for actor in entry.works:
                if jobs.job_of(actor) is None:
                    yield f"epoch {entry.epoch} holds work of actor {actor}, which is not there"


def _phases(under_way: BarriersUnderWay, jobs: Jobs) -> Iterator[str]:
    alive = {job.id for job in jobs.in_phase(JobPhase.WAITING, JobPhase.RUNNING)}
    for job in jobs:
        if job.phase is JobPhase.DOWN and alive.intersection(jobs.graph_of(job.id)):
            yield f"job {job.id} is down while others of its graph run"
        if job.phase is JobPhase.DOWN and job.actors:
            yield f"job {job.id} is down and has actors {job.actors}"
        if (job.phase is JobPhase.STOPPING) != (job.stopped_at is not None):
            yield f"job {job.id} is {job.phase} and was stopped at {job.stopped_at}"
        for epoch in (job.added_at, job.stopped_at):
            if epoch is not None and under_way.find(epoch) is None:
                yield f"job {job.id} waits for epoch {epoch}, which is not under way"


def _order(under_way: BarriersUnderWay, last: EpochPair | None, committed: Epoch) -> Iterator[str]:
    entries = list(under_way)
    for earlier, later in itertools.pairwise(entries):
        if not later.barrier.epoch.follows(earlier.barrier.epoch):
            yield f"epoch {later.epoch} does not follow {earlier.barrier.epoch}"
    if entries and entries[-1].barrier.epoch != last:
        yield f"the youngest barrier is {entries[-1].barrier.epoch}, the last one sent {last}"
    if entries and entries[0].epoch < committed:
        yield f"epoch {entries[0].epoch} is under way and older than committed {committed}"
    for position, entry in enumerate(entries):
        if entry.committing and (position > 0 or entry.waiting or not entry.barrier.kind.durable):
            yield f"epoch {entry.epoch} is being committed before its turn"
    if entries and entries[0].complete and not entries[0].committing:
        yield f"epoch {entries[0].epoch} is complete, the oldest, and nothing happens"


def _sealing(
    under_way: BarriersUnderWay, unsealed: Sequence[Epoch], last: EpochPair | None
) -> Iterator[str]:
    for entry in under_way:
        durable = entry.barrier.kind.durable
        if durable != bool(entry.barrier.sealed):
            yield f"the {entry.barrier.kind} barrier of epoch {entry.epoch} has a wrong seal"
        if durable and entry.barrier.sealed[-1] != entry.epoch:
            yield f"the checkpoint of epoch {entry.epoch} does not seal it"
    if unsealed and (last is None or unsealed[-1] != last.prev):
        yield f"epochs {list(unsealed)} are not sealed, but the last one sent is {last}"
