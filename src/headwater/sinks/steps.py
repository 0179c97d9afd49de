"""The words between a sink's machine and its executor: steps to take, and how they went.

Instructions are imperative, events past tense; all are frozen values. One instruction is under
way at a time, and one event answers it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from headwater.ledger.deliveries import StoredDelivery
from headwater.logstore.items import LogChunk, LogItem, Offset
from headwater.model.epoch import Epoch
from headwater.sinks.sink import Delivery, Receipt


class SinkState(StrEnum):
    """What users see."""

    STARTING = "starting"
    DELIVERING = "delivering"
    IDLE = "idle"
    STALLED = "stalled"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """How a sink is doing."""

    state: SinkState
    delivered: Epoch
    """Everything up to here is at the target."""
    reason: str = ""
    hint: str = ""
    since: float | None = None
    """When the first of the attempts failed that have failed in a row."""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Ask the ledger and the target where they are; answered by `Begun`."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Read on after what the log was last told to forget; `again` if reading failed."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class ReadOn:
    """Wait for the next item; answered by `Collected`."""


@dataclass(frozen=True, slots=True)
class AwaitCommit:
    """Wait until the ledger has an epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Announce:
    """Write in the ledger that parts are about to lie at the target."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """Write the parts; answered by `Prepared`."""

    delivery: Delivery
    chunks: tuple[LogChunk, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Store:
    """Fix a delivery in the ledger."""

    delivery: Delivery
    receipts: tuple[Receipt, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Show the parts that were prepared."""

    delivery: Delivery
    receipts: tuple[Receipt, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Deliver:
    """Write rows and commit id in one transaction of the target."""

    delivery: Delivery
    chunks: tuple[LogChunk, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Mark:
    """Write in the ledger how far the target is; `shown` if it was given rows."""

    epoch: Epoch
    shown: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Let the log forget what is delivered."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Abort:
    """Remove what was prepared, at the target and then in the ledger."""

    delivery: Delivery
    receipts: tuple[Receipt, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RewindTo:
    """Read on after an epoch that was delivered before, and say so in the ledger."""

    epoch: Epoch


Instruction = (
    Begin | Seek | ReadOn | AwaitCommit | Announce | Prepare | Store | Commit | Deliver
    | Mark | Truncate | Abort | RewindTo
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Begun:
    """What ledger and target have said."""

    stored: StoredDelivery
    target: Epoch


@dataclass(frozen=True, slots=True)
class Collected:
    """The next item of the log."""

    item: LogItem


@dataclass(frozen=True, slots=True)
class Prepared:
    """All parts are written, durably."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The instruction was carried out, and there is nothing to add."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The instruction was not carried out, or nobody knows."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A wait was broken off; nothing has happened."""


Event = Begun | Collected | Prepared | Done | Failed | Interrupted


@dataclass(slots=True)
class Gathering:
    """The delivery that is read, or is read and on its way."""

    chunks: list[LogChunk] = field(default_factory=list)
    checkpoints: int = 0
    delivery: Delivery | None = None
    """Set once it is whole."""
    charged: bool = False

    @property
    def rows(self) -> int:
        """How many the log has of it."""
        return sum(chunk.count for chunk in self.chunks)


def spoken(step: Instruction | Event) -> str:
    """A step in few words, without its rows."""
    name = type(step).__name__
    match step:
        case Collected(item):
            return f"{name} {type(item).__name__} of {item.epoch}"
        case Failed(error):
            return f"{name}: {str(error)[:100]}"
        case Begun(stored, target):
            return f"{name}: {stored.state} {stored.delivered} {stored.epoch}, target {target}"
        case Announce(each) | Prepare(each) | Store(each) | Commit(each) | Deliver(each):
            return f"{name} {each.after} to {each.epoch}"
        case Mark(epoch) | AwaitCommit(epoch) | RewindTo(epoch):
            return f"{name} {epoch}"
    return name
