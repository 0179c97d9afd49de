"""A sink at work over a real ledger and a real target, and everything that may go wrong."""

import asyncio
import contextlib
import threading
import time
from collections import Counter

import pytest

from headwater.crash_points import POINTS
from headwater.errors import Fenced, HistoryGone, SinkUnavailable, StorageUnavailable, UserError
from headwater.ledger.deliveries import DeliveryBook, DeliveryState
from headwater.logstore.items import Offset
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.rate_limit import RateLimit
from headwater.observe.metrics import Metrics
from headwater.observe.sink_metrics import SinkMetrics
from headwater.sinks.fold import Folding
from headwater.sinks.sink import SinkKind
from headwater.sinks.steps import SinkState
from headwater.testing.crash_plan import CrashPlan, SimulatedCrash
from sink_kit_world import World
from sink_targets import FileSink, TableSink

INSERT, DELETE, UPDATE_INSERT, UPDATE_DELETE = 1, 2, 3, 4
POINTS_OF_SINKS = [point for point in POINTS if point.startswith("sink.")]


@pytest.fixture(params=[TableSink, FileSink])
def world(request, tmp_path):
    world = World(tmp_path, request.param)
    yield world
    world.close()


def fill(world, epochs=range(10, 16)):
    """A few epochs, one of them empty, one a plain barrier; gives the rows that they leave."""
    for epoch in epochs:
        if epoch % 5 == 3:
            world.write(epoch)
            continue
        changes = [(INSERT, epoch, f"new {epoch}", epoch)]
        if epoch - 1 in epochs and (epoch - 1) % 5 != 3:
            old = (epoch - 1, f"new {epoch - 1}", epoch - 1)
            changes += [(UPDATE_DELETE, *old), (UPDATE_INSERT, epoch - 1, None, -epoch)]
        world.write(epoch, *changes, checkpoint=epoch % 5 != 1)
    return rows_of(world)


def rows_of(world):
    rows = {}
    for item in world.log.items:
        if not hasattr(item, "rows"):
            continue
        for op, _, *row in zip(*(c.to_pylist() for c in item.rows.columns), strict=True):
            if op in (INSERT, UPDATE_INSERT):
                rows[row[0]] = tuple(row)
            else:
                rows.pop(row[0], None)
    return Counter(rows.values())


async def test_every_epoch_arrives_and_the_log_is_truncated(world):
    wanted = fill(world)
    async with world.running() as executor:
        await world.delivered(15)
        assert world.rows() == wanted
        assert executor.status.state is SinkState.IDLE
        assert world.log.truncated == Offset(Epoch(15))
        world.write(16)
        world.write(17, (DELETE, 15, "new 15", 15))
        await world.delivered(17)
    wanted.pop((15, "new 15", 15))
    assert world.rows() == wanted
    assert world.stored().delivered == 17
    assert world.stored().state is DeliveryState.IDLE


async def test_one_delivery_per_checkpoint_or_per_interval(world):
    seen = count_deliveries(world)
    fill(world, range(20, 25))
    async with world.running():
        await world.delivered(24)
    assert seen == [20, 22, 24], "epoch 21 is no checkpoint, 23 has no rows"
    seen.clear()
    fill(world, range(30, 40))
    async with world.running(interval=3) as executor:
        await world.delivered(34)
        # It has read to the end, and waits for a third checkpoint.
        await world.until(lambda: not world.log.news.is_set())
        executor.alter(interval=1)
        world.write(40)
        await world.delivered(40)
    assert seen == [33, 37, 40]
    assert world.rows() == rows_of(world)


def count_deliveries(world):
    seen = []
    name = "commit" if isinstance(world.sink, FileSink) else "deliver"
    real = getattr(world.sink, name)

    def counted(delivery, rows):
        seen.append(delivery.epoch)
        real(delivery, rows)

    setattr(world.sink, name, counted)
    return seen


@pytest.mark.parametrize(
    ("point", "nth"), [*((point, 1) for point in POINTS_OF_SINKS), ("sink.after_commit", 3)]
)
async def test_a_crash_at_every_point(world, point, nth):
    wanted = fill(world)
    plan = CrashPlan.at(point, nth=nth)
    with plan, contextlib.suppress(SimulatedCrash):
        await asyncio.wait_for(live(world), 120)
    # What was rewound is delivered with the first epoch that the target does not have.
    world.write(16)
    async with world.running():
        await world.delivered(16)
        assert world.rows() == wanted
    assert world.stored().delivered == 16
    left = [path.name for path in world.case._folder.glob("*.json")]
    assert len(left) == len({name.split("-")[0] for name in left}), "parts are left behind"


async def live(world):
    """A life that rewinds, aborts and delivers, so that it passes every point."""
    executor = world.new_life()
    if isinstance(world.sink, FileSink):
        real, failures = world.sink.prepare, [SinkUnavailable("once")]

        def prepare(delivery, part, rows):
            receipt = real(delivery, part, rows)
            if failures:
                raise failures.pop()
            return receipt

        world.sink.prepare = prepare
    run = asyncio.ensure_future(executor.run())
    looking = asyncio.ensure_future(world.delivered(15))
    try:
        await asyncio.wait({run, looking}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            return run.result()
        world.log.truncated = Offset(NO_EPOCH)
        rewinding = asyncio.ensure_future(executor.rewind(Epoch(12)))
        await asyncio.wait({run, rewinding}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            return run.result()
        await executor.stop()
        return await run
    finally:
        world.sink = world.case.make(world.spec)
        for task in (run, looking):
            task.cancel()
        await asyncio.gather(run, looking, return_exceptions=True)


async def test_a_target_that_is_away_stalls_the_sink_and_loses_nothing(world):
    world.metrics = SinkMetrics(Metrics().registry)
    wanted = fill(world)
    world.case.stop_target()
    async with world.running() as executor:
        await world.until(lambda: executor.status.attempts >= 3)
        status = executor.status
        assert (status.state, status.reason) == (SinkState.STALLED, "the target is away")
        assert status.since is not None
        assert world.metrics.stalled.labels("world")._value.get() == 1
        world.case.start_target()
        await world.delivered(15)
        assert executor.status.state is SinkState.IDLE
        assert world.rows() == wanted
        world.case.stop_target()
        world.write(16, (INSERT, 99, "later", 1))
        await world.until(lambda: executor.status.attempts >= 3)
        assert world.rows() == wanted
        world.case.start_target()
        await world.delivered(16)
    assert world.rows() == rows_of(world)
    assert world.metrics.rows.labels("world")._value.get() == 12
    assert world.metrics.failures.labels("world")._value.get() >= 6
    assert world.metrics.lag_seconds.labels("world")._value.get() == 0.0


async def test_a_mistake_of_the_user_or_ours_stalls_too_and_other_options_resume(world):
    fill(world)
    good = world.sink
    bad = world.case.make(world.spec)
    troubles = [UserError('column "name" is too short', hint="Widen it."), ZeroDivisionError("x")]
    bad.begin = lambda term: (_ for _ in ()).throw(troubles[0])
    world.sink = bad
    async with world.running() as executor:
        await world.until(lambda: executor.status.attempts >= 2)
        assert executor.status.reason == 'column "name" is too short'
        assert executor.status.hint == "Widen it."
        troubles.pop(0)
        await world.until(lambda: "ZeroDivisionError: x" in executor.status.reason)
        executor.alter(sink=good)
        await world.delivered(15)
    assert world.rows() == rows_of(world)


async def test_nothing_is_delivered_before_the_ledger_has_its_epoch(world):
    fill(world)
    world.committed = Epoch(12)
    async with world.running():
        await world.until(lambda: Epoch(13) in world.waits)
        kept = world.rows()
        assert all(row[0] <= 12 for row in kept)
        world.committed = Epoch(99)
        await world.delivered(15)
    assert world.rows() == rows_of(world)


async def test_a_newer_engine_ends_the_older_one(world):
    fill(world)
    old = world.new_life()
    task = asyncio.ensure_future(old.run())
    await world.delivered(15)
    async with world.running():
        await world.until(lambda: world.machine.waiting)
        world.write(16, (INSERT, 50, "x", 1))
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 60)
        assert old.status.state is SinkState.STOPPED
        await world.delivered(16)
    assert world.rows() == rows_of(world)


async def test_reading_that_fails_is_begun_again(world):
    wanted = fill(world)
    world.log.fail_next += [StorageUnavailable("no disk"), StorageUnavailable("no disk")]
    async with world.running():
        await world.delivered(15)
        assert world.reader.rewinds == 2
    assert world.rows() == wanted


async def test_a_rewound_sink_delivers_once_more_in_one_new_delivery(world):
    fill(world)
    seen = count_deliveries(world)
    async with world.running(keep_s=1e9) as executor:
        await world.delivered(15)
        with pytest.raises(UserError, match="only"):
            await executor.rewind(Epoch(99))
        await executor.rewind(Epoch(12))
        assert executor.status.delivered == 12
        await world.until(lambda: world.machine.waiting)
    # A rewind survives the engine.
    assert world.stored().delivered == 12
    seen.clear()
    async with world.running(keep_s=1e9):
        world.write(16, (DELETE, 10, None, 0))
        await world.delivered(16)
    assert seen == [16]
    assert world.rows() == rows_of(world)


async def test_a_rewind_beyond_what_the_log_keeps_is_refused_and_changes_nothing(world):
    fill(world)
    async with world.running() as executor:
        await world.delivered(15)
        with pytest.raises(HistoryGone):
            await executor.rewind(Epoch(11))
        world.write(16, (INSERT, 60, "x", 1))
        await world.delivered(16)
    assert world.rows() == rows_of(world)
    assert world.stored().delivered == 16


async def test_an_append_only_target_gets_what_follows_a_rewind_again(tmp_path):
    world = World(tmp_path, TableSink, SinkKind.APPEND_ONLY)
    for epoch in (10, 11, 12):
        world.write(epoch, (INSERT, epoch, "x", 0))
    async with world.running(keep_s=1e9) as executor:
        await world.delivered(12)
        await executor.rewind(Epoch(11))
        world.write(13, (INSERT, 13, "x", 0))
        await world.delivered(13)
    assert world.rows() == Counter(
        {(10, "x", 0): 1, (11, "x", 0): 1, (12, "x", 0): 2, (13, "x", 0): 1}
    )
    world.close()


async def test_a_target_that_was_set_back_is_not_fed_until_it_is_rewound(world):
    fill(world)
    async with world.running(keep_s=1e9):
        await world.delivered(15)
    with world.sink.transaction() as on:
        on.execute("UPDATE progress SET epoch = 11")
        on.execute("DELETE FROM world WHERE id > 11")
    world.write(16, (INSERT, 70, "x", 1))
    async with world.running(keep_s=1e9) as executor:
        await world.until(lambda: executor.status.attempts >= 2)
        assert "was given epoch 15" in executor.status.reason
        await executor.rewind(Epoch(11))
        await world.delivered(16)
    assert world.rows() == rows_of(world)


async def test_a_target_that_was_set_back_goes_on_once_it_is_owed_what_it_lost(world):
    """As ALTER SINK ... REWIND does it: the log gets it once more, and the ledger is told."""
    fill(world)
    async with world.running():
        await world.delivered(15)
    with world.sink.transaction() as on:
        on.execute("UPDATE progress SET epoch = 11")
        on.execute("DELETE FROM world WHERE id > 11")
    async with world.running() as executor:
        await world.until(lambda: executor.status.attempts >= 2)
        again = [(INSERT, *row) for row in rows_of(world)]
        world.write(16, *again)
        DeliveryBook(world.ledger, world.machine.term).owed_again(world.spec.ident)
        executor.alter(sink=world.sink)
        await world.delivered(16)
    assert world.rows() == rows_of(world)
    assert world.stored().shown == 16


async def test_columns_that_come_during_a_check_are_checked_as_well(world):
    """They ask for a check of their own, which the one that is under way does not answer."""
    checks, inside, go_on = [], asyncio.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), world.sink.check

    def check():
        checks.append(len(checks))
        if len(checks) == 1:
            loop.call_soon_threadsafe(inside.set)
            assert go_on.wait(60)
        real()

    world.sink.check = check
    fill(world)
    async with world.running(checks=True) as executor:
        await asyncio.wait_for(inside.wait(), 60)
        executor.evolve(world.sink, Folding.of(world.spec), world.courier)
        go_on.set()
        await world.delivered(15)
    assert checks == [0, 1]


async def test_a_limit_of_zero_pauses_and_another_resumes(world):
    fill(world)
    async with world.running(limit=0) as executor:
        await world.until(lambda: executor.status.state is SinkState.PAUSED)
        await asyncio.sleep(0.05)
        assert not world.rows()
        executor.alter(limit=RateLimit(rows_per_s=None))
        await world.delivered(15)
    assert world.rows() == rows_of(world)


async def test_a_cancelled_sink_waits_for_its_deed_and_the_next_goes_on(world):
    wanted = fill(world)
    name = "commit" if isinstance(world.sink, FileSink) else "deliver"
    real, inside, done = getattr(world.sink, name), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def slow(*arguments):
        loop.call_soon_threadsafe(inside.set)
        time.sleep(0.2)
        real(*arguments)
        done.append(1)

    setattr(world.sink, name, slow)
    task = asyncio.ensure_future(world.new_life().run())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done, "the thread works for nobody"
    world.sink = world.case.make(world.spec)
    async with world.running():
        await world.delivered(15)
    assert world.rows() == wanted


async def test_deliveries_larger_than_the_driver_takes_are_brought_range_by_range(world):
    world.driver_bytes = 1000
    for epoch in (10, 11):
        world.write(epoch, *[(INSERT, key, f"n{epoch}", epoch) for key in range(500)], nbytes=9000)
    async with world.running(interval=2):
        await world.delivered(11)
    assert world.rows() == rows_of(world)


async def test_an_idle_sink_costs_next_to_nothing(world):
    writes = []
    async with world.running() as executor:
        await world.until(lambda: world.machine.waiting)
        book = executor._around.book
        real = book.committed
        book.committed = lambda *a, **b: (writes.append(a), real(*a, **b))
        calls = []
        world.sink.begin = calls.append
        for epoch in range(100, 200):
            world.write(epoch)
        await world.delivered(199)
        assert not writes
        assert not calls
        assert world.log.truncated == Offset(Epoch(199))
    assert world.stored().delivered == 199
    assert len(writes) == 1
