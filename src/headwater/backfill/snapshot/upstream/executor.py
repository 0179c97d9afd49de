"""The executor that follows tables of another workspace, epoch by epoch.

    in     `Barrier`, one after the other
    out    for a checkpoint that stores something a `Consumed`, right before its `Barrier`; other
           barriers as they are

Between barriers it looks at the upstream, and reads slices of snapshots and stretches of change
logs; what is read is written to files at once, and waits there for its epoch. A barrier never waits
for a read: it takes along what is ready, together with how far that is. What fails is tried
again after a wait that grows. A table whose history is gone, or that was dropped or changed
upstream, stops alone, and says why.

    barrier kind                    effect
    Initial, Barrier                is passed on; nothing is stored
    Checkpoint, SyncCheckpoint      what is ready goes into its epoch

    mutation         effect
    Pause, Resume    nothing is begun in between
    Throttle         the rate limit of all tables of this job, from now on; 0 pauses
    Rescale          other vnodes from this barrier on: what is under way is given up, and reading
                     goes on from what the ledger has of them
    Stop             the stream ends after this barrier
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.backfill.snapshot.state import BackfillState
from headwater.backfill.snapshot.upstream.followed import (
    Begun,
    Followed,
    Following,
    look_at,
    open_upstream,
    read_changes,
    read_snapshot,
)
from headwater.backfill.snapshot.upstream.stream import (
    Pace,
    ReadChanges,
    ReadSnapshot,
    UpstreamStream,
    aim,
)
from headwater.backfill.snapshot.vnode_stream import owned
from headwater.crash_points import crash_point
from headwater.errors import CommitUnknown, HeadwaterError, RetryableError
from headwater.model.barrier import Barrier, Pause, Rescale, Resume, Stop, Throttle
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId, TableId
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.table_commit import TableCommit
from headwater.model.vnode import VnodeBitmap


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor is given besides its tables."""

    job: JobId
    actor: ActorId
    wait_committed: Callable[[Epoch], Awaitable[object]]
    vnodes: VnodeBitmap = field(default_factory=VnodeBitmap.full)
    pace: Pace = field(default_factory=Pace)
    poll_s: float = 0.2
    """How often the upstream is looked at."""
    pin_s: float = 10.0
    """How often a pin is moved at most."""
    blocking: Callable[..., Awaitable[Any]] = asyncio.to_thread
    hurry: Callable[[], None] = lambda: None
    """Asks for the next barrier."""
    tell: Callable[[str, str], None] = lambda table, text: None
    """Hears what goes wrong with a table, each time that it begins."""
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What a checkpoint stores, and how far the tables then are."""

    commits: Sequence[TableCommit]
    states: Mapping[TableId, tuple[BackfillState, ...]]
    stopped: Mapping[TableId, str]
    """Tables that stopped since the last checkpoint, and why."""


Message = Consumed | Barrier


class UpstreamTableExecutor:
    """Keeps tables in step with those of one upstream; one life of its job."""

    def __init__(self, around: Surroundings, tables: Iterable[Following] = ()) -> None:
        self._around = around
        self._vnodes = around.vnodes
        self.tables: dict[TableId, Followed] = {}
        self._epoch: Epoch | None = None
        self._paused = False
        self._hurried = False
        self._newly_stopped: dict[TableId, str] = {}
        self._limits: dict[TableId, int | None] = {}
        """What was said in this life; it holds for other vnodes as well."""
        self._wake = asyncio.Event()
        for each in tables:
            self.follow(each)

    # Tables come and go

    def follow(self, following: Following) -> None:
        """Follow one more table."""
        self.tables[following.id] = Followed(following, stopped=following.stopped)
        self._wake.set()

    def forget(self, table: TableId) -> None:
        """Follow it no more; what is under way of it goes nowhere."""
        followed = self.tables.pop(table, None)
        if followed is not None:
            followed.abandon()

    def throttle(self, table: TableId, rows_per_s: int | None) -> None:
        """Another rate limit for one table, from now on."""
        self._limits[table] = rows_per_s
        followed = self.tables.get(table)
        if followed is not None and followed.stream is not None:
            limit = RateLimit(rows_per_s=rows_per_s)
            followed.give_up(followed.stream.throttled(limit, self._around.clock()))
            self._wake.set()

    # Life

    async def execute(self, upstream: AsyncIterator[Barrier]) -> AsyncIterator[Message]:
        """Run until a barrier stops this job."""
        incoming: asyncio.Future[Barrier] | None = None
        woken: asyncio.Future[Any] | None = None
        try:
            while True:
                incoming = incoming or asyncio.ensure_future(_next(upstream))
                woken = woken or asyncio.ensure_future(self._wake.wait())
                self._begin()
                waits = {incoming, woken}
                waits |= {work for each in self.tables.values() for work in each.waits}
                await asyncio.wait(
                    waits, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
                )
                if woken.done():
                    woken = None
                    self._wake.clear()
                self._look()
                if not incoming.done():
                    continue
                barrier, incoming = incoming.result(), None
                self._mutate(barrier)
                if barrier.kind.durable:
                    consumed = await self._take(barrier.epoch.prev)
                    if consumed is not None:
                        yield consumed
                self._epoch = barrier.epoch.curr
                self._hurried = False
                yield barrier
                if self._over(barrier):
                    return
                self._rescale(barrier)
        finally:
            await self._leave(incoming, woken)

    # What is begun

    def _begin(self) -> None:
        if self._epoch is None:
            return
        now = self._around.clock()
        for each in self.tables.values():
            self._look_upstream(each, now)
            self._move_pin(each, now)
        if not any(each.missed for each in self.tables.values()):
            aim(each.stream for each in self.tables.values() if each.stream is not None)
        for each in self.tables.values():
            while self._begin_one(each, now):
                pass
        if not self._hurried and self._takable():
            self._hurried = True
            self._around.hurry()

    def _begin_one(self, each: Followed, now: float) -> bool:
        stream, table = each.stream, each.following
        if stream is None or not table.local.exists or self._epoch is None:
            return False
        doing = stream.next(now)
        match doing:
            case None:
                return False
            case ReadSnapshot():
                call = self._around.blocking(read_snapshot, table, doing, self._epoch)
            case ReadChanges(rows=0):
                call = _nothing()
            case ReadChanges():
                states = stream.states
                call = self._around.blocking(read_changes, table, doing, states, self._epoch)
        each.begun.append(Begun(doing, asyncio.ensure_future(call)))
        return True

    def _look_upstream(self, each: Followed, now: float) -> None:
        """Look at what the upstream has, or find out where to begin."""
        if each.looking is not None or each.stopped or now < each.look_at or self._paused:
            return
        if each.stream is None and not each.following.local.exists:
            return
        each.look_at = now + self._around.poll_s
        look = self._open(each) if each.stream is None else self._refresh(each)
        each.looking = asyncio.ensure_future(look)

    async def _open(self, each: Followed) -> None:
        table, around = each.following, self._around
        opened = await around.blocking(open_upstream, table, table.stored())
        each.pinned = opened.pinned
        if opened.unpinned:
            self._troubled(each, "pin", f"its history is not held upstream: {opened.unpinned}")
        each.stream = UpstreamStream(
            groups=opened.groups,
            states=owned(opened.states, self._vnodes),
            limiter=RateLimiter(RateLimit(rows_per_s=self._limit(table)), around.clock()),
            pace=around.pace,
            paused=self._paused,
        )
        each.stream.saw(opened.committed, opened.log)

    def _limit(self, table: Following) -> int | None:
        return self._limits[table.id] if table.id in self._limits else table.limit()

    async def _refresh(self, each: Followed) -> None:
        stream, upstream = each.stream, each.following.upstream
        assert stream is not None
        committed, log = await self._around.blocking(look_at, upstream, stream.position)
        stream.saw(committed, log)

    def _move_pin(self, each: Followed, now: float) -> None:
        """Let the upstream forget what the ledger has; a pin never passes that."""
        if not each.following.pins or each.pinning is not None or now < each.pin_at:
            return
        if each.stream is None or each.stopped:
            return
        each.pin_at = now + self._around.pin_s
        # Of all vnodes: after a rescale they may be this reader's.
        stored = [state.epoch for state in each.following.stored()]
        needed = min([*stored, each.stream.position])
        if not stored or needed in (NO_EPOCH, each.pinned):
            return

        async def pin() -> None:
            await self._around.blocking(each.following.upstream.pin, needed)
            each.pinned = needed

        each.pinning = asyncio.ensure_future(pin())

    # What has ended

    def _look(self) -> None:
        for each in self.tables.values():
            for begun in [b for b in each.begun if not b.ready and b.work.done()]:
                if each.stopped:
                    break
                self._ended(each, begun)
            looking, pinning = each.looking, each.pinning
            if looking is not None and looking.done():
                each.looking = None
                self._looked(each, looking.exception())
            if pinning is not None and pinning.done():
                each.pinning = None
                self._pinned(each, pinning.exception())

    def _looked(self, each: Followed, error: BaseException | None) -> None:
        if error is None:
            each.looked()
        elif isinstance(error, RetryableError | CommitUnknown):
            each.backoff(self._around.clock())
            self._troubled(each, "look", str(error))
        else:
            self._stop(each, error)

    def _pinned(self, each: Followed, error: BaseException | None) -> None:
        if error is None:
            each.troubles.pop("pin", None)
            return
        _raise_bugs(error)
        self._troubled(each, "pin", f"its history is not held upstream: {error}")

    def _ended(self, each: Followed, begun: Begun) -> None:
        assert each.stream is not None
        error = begun.work.exception()
        if error is None:
            begun.ready = True
            each.stream.arrived(begun.doing)
            each.troubles.pop("read", None)
            return
        each.begun.remove(begun)
        each.stream.failed(begun.doing, self._around.clock())
        if isinstance(error, RetryableError | CommitUnknown):
            self._troubled(each, "read", str(error))
        else:
            self._stop(each, error)

    def _stop(self, each: Followed, error: BaseException) -> None:
        """It cannot go on by itself; the others do."""
        _raise_bugs(error)
        assert isinstance(error, HeadwaterError)
        each.stopped = error.message
        each.abandon()
        if each.stream is not None:
            each.stream.stopped = error.message
        self._newly_stopped[each.following.id] = error.message
        self._around.tell(each.following.upstream.name, str(error))
        self._hurried = True
        self._around.hurry()

    def _troubled(self, each: Followed, what: str, text: str) -> None:
        told = what in each.troubles
        each.troubles[what] = text.split("\n", 1)[0]
        if not told:
            self._around.tell(each.following.upstream.name, text)

    # What an epoch takes along

    def _takable(self) -> list[tuple[Followed, Begun]]:
        """What is ready: slices as they come, stretches of the log of all tables or of none."""
        streams = {each: each.stream for each in self.tables.values() if each.stream is not None}
        together = [each for each, stream in streams.items() if stream.keeps_together]
        at = max((streams[each].position for each in together), default=NO_EPOCH)
        found: list[tuple[Followed, Begun]] = []
        level: list[Followed] = []
        for each, stream in streams.items():
            if each in together and stream.position == at:
                level.append(each)
            else:
                found += [(each, begun) for begun in each.begun if begun.ready]
        if all(each.ready for each in level):
            found += [(each, begun) for each in level for begun in each.begun]
        return found

    async def _take(self, epoch: Epoch) -> Consumed | None:
        """Stage what is ready. Replay: an epoch that did not happen is staged again."""
        taken: dict[Followed, list[Begun]] = {}
        for each, begun in self._takable():
            taken.setdefault(each, []).append(begun)
        stopped, self._newly_stopped = self._newly_stopped, {}
        if not taken and not stopped:
            return None
        commits = []
        states = {}
        for each, all_begun in taken.items():
            assert each.stream is not None
            brought = [begun.work.result() for begun in all_begun]
            prepared = [part for part in brought if part is not None]
            if prepared:
                stage = self._around.blocking(each.following.local.stage, epoch, prepared)
                if (commit := await stage) is not None:
                    commits.append(commit)
            if self.tables.get(each.following.id) is not each:
                # It was forgotten meanwhile, and is about to be dropped.
                continue
            for begun, part in zip(all_begun, brought, strict=True):
                each.begun.remove(begun)
                each.stream.done(begun.doing, 0 if part is None else part.rows)
            states[each.following.id] = each.stream.states
        crash_point("upstream.after_stage")
        return Consumed(commits=commits, states=states, stopped=stopped)

    # Mutations

    def _mutate(self, barrier: Barrier) -> None:
        match barrier.mutation:
            case Pause():
                self._set_paused(True)
            case Resume():
                self._set_paused(False)
            case Throttle(limits=limits) if self._around.job in limits:
                for table in self.tables:
                    self.throttle(table, limits[self._around.job])
            case _:
                pass

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        for each in self.tables.values():
            if each.stream is not None:
                each.stream.paused = paused

    def _over(self, barrier: Barrier) -> bool:
        return isinstance(barrier.mutation, Stop) and self._around.job in barrier.mutation.jobs

    def _rescale(self, barrier: Barrier) -> None:
        """Go on with other vnodes, from what the ledger has of them once it has this epoch."""
        if not isinstance(barrier.mutation, Rescale):
            return
        vnodes = barrier.mutation.bitmaps.get(self._around.actor)
        if vnodes is None or vnodes == self._vnodes:
            return
        self._vnodes = vnodes
        for id_, each in list(self.tables.items()):
            each.abandon()
            again = Followed(each.following, stopped=each.stopped)
            if not again.stopped:
                again.looking = asyncio.ensure_future(self._reopen(again, barrier.epoch.prev))
            self.tables[id_] = again

    async def _reopen(self, each: Followed, epoch: Epoch) -> None:
        await self._around.wait_committed(epoch)
        await self._open(each)

    # Inside

    def _pause(self) -> float | None:
        """How long to wait when nothing happens."""
        if self._epoch is None:
            return None
        wakes = []
        for each in self.tables.values():
            if each.looking is None and not each.stopped and not self._paused:
                wakes.append(each.look_at)
            if each.stream is not None and each.stream.wake_at is not None:
                wakes.append(each.stream.wake_at)
        return max(0.001, min(wakes) - self._around.clock()) if wakes else None

    async def _leave(self, *waits: "asyncio.Future[Any] | None") -> None:
        running = [work for each in self.tables.values() for work in each.waits]
        for each in (*waits, *running):
            if each is None:
                continue
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HeadwaterError):
                await each


def _raise_bugs(error: BaseException) -> None:
    """A bug of ours is not the table's fault, and must be heard."""
    if not isinstance(error, HeadwaterError):
        raise error


async def _nothing() -> None:
    return None


async def _next(upstream: AsyncIterator[Barrier]) -> Barrier:
    return await anext(upstream)
