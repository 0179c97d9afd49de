"""A job that fails while it is being added: both were found by the simulator."""

import asyncio
from datetime import timedelta

import pytest

from barrier_bench import Bench, commits, failed, injected, job
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.events import Pace
from headwater.errors import ActorFailed
from headwater.model.epoch import NO_EPOCH
from headwater.model.ids import JobId
from headwater.testing.virtual_time import run, virtual_loop


def test_the_epoch_of_an_add_that_was_undone_does_not_carry_it():
    """Simulator seed 112: the committer created the relations of a CREATE that had failed."""
    bench = Bench()
    bench.run(job(1, 1))
    [inject] = injected(bench.add(job(2, 2)))
    bench.collect(1, inject.barrier.epoch.prev)
    out = bench.crash(2)
    assert failed(out)
    [commit] = commits(out)
    assert commit.barrier.mutation is None


class Committer:
    async def commit(self, barrier, work, sealed):
        await asyncio.sleep(0.01)

    async def discard(self, jobs):
        pass


class Stillborn:
    """Its only actor fails at its very first step."""

    job = JobId(7)
    depends_on = ()
    actor_count = 1

    async def build(self, site):
        pass

    async def run(self, actor, site, outputs):
        raise RuntimeError("a bug in a job")


@pytest.mark.parametrize("seed", range(20))
def test_an_actor_that_fails_at_once_is_not_waited_for(seed):
    """Simulator seed 763: the failure came before the machine knew the actor, and was lost."""

    async def main():
        coordinator = Coordinator(
            Committer(),
            after=NO_EPOCH,
            pace=Pace(interval=timedelta(seconds=1)),
            clock=virtual_loop().wall_clock,
        )
        await coordinator.start()
        async with asyncio.timeout(60):
            with pytest.raises(ActorFailed, match="a bug in a job"):
                await coordinator.add([Stillborn()])
            await coordinator.flush()
            await coordinator.stop()

    run(main(), seed=seed)
