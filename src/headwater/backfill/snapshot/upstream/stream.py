"""What a follower reads next of one upstream table. Pure.

    snapshot    the table at one epoch, by vnode
    log         the changes since, stretch by stretch, for ever
    stopped     something is gone that was needed; only a person can help

What arrives upstream while the snapshot is read is not held here: it is in the upstream's log,
which is durable and is read after the snapshot. So the buffer is a place in that log, and what is
in memory is one stretch of it, bounded in bytes.

Tables that are followed together keep together: once their snapshots are read, all of them go up to
the same upstream epoch with the same epoch here, so that a transaction over several of them is seen
whole. `aim` says up to where.

    a table that               goes
    has come as far as others  with them: all take the next stretch along, or none does
    is behind                  alone, up to where the others are, who wait once it is near
    has a rate limit           alone, as far as it may

Time is handed in. What fails is tried again after a wait that grows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headwater.backfill.snapshot.slices import Group
from headwater.backfill.snapshot.state import BackfillState
from headwater.backfill.snapshot.upstream.table import LoggedEpoch
from headwater.backfill.snapshot.vnode_stream import VnodeSlice, VnodeStream, joined
from headwater.errors import BrokenInvariant
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_millis
from headwater.model.rate_limit import RateLimit, RateLimiter

_MOST = 1 << 60
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0


class Phase(StrEnum):
    """What is read of a table."""

    SNAPSHOT = "snapshot"
    LOG = "log"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What bounds a read."""

    slice_bytes: int = 64 << 20
    """A slice of a snapshot is not made smaller than this, but for a rate limit."""
    slices: int = 20
    """Nor is a snapshot divided into more slices: a crash costs one of them."""
    stretch_bytes: int = 64 << 20
    """How much of the log is read at once; an epoch stays whole, however large it is."""
    parallelism: int = 1
    """How many slices are read side by side."""
    idle_ms: int = 10_000
    """An upstream that does not change a table is noted so often."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadSnapshot:
    """Read these slices."""

    epoch: Epoch
    slices: tuple[VnodeSlice, ...]
    allowed: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """About."""
        return sum(each.rows for each in self.slices)

    @property
    def bytes(self) -> int:
        """About."""
        return sum(each.bytes for each in self.slices)


@dataclass(frozen=True, slots=True, eq=False)
class ReadChanges:
    """Read the changes after one epoch and up to another."""

    after: Epoch
    upto: Epoch
    rows: int
    bytes: int
    allowed: tuple[int, int] | None = None


Instruction = ReadSnapshot | ReadChanges


@dataclass(slots=True)
class _Seen:
    committed: Epoch = NO_EPOCH
    log: Sequence[LoggedEpoch] = ()


@dataclass(slots=True, eq=False)
class UpstreamStream:
    """One table, as far as one reader has its vnodes."""

    groups: Mapping[Epoch, Sequence[Group]]
    """Of each epoch whose snapshot is not read yet."""
    states: tuple[BackfillState, ...]
    limiter: RateLimiter
    pace: Pace = field(default_factory=Pace)
    paused: bool = False
    wake_at: float | None = None
    aim: Epoch | None = None
    """Up to where the next stretch of the log goes, once that is said."""
    stopped: str = ""
    _snapshots: dict[Epoch, VnodeStream] = field(default_factory=dict)
    """One, unless readers who began at different times have exchanged vnodes."""
    _flying: list[Instruction] = field(default_factory=list)
    """Begun, and in no epoch yet."""
    _arrived: list[Instruction] = field(default_factory=list)
    """Of those, the ones that were read."""
    _seen: _Seen = field(default_factory=_Seen)
    _failures: int = 0
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        for epoch in sorted({state.epoch for state in self.states if not state.finished}):
            unread = [s for s in self.states if s.epoch == epoch and not s.finished]
            self._snapshots[epoch] = VnodeStream(self.groups[epoch], unread)
        self._join()

    # How far it is

    @property
    def phase(self) -> Phase:
        """What is read."""
        if self.stopped:
            return Phase.STOPPED
        return Phase.SNAPSHOT if self._snapshots else Phase.LOG

    @property
    def position(self) -> Epoch:
        """The oldest epoch of which anything is still needed; changes up to it are not."""
        return min((state.epoch for state in self.states), default=NO_EPOCH)

    @property
    def committed(self) -> Epoch:
        """The last epoch that the upstream was seen to have."""
        return self._seen.committed

    @property
    def rows(self) -> int:
        """Rows and changes that were read."""
        return sum(state.rows for state in self.states)

    @property
    def total(self) -> int:
        """About how many rows the snapshot has; those read when it is over."""
        done = sum(state.rows for state in self.states if state.finished)
        return max(self.rows, done + sum(each.rows for each in self._snapshots.values()))

    @property
    def limited(self) -> bool:
        """Whether a rate limit holds."""
        limit = self.limiter.limit
        return limit.rows_per_s is not None or limit.bytes_per_s is not None

    @property
    def keeps_together(self) -> bool:
        """Whether it goes as far as the other tables do, at the same time."""
        return self.phase is Phase.LOG and not self.limited and bool(self.states)

    def ahead(self, upto: Epoch) -> list[LoggedEpoch]:
        """The epochs that are not read yet, up to one."""
        return [each for each in self._seen.log if self.position < each.epoch <= upto]

    # What comes next

    def next(self, now: float) -> Instruction | None:
        """What to begin now, if anything."""
        self.wake_at = None
        if self.paused or self.stopped:
            return None
        if now < self._not_before:
            self.wake_at = self._not_before
            return None
        found = self._slices(now) if self._snapshots else self._stretch(now)
        if found is not None:
            self._flying.append(found)
        return found

    # What has happened

    def saw(self, committed: Epoch, log: Sequence[LoggedEpoch]) -> None:
        """The upstream has come so far; `log` has what is after `position`."""
        if committed < self._seen.committed:
            raise BrokenInvariant(
                f"the upstream is at epoch {committed}, and was at {self._seen.committed}"
            )
        self._seen = _Seen(committed, log)

    def arrived(self, instruction: Instruction) -> None:
        """It was read, and waits for its epoch; another may be begun."""
        self._arrived.append(instruction)

    def done(self, instruction: Instruction, rows: int) -> None:
        """An epoch has it: so many rows, or changes."""
        self._arrived.remove(instruction)
        self._flying.remove(instruction)
        self._failures = 0
        if instruction.allowed is not None:
            self.limiter.give_back(instruction.allowed, (rows, instruction.bytes))
        if isinstance(instruction, ReadChanges):
            self._consume(instruction, rows)
            return
        snapshot = self._snapshots[instruction.epoch]
        left = rows
        for place, each in enumerate(instruction.slices):
            # How many rows each of them brought is not counted; all of them together are.
            last = place == len(instruction.slices) - 1
            brought = left if last else min(each.rows, left)
            left -= brought
            snapshot.settle(each, brought)
        moved = {state.first: state for state in snapshot.states}
        self.states = tuple(moved.get(state.first, state) for state in self.states)
        if snapshot.finished:
            del self._snapshots[instruction.epoch]
            self._join()

    def failed(self, instruction: Instruction, now: float) -> None:
        """It was not read; it is tried again later."""
        self._flying.remove(instruction)
        if instruction.allowed is not None:
            self.limiter.give_back(instruction.allowed, (0, 0))
        if isinstance(instruction, ReadSnapshot):
            for each in instruction.slices:
                self._snapshots[instruction.epoch].give_up(each)
        self._not_before = now + min(_FIRST_WAIT_S * 2**self._failures, _LONGEST_WAIT_S)
        self._failures += 1

    def throttled(self, limit: RateLimit, now: float) -> list[Instruction]:
        """Another rate limit, from now on; gives what is not to be gone on with.

        A table goes alone under a limit, and with the others without one: a stretch that was
        begun one way cannot end the other way.
        """
        before = self.limited
        self.limiter.alter(limit, now)
        if self.limited == before or self._snapshots:
            return []
        given_up = [*self._flying]
        self._flying.clear()
        self._arrived.clear()
        self.aim = None
        return given_up

    # Inside

    def _slices(self, now: float) -> ReadSnapshot | None:
        if len(self._flying) - len(self._arrived) >= self.pace.parallelism:
            return None
        epoch, snapshot = min(self._snapshots.items())
        share = snapshot.bytes * 11 // (self.pace.slices * 10)
        bytes_ = max(self.pace.slice_bytes, share)
        taken = self._allowance(bytes_, now)
        if taken is None:
            return None
        most_rows = None if taken[0] == _MOST else taken[0]
        slices = snapshot.next(taken[1], most_rows)
        if not slices:
            self.limiter.give_back(taken, (0, 0))
            return None
        return ReadSnapshot(epoch, slices, taken)

    def _stretch(self, now: float) -> ReadChanges | None:
        if self._flying or not self.states:
            return None
        if not self.limited:
            return None if self.aim is None else self._changes(self.aim, None)
        upto = _bounded([self], self.committed, self.pace.stretch_bytes)
        if upto is None:
            return None
        taken = self._allowance(self.pace.stretch_bytes, now)
        if taken is None:
            return None
        rows, reached = 0, upto
        ahead = self.ahead(upto)
        for place, each in enumerate(ahead):
            if place and rows + each.rows > taken[0]:
                reached = ahead[place - 1].epoch
                break
            rows += each.rows
        self.aim = reached
        return self._changes(reached, taken)

    def _changes(self, upto: Epoch, taken: tuple[int, int] | None) -> ReadChanges:
        ahead = self.ahead(upto)
        rows, size = sum(each.rows for each in ahead), sum(each.bytes for each in ahead)
        return ReadChanges(self.position, upto, rows, size, taken)

    def _allowance(self, most_bytes: int, now: float) -> tuple[int, int] | None:
        taken = self.limiter.take(_MOST, most_bytes, now)
        if taken is None:
            self.wake_at = self.limiter.ready_at(_MOST, most_bytes)
        return taken

    def _join(self) -> None:
        if not self._snapshots:
            self.states = joined(self.states)

    def _consume(self, step: ReadChanges, rows: int) -> None:
        """Everybody is at least at the end of the stretch now."""
        behind = [state for state in self.states if state.epoch < step.upto]
        moved = {}
        for place, state in enumerate(behind):
            moved[state.first] = state.consumed(step.upto, rows if place == 0 else 0)
        self.states = joined([moved.get(state.first, state) for state in self.states])
        self.aim = None


def aim(streams: Iterable[UpstreamStream]) -> None:
    """Say up to where tables that have nothing to do read next; see above."""
    together = [each for each in streams if each.keeps_together and not each.paused]
    if not together:
        return
    at = max(each.position for each in together)
    wait = False
    for each in together:
        if each.position < at:
            if each.aim is None:
                # What it needs may not have been seen yet, if others were looked at later.
                each.aim = _bounded([each], Epoch(min(at, each.committed)), alone=True)
            wait |= each.aim == at
    level = [each for each in together if each.position == at]
    aims = {each.aim for each in level if each.aim is not None}
    if wait and not aims:
        return
    # One that has just caught up goes where the others are going already.
    upto = max(aims) if aims else _bounded(level, min(each.committed for each in level))
    for each in level:
        if upto is not None and upto <= each.committed:
            each.aim = upto


def _bounded(
    streams: Sequence[UpstreamStream],
    upto: Epoch,
    most_bytes: int | None = None,
    *,
    alone: bool = False,
) -> Epoch | None:
    """The end of the next stretch of tables that are equally far; None when there is none."""
    most = min(each.pace.stretch_bytes for each in streams) if most_bytes is None else most_bytes
    after = streams[0].position
    if upto <= after:
        return None
    sizes: dict[Epoch, int] = {}
    for stream in streams:
        for each in stream.ahead(upto):
            sizes[each.epoch] = sizes.get(each.epoch, 0) + each.bytes
    if not sizes:
        idle = epoch_millis(upto) - epoch_millis(after)
        return upto if alone or idle >= min(each.pace.idle_ms for each in streams) else None
    held, last = 0, None
    for epoch in sorted(sizes):
        if last is not None and held + sizes[epoch] > most:
            return last
        held, last = held + sizes[epoch], epoch
    return upto
