"""Sweeps: small slices parted inside of files, told of in any order, stored in theirs."""

import asyncio
from random import Random

import pytest

from headwater.backfill.snapshot.executor import Filled, SnapshotBackfillExecutor, Surroundings
from headwater.backfill.snapshot.machine import (
    Pace,
    Phase,
    Read,
    SnapshotBackfillMachine,
    Step,
)
from headwater.backfill.snapshot.slices import SnapshotFile, groups_of, next_slice
from headwater.backfill.snapshot.state import BackfillState, Cursor, decoded
from headwater.backfill.snapshot.target import Prepared
from headwater.errors import StorageUnavailable
from headwater.model.barrier import Barrier, BarrierKind, Pause, Resume, Throttle
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import JobId, TableId
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.record import StagedWork
from headwater.model.table_commit import DataFile, TableCommit

T, OTHER = TableId(1), TableId(2)
JOB = JobId(7)
E = Epoch(100)


def file(name, rows=10, seams=(), span=(0, 255)):
    made = DataFile(path=name, bytes=rows * 10, rows=rows, first_vnode=span[0], last_vnode=span[1])
    return SnapshotFile(made, rows, seams)


def groups():
    return {T: groups_of([file("a", 10, (0, 4, 8)), file("b", 3), file("c", 12, (0, 6))])}


EVERYTHING = [(name, row) for name, rows in (("a", 10), ("b", 3), ("c", 12)) for row in range(rows)]


def parts_of(group, most_bytes, **more):
    """All slices of a group, as places in files."""
    state = BackfillState(first=group.first, last=group.last, epoch=E)
    found = []
    while (each := next_slice(group, state, most_bytes=most_bytes, **more)) is not None:
        found.append([(part.path, part.start, part.stop) for part in each.parts])
        state = state.moved(each.after, each.rows)
        assert len(found) < 100
    return found


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (1, [[("a", 0, 4)], [("a", 4, 8)], [("a", 8, 10)], [("b", 0, 3)], [("c", 0, 6)],
             [("c", 6, 12)]]),
        (60, [[("a", 0, 4)], [("a", 4, 10)], [("b", 0, 3)], [("c", 0, 6)], [("c", 6, 12)]]),
        (90, [[("a", 0, 8)], [("a", 8, 10), ("b", 0, 3)], [("c", 0, 6)], [("c", 6, 12)]]),
        (10_000, [[("a", 0, 10), ("b", 0, 3), ("c", 0, 12)]]),
    ],
)  # fmt: skip
def test_slices_end_at_cuts_and_at_the_ends_of_files(most, wanted):
    (group,) = groups()[T]
    assert parts_of(group, most, at_seams=True) == wanted


def test_without_a_sweep_files_are_read_whole():
    (group,) = groups()[T]
    assert parts_of(group, 1) == [[("a", 0, 10)], [("b", 0, 3)], [("c", 0, 12)]]


@pytest.mark.parametrize("row", range(1, 10))
def test_a_sweep_goes_on_from_any_row(row):
    (group,) = groups()[T]
    state = BackfillState(first=0, last=255, epoch=E, cursor=Cursor(0, row))
    each = next_slice(group, state, most_bytes=1, at_seams=True)
    (part,) = each.parts
    assert (part.path, part.start) == ("a", row)
    assert part.stop == min(at for at in (4, 8, 10) if at > row)


ONE = (Step((T,), 1000),)


def machine(progress=None, limit=None, steps=ONE, tables=None, **pace):
    return SnapshotBackfillMachine(
        E,
        tables or groups(),
        steps,
        RateLimiter(RateLimit(rows_per_s=limit), 0.0),
        Pace(**{"slice_bytes": 4, "merge_rows": 0, "sweep_slices": 100, **pace}),
        at_once=1000,
        progress=progress or {},
        sweeping=True,
    )


def all_of(made):
    found = []
    while (read := made.next(0.0)) is not None:
        assert isinstance(read, Read)
        found.append(read)
    return found


def test_a_sweep_divides_a_table_into_about_so_many_slices():
    assert len(all_of(machine(sweep_slices=1))) == 1
    assert len(all_of(machine(sweep_slices=1000))) == 6
    # Slices are not made smaller than a part of the usual size.
    assert len(all_of(machine(sweep_slices=1000, slice_bytes=10_000))) == 1


def test_the_other_tables_come_with_the_first_slice_of_a_sweep():
    tables = {**groups(), OTHER: groups_of([file("o", 7), file("p", 7)])}
    reads = all_of(machine(tables=tables, steps=(Step((OTHER, T), 1),)))
    assert [of for of, _ in reads[0].slices] == [OTHER, T]
    assert all([of for of, _ in each.slices] == [T] for each in reads[1:])
    assert len(reads) > 3


def test_what_has_to_be_read_in_one_takes_the_rest_of_the_sweep_along():
    made = machine()
    reads = all_of(made)
    made.in_one(reads[0])
    assert not any(made.under_way(each) for each in reads)
    made.sweeping = False
    (whole,) = all_of(made)
    assert sum(part.stop - part.start for _, s in whole.slices for part in s.parts) == 25


class Swept:
    """A view whose slices are told of by the test; receipts outlive a life."""

    fresh, in_turn, exists = True, False, True

    def __init__(self):
        self.sweeps = True
        self.receipts = {}
        self.durable, self.staged, self.stored = [], {}, ""
        self.sweeping = None
        self.singly = []
        self.begun = 0

    def reset(self):
        self.sweeping, self.staged = None, {}

    async def blocking(self, call, *arguments):
        if call.__name__ == "read":
            return call(*arguments)
        assert self.sweeping is None, "two sweeps at once"
        reads, _, _, ready, self.over = arguments
        self.begun += 1
        ended = asyncio.get_running_loop().create_future()
        self.sweeping = (reads, ready, ended)
        try:
            await ended
        finally:
            self.sweeping = None

    def tell(self, *numbers, **how):
        reads, ready, _ = self.sweeping
        ready([(n, self.prepared(reads[n], **how)) for n in numbers])

    def prepared(self, read, **how):
        return Prepared([part for _, each in read.slices for part in each.parts], read.rows, **how)

    async def end(self, error=None):
        _, _, over = self.sweeping
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    def read(self, read, so_far, epoch):
        self.singly.append(read)
        return self.prepared(read)

    def sweep(self, reads, so_far, epoch, ready, over):
        raise AssertionError("the test does what it would do")

    def stage(self, epoch, prepared):
        self.staged[epoch] = [part for each in prepared for part in each.parts]
        return StagedWork(tables=(TableCommit(table=TableId(9), version=len(self.staged)),))

    def log(self, after):
        return []

    def interrupt(self):
        if self.sweeping is not None and not self.sweeping[2].done():
            self.sweeping[2].set_exception(StorageUnavailable("interrupted"))


class Life:
    """One executor, and whoever sends its barriers and commits."""

    def __init__(self, target, **given):
        self.target = target
        self.now = 0.0
        self.hurries = 0
        self.merged, self.failed, self.waits = [], [], []
        progress = decoded(target.stored) if target.stored else {}
        self.machine = machine(progress, **given)

        def hurry():
            self.hurries += 1

        around = Surroundings(
            job=JOB,
            wait_committed=self.wait,
            merge=self.merged.append,
            failed=self.failed.append,
            blocking=target.blocking,
            staging=self.at_once,
            hurry=hurry,
            clock=lambda: self.now,
        )
        self.executor = SnapshotBackfillExecutor(self.machine, target, around)
        self.barriers = asyncio.Queue()
        self.answers = asyncio.Queue()
        self.task = asyncio.create_task(self.run())
        self.epoch = 100

    async def run(self):
        async for message in self.executor.execute(self.stream()):
            await self.answers.put(message)

    async def stream(self):
        while True:
            yield await self.barriers.get()

    async def at_once(self, call, *arguments):
        return call(*arguments)

    async def wait(self, epoch):
        future = asyncio.get_running_loop().create_future()
        self.waits.append((epoch, future))
        await future

    async def settle(self):
        for _ in range(30):
            await asyncio.sleep(0)

    async def barrier(self, mutation=None, *, commit=True):
        """Send one, and commit what it brings: the rows that are durable then."""
        self.epoch += 1
        pair = EpochPair(prev=Epoch(self.epoch - 1), curr=Epoch(self.epoch))
        barrier = Barrier(epoch=pair, kind=BarrierKind.CHECKPOINT, mutation=mutation)
        await self.barriers.put(barrier)
        filled = None
        while not isinstance(message := await self.answers.get(), Barrier):
            assert isinstance(message, Filled)
            filled = message
        if commit and filled is not None:
            self.target.durable += self.target.staged[Epoch(self.epoch - 1)]
            self.target.stored = filled.progress
        for at, future in self.waits:
            if commit and at < self.epoch and not future.done():
                future.set_result(None)
        await self.settle()

    async def die(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.target.reset()


def rows(parts):
    return [(part.path, row) for part in parts for row in range(part.start, part.stop)]


async def begun(target, **given):
    life = Life(target, **given)
    await life.barrier()
    assert target.sweeping is not None
    return life


async def test_all_slices_are_begun_at_once_and_a_barrier_takes_those_that_come_first():
    target = Swept()
    life = await begun(target)
    reads = target.sweeping[0]
    assert len(reads) == 6
    target.tell(3, 1)
    await life.barrier()
    assert target.durable == [], "the first of them is not read"
    target.tell(0)
    await life.barrier()
    assert rows(target.durable) == rows(p for n in (0, 1) for p in target.prepared(reads[n]).parts)
    target.tell(5, 4, 2)
    await target.end()
    await life.settle()
    assert life.hurries, "nothing else can be done before an epoch has them"
    await life.barrier()
    assert rows(target.durable) == EVERYTHING
    assert life.machine.phase is not Phase.SNAPSHOT
    assert target.begun == 1
    await life.die()


async def test_a_sweep_has_a_bounded_number_of_slices():
    target = Swept()
    life = await begun(target, sweep_slices=2)
    assert len(target.sweeping[0]) <= 4
    await life.die()


async def test_those_that_are_told_of_together_are_stored_together():
    target = Swept()
    life = await begun(target)
    reads, ready, _ = target.sweeping
    everything = [part for read in reads[:4] for part in target.prepared(read).parts]
    ready([(n, Prepared([], reads[n].rows)) for n in range(3)] + [(3, Prepared(everything, 1))])
    # A barrier comes at the same time.
    await life.barrier()
    assert target.durable in ([], everything)
    await life.barrier()
    assert target.durable == everything
    await life.die()


async def test_what_a_failed_sweep_leaves_is_begun_again_in_order():
    target = Swept()
    life = await begun(target)
    target.tell(0, 3)
    await target.end(StorageUnavailable("away"))
    await life.settle()
    assert "away" in str(life.executor.progress)
    await life.barrier()
    assert len(target.durable) == 1
    life.now = 1.0
    await life.barrier()
    assert target.sweeping[0][0].slices[0][1].parts[0].start == 4
    target.tell(*range(len(target.sweeping[0])))
    await target.end()
    await life.barrier()
    assert rows(target.durable) == EVERYTHING
    assert life.failed == []
    await life.die()


async def test_a_sweep_that_forgets_slices_is_not_taken_for_done():
    target = Swept()
    life = await begun(target)
    target.tell(0)
    await target.end()
    await life.barrier()
    assert life.machine.phase is Phase.SNAPSHOT
    assert "left slices unread" in str(life.executor.progress)
    await life.die()


async def test_slices_that_are_refused_are_read_one_by_one():
    target = Swept()
    life = await begun(target)
    target.tell(0, 1, 4)
    target.sweeps = False
    target.tell(2, again=True)
    await life.settle()
    assert not target.singly, "the sweep is not over yet"
    await target.end()
    await life.settle()
    for _ in range(6):
        await life.barrier()
    assert rows(target.durable) == EVERYTHING
    assert [part.start for _, each in target.singly[0].slices for part in each.parts] == [8]
    assert target.begun == 1
    await life.die()


@pytest.mark.parametrize("limit", [5, 0])
async def test_a_limit_that_comes_meanwhile_ends_the_sweep(limit):
    target = Swept()
    life = await begun(target)
    assert not target.over()
    await life.barrier(Throttle(limits={JOB: limit}))
    assert target.over()
    target.tell(0, 1)
    await target.end()
    await life.barrier()
    read = len(rows(target.durable))
    for _ in range(30):
        life.now += 1.0
        await life.barrier()
    assert target.begun == 1
    assert "is tried again" not in str(life.executor.progress)
    if limit:
        assert rows(target.durable) == EVERYTHING
        assert target.singly
        assert all(each.rows <= 5 for each in target.singly)
    else:
        assert len(rows(target.durable)) == read < 25
    await life.die()


async def test_a_pause_ends_the_sweep_and_it_goes_on_where_it_was():
    target = Swept()
    life = await begun(target)
    await life.barrier(Pause())
    assert target.over()
    target.tell(0, 3)
    await target.end()
    await life.barrier()
    await life.barrier()
    assert target.sweeping is None
    await life.barrier(Resume())
    assert not target.over()
    assert target.sweeping[0][0].slices[0][1].parts[0].start == 4
    target.tell(*range(len(target.sweeping[0])))
    await target.end()
    await life.barrier()
    assert rows(target.durable) == EVERYTHING
    await life.die()


async def test_whoever_stops_interrupts_the_sweep():
    target = Swept()
    life = await begun(target)
    over = target.sweeping[2]
    life.task.cancel()
    await asyncio.gather(life.task, return_exceptions=True)
    assert over.done()


@pytest.mark.parametrize("seed", range(80))
async def test_whoever_dies_when_every_row_is_stored_once(seed):
    dice = Random(seed)
    target = Swept()
    for _ in range(60):
        life = Life(target, sweep_slices=dice.choice([1, 2, 5, 50]))
        for _ in range(dice.randrange(1, 8)):
            life.now += 40 * dice.random()
            if dice.random() < 0.1:
                # Collected, and the engine dies before the ledger has it.
                await life.barrier(commit=False)
                break
            await life.barrier()
            if target.sweeping is None:
                continue
            left = [n for n in range(len(target.sweeping[0])) if dice.random() < 0.5]
            dice.shuffle(left)
            for number in left:
                target.tell(number)
            await life.settle()
            if dice.random() < 0.5 and target.sweeping is not None:
                if dice.random() < 0.7:
                    target.tell(*range(len(target.sweeping[0])))
                    await life.settle()
                error = None if dice.random() < 0.7 else StorageUnavailable("away")
                await target.end(error)
                await life.settle()
        await life.die()
        if target.stored and decoded(target.stored)[T].finished:
            break
    assert sorted(rows(target.durable)) == sorted(EVERYTHING)
