"""What a new view reads next, and when it joins the views that are kept current. Pure.

    snapshot    the tables at one epoch, slice by slice, in the order of the plan's steps
    log         the changes since, up to what is committed by then, again and again
    merge       so little is left that the commit of an epoch can take it along
    live        kept current with the others; nothing is left to do here

Whatever has been read, the view equals its query over exactly that: so every step, of either
phase, is a change of its tables like any other, and the view may be killed between any two.

Several slices may be under way at a time when the view says so (`at_once`); they are settled in
the order in which they were begun, since a cursor has no holes. In a sweep they are the tasks of
one job: small, and parted inside of files. Time is handed in.

    gate to merge    few changes are left, or as few as there will ever be: `_ROUNDS` rounds in
                     a row have left no less than the round before, so waiting would not help
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headwater.backfill.snapshot.slices import Group, Slice, next_slice
from headwater.backfill.snapshot.state import START, BackfillState, TableProgress, unread
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.rate_limit import RateLimit, RateLimiter

_MOST = 1 << 60
_GROWS = 4
_LARGEST_TASK, _LARGEST_TASK_ROWS = 64 << 20, 2_000_000
_SMALLER_TASKS = 4
"""A task of a sweep may be so many times smaller than a slice that is a job of its own."""
_ROUNDS = 5
_Place = tuple[TableId, Group, BackfillState]
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Phase(StrEnum):
    """What a new view is doing."""

    SNAPSHOT = "snapshot"
    LOG = "log"
    MERGE = "merge"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Step:
    """Tables that are read in this order, the last of them in about so many slices.

    The first slice of the last table takes what is left of the others along. Under a rate limit
    all of them are read in slices, as small as it wants them.
    """

    tables: tuple[TableId, ...]
    slices: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Take these slices into the view."""

    slices: tuple[tuple[TableId, Slice], ...]
    allowed: tuple[int, int] | None = None
    """What the limit was charged beforehand; None where there is none."""

    @property
    def rows(self) -> int:
        """About how many rows they have."""
        return sum(each.rows for _, each in self.slices)

    @property
    def bytes(self) -> int:
        """About how large they are."""
        return sum(each.bytes for _, each in self.slices)


@dataclass(frozen=True, slots=True, eq=False)
class CatchUp:
    """Take the changes after one epoch and up to another into the view."""

    after: Epoch
    upto: Epoch
    rows: Mapping[TableId, int]


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Let the view join the others, with the changes after an epoch."""

    after: Epoch


Instruction = Read | CatchUp | Merge


@dataclass(frozen=True, slots=True)
class LogEpoch:
    """What a committed epoch changed in the tables."""

    epoch: Epoch
    rows: Mapping[TableId, int]


@dataclass(slots=True, kw_only=True)
class Pace:
    """What bounds a step."""

    slice_bytes: int = 16 << 20
    """A slice is not made smaller than this for the sake of more slices."""
    slice_s: float = 1.0
    """A slice is made so large that it takes about so long: less is mostly overhead, and more is
    what a crash costs."""
    largest_bytes: int = _MOST
    """However little time slices take, they are not made larger than this."""
    sweep_slices: int = 64
    """In how many slices a sweep divides a table, as far as `slice_bytes` and files allow it: a
    crash costs those that are being read."""
    catch_up_rows: int = 2_000_000
    merge_rows: int = 10_000


@dataclass(slots=True)
class _Flight:
    read: Read
    rows: int | None = None
    """How many rows it brought, once it is done."""


@dataclass(slots=True)
class _Lag:
    """Whether catching up gets anywhere."""

    rows: int | None = None
    rounds: int = 0

    def observe(self, rows: int) -> None:
        shrinks = self.rows is None or rows < self.rows
        self.rounds = 0 if shrinks else self.rounds + 1
        self.rows = rows


@dataclass(slots=True)
class SnapshotBackfillMachine:
    """One new view."""

    epoch: Epoch
    """The epoch of the snapshot."""
    groups: Mapping[TableId, Sequence[Group]]
    steps: Sequence[Step]
    limiter: RateLimiter
    pace: Pace = field(default_factory=Pace)
    at_once: int = 1
    progress: dict[TableId, TableProgress] = field(default_factory=dict)
    paused: bool = False
    sweeping: bool = False
    """Whether slices are the tasks of one job."""
    held: bool = False
    """Another view comes first."""
    phase: Phase = Phase.SNAPSHOT
    wake_at: float | None = None
    """When to ask again although nothing happened."""
    _flights: deque[_Flight] = field(default_factory=deque)
    _busy: bool = False
    _failures: int = 0
    _not_before: float = 0.0
    _lag: _Lag = field(default_factory=_Lag)
    _slice_bytes: int = 0

    def __post_init__(self) -> None:
        self._slice_bytes = self.pace.slice_bytes
        planned = [table for step in self.steps for table in step.tables]
        if sorted(planned) != sorted(self.groups):
            raise BrokenInvariant(f"the steps read {planned}, the view {sorted(self.groups)}")
        for table, groups in self.groups.items():
            spans = [(each.first, each.last) for each in groups]
            if table not in self.progress:
                self.progress[table] = unread(spans, self.epoch)
            stored = [(each.first, each.last) for each in self.progress[table].states]
            if stored != spans:
                raise BrokenInvariant(f"table {table} was read by vnodes {stored}, not {spans}")
        self._turn()

    # What comes next

    def next(self, now: float, log: Sequence[LogEpoch] = ()) -> Instruction | None:
        """What to do now, if anything; `log` has the committed epochs that are not consumed."""
        self.wake_at = None
        if self.paused or self.held or self._busy or self.phase in (Phase.MERGE, Phase.LIVE):
            return None
        if now < self._not_before:
            self.wake_at = self._not_before
            return None
        if self.phase is Phase.SNAPSHOT:
            return self._read(now)
        return self._follow(now, log)

    @property
    def consumed(self) -> Epoch:
        """The view is its query over the tables at this epoch, once the snapshot is read."""
        return min(each.epoch for each in self.progress.values())

    # What has happened

    def done(self, instruction: Instruction, rows: int | None = None) -> list[Read]:
        """It is in the view's stores. Gives the reads that are settled by this, in order."""
        self._failures = 0
        if isinstance(instruction, CatchUp):
            self._busy = False
            for table, progress in self.progress.items():
                changed = instruction.rows.get(table, 0)
                self.progress[table] = progress.consumed(instruction.upto, changed)
            return []
        if isinstance(instruction, Merge):
            self._busy, self.phase = False, Phase.LIVE
            return []
        flight = next(each for each in self._flights if each.read is instruction)
        flight.rows = instruction.rows if rows is None else rows
        if instruction.allowed is not None:
            self.limiter.give_back(instruction.allowed, (flight.rows, instruction.bytes))
        settled = []
        while self._flights and self._flights[0].rows is not None:
            first = self._flights.popleft()
            self._settle(first)
            settled.append(first.read)
        self._turn()
        return settled

    def failed(self, instruction: Instruction, now: float) -> None:
        """It is not in the view's stores, and is tried again after a wait that grows.

        What was begun after it is begun again as well, and is no longer `under_way`.
        """
        if isinstance(instruction, Read):
            if not self.withdraw(instruction):
                return
        else:
            self._busy = False
            if isinstance(instruction, Merge):
                self.phase = Phase.LOG
            else:
                # What it was allowed beyond its rows was given back when it began.
                self.limiter.give_back((sum(instruction.rows.values()), 0), (0, 0))
        wait = min(_FIRST_WAIT_S * 2**self._failures, _LONGEST_WAIT_S)
        self._failures += 1
        self._not_before = now + wait

    def withdraw(self, read: Read) -> bool:
        """Begin a read again, and what was begun after it; False when it is not under way."""
        places = [each.read for each in self._flights]
        if read not in places:
            return False
        for each in list(self._flights)[places.index(read) :]:
            self._flights.remove(each)
            if each.read.allowed is not None:
                self.limiter.give_back(each.read.allowed, (0, 0))
        return True

    def took(self, read: Read, seconds: float) -> None:
        """Hear how long a read took, and let the next slices be as large as is good."""
        if read.allowed is None and seconds > 0:
            wanted = read.bytes * self.pace.slice_s / seconds
            grown = _GROWS * max(read.bytes, self.pace.slice_bytes)
            most = min(grown, self.pace.largest_bytes)
            self._slice_bytes = int(max(self.pace.slice_bytes, min(wanted, most)))

    def in_one(self, read: Read) -> None:
        """Read everything in one slice instead; nothing was begun before this read."""
        if not self._flights or self._flights[0].read is not read or self.begun:
            raise BrokenInvariant("something is read already, in slices")
        self.withdraw(read)
        # In the same order: whoever goes on in slices counts on what was read first.
        self.steps = [Step(tuple(table for step in self.steps for table in step.tables))]

    @property
    def begun(self) -> bool:
        """Whether anything has been read."""
        states = [state for each in self.progress.values() for state in each.states]
        return any(state.cursor != START for state in states)

    def before(self, read: Read) -> dict[TableId, TableProgress]:
        """How far the tables are when a read begins, once all that was begun before it is done."""
        found = dict(self.progress)
        for flight in self._flights:
            if flight.read is read:
                break
            for table, each in flight.read.slices:
                states = found[table].states
                state = next(known for known in states if known.first == each.first)
                found[table] = found[table].with_state(state.moved(each.after, 0))
        return found

    def under_way(self, read: Read) -> bool:
        """Whether a read has not failed with one before it."""
        return any(each.read is read for each in self._flights)

    def throttled(self, limit: RateLimit, now: float) -> None:
        """Another rate limit, from now on."""
        self.limiter.alter(limit, now)

    # Inside

    def _read(self, now: float) -> Read | None:
        if len(self._flights) >= self.at_once:
            return None
        step = self._step()
        if step is None:
            return None
        free = self.limiter.limit.rows_per_s is None and self.limiter.limit.bytes_per_s is None
        whole = free and step.slices == 1 and not self.sweeping
        slices = self._whole(step) if whole else self._one(step, now, free)
        if slices is None:
            return None
        self._flights.append(_Flight(slices))
        return slices

    def _step(self) -> Step | None:
        """The first step that is not read whole; steps wait for each other."""
        for step in self.steps:
            if not all(self.progress[table].finished for table in step.tables):
                return step
        return None

    def _whole(self, step: Step) -> Read | None:
        """Everything that is left of a step."""
        if self._flights:
            return None
        found = [
            (table, each)
            for table in step.tables
            for group, state in zip(self.groups[table], self.progress[table].states, strict=True)
            if (each := next_slice(group, state, most_bytes=_MOST)) is not None
        ]
        return Read(tuple(found))

    def _one(self, step: Step, now: float, free: bool) -> Read | None:
        """What is next of a step, and no flight has."""
        large = step.tables[-1]
        total = sum(f.file.bytes for each in self.groups[large] for f in each.files)
        # A little more than a share, lest a small rest becomes a slice of its own.
        share = total * 11 // (step.slices * 10)
        bytes_ = max(self._slice_bytes, share) if step.slices > 1 else _MOST
        at_seams = free and self.sweeping
        if at_seams:
            rows = sum(f.file.rows for each in self.groups[large] for f in each.files)
            bytes_ = min(_LARGEST_TASK, total // self.pace.sweep_slices)
            bytes_ = max(bytes_, self.pace.slice_bytes // _SMALLER_TASKS)
            bytes_ = min(bytes_, _LARGEST_TASK_ROWS * total // max(1, rows))
        ahead = self._ahead(step)
        if not ahead:
            return None
        if free:
            first = [each for each in ahead if each[0] != large]
            rest = [each for each in ahead if each[0] == large]
            whole = self._slices(first, _MOST, _MOST)
            return Read((*whole, *self._slices(rest, bytes_, _MOST, at_seams=at_seams)))
        taken = self.limiter.take(_MOST, bytes_, now)
        if taken is None:
            self.wake_at = self.limiter.ready_at(_MOST, bytes_)
            return None
        most_rows, most_bytes = taken
        table = ahead[0][0]
        same = [each for each in ahead if each[0] == table]
        return Read(tuple(self._slices(same, most_bytes, most_rows)), taken)

    def _slices(
        self, ahead: Sequence[_Place], most_bytes: int, most_rows: int, *, at_seams: bool = False
    ) -> list[tuple[TableId, Slice]]:
        """Slices of groups one after the other, up to a size; one at least."""
        found: list[tuple[TableId, Slice]] = []
        for table, group, state in ahead:
            rows = most_rows if most_rows < _MOST else None
            each = next_slice(
                group, state, most_bytes=most_bytes, most_rows=rows, at_seams=at_seams
            )
            assert each is not None
            if found and each.bytes > most_bytes:
                break
            found.append((table, each))
            most_bytes -= each.bytes
            most_rows -= sum(part.stop - part.start for part in each.parts)
            if each.after is not None or most_bytes <= 0 or most_rows <= 0:
                break
        return found

    def _ahead(self, step: Step) -> list[_Place]:
        """The groups with rows that nobody reads yet, once all that is under way is settled."""
        found = []
        after = {(of, s.first): s.after for flight in self._flights for of, s in flight.read.slices}
        for table in step.tables:
            for group, known in zip(self.groups[table], self.progress[table].states, strict=True):
                state = known
                if (table, known.first) in after:
                    state = known.moved(after[table, known.first], 0)
                if state.cursor is not None:
                    found.append((table, group, state))
        return found

    def _settle(self, flight: _Flight) -> None:
        assert flight.rows is not None
        left = flight.rows
        for place, (table, each) in enumerate(flight.read.slices):
            last = place == len(flight.read.slices) - 1
            rows = left if last else min(each.rows, left)
            left -= rows
            states = self.progress[table].states
            state = next(known for known in states if known.first == each.first)
            self.progress[table] = self.progress[table].with_state(state.moved(each.after, rows))

    def _turn(self) -> None:
        """On to the log once the snapshot is read."""
        if self.phase is Phase.SNAPSHOT and all(each.finished for each in self.progress.values()):
            self.phase = Phase.LOG

    def _follow(self, now: float, log: Sequence[LogEpoch]) -> Instruction | None:
        ahead = [each for each in log if each.epoch > self.consumed]
        left = sum(sum(each.rows.values()) for each in ahead)
        if left <= self.pace.merge_rows or self._lag.rounds >= _ROUNDS:
            if self.limiter.limit.pauses:
                return None
            self._busy, self.phase = True, Phase.MERGE
            return Merge(self.consumed)
        taken = self.limiter.take(self.pace.catch_up_rows, _MOST, now)
        if taken is None:
            self.wake_at = self.limiter.ready_at(self.pace.catch_up_rows, _MOST)
            return None
        self._lag.observe(left)
        return self._changes(ahead, taken)

    def _changes(self, ahead: Sequence[LogEpoch], taken: tuple[int, int]) -> CatchUp:
        """As many epochs as are allowed; one at least, for which the limit then owes."""
        rows: dict[TableId, int] = {}
        count, upto = 0, ahead[0].epoch
        for each in ahead:
            more = sum(each.rows.values())
            if count and count + more > taken[0]:
                break
            count, upto = count + more, each.epoch
            for table, changed in each.rows.items():
                rows[table] = rows.get(table, 0) + changed
        self.limiter.give_back(taken, (count, 0))
        self._busy = True
        return CatchUp(self.consumed, upto, rows)
