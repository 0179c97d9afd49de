"""Which splits of an external table are filled.

A table is read in splits, numbered from 1. A split is *backfilled* when its snapshot rows are
written, and *completed* when the log has passed the place that its snapshot saw, so that the
split needs no more care.

    0 <= completed <= backfilled <= total

Splits finish in any order, several actors read at once, and after a rescale others read on, so
progress is a set of splits and reports are merged into it. An assignment of splits has a
generation; reports of an older one change nothing.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from headwater.barrier.progress import ALMOST_DONE, decode_fields
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId

_VERSION = 1


@dataclass(frozen=True, slots=True)
class SplitSet:
    """A set of split numbers as ranges: both ends belong to it, sorted, apart."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """The splits in these ranges, which may touch, overlap and come in any order."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if first > last:
                raise ValueError(f"a range of splits cannot go from {first} to {last}")
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def __or__(self, other: "SplitSet") -> "SplitSet":
        return SplitSet.of((*self.ranges, *other.ranges))

    def __le__(self, other: "SplitSet") -> bool:
        return (self | other) == other

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        spans = (range(first, last + 1) for first, last in self.ranges)
        return itertools.chain.from_iterable(spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcTableBackfillState:
    """What one actor has finished: new splits, or all of them again."""

    backfilled: SplitSet = SplitSet()
    completed: SplitSet = SplitSet()

    def __or__(self, other: "CdcTableBackfillState") -> "CdcTableBackfillState":
        return CdcTableBackfillState(
            backfilled=self.backfilled | other.backfilled,
            completed=self.completed | other.completed,
        )


class CdcTableBackfillProgress:
    """One table's progress on the coordinator's side."""

    def __init__(self, job: JobId, *, splits: int) -> None:
        self.job = job
        self.splits = splits
        self._generation: int | None = None
        self._actors: frozenset[ActorId] = frozenset()
        self._durable = CdcTableBackfillState()
        self._reports: list[tuple[Epoch, CdcTableBackfillState]] = []
        self._shown = 0.0

    @property
    def key(self) -> str:
        """What the ledger files it under."""
        return f"cdc/{self.job}"

    def begin(self, generation: int, actors: Sequence[ActorId]) -> None:
        """Splits are assigned anew; what is not durable will be reported again."""
        self._generation = generation
        self._actors = frozenset(actors)
        self._reports.clear()

    def report(
        self,
        actor: ActorId,
        *,
        generation: int,
        epoch: Epoch,
        state: CdcTableBackfillState,
        in_flight: bool,
    ) -> bool:
        """Take in one report; whether it counted."""
        if actor not in self._actors or generation != self._generation or not in_flight:
            return False
        merged = self.state | state
        if not merged.completed <= merged.backfilled:
            raise BrokenInvariant(
                f"actor {actor} completed splits {state.completed.ranges} of job {self.job}, "
                f"but only {merged.backfilled.ranges} are backfilled"
            )
        if not merged.backfilled <= self._all:
            raise BrokenInvariant(
                f"actor {actor} backfilled splits {state.backfilled.ranges} of job {self.job}, "
                f"which has {self.splits}"
            )
        self._reports.append((epoch, state))
        self._shown = max(self._shown, self._share)
        return True

    def committed(self, epoch: Epoch) -> None:
        """Everything reported up to `epoch` is durable."""
        self._durable = self._at(epoch)
        self._reports = [report for report in self._reports if report[0] > epoch]

    @property
    def state(self) -> CdcTableBackfillState:
        """Everything heard so far."""
        return self._at(None)

    @property
    def backfilled(self) -> int:
        """How many splits have their snapshot rows."""
        return len(self.state.backfilled)

    @property
    def completed(self) -> int:
        """How many splits need no more care."""
        return len(self.state.completed)

    @property
    def done(self) -> bool:
        """Whether all splits are completed, and the ledger knows it."""
        return len(self._durable.completed) == self.splits

    @property
    def percentage(self) -> float:
        """How much of the table is filled, from 0 to 100; 100 only when done."""
        return 100.0 if self.done else max(self._shown, self._share)

    @property
    def _share(self) -> float:
        return min(100.0 * self.backfilled / max(self.splits, 1), ALMOST_DONE)

    @property
    def _all(self) -> SplitSet:
        return SplitSet.of([(1, self.splits)] if self.splits else [])

    def _at(self, upto: Epoch | None) -> CdcTableBackfillState:
        state = self._durable
        for epoch, reported in self._reports:
            if upto is None or epoch <= upto:
                state |= reported
        return state

    def encode(self, upto: Epoch = NO_EPOCH) -> str:
        """What is durable when `upto` is committed, as text for the epoch's record."""
        state = self._at(upto)
        return json.dumps(
            {
                "version": _VERSION,
                "job": self.job,
                "splits": self.splits,
                "backfilled": state.backfilled.ranges,
                "completed": state.completed.ranges,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read back what `encode` wrote; the table goes on from there."""
        fields = decode_fields(text, version=_VERSION, what="a table's backfill progress")
        try:
            progress = cls(JobId(int(fields["job"])), splits=int(fields["splits"]))
            progress._durable = CdcTableBackfillState(
                backfilled=SplitSet.of((int(a), int(b)) for a, b in fields["backfilled"]),
                completed=SplitSet.of((int(a), int(b)) for a, b in fields["completed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedState("a table's progress cannot be read", detail=text) from error
        return progress
