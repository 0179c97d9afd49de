"""What a sink does next, and what it makes of what has happened. Pure.

One delivery at a time goes through these steps; what is durable at each is in brackets.

    reading      items are collected, up to the barrier that ends the delivery [the log]
    awaiting     the ledger does not have its epoch yet; what is rolled back was never delivered
    announcing   staged sinks only [ledger: PREPARING]: parts may be lying at the target from now on
    preparing    parts are written where nobody looks
    storing      boundaries, commit id and receipts are fixed [ledger: PREPARED]
    delivering   the target shows the delivery, once, under its commit id [target]
    marking      [ledger: the mark]
    truncating   the log forgets it [log]

Whatever goes wrong, in whichever step, the answer is the same as after a crash: ask the ledger
and the target (`Begin`), and go on from what they say.

    ledger       target has it    then
    no row       -                read on after the mark
    PREPARING    no               abort, which finds parts also without receipts; read on
    PREPARED     yes              mark it: only the answer was lost
    PREPARED     no               staged: commit the same receipts. Transactional: read the same
                                  epochs again, and deliver them under the same id

A delivery ends at a checkpoint, `interval` of them after its first row, and always after what the
target has: where a user has rewound a sink, everything since goes to the target once more in one
delivery with an id that it does not know. Epochs without rows are not brought to it; the mark
moves over them, in memory at once and in the ledger now and then.

Errors never end a sink: it is stalled, with the reason, and tries again after one growing wait.
Only `Fenced` ends it, because another engine delivers from then on. Time is handed in.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from headwater.errors import BrokenInvariant, DamagedState, Fenced, StagedRowsGone, UserError
from headwater.ledger.deliveries import DeliveryState, StoredDelivery
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_before
from headwater.model.ids import Term
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.sinks.sink import Delivery, Receipt
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
    Gathering,
    Instruction,
    Interrupted,
    Mark,
    Prepare,
    Prepared,
    ReadOn,
    RewindTo,
    Seek,
    SinkState,
    SinkStatus,
    Store,
    Truncate,
    spoken,
)
from headwater.sinks.trouble import Trouble, target_set_back

_STORY = 30
_ANY_BYTES = 1


@dataclass(slots=True)
class DeliveryMachine:
    """One sink."""

    sink: str
    """`SinkSpec.ident`."""
    term: Term
    staged: bool
    limiter: RateLimiter
    trouble: Trouble
    interval: int = 1
    idle_mark_s: float = 30.0
    """How often the mark of a sink without rows is written to the ledger."""
    keep_s: float = 0.0
    """How long the log keeps what is delivered, for users who rewind."""

    wake_at: float | None = None
    """When to ask again although nothing happened."""
    fenced: Fenced | None = None
    over: bool = False
    """Whether there is nothing more to do, ever."""
    current: Instruction | None = None
    _begun: bool = False
    _stale: bool = False
    _seeking: Seek | None = None
    _mark: Epoch = NO_EPOCH
    _stored: StoredDelivery = field(default_factory=lambda: StoredDelivery(sink=""))
    _target: Epoch = NO_EPOCH
    _gathering: Gathering = field(default_factory=Gathering)
    _receipts: tuple[Receipt, ...] | None = None
    _doomed: tuple[Receipt, ...] = ()
    _shown: Epoch | None = None
    """A delivery that the target has, and the ledger does not know of it."""
    _passing: LogBarrier | None = None
    """A barrier that ends an epoch without rows."""
    _ahead: LogItem | None = None
    _truncate: Epoch | None = None
    _kept: deque[Epoch] = field(default_factory=deque)
    _committed: Epoch = NO_EPOCH
    _discard: bool = False
    """What lies prepared at the target has to go before anything is prepared anew."""
    _marked_at: float = 0.0
    _rewind: Epoch | None = None
    _stop: bool = False
    _story: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY))

    # What others ask for

    def told(self, now: float, *, limit: RateLimit | None = None, interval: int = 0) -> None:
        """Another limit or interval, from the next delivery on; a stalled sink tries at once."""
        if limit is not None:
            self.limiter.alter(limit, now)
        self.interval = interval or self.interval
        self.trouble.until = now

    def changed(self, now: float, *, staged: bool) -> None:
        """The sink has other options: the target may be another, and is asked again."""
        self.staged = staged
        self.trouble.until = now
        self._begun, self._stale = False, isinstance(self.current, Begin)

    def rewind(self, epoch: Epoch) -> None:
        """Deliver everything after an epoch once more; what is under way is given up."""
        self._rewind, self.trouble.until = epoch, 0.0

    def stop(self) -> None:
        """End between two steps; what is under way goes on in the next life."""
        self._stop = True

    @property
    def waiting(self) -> bool:
        """Whether the current step only waits, so that it may be broken off."""
        return isinstance(self.current, ReadOn | AwaitCommit)

    @property
    def asked(self) -> bool:
        """Whether somebody wants something that a wait would delay."""
        return self._stop or self._rewind is not None or not self._begun

    @property
    def delivered(self) -> Epoch:
        """Everything up to here is at the target, or had no rows for it."""
        return self._mark

    def status(self) -> SinkStatus:
        """How it is doing."""
        trouble = self.trouble
        if trouble.error is not None and not self.over:
            return SinkStatus(
                state=SinkState.STALLED,
                delivered=self._mark,
                reason=trouble.reason,
                hint=trouble.hint,
                since=trouble.since,
                attempts=trouble.attempts,
            )
        reason = "" if self.fenced is None else self.fenced.message
        return SinkStatus(state=self._state(), delivered=self._mark, reason=reason)

    def _state(self) -> SinkState:
        if self.over:
            return SinkState.STOPPED
        if self.limiter.limit.pauses:
            return SinkState.PAUSED
        if not self._begun:
            return SinkState.STARTING
        return SinkState.DELIVERING if self._gathering.chunks else SinkState.IDLE

    # What comes next

    def next(self, now: float) -> Instruction | None:
        """What to do now; None while something is under way, or there is only waiting."""
        self.wake_at = None
        if self.over or self.current is not None:
            return None
        if self._stop:
            self.current = self._last(now)
            self.over = self.current is None
            return self.current
        if now < self.trouble.until:
            self.wake_at = self.trouble.until
            return None
        self.current = self._decide(now)
        if self.current is not None:
            self._story.append(spoken(self.current))
        return self.current

    def _decide(self, now: float) -> Instruction | None:
        if not self._begun:
            return Begin()
        if self._rewind is not None:
            return self._rewinding(self._rewind)
        if self._shown is not None:
            return Mark(self._shown, shown=True)
        if self._truncate is not None:
            return Truncate(Offset(self._truncate))
        under_way = self._under_way()
        if under_way is not None and self.staged:
            return self._go_on(under_way)
        return self._seeking or self._follow(now, under_way)

    def _last(self, now: float) -> Instruction | None:
        """Before the end, the mark of an idle sink is written, once."""
        idle = self._begun and self.trouble.error is None and self._under_way() is None
        return self._idle_mark(now, every_s=0.0) if idle and self._shown is None else None

    def _rewinding(self, epoch: Epoch) -> Instruction:
        under_way = self._under_way()
        if under_way is not None and self.staged and self._shown is None:
            return self._give_up(under_way)
        return RewindTo(epoch)

    def _go_on(self, delivery: Delivery) -> Instruction:
        """A staged delivery that the ledger has."""
        if self._discard:
            return self._give_up(delivery)
        if self._stored.state is DeliveryState.PREPARED:
            given = replace(delivery, given=self._stored.shown)
            return Commit(given, self._stored.receipts)
        if self._receipts is not None:
            return Store(delivery, self._receipts)
        return Prepare(delivery, tuple(self._gathering.chunks))

    def _give_up(self, delivery: Delivery) -> Instruction:
        # Receipts leave the ledger before their parts leave the target: an engine that takes
        # over meanwhile would else commit what we are removing.
        if self._stored.state is DeliveryState.PREPARED:
            self._doomed, self._discard = self._stored.receipts, True
            return Announce(delivery)
        return Abort(delivery, self._doomed)

    def _follow(self, now: float, fixed: Delivery | None) -> Instruction | None:
        whole = self._gathering.delivery
        if whole is None:
            return self._collect(now, fixed)
        if whole.epoch > self._committed:
            return AwaitCommit(whole.epoch)
        if not self._charge(whole, now):
            return None
        if fixed is not None:
            given = replace(whole, given=self._stored.shown)
            return Deliver(given, tuple(self._gathering.chunks))
        return Announce(whole) if self.staged else Store(whole, ())

    def _collect(self, now: float, fixed: Delivery | None) -> Instruction | None:
        if self._passing is not None:
            return AwaitCommit(self._passing.epoch)
        if not self._gathering.chunks and fixed is None:
            idle = self._idle_mark(now)
            if idle is not None:
                return idle
        if self._ahead is None:
            return ReadOn()
        item, self._ahead = self._ahead, None
        self._take(item)
        return self._decide(now)

    def _idle_mark(self, now: float, every_s: float | None = None) -> Mark | None:
        due = self._marked_at + (self.idle_mark_s if every_s is None else every_s)
        if self._mark <= self._stored.delivered or now < due:
            return None
        return Mark(self._mark, shown=False)

    def _charge(self, delivery: Delivery, now: float) -> bool:
        """A delivery is never divided: the limit may be overdrawn once, and is then waited for."""
        if self._gathering.charged:
            return True
        allowed = self.limiter.take(delivery.rows, _ANY_BYTES, now)
        if allowed is None:
            self.wake_at = self.limiter.ready_at(delivery.rows, _ANY_BYTES)
            return False
        self.limiter.give_back(allowed, (delivery.rows, _ANY_BYTES))
        self._gathering.charged = True
        return True

    def _under_way(self) -> Delivery | None:
        stored = self._stored
        idle = stored.state is DeliveryState.IDLE
        return None if idle else self._delivery(stored.delivered, stored.epoch, stored.rows)

    def _delivery(self, after: Epoch, epoch: Epoch, rows: int) -> Delivery:
        return Delivery(sink=self.sink, after=after, epoch=epoch, term=self.term, rows=rows)

    # What has happened

    def happened(self, event: Event, now: float) -> None:
        """The answer to the current instruction."""
        doing, self.current = self.current, None
        if doing is None:
            raise self._broken(f"{spoken(event)} answers nothing")
        self._story.append(spoken(event))
        match event, doing:
            case Failed(error), _:
                self._failed(doing, error, now)
            case Interrupted(), _:
                pass
            case Begun(stored, target), Begin():
                self._begin(stored, target, now)
            case Collected(item), ReadOn():
                self._read(item, now)
            case Prepared(receipts), Prepare():
                self._receipts = receipts
            case Done(), _:
                self._did(doing, now)
            case _:
                raise self._broken(f"{spoken(event)} answers {spoken(doing)}")

    def _begin(self, stored: StoredDelivery, target: Epoch, now: float) -> None:
        if self._stale:
            # The answer of a target that is no longer ours.
            self._stale = False
            return
        first, whole = self._stored.sink == "", self._gathering.delivery
        if first or stored.delivered > self._mark:
            # The first look, or a mark whose answer was lost.
            self._mark, self._marked_at = max(self._mark, stored.delivered), now
        if NO_EPOCH < target < stored.shown and self._rewind is None:
            self._failed(Begin(), target_set_back(target, stored.shown), now)
            return
        self._stored, self._target, self._begun = stored, target, True
        self._receipts = self._shown = None
        if first:
            self._seeking = Seek()
        if whole is not None and whole.after < self._mark:
            self._gathering, whole = Gathering(), None
            self._forget(self._mark)
        if stored.state is DeliveryState.IDLE:
            if whole is None:
                self.trouble.recovered()
            elif target >= whole.epoch:
                # Another target, which would take it for something that it has: read on.
                self._gathering.delivery = None
        elif target >= stored.epoch:
            self._shown, self._discard = stored.epoch, False
        elif stored.state is DeliveryState.PREPARING:
            # Parts may be there, and whoever had their receipts has lost them.
            self._discard = True

    def _read(self, item: LogItem, now: float) -> None:
        if self._under_way() is None:
            self.trouble.recovered()
        try:
            self._take(item)
        except DamagedState as error:
            self._failed(ReadOn(), error, now)

    def _take(self, item: LogItem) -> None:
        if item.epoch <= self._mark:
            if isinstance(item, LogBarrier):
                self._forget(item.epoch)
            return
        fixed = self._under_way()
        if fixed is not None and item.epoch > fixed.epoch:
            # The log need not keep the barrier of an epoch that has no rows.
            self._ahead = item
            self._end(fixed.epoch, fixed)
        elif isinstance(item, LogChunk):
            self._gathering.chunks.append(item)
        elif fixed is not None:
            if item.epoch == fixed.epoch:
                self._end(fixed.epoch, fixed)
        elif item.checkpoint and not self._gathering.chunks:
            self._passing = item
        elif item.checkpoint:
            self._gathering.checkpoints += 1
            early = item.stop or item.vnodes is not None
            due = early or self._gathering.checkpoints >= self.interval
            if due and item.epoch > self._target:
                self._end(item.epoch, None)

    def _end(self, epoch: Epoch, fixed: Delivery | None) -> None:
        rows = self._gathering.rows
        if fixed is not None and rows != fixed.rows:
            raise DamagedState(
                f"the log has {rows} rows of the delivery to epoch {epoch}, it had {fixed.rows}"
            )
        self._gathering.delivery = self._delivery(self._mark, epoch, rows)

    def _did(self, doing: Instruction, now: float) -> None:
        match doing:
            case Seek():
                self._seeking = None
            case AwaitCommit(epoch):
                self._committed = max(self._committed, epoch)
                if self._passing is not None:
                    passed, self._passing = self._passing, None
                    self._mark = passed.epoch
                    self._forget(passed.epoch)
            case Announce(delivery):
                self._fix(DeliveryState.PREPARING, delivery, ())
            case Store(delivery, receipts):
                self._fix(DeliveryState.PREPARED, delivery, receipts)
            case Commit(delivery) | Deliver(delivery):
                self._shown = delivery.epoch
                self._target = max(self._target, delivery.epoch)
            case Mark(epoch, shown):
                self._marked(epoch, shown, now)
            case Truncate():
                self._truncate = None
            case Abort():
                self._discard, self._receipts, self._doomed = False, None, ()
                self._stored = self._stored.aborted()
            case RewindTo(epoch):
                self._rewound(epoch, now)
            case _:
                raise self._broken(f"{spoken(doing)} needs an answer")

    def _fix(self, state: DeliveryState, each: Delivery, receipts: tuple[Receipt, ...]) -> None:
        self._stored = self._stored.begun(
            state, after=each.after, epoch=each.epoch, rows=each.rows, receipts=receipts
        )
        self._receipts = None

    def _marked(self, epoch: Epoch, shown: bool, now: float) -> None:
        self._stored = self._stored.committed(epoch, shown=shown)
        self._marked_at = now
        if shown:
            self._mark = max(self._mark, epoch)
            if self._gathering.delivery is not None:
                # Its barrier was read in this life, so the log may be told.
                self._forget(epoch)
            self._gathering = Gathering()
            self._shown = None
            self.trouble.recovered()

    def _rewound(self, epoch: Epoch, now: float) -> None:
        self._stored = self._stored.set_back(epoch)
        self._mark, self._marked_at, self._rewind = epoch, now, None
        self._clear()
        self._shown = self._seeking = None
        self.trouble.recovered()

    def _failed(self, doing: Instruction, error: Exception, now: float) -> None:
        if isinstance(error, Fenced):
            self.fenced = error
        if self._stop or self.fenced is not None:
            self.over = True
            return
        if isinstance(doing, RewindTo) and isinstance(error, UserError):
            # The log no longer has it: whoever asked is told, and the sink goes on as it was.
            self._rewind = None
            self._lose_place(again=False)
            return
        # The log's own rewind waits before it reads again; two waits would add up.
        self.trouble.failed(error, now, wait=not isinstance(doing, ReadOn))
        self._begun = False
        self._discard = self._discard or isinstance(error, StagedRowsGone)
        if isinstance(doing, ReadOn):
            self._lose_place(again=True)
        elif isinstance(doing, Seek):
            self._seeking = Seek()

    def _forget(self, epoch: Epoch) -> None:
        """The log need not keep an epoch any longer than a user may want to go back."""
        self._kept.append(epoch)
        while self._kept and self._kept[0] <= epoch_before(self._mark, self.keep_s):
            self._truncate = self._kept.popleft()

    def _lose_place(self, *, again: bool) -> None:
        self._seeking = Seek(again)
        self._clear()

    def _clear(self) -> None:
        self._gathering, self._ahead, self._passing = Gathering(), None, None
        self._truncate = None
        self._kept.clear()

    def check(self) -> None:
        """Raise `BrokenInvariant` where the parts contradict each other."""
        whole, stored = self._gathering.delivery, self._stored
        wrong = {
            "the mark is behind the ledger's": self._begun and self._mark < stored.delivered,
            "a whole delivery has no rows": whole is not None and not self._gathering.chunks,
            "a delivery begins before the mark": whole is not None and whole.after != self._mark,
            "receipts belong to nothing": self._receipts is not None and whole is None,
            "what is seen was never fixed": self._shown is not None
            and stored.state is DeliveryState.IDLE,
        }
        for what, holds in wrong.items():
            if holds:
                raise self._broken(what)

    def _broken(self, what: str) -> BrokenInvariant:
        return BrokenInvariant(what, story=tuple(self._story))
