"""What to read next, and what a read comes to: the decisions of one table's backfill.

A split goes through these states, forwards only:

    waiting     nobody reads it, or a failed read waits to be repeated   in memory
    reading     a chunk of it is being read                              in memory
    accepted    its chunks are here and wait for the end of the epoch    in memory
    written     its cursor has passed the rows that the epoch stores     in the epoch's record
    read        all of its rows are written                              in the epoch's record
    done        the log is applied up to the split's `high`              in the epoch's record

A chunk that does not see a transaction which was applied before it began is read again a little
later. A read that failed is repeated after a wait that doubles. Whatever is lost in a crash was
neither written nor counted.

The machine is pure: no clock, no I/O, no rows. Time is handed in; what it answers are frozen
values, and `check` holds its invariants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.places import later, reaches
from headwater.backfill.cdc.state import BackfillState, Cursor, SplitProgress
from headwater.cdc.external_table import Split
from headwater.cdc.offset import CdcOffset
from headwater.errors import BrokenInvariant
from headwater.model.rate_limit import RateLimit, RateLimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """Read the next rows of a split."""

    read: int
    split: Split
    after: Cursor | None
    max_rows: int
    max_bytes: int
    probe: bool = False
    """Only to learn what it sees; its rows are thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeys:
    """Read rows by key: the first so many of those that are pending."""

    read: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideSplit:
    """Ask the database where to cut what is left of a split."""

    read: int
    rest: Split


Instruction = ReadChunk | ReadKeys | DivideSplit


class Verdict(StrEnum):
    """What becomes of a chunk that arrives."""

    ACCEPT = "accept"
    """Merge it when the epoch ends."""
    AGAIN = "again"
    """It does not see enough: it will be read again."""
    IGNORE = "ignore"
    """Nobody waits for it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What the machine must know of a chunk."""

    rows: int
    bytes: int
    held: int
    """Bytes that it takes in memory."""
    cursor: Cursor | None
    high: CdcOffset
    sees: bool

    @staticmethod
    def ignored(high: CdcOffset) -> "Arrived":
        """Of a read that nobody waits for any more."""
        return Arrived(rows=0, bytes=0, held=0, cursor=None, high=high, sees=True)


@dataclass(slots=True)
class _SplitWork:
    """What is in memory of one split, beyond its progress."""

    cursor: Cursor | None
    ended: bool
    accepted: list[Arrived] = field(default_factory=list)
    reading: int | None = None
    failures: int = 0
    not_before: float = 0.0
    whole: bool = False
    """Whether the database could not divide it."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    instruction: Instruction
    allowed: tuple[int, int] = (0, 0)


class BackfillMachine:
    """One table's backfill."""

    def __init__(
        self,
        state: BackfillState,
        pace: Pace,
        *,
        key: Sequence[str],
        at: float,
        first_read: int = 1,
    ) -> None:
        self.pace = pace
        self.paused = False
        self.pending = 0
        """Keys that wait to be read by key."""
        self.unseen = 0
        """Transactions that no chunk has seen."""
        self.finished = state.backfill_finished
        self.keys_high = state.keys_high
        """The `high` of rows that were read by key."""
        self._key = tuple(key)
        self._limiter = RateLimiter(pace.limit, at)
        self._splits = {each.split.number: each for each in state.splits}
        self._work = {number: _work(each) for number, each in self._splits.items()}
        self._reads: dict[int, _UnderWay] = {}
        self._next_read = first_read
        self._keys = _SplitWork(None, ended=False)
        self._settled = False
        self._woken_at: float | None = None

    # What to do

    def next(self, at: float) -> list[Instruction]:
        """What may be begun now; ask again after each event, and at `wake_at`."""
        self._woken_at = None
        chosen: list[Instruction] = []
        if self.finished:
            return chosen
        if self.unseen > self.pace.probe_after:
            chosen += self._probe(at)
        if self.paused or self.limit.pauses or self._held >= self.pace.held_bytes:
            return chosen
        chosen += self._read_keys(at) + self._divide()
        for number in self._candidates():
            if len(self._reads) >= self.pace.parallelism:
                break
            work = self._work[number]
            if at < work.not_before:
                self._wake(work.not_before)
                continue
            allowed = self._limiter.take(self.pace.chunk_rows, self.pace.chunk_bytes, at)
            if allowed is None:
                self._wake(self._limiter.ready_at(self.pace.chunk_rows, self.pace.chunk_bytes))
                break
            chosen.append(self._read(number, allowed))
        return chosen

    @property
    def wake_at(self) -> float | None:
        """When to ask again although nothing has happened."""
        return self._woken_at

    @property
    def reads(self) -> frozenset[int]:
        """The reads under way."""
        return frozenset(self._reads)

    @property
    def next_read(self) -> int:
        """The number of the next read."""
        return self._next_read

    @property
    def limit(self) -> RateLimit:
        """The rate limit in force."""
        return self._limiter.limit

    # What happened

    def arrived(self, read: int, chunk: Arrived, at: float) -> Verdict:
        """A read has brought a chunk."""
        under_way = self._reads.pop(read, None)
        if under_way is None:
            return Verdict.IGNORE
        work = self._work_of(under_way.instruction)
        work.reading = None
        instruction = under_way.instruction
        if isinstance(instruction, ReadChunk) and instruction.probe:
            return Verdict.IGNORE
        if not chunk.sees:
            # Its rows were read all the same: they count against the limit.
            self._limiter.give_back(under_way.allowed, (chunk.rows, chunk.bytes))
            self._postpone(work, at)
            return Verdict.AGAIN
        work.failures = 0
        work.accepted.append(chunk)
        if isinstance(instruction, ReadChunk):
            self._limiter.give_back(under_way.allowed, (chunk.rows, chunk.bytes))
            work.cursor, work.ended = chunk.cursor or work.cursor, chunk.cursor is None
        return Verdict.ACCEPT

    def failed(self, read: int, at: float) -> None:
        """A read has brought nothing."""
        under_way = self._reads.pop(read, None)
        if under_way is not None:
            work = self._work_of(under_way.instruction)
            work.reading = None
            self._limiter.give_back(under_way.allowed, (0, 0))
            self._postpone(work, at)

    def divided(self, read: int, parts: Sequence[Split]) -> None:
        """The database has cut what is left of a split; one part, or none, says it cannot."""
        under_way = self._reads.pop(read, None)
        if under_way is None or not isinstance(under_way.instruction, DivideSplit):
            return
        number = under_way.instruction.rest.number
        work, progress = self._work[number], self._splits[number]
        work.reading = None
        if len(parts) < 2:
            work.whole = True
            return
        first = max(self._splits) + 1
        fresh = [replace(part, number=first + place) for place, part in enumerate(parts)]
        if progress.cursor is None:
            # Nothing of it was read: the first part takes its place and its number.
            fresh = [replace(fresh[0], number=number), *fresh[1:]]
            fresh[1:] = [replace(each, number=each.number - 1) for each in fresh[1:]]
        else:
            kept = replace(
                progress.split, right=under_way.instruction.rest.left, rows=progress.rows
            )
            self._put(replace(progress, split=kept, read=True))
        for split in fresh:
            self._put(SplitProgress(split=split))

    def discard(self) -> None:
        """Let go of everything in memory: reads under way and chunks that wait."""
        for under_way in self._reads.values():
            self._limiter.give_back(under_way.allowed, (0, 0))
        self._reads.clear()
        self._keys = _SplitWork(None, ended=False)
        self._work = {number: _work(each) for number, each in self._splits.items()}

    def sealed(self, offset: CdcOffset) -> tuple[SplitProgress, ...]:
        """The epoch ends: accepted chunks are stored with it, and the log is at `offset`."""
        for number, work in self._work.items():
            progress = self._splits[number]
            for chunk in work.accepted:
                progress = _advanced(progress, chunk)
            work.accepted.clear()
            self._splits[number] = progress
        for chunk in self._keys.accepted:
            high = self.keys_high
            self.keys_high = chunk.high if high is None else later(high, chunk.high)
        self._keys.accepted.clear()
        self._settled = not self.pending and _reached(self.keys_high, offset)
        for number, progress in self._splits.items():
            if progress.read and not progress.done and _reached(progress.high, offset):
                self._splits[number] = replace(progress, done=True)
        self.check()
        return tuple(self._splits.values())

    def finish(self) -> None:
        """Nothing more is to be read."""
        self.discard()
        self.finished = True

    def throttled(self, limit: RateLimit, at: float) -> None:
        """The user has set another limit."""
        self._limiter.alter(limit, at)

    def scaled(self, parallelism: int) -> None:
        """The user wants more readers, or fewer; those under way go on."""
        self.pace = replace(self.pace, parallelism=max(parallelism, 1))

    # Where it stands

    @property
    def backfilled(self) -> bool:
        """Whether every split is done, and so are the rows that were read by key."""
        return self._settled and all(each.done for each in self._splits.values())

    def ends_with(self, offset: CdcOffset) -> bool:
        """Whether an epoch that is sealed now, at `offset`, is the last of the backfill."""
        if self.finished or self.pending or self._reads or not self._work:
            return False
        highs = [self.keys_high, *(chunk.high for chunk in self._keys.accepted)]
        for number, work in self._work.items():
            highs += [self._splits[number].high, *(chunk.high for chunk in work.accepted)]
        ended = all(work.ended for work in self._work.values())
        return ended and all(_reached(high, offset) for high in highs)

    @property
    def splits(self) -> tuple[SplitProgress, ...]:
        """The splits as the last sealed epoch has them."""
        return tuple(self._splits.values())

    def check(self) -> None:
        """Raise if the machine is in a state that cannot be."""
        for number, progress in self._splits.items():
            work = self._work[number]
            if progress.read and (work.accepted or work.reading is not None):
                raise BrokenInvariant(f"split {number} is read, and is being read")
            if progress.done and not progress.read:
                raise BrokenInvariant(f"split {number} is done, and not read")
        readers = [work.reading for work in self._work.values() if work.reading is not None]
        if len(set(readers)) != len(readers) or not set(readers) <= set(self._reads):
            raise BrokenInvariant(f"reads {readers} are not those under way: {set(self._reads)}")

    # Inside

    @property
    def _held(self) -> int:
        held = sum(chunk.held for work in self._work.values() for chunk in work.accepted)
        return held + sum(chunk.held for chunk in self._keys.accepted)

    def _candidates(self) -> list[int]:
        """Splits to read: those that were begun come first, so that few are open at a time."""
        free = [n for n, work in self._work.items() if not work.ended and work.reading is None]
        return sorted(free, key=lambda number: (self._work[number].cursor is None, number))

    def _read(self, number: int, allowed: tuple[int, int]) -> ReadChunk:
        work = self._work[number]
        instruction = ReadChunk(
            read=self._number(),
            split=self._splits[number].split,
            after=work.cursor,
            max_rows=allowed[0],
            max_bytes=allowed[1],
        )
        work.reading = instruction.read
        self._reads[instruction.read] = _UnderWay(instruction, allowed)
        return instruction

    def _read_keys(self, at: float) -> list[Instruction]:
        work = self._keys
        if not self.pending or work.reading is not None or work.accepted:
            return []
        if at < work.not_before:
            self._wake(work.not_before)
            return []
        instruction = ReadKeys(read=self._number(), count=min(self.pending, self.pace.keys_at_once))
        work.reading = instruction.read
        self._reads[instruction.read] = _UnderWay(instruction)
        return [instruction]

    def _probe(self, at: float) -> list[Instruction]:
        """Look at one row where nothing else is being read, to learn what is visible by now."""
        if self._reads:
            return []
        for number, work in self._work.items():
            if not work.ended and at >= work.not_before:
                instruction = ReadChunk(
                    read=self._number(),
                    split=self._splits[number].split,
                    after=work.cursor,
                    max_rows=1,
                    max_bytes=self.pace.chunk_bytes,
                    probe=True,
                )
                work.reading = instruction.read
                self._reads[instruction.read] = _UnderWay(instruction)
                return [instruction]
        return []

    def _divide(self) -> list[Instruction]:
        """Cut a split that proved too large, when there is nothing else for idle readers."""
        if len(self._reads) + len(self._candidates()) >= self.pace.parallelism:
            return []
        for number, work in self._work.items():
            progress = self._splits[number]
            large = progress.rows >= self.pace.divide_after_rows and not work.whole
            if work.ended or not large or work.accepted or self._is_divided(work):
                continue
            rest = self._rest(progress)
            if rest is None:
                work.whole = True
                continue
            return self._replan(number, rest)
        return []

    def _is_divided(self, work: _SplitWork) -> bool:
        return work.reading is not None and isinstance(
            self._reads[work.reading].instruction, DivideSplit
        )

    def _replan(self, number: int, rest: Split) -> list[Instruction]:
        """A read under way is let go: what it brings belongs to one of the parts."""
        work = self._work[number]
        if work.reading is not None:
            self._limiter.give_back(self._reads.pop(work.reading).allowed, (0, 0))
        self._work[number] = work = _work(self._splits[number])
        instruction = DivideSplit(read=self._number(), rest=rest)
        work.reading = instruction.read
        self._reads[instruction.read] = _UnderWay(instruction)
        return [instruction]

    def _rest(self, progress: SplitProgress) -> Split | None:
        """What is left of a split; None when a cursor cannot be a bound."""
        if progress.cursor is None:
            return progress.split
        columns = progress.split.columns
        if columns != self._key[: len(columns)] or len(progress.cursor) < len(columns):
            return None
        return replace(progress.split, left=progress.cursor[: len(columns)])

    def _work_of(self, instruction: Instruction) -> _SplitWork:
        match instruction:
            case ReadChunk(split=split):
                return self._work[split.number]
            case DivideSplit(rest=rest):
                return self._work[rest.number]
            case ReadKeys():
                return self._keys

    def _postpone(self, work: _SplitWork, at: float) -> None:
        wait = min(self.pace.first_retry_s * 2.0**work.failures, self.pace.longest_retry_s)
        work.failures = min(work.failures + 1, 30)
        work.not_before = at + wait

    def _put(self, progress: SplitProgress) -> None:
        self._splits[progress.split.number] = progress
        self._work[progress.split.number] = _work(progress)

    def _number(self) -> int:
        self._next_read += 1
        return self._next_read - 1

    def _wake(self, at: float | None) -> None:
        if at is not None:
            self._woken_at = at if self._woken_at is None else min(self._woken_at, at)


def _work(progress: SplitProgress) -> _SplitWork:
    return _SplitWork(progress.cursor, ended=progress.read)


def _advanced(progress: SplitProgress, chunk: Arrived) -> SplitProgress:
    high = chunk.high if progress.high is None else later(progress.high, chunk.high)
    return replace(
        progress,
        cursor=chunk.cursor or progress.cursor,
        rows=progress.rows + chunk.rows,
        bytes=progress.bytes + chunk.bytes,
        read=chunk.cursor is None,
        high=high,
    )


def _reached(high: CdcOffset | None, offset: CdcOffset) -> bool:
    return high is None or reaches(offset, high)
