"""How far a new job's backfill is: reported by its actors, shown to people, kept in the ledger.

An actor goes through these states, forwards only; it may begin at any of them:

    ConsumingUpstreamTableOrSource    it reads the snapshot; rows, bytes and epoch never fall
    Done                              it has read the snapshot
    ConsumingLogStore                 it reads what changed since the snapshot
    DoneConsumingLogStore             it has caught up with the live stream

A report belongs to the epoch in which it was made. What is shown uses the latest; what is made
durable with an epoch uses reports up to that epoch only, so the ledger never knows more about
a backfill than it has of its rows.

Promises
    Current      A report with an old generation, of an unknown actor, or for an epoch that is
                 not under way changes nothing.
    Forwards     The percentage is between 0 and 100, does not fall while the engine lives, is
                 100 only when all is done and durable, and is restored after a restart.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self, assert_never

from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId

ALMOST_DONE = 99.9
"""The highest percentage of a job that is not done; it prints as less than 100."""

_VERSION = 1
_RATE_WINDOW = timedelta(seconds=30)
_RATE_SAMPLES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumingUpstreamTableOrSource:
    """Reading the snapshot: up to which upstream epoch, and how much in all so far."""

    epoch: Epoch = NO_EPOCH
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The snapshot is read: so many rows in all."""

    rows: int
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumingLogStore:
    """Reading the changes since the snapshot, so far behind the live stream."""

    lag: timedelta


@dataclass(frozen=True, slots=True)
class DoneConsumingLogStore:
    """Caught up with the live stream."""


BackfillState = ConsumingUpstreamTableOrSource | Done | ConsumingLogStore | DoneConsumingLogStore


def _rank(state: BackfillState) -> int:
    match state:
        case ConsumingUpstreamTableOrSource():
            return 0
        case Done():
            return 1
        case ConsumingLogStore():
            return 2
        case DoneConsumingLogStore():
            return 3
        case _ as never:
            assert_never(never)


class CreateMviewProgressReporter:
    """One actor's side: turns what it has done into reports, and refuses to go backwards."""

    def __init__(self, report: Callable[[Epoch, BackfillState], None]) -> None:
        self._report = report
        self.state: BackfillState | None = None

    def update(self, epoch: Epoch, *, consumed: Epoch, rows: int, bytes_: int = 0) -> None:
        """More of the snapshot is read; the figures are totals since the job was created."""
        self._move(epoch, ConsumingUpstreamTableOrSource(epoch=consumed, rows=rows, bytes=bytes_))

    def finish(self, epoch: Epoch, *, rows: int, bytes_: int = 0) -> None:
        """The snapshot is read; saying so again changes nothing."""
        self._move(epoch, Done(rows=rows, bytes=bytes_))

    def update_log_store(self, epoch: Epoch, *, lag: timedelta) -> None:
        """More of the changes since the snapshot are read."""
        self._move(epoch, ConsumingLogStore(lag=lag))

    def finish_log_store(self, epoch: Epoch) -> None:
        """The live stream is reached; saying so again changes nothing."""
        self._move(epoch, DoneConsumingLogStore())

    def _move(self, epoch: Epoch, after: BackfillState) -> None:
        before = self.state
        if before is not None:
            if isinstance(after, Done | DoneConsumingLogStore) and type(before) is type(after):
                return
            if _rank(after) < _rank(before) or _shrinks(before, after):
                raise BrokenInvariant(f"backfill progress went back from {before} to {after}")
        self.state = after
        self._report(epoch, after)


def _shrinks(before: BackfillState, after: BackfillState) -> bool:
    match before, after:
        case ConsumingUpstreamTableOrSource(), ConsumingUpstreamTableOrSource():
            return (
                after.rows < before.rows or after.bytes < before.bytes or after.epoch < before.epoch
            )
        case ConsumingUpstreamTableOrSource(), Done():
            return after.rows < before.rows
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Tally:
    """What an actor's reports come to: rows are kept when it goes on to the log."""

    rows: int = 0
    bytes: int = 0
    rank: int = -1

    def add(self, state: BackfillState) -> "_Tally":
        if isinstance(state, ConsumingUpstreamTableOrSource | Done):
            rows, read_bytes = max(self.rows, state.rows), max(self.bytes, state.bytes)
            return _Tally(rows, read_bytes, _rank(state))
        return _Tally(self.rows, self.bytes, _rank(state))


@dataclass(slots=True)
class _ActorProgress:
    """One actor: what is durable, and its tally by epoch after that."""

    durable: _Tally = _Tally()
    heard: dict[Epoch, _Tally] = field(default_factory=dict)

    def add(self, epoch: Epoch, state: BackfillState) -> None:
        self.heard[epoch] = self.at(None).add(state)

    def at(self, upto: Epoch | None) -> _Tally:
        tally = self.durable
        for epoch, heard in self.heard.items():
            if upto is None or epoch <= upto:
                tally = heard
        return tally

    def commit(self, upto: Epoch) -> None:
        self.durable = self.at(upto)
        self.heard = {epoch: tally for epoch, tally in self.heard.items() if epoch > upto}


class JobProgress:
    """One job's progress on the coordinator's side; time is handed in, in monotonic seconds."""

    def __init__(
        self,
        job: JobId,
        *,
        total_rows: int | None = None,
        has_log_phase: bool = False,
        stored: bool = True,
    ) -> None:
        self.job = job
        self.total_rows = total_rows
        self.has_log_phase = has_log_phase
        self.stored = stored
        """Whether records carry it; False for a job whose actors store their own progress."""
        self.done = False
        """Whether every actor has finished, and the ledger knows it."""
        self._generation: int | None = None
        self._actors: dict[ActorId, _ActorProgress] = {}
        self._floor = _Tally()
        self._shown = 0.0
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def key(self) -> str:
        """What the ledger files it under."""
        return f"job/{self.job}"

    def begin(self, generation: int, actors: Sequence[ActorId]) -> None:
        """New actors carry on from what is durable."""
        self._floor, _ = self._sum(NO_EPOCH)
        self._generation = generation
        self._actors = {actor: _ActorProgress() for actor in actors}
        self._samples.clear()

    def estimate(self, total_rows: int) -> None:
        """There is a better guess of how many rows the snapshot has."""
        self.total_rows = total_rows

    def resume(self, rows: int) -> None:
        """An earlier life has read so many rows, which the ledger has."""
        self._floor = replace(self._floor, rows=max(self._floor.rows, rows))
        self._shown = max(self._shown, self._share(None))

    def report(  # noqa: PLR0913  a report says who, when, what, and whether it still counts
        self,
        actor: ActorId,
        *,
        generation: int,
        epoch: Epoch,
        state: BackfillState,
        in_flight: bool,
        at: float,
    ) -> bool:
        """Take in one report; whether it counted."""
        known = self._actors.get(actor)
        if known is None or generation != self._generation or not in_flight:
            return False
        known.add(epoch, state)
        self._shown = max(self._shown, self._share(None))
        # Reports come several per barrier; the rate needs no more than a few per window.
        spacing = _RATE_WINDOW.total_seconds() / _RATE_SAMPLES
        if len(self._samples) > 1 and at - self._samples[-2][0] < spacing:
            self._samples.pop()
        self._samples.append((at, self.rows))
        return True

    def committed(self, epoch: Epoch) -> None:
        """Everything reported up to `epoch` is durable."""
        for known in self._actors.values():
            known.commit(epoch)
        self.done = self._sum(NO_EPOCH)[1]

    @property
    def rows(self) -> int:
        """Snapshot rows read, of all actors."""
        return self._sum(None)[0].rows

    @property
    def bytes(self) -> int:
        """Snapshot bytes read, of all actors."""
        return self._sum(None)[0].bytes

    @property
    def percentage(self) -> float:
        """How much of the job is done, from 0 to 100."""
        return 100.0 if self.done else self._shown

    def rows_per_second(self, at: float) -> float:
        """Smoothed over the last half minute."""
        oldest = at - _RATE_WINDOW.total_seconds()
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()
        if len(self._samples) < 2:
            return 0.0
        (began, first), (_, last) = self._samples[0], self._samples[-1]
        return (last - first) / (at - began) if at > began else 0.0

    def remaining(self, at: float) -> timedelta | None:
        """How long the snapshot will still take at this rate, when that can be said."""
        rate = self.rows_per_second(at)
        if self.total_rows is None or rate <= 0:
            return None
        return timedelta(seconds=max(self.total_rows - self.rows, 0) / rate)

    def _sum(self, upto: Epoch | None) -> tuple[_Tally, bool]:
        tallies = [known.at(upto) for known in self._actors.values()]
        total = _Tally(
            rows=max(self._floor.rows, sum(tally.rows for tally in tallies)),
            bytes=max(self._floor.bytes, sum(tally.bytes for tally in tallies)),
        )
        goal = 3 if self.has_log_phase else 1
        finished = bool(tallies) and all(tally.rank >= goal for tally in tallies)
        return total, finished or self.done

    def _share(self, upto: Epoch | None) -> float:
        if not self.total_rows:
            return 0.0
        return min(100.0 * self._sum(upto)[0].rows / self.total_rows, ALMOST_DONE)

    def encode(self, upto: Epoch) -> str:
        """What is durable when `upto` is committed, as text for the epoch's record."""
        tally, done = self._sum(upto)
        return json.dumps(
            {
                "version": _VERSION,
                "job": self.job,
                "rows": tally.rows,
                "bytes": tally.bytes,
                "total_rows": self.total_rows,
                "has_log_phase": self.has_log_phase,
                "percentage": self._share(upto),
                "done": done,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read back what `encode` wrote; the job goes on from there."""
        fields = decode_fields(text, version=_VERSION, what="a job's progress")
        try:
            progress = cls(
                JobId(int(fields["job"])),
                total_rows=None if fields["total_rows"] is None else int(fields["total_rows"]),
                has_log_phase=bool(fields["has_log_phase"]),
            )
            progress._floor = _Tally(rows=int(fields["rows"]), bytes=int(fields["bytes"]))
            progress._shown = float(fields["percentage"])
            progress.done = bool(fields["done"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedState("a job's progress cannot be read", detail=text) from error
        return progress


def decode_fields(text: str, *, version: int, what: str) -> dict[str, Any]:
    """The fields of a stored progress of this version."""
    try:
        fields: Any = json.loads(text)
    except ValueError as error:
        raise DamagedState(f"{what} cannot be read", detail=text) from error
    if not isinstance(fields, dict) or fields.get("version") != version:
        raise DamagedState(f"{what} has a version that is not known here", detail=text)
    return fields
