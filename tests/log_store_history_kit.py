"""A sink's log against a model that knows nothing but lists, on random histories.

The model has the rows of each epoch in the order they were written, and a target that gets what
readers deliver. A history writes, ends epochs, commits and fails to commit, crashes, cancels reads,
truncates, rewinds, shares vnodes anew and collects files, in any order. In the end the target has
every committed row once, each vnode's rows in their order, and storage is empty.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from headwater.errors import BrokenInvariant
from headwater.logstore.backoff import RewindBackoff
from headwater.logstore.items import Offset
from headwater.logstore.kv_log_store import LogStoreOptions
from headwater.logstore.progress import LogStoreVnodeProgress
from headwater.logstore.reader import KvLogStoreReader
from headwater.logstore.serde import Layout, write_segment
from headwater.logstore.state import LogStoreState
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.runtime.blocking import Blocking
from headwater.testing.log_store_kit import LogStoreRig, Row, Seen, log_rows, with_rows
from headwater.testing.virtual_time import run

LATENCY = 0.01
PATIENCE = 1.0
"""Virtual seconds after which a reader has nothing to say."""

T = TypeVar("T")

Delivered = tuple[Offset, Row]


class Broken(AssertionError):
    """The log did what it must not do."""


def check(held: bool, what: str) -> None:
    if not held:
        raise Broken(what)


class Reading:
    """One reader, what it has shown since its last truncation, and what it showed before."""

    def __init__(self, reader: KvLogStoreReader, number: int) -> None:
        self.reader = reader
        self.number = number
        self.shown: list[Seen] = []
        self.expected: list[Seen] = []

    def show(self, item: Seen) -> None:
        if self.shown:
            check(item.place > self.shown[-1].place, f"{item} after {self.shown[-1]}")
        check(item.place > self.reader.truncated, f"{item} is delivered already")
        # What was shown before a rewind comes again, but for barriers that say nothing.
        while self.expected and self.expected[0].place < item.place:
            missed = self.expected.pop(0)
            check(not missed.rows, f"{missed} does not come again; {item} does")
        if self.expected and self.expected[0].place == item.place:
            again = self.expected.pop(0)
            check(again == item, f"{again} comes again as {item}")
        else:
            check(not (self.expected and item.rows), f"{item} comes only after a rewind")
        self.shown.append(item)


class History:
    """A log, its model, and a random series of deeds."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.blocking = Blocking(1)
        self.rig = LogStoreRig(blocking=self.blocking, options=self.some_options())
        self.epochs: dict[Epoch, list[Row]] = {}
        self.staged: list[tuple[Epoch, str]] = []
        self.committed = NO_EPOCH
        self.mark = NO_EPOCH
        self.checkpoints: set[Epoch] = set()
        self.reshardings: dict[Epoch, list[VnodeBitmap]] = {}
        self.target: dict[int, list[Delivered]] = defaultdict(list)
        self.readings: list[Reading] = []
        self.ids = 0

    def some_options(self) -> LogStoreOptions:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)

        return LogStoreOptions(
            buffer_bytes=self.random.choice([1, 2000, 20_000, 1 << 30]),
            chunk_bytes=self.random.choice([1, 200, 1 << 20]),
            layout=self.random.choice([Layout.V1, Layout.V2, Layout.V2]),
            backoff=RewindBackoff(sleep=sleep, random=self.random.random),
        )

    def some_shards(self) -> list[VnodeBitmap]:
        count = self.random.choice([1, 1, 2, 3, 4])
        owner = [self.random.randrange(count) for _ in range(VNODE_COUNT)]
        return [
            VnodeBitmap.of(v for v in range(VNODE_COUNT) if owner[v] == n) for n in range(count)
        ]

    async def run(self, deeds: int) -> None:
        try:
            await self.start()
            choices: list[tuple[int, Callable]] = [
                (8, self.write),
                (1, self.write_by_task),
                (3, self.end_epoch),
                (5, self.end_checkpoint),
                (1, self.reshard),
                (2, self.fail_commit),
                (1, self.crash),
                (9, self.read),
                (4, self.truncate),
                (2, self.rewind),
                (2, self.collect),
                (1, self.pause),
            ]
            weights = [weight for weight, _ in choices]
            for _ in range(deeds):
                (deed,) = self.random.choices([deed for _, deed in choices], weights)
                await deed()
                self.check_bounds()
            await self.finish()
        finally:
            self.blocking.close()

    async def start(self) -> None:
        """Open the log as a new engine does."""
        self.rig.options = self.some_options()
        self.reshardings = {}
        readers, self.writer = await self.rig.open(shards=self.some_shards(), delivered=self.mark)
        self.readings = [Reading(reader, number) for number, reader in enumerate(readers)]
        await self.writer.init(self.rig.next_epoch())
        self.epochs[self.rig.epoch] = []

    def some_rows(self) -> list[Row]:
        rows: list[Row] = []
        for _ in range(self.random.choice([0, 1, 3, 40])):
            self.ids += self.random.randrange(1, 90)
            if self.random.random() < 0.2:
                rows.append((RowOp.UPDATE_DELETE, self.ids, "old"))
                rows.append((RowOp.UPDATE_INSERT, self.ids, f"n{len(rows)}"))
            else:
                op = self.random.choice([RowOp.INSERT, RowOp.DELETE])
                rows.append((op, self.ids, "x" * self.random.randrange(9)))
        return rows

    async def write(self) -> None:
        rows = self.some_rows()
        await self.writer.write_chunk(log_rows(rows, with_vnodes=self.random.random() < 0.5))
        self.epochs[self.rig.epoch] += rows

    async def write_by_task(self) -> None:
        tasks = [rows for _ in range(self.random.randrange(3)) if (rows := self.some_rows())]
        written = [
            write_segment(self.rig.storage, log_rows(rows), self.rig.epoch, term=self.rig.term)
            for rows in tasks
        ]
        if self.random.random() < 0.2:
            return  # The tasks have written, and their job has failed.
        await self.writer.add_segments(written)
        self.epochs[self.rig.epoch] += [row for rows in tasks for row in rows]

    async def flush(self, *, checkpoint: bool, vnodes: list[VnodeBitmap] | None = None) -> None:
        ended = self.rig.epoch
        text = await self.writer.flush_current_epoch(
            self.rig.next_epoch(), checkpoint=checkpoint, vnodes=vnodes
        )
        self.epochs[self.rig.epoch] = []
        check((text is not None) == checkpoint, "a text is for checkpoints")
        if text is not None:
            check(len(text) < 6000, f"a text of {len(text)} letters")
            self.checkpoints.add(ended)
            self.staged.append((ended, text))

    async def end_epoch(self) -> None:
        await self.flush(checkpoint=False)

    def commit(self) -> None:
        """The ledger has the oldest text that waits."""
        epoch, self.rig.ledger = self.staged.pop(0)
        self.committed = epoch

    async def end_checkpoint(self) -> None:
        await self.flush(checkpoint=True)
        # The next epoch may end before the ledger has this one.
        while self.staged and self.random.random() < 0.8:
            self.commit()
            self.writer.confirm(self.committed)
            if self.random.random() < 0.1:
                self.writer.confirm(self.committed)

    async def reshard(self) -> None:
        shards = self.some_shards()
        await self.flush(checkpoint=True, vnodes=shards)
        while self.staged:
            self.commit()
            self.writer.confirm(self.committed)
        self.reshardings[self.committed] = shards
        for number in range(len(self.readings), len(shards)):
            reader = self.rig.factory.joining_reader(number, self.committed)
            await reader.init()
            await reader.start_from()
            self.readings.append(Reading(reader, number))

    async def fail_commit(self) -> None:
        if self.random.random() < 0.3:
            return
        await self.flush(checkpoint=self.random.random() < 0.7)
        self.writer.discard()
        self.forget()
        await self.writer.init(self.rig.next_epoch())
        self.epochs[self.rig.epoch] = []

    def forget(self) -> None:
        """What is not committed never happened."""
        self.staged = []
        for epoch in [epoch for epoch in self.epochs if epoch > self.committed]:
            del self.epochs[epoch]

    async def crash(self) -> None:
        if self.staged and self.random.random() < 0.5:
            self.commit()  # The ledger has it, and the engine never heard.
        self.forget()
        await self.rig.factory.log.close()
        text = self.rig.ledger
        durable = LogStoreState.decode(text).progress if text else LogStoreVnodeProgress()
        if self.random.random() < 0.5:
            # The ledger also has what the target was given, by whole epochs.
            floor = self.rig.factory.log.progress.floor()
            whole = Epoch(floor.epoch - (floor.chunk_id != float("inf")))
            self.mark = max(self.mark, whole)
        for vnode, rows in self.target.items():
            upto = max(durable.of(vnode), Offset(self.mark))
            self.target[vnode] = [row for row in rows if row[0] <= upto]
        await self.start()

    async def read(self) -> None:
        reading = self.random.choice(self.readings)
        for _ in range(self.random.choice([1, 3, 20])):
            impatient = self.random.random() < 0.3
            wait = self.random.random() * 2 * LATENCY if impatient else PATIENCE
            item = await self.within(wait, reading.reader.next_item())
            if item is None:
                continue
            while (seen := await self.within(2 * LATENCY, with_rows(reading.reader, item))) is None:
                wait = self.random.random() * LATENCY
                await self.within(wait, with_rows(reading.reader, item))
            reading.show(seen)

    async def within(self, seconds: float, call: Coroutine[Any, Any, T]) -> T | None:
        """What a call gives, or None if it had to be cancelled."""
        task = asyncio.ensure_future(call)
        await asyncio.wait([task], timeout=seconds)
        task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    async def truncate(self) -> None:
        reading = self.random.choice(self.readings)
        if not reading.shown:
            return
        kept = self.random.randrange(len(reading.shown)) if self.random.random() < 0.7 else 0
        count = len(reading.shown) - kept
        place = reading.shown[count - 1].place
        with pytest.raises(BrokenInvariant):
            reading.reader.truncate(Offset(Epoch(reading.shown[-1].place.epoch + 1)))
        self.deliver(reading, reading.shown[:count])
        reading.shown = reading.shown[count:]
        reading.reader.truncate(place)
        if self.random.random() < 0.2:
            with pytest.raises(BrokenInvariant):
                reading.reader.truncate(Offset(Epoch(place.epoch - 1)))

    def deliver(self, reading: Reading, items: list[Seen]) -> None:
        """The target has these; the log is truncated after it."""
        for item in items:
            check(item.place.epoch <= self.committed, f"{item} is not committed")
            for row in item.rows:
                self.target[row[1] % VNODE_COUNT].append((item.place, row))
            if item.barrier is not None:
                checkpoint = item.place.epoch in self.checkpoints
                check(item.barrier.checkpoint == checkpoint, f"{item} has the wrong flag")
        if items:
            self.check_barriers(reading, items)

    def check_barriers(self, reading: Reading, items: list[Seen]) -> None:
        """Barriers after rows, and those that give vnodes, come to every reader."""
        told = {i.place: i.barrier.vnodes for i in items if i.barrier is not None}
        for epoch, rows in self.epochs.items():
            passed = reading.reader.truncated < Offset(epoch) <= items[-1].place
            shards = self.reshardings.get(epoch)
            # Barriers are of no interest to a reader without vnodes, unless they bring some.
            if passed and (shards or (rows and reading.reader._vnodes)):
                check(Offset(epoch) in told, f"the barrier of {epoch} did not come")
                mine = None
                if shards is not None:
                    mine = VnodeBitmap.empty()
                    if reading.number < len(shards):
                        mine = shards[reading.number]
                check(told[Offset(epoch)] == mine, f"{epoch} gives other vnodes than {mine}")

    async def rewind(self) -> None:
        reading = self.random.choice(self.readings)
        await reading.reader.rewind()
        with pytest.raises(BrokenInvariant):
            await reading.reader.next_item()
        reading.expected = [*reading.shown, *reading.expected]
        reading.shown = []
        ends = [item.place for item in reading.expected if item.barrier is not None]
        if ends and self.random.random() < 0.3:
            # The target says that it has everything up to there.
            place = self.random.choice(ends)
            await reading.reader.start_from(place.epoch)
            count = sum(item.place <= place for item in reading.expected)
            self.deliver(reading, reading.expected[:count])
            reading.expected = reading.expected[count:]
            reading.reader.truncate(place)
            return
        await reading.reader.start_from()

    async def collect(self) -> None:
        log = self.rig.factory.log
        await log.collect()
        if self.random.random() < 0.2:
            await log.collect_orphans()

    async def pause(self) -> None:
        self.writer.pause()
        reading = self.random.choice(self.readings)
        item = await self.within(PATIENCE, reading.reader.next_item())
        check(item is None, f"{item} was read from a paused log")
        self.writer.resume()

    def check_bounds(self) -> None:
        most = self.rig.options.buffer_bytes
        held = self.rig.factory.log.buffer.held_bytes
        check(held <= most, f"{held} bytes are held, {most} may be")

    async def finish(self) -> None:
        """Commit everything, deliver everything, and look at what came of it."""
        await self.flush(checkpoint=True)
        while self.staged:
            self.commit()
            self.writer.confirm(self.committed)
        end = Offset(self.committed)
        while any(reading.reader.truncated < end for reading in self.readings):
            for reading in self.readings:
                await self.drain(reading)
        expected = defaultdict(list)
        for epoch in sorted(self.epochs):
            for row in self.epochs[epoch] if epoch <= self.committed else []:
                expected[row[1] % VNODE_COUNT].append(row)
        delivered = {v: [row for _, row in rows] for v, rows in self.target.items() if rows}
        for vnode in delivered.keys() | expected.keys():
            got, owed = delivered.get(vnode, []), expected.get(vnode, [])
            check(got == owed, f"vnode {vnode}: delivered {got}, owed {owed}")
        await self.flush(checkpoint=True)
        self.commit()
        self.writer.confirm(self.committed)
        await self.rig.factory.log.collect()
        await self.rig.factory.log.collect_orphans(alone=True)
        left = list(self.rig.files.content)
        check(not left, f"files stay: {left}")

    async def drain(self, reading: Reading) -> None:
        while (item := await self.within(PATIENCE, reading.reader.next_item())) is not None:
            reading.show(await with_rows(reading.reader, item))
        self.deliver(reading, reading.shown)
        if reading.shown:
            reading.reader.truncate(reading.shown[-1].place)
            reading.shown = []


def play(seed: int, deeds: int = 60) -> None:
    run(
        History(seed).run(deeds),
        seed=seed,
        executor_latency=LATENCY,
        time_limit=1e6,
        round_limit=300_000,
    )


def play_many(seeds: range) -> None:
    for seed in seeds:
        play(seed)
