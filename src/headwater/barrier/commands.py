"""What a command may ask for, and what its barrier has to be.

A command that cannot work is refused before its barrier is sent, so that a refusal has no
effect. All checks are against the graph as it will be when the barrier is sent.

    mutation                         refused when
    Add                              a job is there already, reads from one that is not there,
                                     or joins a graph that is being restarted
    Stop                             a job is not there or is stopping already
    Throttle                         a job is not there
    Rescale                          an actor is not there, or the vnodes of a job would
                                     overlap, or would not all have an owner
    AssignSplits                     an actor is not there
    Pause, Resume, flush, Define,    never
    StartFragmentBackfill
"""

from collections.abc import Collection, Iterable
from typing import assert_never

from headwater.barrier.events import CommandRequested
from headwater.barrier.graph import JobPhase, Jobs
from headwater.errors import ActorFailed, BrokenInvariant, HeadwaterError, RelationError, UserError
from headwater.model.barrier import (
    Add,
    AssignSplits,
    BarrierKind,
    Define,
    Mutation,
    Pause,
    Rescale,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
)
from headwater.model.ids import ActorId, JobId
from headwater.model.vnode import VnodeBitmap


def kind_of(
    command: CommandRequested | None, *, uncheckpointed: int, frequency: int
) -> BarrierKind:
    """The kind of the next barrier, given how many since the last checkpoint were none."""
    if command is not None and command.sync:
        return BarrierKind.SYNC_CHECKPOINT
    forced = command is not None and not isinstance(command.mutation, Resume)
    if forced or uncheckpointed + 1 >= frequency:
        return BarrierKind.CHECKPOINT
    return BarrierKind.BARRIER


def effective(mutation: Mutation | None, *, paused: bool) -> Mutation | None:
    """The mutation that actors have to see: none where nothing changes."""
    match mutation:
        case Pause() if paused:
            return None
        case Resume() if not paused:
            return None
        case _:
            return mutation


def dies_with(
    mutation: Mutation | None, jobs: Collection[JobId], actors: Collection[ActorId]
) -> bool:
    """Whether a command under way fails when the graph of these jobs and actors does.

    An Add is undone, and orders to actors that are gone have reached nobody. What is asked
    of a job rather than of its actors holds also for the actors that come next.
    """
    match mutation:
        case Add(jobs=added):
            return any(job in jobs for job in added)
        case Rescale(bitmaps=owners):
            return any(actor in actors for actor in owners)
        case AssignSplits(splits=owners):
            return any(actor in actors for actor in owners)
        case None | Stop() | Pause() | Resume() | Throttle() | StartFragmentBackfill() | Define():
            return False
        case _ as never:
            assert_never(never)


def refusal(  # noqa: PLR0911  one arm per mutation
    command: CommandRequested, jobs: Jobs
) -> HeadwaterError | None:
    """Why the command cannot be carried out, or None."""
    match command.mutation:
        case Add() as add:
            return _refuse_add(add, command, jobs)
        case Stop(jobs=stopped):
            ending = {job.id for job in jobs.in_phase(JobPhase.STOPPING)}
            return _missing_job(stopped, jobs) or next(
                (
                    RelationError(f"job {job} is stopping already")
                    for job in stopped
                    if job in ending
                ),
                None,
            )
        case Throttle(limits=limits):
            negative = [limit for limit in limits.values() if limit is not None and limit < 0]
            if negative:
                return UserError(
                    f"a rate limit cannot be {negative[0]}",
                    hint="Use 0 to pause and no limit at all to run freely.",
                )
            return _missing_job(limits, jobs)
        case Rescale(bitmaps=bitmaps):
            return _missing_actor(bitmaps, jobs) or _refuse_rescale(dict(bitmaps), jobs)
        case AssignSplits(splits=splits):
            return _missing_actor(splits, jobs)
        case None | Pause() | Resume() | StartFragmentBackfill() | Define():
            return None
        case _ as never:
            assert_never(never)


def _refuse_add(add: Add, command: CommandRequested, jobs: Jobs) -> HeadwaterError | None:
    if tuple(built.job for built in command.built) != add.jobs:
        raise BrokenInvariant(f"Add names jobs {add.jobs}, but {command.built} were built")
    for job in add.jobs:
        if job in jobs:
            return RelationError(f"job {job} is there already")
    upstream = [job for built in command.built for job in built.depends_on if job not in add.jobs]
    for job in upstream:
        if job not in jobs or jobs[job].phase is JobPhase.STOPPING:
            return RelationError(f"job {job}, which a new job reads from, is not there")
    for job in jobs.graph_of(*upstream):
        if jobs[job].phase is JobPhase.DOWN:
            return ActorFailed(
                f"job {job}, which the new one is connected with, is being restarted",
                hint="Try again when it runs; SHOW JOBS says why it stopped.",
            )
    return None


def _refuse_rescale(bitmaps: dict[ActorId, VnodeBitmap], jobs: Jobs) -> HeadwaterError | None:
    touched = {job.id: job for actor in bitmaps if (job := jobs.job_of(actor)) is not None}
    for job in touched.values():
        owned = VnodeBitmap.empty()
        for actor in job.actors:
            if actor not in bitmaps:
                return UserError(f"the rescale of job {job.id} leaves out its actor {actor}")
            if overlap := owned & bitmaps[actor]:
                return UserError(
                    f"the rescale of job {job.id} gives vnodes to two actors",
                    detail=f"Vnode {next(iter(overlap))} would belong to {actor} and another.",
                )
            owned |= bitmaps[actor]
        if lost := VnodeBitmap.full() - owned:
            return UserError(
                f"the rescale of job {job.id} leaves vnodes without an owner",
                detail=f"{len(lost)} vnodes, the first is {next(iter(lost))}.",
            )
    return None


def _missing_job(wanted: Iterable[JobId], jobs: Jobs) -> HeadwaterError | None:
    return next(
        (RelationError(f"there is no job {job}") for job in wanted if job not in jobs), None
    )


def _missing_actor(wanted: Iterable[ActorId], jobs: Jobs) -> HeadwaterError | None:
    for actor in wanted:
        job = jobs.job_of(actor)
        if job is None or job.phase is JobPhase.STOPPING:
            return UserError(
                f"there is no actor {actor}",
                detail="Its job has been restarted or stopped since.",
            )
    return None
