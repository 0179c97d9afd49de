"""One life of a simulated engine: the real machine, and deeds that may fail before or after.

a deed        takes effect    is answered
goes well     now             well
fails         never           with an error
is unanswered now             with an error
is late       later, also after the engine's death, as a thread's last call does
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headwater.errors import HeadwaterError, SinkUnavailable, StorageUnavailable
from headwater.ledger.deliveries import DeliveryState
from headwater.logstore.items import LogChunk
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.sinks.machine import DeliveryMachine
from headwater.sinks.steps import (
    Abort,
    Announce,
    AwaitCommit,
    Begin,
    Begun,
    Collected,
    Commit,
    Deliver,
    Done,
    Event,
    Failed,
    Instruction,
    Interrupted,
    Mark,
    Prepare,
    Prepared,
    ReadOn,
    RewindTo,
    Seek,
    Store,
    Truncate,
)
from headwater.sinks.trouble import Backoff, Trouble
from headwater.testing.sink_simulator.durable import Ledger, Log, LogLife, Target

_WAITS = (ReadOn, AwaitCommit)


@dataclass(slots=True)
class World:
    """Everything that outlives an engine."""

    log: Log
    ledger: Ledger
    target: Target


class Life:
    """One engine's sink."""

    def __init__(self, world: World, dice: Random, *, staged: bool, calm: bool) -> None:
        self.world = world
        self._dice = dice
        self.calm = calm
        self.term = world.ledger.term = Term(world.ledger.term + 1)
        self._reader = LogLife(world.log)
        self.machine = DeliveryMachine(
            sink="sim",
            term=self.term,
            staged=staged,
            limiter=RateLimiter(RateLimit(), 0.0),
            trouble=Trouble(dice.random, Backoff(first_s=0.1, longest_s=2.0)),
            interval=dice.choice((1, 1, 2, 3)),
            idle_mark_s=dice.choice((0.0, 3.0, 1000.0)),
            keep_s=dice.choice((0.0, 4.0, 1e6)),
        )
        self.late: list[Callable[[], object]] = []
        """Effects of calls that were under way."""

    @property
    def over(self) -> bool:
        """Whether it was fenced."""
        return self.machine.over

    def step(self, now: float) -> str:
        """Let the machine do one thing; says what it was."""
        machine = self.machine
        doing = machine.current or machine.next(now)
        if doing is None:
            return "waits"
        event = self._event(doing)
        if event is None:
            return "waits"
        machine.happened(event, now)
        machine.check()
        return f"{type(doing).__name__} {type(event).__name__}"

    def _event(self, doing: Instruction) -> Event | None:
        if isinstance(doing, _WAITS) and self.machine.asked:
            return Interrupted()
        fate = 1.0 if self.calm else self._dice.random()
        if fate < 0.03 and not isinstance(doing, AwaitCommit | Truncate):
            return Failed(StorageUnavailable("it failed"))
        try:
            event = self._did(doing)
        except HeadwaterError as error:
            return Failed(error)
        if fate < 0.07 and event is not None and not isinstance(doing, ReadOn | Truncate):
            return Failed(SinkUnavailable("no answer came"))
        return event

    def dies(self) -> None:
        """Killed; a call that was under way may take effect later."""
        doing = self.machine.current or self.machine.next(1e9)
        if doing is not None and not isinstance(doing, (*_WAITS, Seek, Truncate, Begin)):
            self.late.append(lambda: self._did(doing))

    def _did(self, doing: Instruction) -> Event | None:  # noqa: PLR0912  one per instruction
        ledger, target, term = self.world.ledger, self.world.target, self.term
        match doing:
            case Begin():
                return Begun(ledger.read(), target.begin(term))
            case Seek():
                self._reader.start_from(None)
            case ReadOn():
                item = self._reader.next_item()
                return None if item is None else Collected(item)
            case AwaitCommit(epoch):
                if epoch > self.world.log.committed:
                    return None
            case Announce(each):
                row = ledger.read().begun(
                    DeliveryState.PREPARING, after=each.after, epoch=each.epoch, rows=each.rows
                )
                ledger.write(term, row)
            case Prepare():
                return self._prepared(doing)
            case Store(each, receipts):
                row = ledger.read().begun(
                    DeliveryState.PREPARED,
                    after=each.after,
                    epoch=each.epoch,
                    rows=each.rows,
                    receipts=receipts,
                )
                ledger.write(term, row)
            case Commit(each, receipts):
                target.commit(each, receipts)
            case Deliver(each, chunks):
                target.deliver(each, _rows(chunks))
            case Mark(epoch, shown):
                ledger.write(term, ledger.read().committed(epoch, shown=shown))
            case Truncate(offset) if term == ledger.term:
                # What a zombie's log forgets is its own affair.
                self._reader.truncate(offset)
            case Abort(each):
                target.abort(each)
                ledger.write(term, ledger.read().aborted())
            case RewindTo(epoch):
                self._rewind(epoch)
        return Done()

    def _prepared(self, doing: Prepare) -> Prepared:
        """Parts one after the other; the last of them may fail."""
        rows = sorted(_rows(doing.chunks))
        count = self._dice.randrange(1, 4)
        receipts = []
        for part in range(count):
            if not self.calm and self._dice.random() < 0.03:
                raise SinkUnavailable("a part failed")
            mine = frozenset(rows[part::count])
            receipts.append(self.world.target.prepare(doing.delivery, mine))
        return Prepared(tuple(receipts))

    def _rewind(self, epoch: Epoch) -> None:
        target = self.world.target
        self._reader.start_from(epoch)
        self.world.ledger.write(self.term, self.world.ledger.read().set_back(epoch))
        target.rewound = epoch


def _rows(chunks: tuple[LogChunk, ...]) -> frozenset[tuple[Epoch, int]]:
    found = [(c.epoch, c.first_seq + n) for c in chunks for n in range(c.count)]
    assert len(found) == len(set(found)), "a chunk is held twice"
    return frozenset(found)
