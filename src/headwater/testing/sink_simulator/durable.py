"""What outlives a simulated engine: the log, the ledger's row, and the target with its oracle.

The target checks every delivery against the log as it is committed: rows that are missing, come
twice, come out of order, or come from an epoch that was rolled back are found at that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headwater.errors import Fenced, HistoryGone, LedgerUnavailable, SinkUnavailable, StagedRowsGone
from headwater.ledger.deliveries import DeliveryState, StoredDelivery
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VnodeBitmap
from headwater.sinks.sink import Delivery, Receipt

SINK = "sim"
_NO_TERM = Term(0)


@dataclass(frozen=True, slots=True)
class Written:
    """One epoch of the log: how many rows each of its chunks has."""

    epoch: Epoch
    checkpoint: bool
    chunks: tuple[int, ...]
    resharded: bool = False

    @property
    def rows(self) -> frozenset[tuple[Epoch, int]]:
        """Its rows, by epoch and number."""
        return frozenset((self.epoch, number) for number in range(sum(self.chunks)))

    def items(self) -> list[LogItem]:
        """What a reader gets of it."""
        found: list[LogItem] = []
        seq = 0
        for number, count in enumerate(self.chunks):
            found.append(
                LogChunk(
                    epoch=self.epoch, chunk_id=number, first_seq=seq, count=count, nbytes=count
                )
            )
            seq += count
        vnodes = VnodeBitmap.full() if self.resharded else None
        found.append(LogBarrier(epoch=self.epoch, checkpoint=self.checkpoint, vnodes=vnodes))
        return found


@dataclass(slots=True)
class Log:
    """Epochs in order; those after `committed` are lost when the engine dies."""

    epochs: list[Written] = field(default_factory=list)
    committed: Epoch = NO_EPOCH
    truncated: Offset = field(default_factory=lambda: Offset(NO_EPOCH))
    truncating: Offset = field(default_factory=lambda: Offset(NO_EPOCH))
    """Becomes durable with the next commit."""

    def commit(self) -> None:
        """The ledger has everything up to the last checkpoint."""
        done = [each.epoch for each in self.epochs if each.checkpoint]
        self.committed = max([self.committed, *done])
        self.truncated = max(self.truncated, self.truncating)

    def roll_back(self) -> None:
        """The engine died: what was not committed never was."""
        self.epochs = [each for each in self.epochs if each.epoch <= self.committed]
        self.truncating = self.truncated

    def rows(self, after: Epoch, epoch: Epoch) -> frozenset[tuple[Epoch, int]]:
        """All rows of a span."""
        spans = (each.rows for each in self.epochs if after < each.epoch <= epoch)
        return frozenset().union(*spans)


class LogLife:
    """One life's reader."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._at: Offset | None = None
        self._history = log.committed

    def start_from(self, epoch: Epoch | None) -> None:
        """As `LogReader.start_from`."""
        if epoch is not None and Offset(epoch) < self._log.truncating:
            raise HistoryGone(f"the log has forgotten epoch {epoch}")
        self._at = self._log.truncating if epoch is None else Offset(epoch)

    def next_item(self) -> LogItem | None:
        """As `LogReader.next_item`; None where it would wait."""
        assert self._at is not None, "read before start_from"
        for place, each in enumerate(self._log.epochs):
            if Offset(each.epoch) <= self._at or self._skipped(place):
                continue
            for item in each.items():
                if Offset.after(item) > self._at:
                    self._at = Offset.after(item)
                    return item
        return None

    def _skipped(self, place: int) -> bool:
        """History has only the last of several barriers without rows."""
        epochs = self._log.epochs
        if epochs[place].chunks or epochs[place].epoch >= self._history:
            return False
        return place + 1 < len(epochs) and not epochs[place + 1].chunks

    def truncate(self, offset: Offset) -> None:
        """As `LogReader.truncate`."""
        assert self._at is not None, "truncated before it was read"
        assert offset <= self._at, "truncated beyond what was read"
        self._log.truncating = max(self._log.truncating, offset)


@dataclass(slots=True)
class Ledger:
    """The sink's row, fenced by the term."""

    term: Term = _NO_TERM
    row: StoredDelivery = field(default_factory=lambda: StoredDelivery(sink=SINK))
    away: bool = False

    def read(self) -> StoredDelivery:
        """What is stored."""
        if self.away:
            raise LedgerUnavailable("the ledger is away")
        return self.row

    def write(self, term: Term, row: StoredDelivery) -> None:
        """Replace the row."""
        if self.away:
            raise LedgerUnavailable("the ledger is away")
        if term < self.term:
            raise Fenced("another engine holds the ledger")
        self.row = row


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that lie at the target, unseen."""

    commit_id: str
    term: Term
    rows: frozenset[tuple[Epoch, int]]
    late: bool
    """Whether a zombie wrote it, whom nobody cleans up after."""
    shown: bool = False


@dataclass(slots=True)
class Target:
    """What readers see, and what is prepared; checks all that it is given."""

    log: Log
    term: Term = _NO_TERM
    epoch: Epoch = NO_EPOCH
    parts: dict[bytes, Part] = field(default_factory=dict)
    away: bool = False
    rewound: Epoch | None = None
    """From where everything is owed once more."""
    deliveries: int = 0
    _names: int = 0

    def begin(self, term: Term) -> Epoch:
        """As `Sink.begin`."""
        self._answer()
        if term < self.term:
            raise Fenced("a newer engine was here")
        self.term = term
        return self.epoch

    def prepare(self, delivery: Delivery, rows: frozenset[tuple[Epoch, int]]) -> Receipt:
        """As `StagedSink.prepare`, without a fence: files are written without asking anybody."""
        self._answer()
        self._names += 1
        name = str(self._names).encode()
        late = delivery.term < self.term
        self.parts[name] = Part(delivery.commit_id, delivery.term, rows, late)
        return name

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """As `StagedSink.commit`."""
        if self._has(delivery):
            return
        if any(receipt not in self.parts for receipt in receipts):
            raise StagedRowsGone("parts were removed")
        taken = [self.parts[receipt] for receipt in receipts]
        self.parts |= {r: replace(self.parts[r], shown=True) for r in receipts}
        assert all(part.commit_id == delivery.commit_id for part in taken), "parts of another"
        rows = [row for part in taken for row in part.rows]
        self._show(delivery, rows)

    def deliver(self, delivery: Delivery, rows: frozenset[tuple[Epoch, int]]) -> None:
        """As `TransactionalSink.deliver`."""
        if not self._has(delivery):
            self._show(delivery, list(rows))

    def abort(self, delivery: Delivery) -> None:
        """As `StagedSink.abort`."""
        self._answer()
        gone = [
            name
            for name, part in self.parts.items()
            if part.commit_id == delivery.commit_id and part.term <= delivery.term
        ]
        for name in gone:
            assert not self.parts[name].shown, "an abort removes what is shown"
            del self.parts[name]

    def _answer(self) -> None:
        if self.away:
            raise SinkUnavailable("the target is away")

    def _has(self, delivery: Delivery) -> bool:
        self._answer()
        if delivery.term < self.term:
            raise Fenced("a newer engine was here")
        return self.epoch >= delivery.epoch

    def _show(self, delivery: Delivery, rows: Sequence[tuple[Epoch, int]]) -> None:
        assert delivery.epoch <= self.log.committed, "an epoch is shown that may be rolled back"
        wanted = self.log.rows(delivery.after, delivery.epoch)
        assert len(rows) == len(set(rows)), "a row comes twice in one delivery"
        assert set(rows) == wanted, f"delivered {sorted(rows)}, owed {sorted(wanted)}"
        base = self.epoch if self.rewound is None else self.rewound
        lost = self.log.rows(base, delivery.after)
        assert not lost, f"rows are passed over: {sorted(lost)}"
        again = self.log.rows(delivery.after, base)
        assert not again, f"rows come twice: {sorted(again)}"
        self.epoch, self.rewound = delivery.epoch, None
        self.deliveries += 1


def settled(ledger: Ledger, target: Target) -> None:
    """What must hold when nothing is under way and nobody has failed for a while."""
    row = ledger.row
    assert row.state is DeliveryState.IDLE, f"{row.state} at the end"
    base = target.epoch if target.rewound is None else target.rewound
    owed = target.log.rows(base, target.log.committed)
    assert not owed, f"rows were never delivered: {sorted(owed)}"
    left = [part for part in target.parts.values() if not part.late and not part.shown]
    assert not left, f"{len(left)} prepared parts were never removed"
