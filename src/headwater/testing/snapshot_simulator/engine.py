"""The engine of a simulated creation: what is durable, and one life of the executor after another.

Work runs when the scenario says so, and sees what is durable at that moment. A commit checks that
the view equals its query over exactly what the stored progress says has been read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.backfill.rate_limit import RateLimit, RateLimiter
from headwater.backfill.snapshot.executor import (
    Filled,
    Prepared,
    SnapshotBackfillExecutor,
    Surroundings,
)
from headwater.backfill.snapshot.machine import (
    CatchUp,
    LogEpoch,
    Pace,
    Read,
    SnapshotBackfillMachine,
    Step,
)
from headwater.backfill.snapshot.slices import Group
from headwater.backfill.snapshot.state import START, TableProgress, decoded
from headwater.errors import HeadwaterError
from headwater.model.barrier import Barrier
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId, TableId
from headwater.model.table_commit import TableCommit
from headwater.testing.snapshot_simulator.upstream import (
    LARGE,
    SMALL,
    Rows,
    Snapshot,
    State,
    Upstream,
    View,
    snapshot_of,
)

JOB = JobId(9)


@dataclass(slots=True)
class Durable:
    """What the ledger has."""

    upstream: Upstream
    query: Callable[[State], View]
    fresh: bool
    seed: int
    last: Epoch
    view: View = field(default_factory=dict)
    progress: str = ""
    exists: bool = False

    @property
    def read(self) -> dict[TableId, TableProgress]:
        """How far the view is."""
        return decoded(self.progress) if self.progress else {}

    def check(self) -> None:
        """Raise unless the view is its query over what has been read."""
        read = self.read
        if not read:
            assert not self.view, "there are rows, and no progress says where from"
            return
        state = {table: self._rows(table, progress) for table, progress in read.items()}
        wanted = self.query(state)
        assert self.view == wanted, f"{self.progress}: {self.view} is not {wanted}"

    def _rows(self, table: TableId, progress: TableProgress) -> Rows:
        if progress.finished:
            return self.upstream.states[progress.epoch][table]
        return snapshot_of(self.upstream, progress.epoch, self.seed).so_far(table, progress)


class ModelTarget:
    """A view as a dictionary; satisfies the backfill room's `Target`."""

    def __init__(self, durable: Durable, snapshot: Snapshot) -> None:
        self._durable = durable
        self._snapshot = snapshot
        self.fresh = durable.fresh
        self.staged: dict[Epoch, View] = {}

    @property
    def exists(self) -> bool:
        """Whether the ledger has its store."""
        return self._durable.exists

    def read(self, read: Read, so_far: Mapping[TableId, TableProgress], epoch: Epoch) -> Prepared:
        """The rows that slices bring."""
        parts: dict[TableId, list[Any]] = {SMALL: [], LARGE: []}
        for table, each in read.slices:
            parts[table] += each.parts
        before = {t: dict(self._snapshot.so_far(t, so_far[t])) for t in parts}
        slices = {t: self._snapshot.rows(t, parts[t]) for t in parts}
        after = {t: {**before[t], **slices[t]} for t in parts}
        if self.fresh:
            # The large table's slice alone, with all of the small one that is there by then.
            ends = {f for t, each in read.slices for f in [(t, each.first)] if each.after is None}
            whole = all(s.finished or (SMALL, s.first) in ends for s in so_far[SMALL].states)
            brought = self._durable.query({SMALL: after[SMALL], LARGE: slices[LARGE]})
            assert whole or not brought, "a slice is read before the table that it needs"
            return Prepared(_inserts(brought), read.rows)
        begun = any(s.cursor != START for each in so_far.values() for s in each.states)
        assert self._durable.view == (self._durable.query(before) if begun else {})
        return Prepared(_difference(self._durable.view, self._durable.query(after)), read.rows)

    def catch_up(self, step: CatchUp, epoch: Epoch) -> Prepared:
        """What a stretch of the log changes."""
        states = self._durable.upstream.states
        before = self._durable.query(states[step.after])
        assert self._durable.view == before, f"the view is not what it was at {step.after}"
        after = self._durable.query(states[step.upto])
        return Prepared(_difference(before, after), sum(step.rows.values()))

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> list[TableCommit]:
        """The view with what is prepared."""
        view = dict(self._durable.view)
        for each in prepared:
            changes: Any = each.parts
            for key, row in changes.items():
                if row is None:
                    del view[key]
                    continue
                inserts, values = row
                assert not (inserts and key in view), f"{key} is inserted twice"
                view[key] = values
        self.staged[epoch] = view
        return [TableCommit(table=TableId(3), version=len(self.staged))]

    def log(self, after: Epoch) -> Sequence[LogEpoch]:
        """The committed epochs that changed something."""
        return self._durable.upstream.log(after, self._durable.last)

    def interrupt(self) -> None:
        """Nothing runs that would have to be told."""


def _inserts(view: View) -> Any:
    return {key: (True, row) for key, row in view.items()}


def _difference(before: View, after: View) -> Any:
    gone = dict.fromkeys(before.keys() - after.keys())
    return gone | {
        key: (key not in before, row) for key, row in after.items() if before.get(key) != row
    }


@dataclass(slots=True)
class Work:
    """A call that runs when the scenario says so."""

    call: Callable[[], Any]
    future: "asyncio.Future[Any]"

    def run(self, error: HeadwaterError | None = None) -> None:
        """End it, well or not."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
            return
        try:
            self.future.set_result(self.call())
        except BaseException as found:
            self.future.set_exception(found)


class Life:
    """One executor and all that it talks to."""

    def __init__(
        self, durable: Durable, *, limit: int | None, parallelism: int, slices: int
    ) -> None:
        self.durable = durable
        self.works: list[Work] = []
        self.merged: Epoch | None = None
        self.failed: list[HeadwaterError] = []
        self.now = 0.0
        self._waits: list[tuple[Epoch, asyncio.Future[None]]] = []
        self._barriers: asyncio.Queue[Barrier] = asyncio.Queue()
        read = durable.read
        epoch = min((each.epoch for each in read.values()), default=durable.last)
        snapshot = snapshot_of(durable.upstream, epoch, durable.seed)
        self.target = ModelTarget(durable, snapshot)
        groups = {
            table: _spans(read[table]) if table in read and read[table].finished else found
            for table, found in snapshot.groups.items()
        }
        self.machine = SnapshotBackfillMachine(
            epoch=epoch,
            groups=groups,
            steps=[Step((SMALL, LARGE), slices)],
            limiter=RateLimiter(RateLimit(rows_per_s=limit), self.now),
            pace=Pace(slice_bytes=50, catch_up_rows=6, merge_rows=3),
            at_once=1000 if durable.fresh else 1,
            progress=read,
        )
        around = Surroundings(
            job=JOB,
            wait_committed=self._wait,
            merge=self._merge,
            failed=self.failed.append,
            blocking=self._blocking,
            clock=lambda: self.now,
        )
        self.executor = SnapshotBackfillExecutor(
            self.machine, self.target, around, parallelism=parallelism
        )
        self.messages: list[Filled | Barrier] = []
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async for message in self.executor.execute(self._stream()):
            self.messages.append(message)

    async def _stream(self) -> AsyncIterator[Barrier]:
        while True:
            yield await self._barriers.get()

    def _merge(self, after: Epoch) -> None:
        self.merged = after

    async def _blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if call.__name__ == "stage":
            return call(*arguments)
        work = Work(lambda: call(*arguments), asyncio.get_running_loop().create_future())
        self.works.append(work)
        return await work.future

    async def _wait(self, epoch: Epoch) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append((epoch, future))
        await future

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(12):
            await asyncio.sleep(0)
        if self.task.done():
            self.task.result()

    async def pass_(self, barrier: Barrier) -> Filled | None:
        """Send a barrier; it is answered at once, whatever is under way."""
        self.messages.clear()
        self._barriers.put_nowait(barrier)
        await self.settle()
        assert self.messages, "a barrier waits"
        assert self.messages[-1] is barrier
        first = self.messages[0]
        return first if isinstance(first, Filled) else None

    def commit(self, epoch: Epoch, filled: Filled | None) -> None:
        """The ledger has the epoch."""
        if filled is not None:
            self.durable.view = self.target.staged[epoch]
            self.durable.progress = filled.progress
        self.durable.last = epoch
        self.durable.check()
        for at, future in self._waits:
            if at <= epoch and not future.done():
                future.set_result(None)

    async def die(self) -> None:
        """Killed: what was under way has not happened."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def _spans(progress: TableProgress) -> list[Group]:
    return [Group(each.first, each.last, ()) for each in progress.states]
