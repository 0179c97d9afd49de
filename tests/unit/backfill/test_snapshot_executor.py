"""The executor of snapshot backfill: never waits, stores only what is ready, goes on exactly."""

import asyncio
from random import Random

import pytest

from headwater.backfill.snapshot import executor as executor_module
from headwater.backfill.snapshot.executor import Filled, SnapshotBackfillExecutor, Surroundings
from headwater.backfill.snapshot.machine import (
    LogEpoch,
    Pace,
    Phase,
    SnapshotBackfillMachine,
    Step,
)
from headwater.backfill.snapshot.slices import SnapshotFile, groups_of
from headwater.backfill.snapshot.state import decoded
from headwater.backfill.snapshot.target import Prepared
from headwater.barrier.progress import (
    ConsumingLogStore,
    ConsumingUpstreamTableOrSource,
    CreateMviewProgressReporter,
    Done,
)
from headwater.errors import HistoryGone, StorageUnavailable, UserError
from headwater.model.barrier import Barrier, BarrierKind, Pause, Resume, Stop, Throttle
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import JobId, TableId
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.record import StagedWork
from headwater.model.table_commit import DataFile, TableCommit

T = TableId(1)
JOB = JobId(7)
FILES = 4


def groups():
    return {
        T: groups_of(
            SnapshotFile(
                DataFile(path=f"f{n}", bytes=100, rows=10, first_vnode=0, last_vnode=255), 10
            )
            for n in range(FILES)
        )
    }


class Book:
    """A view that only remembers what it was given; one life of an engine after the other."""

    def __init__(self, fresh=True):
        self.fresh = fresh
        self.in_turn = False
        self.exists = True
        self.sweeps = False
        self.committed = Epoch(100)
        self.durable = []
        self.staged = {}
        self.stored = ""
        self.epochs = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.raises = []
        self.keeps_fresh = None

    def log(self, after):
        return [each for each in self.epochs if after < each.epoch <= self.committed]

    def stage(self, epoch, prepared):
        self.staged[epoch] = [item for each in prepared for item in each.parts]
        return StagedWork(tables=(TableCommit(table=TableId(9), version=len(self.staged)),))

    async def blocking(self, call, *arguments):
        await self.gate.wait()
        if self.raises and call.__name__ in ("read", "catch_up"):
            raise self.raises.pop(0)
        return call(*arguments)

    async def staging(self, call, *arguments):
        return call(*arguments)

    def read(self, read, so_far, epoch):
        if self.keeps_fresh is not None:
            self.keeps_fresh -= 1
            if self.keeps_fresh == 0:
                self.fresh = False
                return Prepared([], 0, again=True)
        if not self.fresh:
            assert not any(at > self.committed for at in self.staged), "reads what is not durable"
        return Prepared([p for _, each in read.slices for p in each.parts], read.rows)

    def catch_up(self, step, epoch):
        assert not any(at > self.committed for at in self.staged), "reads what is not durable"
        return Prepared([("log", step.after, step.upto)], sum(step.rows.values()))

    def interrupt(self):
        self.gate.set()


class Life:
    """One executor, its barriers, and the one who commits."""

    def __init__(self, book, *, limit=None, merge_rows=0, reporter=None, over=lambda: False):
        self.book = book
        self.merged = []
        self.failed = []
        self.hurries = 0
        self.waits = []
        progress = decoded(book.stored) if book.stored else {}
        self.machine = SnapshotBackfillMachine(
            Epoch(100),
            groups(),
            [Step((T,), 1000)],
            RateLimiter(RateLimit(rows_per_s=limit), 0.0),
            Pace(slice_bytes=100, merge_rows=merge_rows),
            at_once=1000 if book.fresh else 1,
            progress=progress,
        )
        self.now = 0.0
        around = Surroundings(
            job=JOB,
            wait_committed=self.wait,
            merge=self.merged.append,
            failed=self.failed.append,
            over=over,
            blocking=book.blocking,
            staging=book.staging,
            hurry=self.hurry,
            clock=lambda: self.now,
        )
        self.executor = SnapshotBackfillExecutor(self.machine, book, around, reporter)
        self.barriers = asyncio.Queue()
        self.out = self.executor.execute(self.stream())

    async def stream(self):
        while True:
            yield await self.barriers.get()

    def hurry(self):
        self.hurries += 1

    async def wait(self, epoch):
        future = asyncio.get_running_loop().create_future()
        self.waits.append((epoch, future))
        await future

    async def pass_(self, curr, kind=BarrierKind.CHECKPOINT, mutation=None, *, commit=True):
        """Send a barrier that ends `curr - 1`, and commit what it brings."""
        epoch = EpochPair(prev=Epoch(curr - 1), curr=Epoch(curr))
        await self.barriers.put(Barrier(epoch=epoch, kind=kind, mutation=mutation))
        filled = None
        async for message in self.out:
            if isinstance(message, Filled):
                filled = message
                continue
            break
        if commit:
            self.commit(Epoch(curr - 1), filled)
        # Let what has become possible begin, and end.
        pending = asyncio.ensure_future(anext(self.out))
        for _ in range(20):
            await asyncio.sleep(0)
        self.pending = pending
        self.out = _again(pending, self.out)
        return filled

    def commit(self, epoch, filled):
        if filled is not None:
            self.book.durable += self.book.staged[epoch]
            self.book.stored = filled.progress
        self.book.committed = epoch
        for at, future in self.waits:
            if at <= epoch and not future.done():
                future.set_result(None)

    async def die(self):
        self.pending.cancel()
        await asyncio.gather(self.pending, return_exceptions=True)


async def _again(first, rest):
    yield await first
    async for each in rest:
        yield each


def pieces(book):
    return [each for each in book.durable if not isinstance(each, tuple)]


async def test_a_barrier_never_waits_for_a_slice():
    book = Book()
    book.gate.clear()
    life = Life(book)
    for number in range(101, 106):
        assert await asyncio.wait_for(life.pass_(number), 60) is None
    book.gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    filled = await life.pass_(106)
    assert filled is not None
    assert len(book.durable) == FILES


async def test_slices_that_need_each_other_wait_for_the_ledger():
    book = Book(fresh=False)
    life = Life(book)
    for number in range(101, 101 + 12):
        await life.pass_(number)
    assert [part.path for part in pieces(book)] == [f"f{n}" for n in range(FILES)]
    assert life.hurries >= FILES
    assert life.merged == [Epoch(100)]


@pytest.mark.parametrize(("seconds", "hurries"), [(1.0, 1), (0.1, 0)])
async def test_what_took_long_to_read_does_not_wait_for_the_next_barrier(seconds, hurries):
    """A crash would take it along; the next slice is under way meanwhile."""
    book = Book()
    book.gate.clear()

    def read_one(read, so_far, epoch):
        book.gate.clear()
        return Book.read(book, read, so_far, epoch)

    book.read = read_one
    life = Life(book)
    await life.pass_(101)
    life.now = seconds
    book.gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert life.hurries == hurries
    assert (await life.pass_(102)) is not None
    assert len(book.durable) == 1


async def test_nothing_is_stored_before_the_stores_exist():
    book = Book()
    book.exists = False
    life = Life(book)
    for number in range(101, 104):
        assert await life.pass_(number) is None
    book.exists = True
    # Asked again with every barrier, else it would wait for the next one that comes by itself.
    assert life.hurries >= 2
    assert await life.pass_(104) is not None


async def test_it_follows_the_log_and_merges_at_the_last_epoch_that_it_has():
    book = Book()
    life = Life(book, merge_rows=5)
    book.epochs = [LogEpoch(Epoch(100 + n), {T: 10}) for n in range(1, 4)]
    for number in range(101, 110):
        await life.pass_(number)
    logged = [each for each in book.durable if isinstance(each, tuple)]
    # Every epoch once and in order.
    assert logged[0][1] == 100
    assert [each[2] for each in logged[:-1]] == [each[1] for each in logged[1:]]
    assert life.merged == [logged[-1][2]]
    assert life.machine.phase is Phase.MERGE
    life.executor.merge_failed()
    life.now = 60.0
    await life.pass_(110)
    assert len(life.merged) == 2


async def test_a_plain_barrier_stores_nothing():
    life = Life(Book())
    await life.pass_(101)
    assert await life.pass_(102, BarrierKind.BARRIER, commit=False) is None
    assert await life.pass_(103) is not None


async def test_what_fails_is_tried_again_and_what_cannot_be_mended_is_told():
    book = Book()
    book.raises = [StorageUnavailable("away")]
    life = Life(book)
    await life.pass_(101)
    assert "tried again: away" in str(life.executor.progress)
    life.now = 10.0
    for number in (102, 103, 104):
        await life.pass_(number)
    assert len(book.durable) == FILES
    other = Book()
    other.raises = [UserError("division by zero")]
    life = Life(other)
    for number in range(101, 105):
        assert await life.pass_(number) is None
    assert [str(error) for error in life.failed] == ["division by zero"]


async def test_it_pauses_and_obeys_a_limit():
    book = Book()
    life = Life(book)
    await life.pass_(101, BarrierKind.INITIAL, Pause(), commit=False)
    for number in (102, 103):
        assert await life.pass_(number) is None
    await life.pass_(104, mutation=Throttle(limits={JOB: 0}))
    assert await life.pass_(105, mutation=Resume()) is None
    await life.pass_(106, mutation=Throttle(limits={JOB: 5}))
    life.now = 1.0
    await life.pass_(107)
    await life.pass_(108)
    assert sum(part.stop - part.start for part in book.durable) == 5
    await life.pass_(109, mutation=Throttle(limits={JOB: None}))
    for number in range(110, 114):
        await life.pass_(number)
    assert life.merged


async def test_changes_that_are_not_kept_any_more_end_it_and_nothing_else():
    book = Book()

    def gone(after):
        raise HistoryGone(f"epoch {after} is no longer kept")

    book.log = gone
    life = Life(book)
    for number in range(101, 106):
        await life.pass_(number)
    assert [str(error) for error in life.failed] == ["epoch 100 is no longer kept"]
    assert "failed: epoch 100 is no longer kept" in str(life.executor.progress)
    assert not life.merged


async def test_it_reports_that_the_snapshot_is_read_before_it_follows_the_log():
    told = []
    book = Book(fresh=False)
    life = Life(book, reporter=CreateMviewProgressReporter(lambda at, state: told.append(state)))
    book.epochs = [LogEpoch(Epoch(200), {T: 1})]
    for number in range(101, 112):
        life.machine.paused = life.machine.phase is Phase.LOG
        await life.pass_(number)
    kinds = [type(state) for state in told]
    assert kinds.count(Done) == 1
    place = kinds.index(Done)
    assert told[place] == Done(rows=FILES * 10)
    assert set(kinds[:place]) == {ConsumingUpstreamTableOrSource}
    assert set(kinds[place + 1 :]) == {ConsumingLogStore}
    rows = [state.rows for state in told[:place]]
    assert rows == sorted(rows)


@pytest.mark.parametrize("keeps_fresh", [1, 2, 4])
async def test_slices_that_begin_to_need_each_other_wait_for_their_epochs(keeps_fresh):
    """What was read before is kept; what could not be is read again, and nothing twice."""
    book = Book()
    book.in_turn, book.keeps_fresh = True, keeps_fresh
    life = Life(book)
    for number in range(101, 130):
        await life.pass_(number)
    assert not book.fresh
    assert life.machine.phase is not Phase.SNAPSHOT
    assert [part.path for part in pieces(book)] == [f"f{n}" for n in range(FILES)]


async def test_slices_in_turn_are_read_one_at_a_time():
    book = Book()
    book.in_turn = True
    book.gate.clear()
    life = Life(book)
    life.executor.parallelism = 4
    await life.pass_(101)
    assert len(life.executor._begun) == 1
    await life.die()


async def test_a_barrier_takes_what_is_ready_although_slices_have_all_threads():
    book = Book()
    life = Life(book)
    await life.pass_(101)
    book.gate.clear()
    assert life.executor._begun[0].prepared is not None
    async with asyncio.timeout(60):
        filled = await life.pass_(102)
    assert filled is not None
    assert pieces(book)
    await life.die()


async def test_slices_that_are_kept_in_memory_wait_for_an_epoch_when_they_are_many(monkeypatch):
    monkeypatch.setattr(executor_module, "_MOST_IN_TURN", 2)
    book = Book()
    book.in_turn = True
    life = Life(book)
    await life.pass_(101)
    assert len(life.executor._begun) == 2
    assert life.hurries == 1
    await life.pass_(102)
    assert len(pieces(book)) == 2
    await life.die()


async def test_a_time_to_wake_up_is_forgotten_with_what_it_was_for():
    over = False
    life = Life(Book(), limit=5, over=lambda: over)
    await life.pass_(101)
    await life.pass_(102)
    assert life.machine.wake_at is not None
    over, life.now = True, 1000.0
    await life.pass_(103)
    # Else it would ask again and again, and the loop had no time for anything else.
    assert life.machine.wake_at is None


async def test_a_table_that_is_read_counts_with_its_rows_although_its_files_are_gone():
    book = Book(fresh=False)
    life = Life(book)
    for number in range(101, 112):
        await life.pass_(number)
    assert life.executor.total == FILES * 10
    await life.die()
    again = Life(book)
    assert again.machine.phase is Phase.LOG
    assert again.executor.total == FILES * 10
    await again.pass_(112)
    await again.die()


async def test_it_ends_with_a_stop():
    life = Life(Book())
    await life.pass_(101)
    epoch = EpochPair(prev=Epoch(101), curr=Epoch(102))
    await life.barriers.put(
        Barrier(epoch=epoch, kind=BarrierKind.CHECKPOINT, mutation=Stop(jobs=(JOB,)))
    )
    assert isinstance([message async for message in life.out][-1], Barrier)


@pytest.mark.parametrize("seed", range(60))
async def test_whoever_dies_when_every_row_is_read_once(seed):
    dice = Random(seed)
    book = Book(fresh=dice.random() < 0.5)
    epoch = 101
    rounds = 0
    merged = None
    while merged is None:
        rounds += 1
        assert rounds < 200
        life = Life(book, limit=dice.choice([None, 7, 40]), merge_rows=dice.choice([0, 15]))
        life.now = dice.random()
        for _ in range(dice.randrange(1, 12)):
            epoch += 1
            life.now += dice.random()
            if dice.random() < 0.4:
                book.epochs.append(LogEpoch(Epoch(epoch - 1), {T: dice.randrange(1, 20)}))
            if dice.random() < 0.1:
                book.raises.append(StorageUnavailable("away"))
            last = dice.random() < 0.15
            await life.pass_(epoch, commit=not last)
            if last:
                # Collected, and the engine dies before the ledger has it.
                book.staged = {at: kept for at, kept in book.staged.items() if at < epoch - 1}
                break
            if life.merged:
                merged = life.merged[-1]
                break
        await life.die()
        book.raises.clear()
    places = [(part.path, row) for part in pieces(book) for row in range(part.start, part.stop)]
    assert sorted(places) == [(f"f{n}", row) for n in range(FILES) for row in range(10)]
    logged = [each for each in book.durable if isinstance(each, tuple)]
    ends = [100, *(each[2] for each in logged)]
    assert [each[1] for each in logged] == ends[:-1]
    assert merged == ends[-1]
