"""Progress on its way from actors through the coordinator into the epoch's record."""

import asyncio

from barrier_jobs import SELDOM, Counter, Memory, running, until
from headwater.barrier.cdc_progress import (
    CdcTableBackfillProgress,
    CdcTableBackfillState,
    SplitSet,
)
from headwater.barrier.coordinator import Coordinator
from headwater.barrier.progress import (
    ConsumingUpstreamTableOrSource,
    CreateMviewProgressReporter,
    JobProgress,
)
from headwater.errors import StorageUnavailable
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import JobId


async def test_barrier_manager_progress_is_durable_with_its_epoch_and_only_then():
    class Filling(Counter):
        async def work(self, actor, site, outputs, barrier):
            reporter = CreateMviewProgressReporter(
                lambda epoch, state: site.local.report_create_mview_progress(
                    actor, generation=site.generation, epoch=epoch, state=state
                )
            )
            rows = 10 * len(self.seen)
            reporter.update(barrier.epoch.prev, consumed=NO_EPOCH, rows=rows)
            if rows >= 40:
                reporter.finish(barrier.epoch.prev, rows=rows)
            site.local.report_cdc_table_backfill_progress(
                actor,
                generation=site.generation,
                epoch=barrier.epoch.prev,
                state=CdcTableBackfillState(backfilled=SplitSet.of([(1, len(self.seen))])),
            )
            await super().work(actor, site, outputs, barrier)

    job, memory = Filling(JobId(1)), Memory()
    coordinator = Coordinator(memory, after=NO_EPOCH, pace=SELDOM, watch=lambda notice: None)
    coordinator.track(JobProgress(JobId(1), total_rows=100))
    coordinator.track(CdcTableBackfillProgress(JobId(1), splits=10))
    await coordinator.start([job])
    first = await coordinator.flush()
    assert coordinator.progress(JobId(1)).percentage == 20.0
    assert coordinator.cdc_progress(JobId(1)).backfilled == 2
    durable = memory.epochs[first].progress
    assert JobProgress.decode(durable["job/1"]).rows == 20
    assert CdcTableBackfillProgress.decode(durable["cdc/1"]).backfilled == 2
    await coordinator.flush()
    await coordinator.flush()
    assert coordinator.progress(JobId(1)).percentage == 100.0
    await coordinator.stop()
    assert JobProgress.decode(memory.epochs[max(memory.epochs)].progress["job/1"]).done


async def test_barrier_manager_progress_of_a_later_epoch_waits_for_its_own_commit():
    class Filling(Counter):
        async def work(self, actor, site, outputs, barrier):
            for epoch, rows in ((barrier.epoch.prev, len(self.seen)), (Epoch(5), 99)):
                site.local.report_create_mview_progress(
                    actor,
                    generation=site.generation,
                    epoch=epoch,
                    state=ConsumingUpstreamTableOrSource(rows=rows),
                )
            await super().work(actor, site, outputs, barrier)

    job, memory = Filling(JobId(1)), Memory()
    memory.gate.clear()
    coordinator = Coordinator(memory, after=NO_EPOCH, pace=SELDOM, watch=lambda notice: None)
    coordinator.track(JobProgress(JobId(1), total_rows=100))
    await coordinator.start([job])
    # The first commit fails once, and is repeated when the second epoch is collected already.
    memory.faults.append(StorageUnavailable("full"))
    first = asyncio.create_task(coordinator.flush())
    second = asyncio.create_task(coordinator.flush())
    await until(lambda: coordinator.progress(JobId(1)).rows == 3)
    memory.gate.set()
    for flush, rows in ((first, 2), (second, 3)):
        progress = memory.epochs[await flush].progress
        assert JobProgress.decode(progress["job/1"]).rows == rows
    await coordinator.stop()


async def test_barrier_manager_drops_staged_files_only_when_their_actors_have_ended():
    class Slow(Counter):
        async def run(self, actor, site, outputs):
            try:
                await super().run(actor, site, outputs)
            finally:
                await asyncio.sleep(0.05)
                order.append("ended")

    class Ordered(Memory):
        async def discard(self, jobs):
            order.append("discarded")

    order: list[str] = []
    job, other = Slow(JobId(1)), Counter(JobId(2), depends_on=(JobId(1),))
    async with running(job, other, memory=Ordered()) as (coordinator, _):
        order.clear()
        other.crash[0] = ValueError("boom")
        await coordinator.flush()
        await until(lambda: len(job.sites) == 2)
        assert order == ["ended", "discarded"]


async def test_barrier_manager_unchanged_progress_is_not_written_again():
    job, memory = Counter(JobId(1)), Memory()
    coordinator = Coordinator(memory, after=NO_EPOCH, pace=SELDOM, watch=lambda notice: None)
    tracker = JobProgress(JobId(1), total_rows=100)
    coordinator.track(tracker, durable=tracker.encode(NO_EPOCH))
    await coordinator.start([job])
    await coordinator.flush()
    await coordinator.stop()
    assert [work.progress for work in memory.epochs.values()] == [{}, {}]
