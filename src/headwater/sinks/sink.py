"""The contract between delivery and a target: what a sink has to do, and what it may rely on.

A **delivery** is what one committed epoch (or several, by `commit_checkpoint_interval`) owes a
target. Its commit id is fixed in the ledger before anything becomes visible there, and a
delivery is tried until it is done, by this engine or by the next.

    a target that has        is a                 where rows are written
    transactions             TransactionalSink    `deliver`: rows and the commit id, in one
                                                  transaction, by the driver or by one Spark task
    parts that are shown     StagedSink           `prepare` in Spark tasks side by side, where no
    by one last step                              reader looks; then `commit`, once, on the driver

What a sink promises
    Once       `deliver` and `commit` of a delivery that the target already holds change nothing.
               The check and the write are one atomic step of the target, so that it also holds
               against another process that tries the same at the same moment.
    Fenced     After `begin(term)` no delivery of an older term succeeds: it raises `Fenced`.
    Whole      A reader of the target sees all of a delivery or nothing of it.
    Ordered    Deliveries come in the order of their epochs, one at a time.
What a sink may rely on
    Folded     Rows of one delivery are as `SinkKind` says: at most one final change per key.
               Batches come vnode range by vnode range; inside a range deletes are first, and
               all changes of one key are in the same range.
    Same       A delivery that is tried again has the same commit id, and rows with the same
               content; only how they are divided into parts and batches may differ.

Sinks travel to Spark tasks by pickle: connections are opened where they are used, never in
`__init__`. All calls block; they run in threads and tasks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import pyarrow as pa

from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column

OP = "_op"
"""The column of a row that says what happens to it, as a `RowOp`; the first one, int8."""


class SinkKind(StrEnum):
    """Which changes a target takes.

    kind          rows of one delivery
    APPEND_ONLY   RowOp.INSERT only
    UPSERT        first RowOp.DELETE, of which only the key counts, then RowOp.INSERT, which
                  mean "this is now the row of that key"; one row per key in all
    RETRACT       what happened, with the old rows: DELETE, then UPDATE_DELETE right before its
                  UPDATE_INSERT, then INSERT; at most one of these three per key
    """

    APPEND_ONLY = "append-only"
    UPSERT = "upsert"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """FORMAT and ENCODE of a statement, with their options; empty where none was given."""

    format: str = ""
    encode: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """What a user has asked for; a connector makes a sink of it."""

    name: str
    """As the user wrote it; for messages."""
    ident: str
    """Names this sink at its target, for ever and alone: letters, digits and `_`, at most 48."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns of `primary_key`, or of the relation's key; empty where rows have none."""
    kind: SinkKind
    options: Mapping[str, str] = field(repr=False)
    """What stands in WITH for the connector; passwords are among them."""
    encoding: Encoding = Encoding()
    evolves: bool = False
    """Whether `check` adds columns that the target lacks, instead of refusing it."""

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the batches that are delivered: `OP`, then the columns."""
        fields = [pa.field(column.name, column.type.arrow) for column in self.columns]
        return pa.schema([pa.field(OP, pa.int8()), *fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery: the rows of all epochs after one, up to and with another."""

    sink: str
    """`SinkSpec.ident`."""
    after: Epoch
    epoch: Epoch
    term: Term
    rows: int
    inserts_only: bool = False
    """Whether every row is a RowOp.INSERT that came from an insert: its key is most likely new."""
    given: Epoch = field(default=NO_EPOCH, compare=False)
    """What the target was last given; one that knows less was set back."""

    @property
    def commit_id(self) -> str:
        """What the target files it under; the same whenever it is tried again."""
        return f"{self.sink}_{self.epoch}"


Receipt = bytes
"""What `prepare` says to `commit`: small, and all that is needed, since tasks are forgotten."""

Batches = Iterable[pa.RecordBatch]


class Sink(Protocol):
    """What all sinks have."""

    def check(self) -> None:
        """Check target, rights and columns, and create what is missing and ours to create.

        Runs when the sink is created, and again after every change of its options. Raises
        `UserError` with what is wrong and what to do, `SinkUnavailable` when nobody answers.
        Replay: what is there already is left as it is.
        """
        ...

    def begin(self, term: Term) -> Epoch:
        """Fence all older terms, and say which epoch the target has; `NO_EPOCH` for none.

        Raises `Fenced` when a newer term was here. Replay: the same answer.
        """
        ...

    def drop(self) -> None:
        """Remove our own book-keeping from the target; rows that were delivered stay.

        Replay: nothing left to do.
        """
        ...


@runtime_checkable
class TransactionalSink(Sink, Protocol):
    """A target whose transaction holds rows and commit id together."""

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """Write all rows and the commit id in one transaction of the target.

        Raises `SinkUnavailable` when it may work later, `UserError` (a value that does not
        fit, with its column and its key) when somebody has to do something.
        Replay: a delivery that the target has is left as it is.
        """
        ...


@runtime_checkable
class StagedSink(Sink, Protocol):
    """A target to which parts are brought side by side and shown in one step."""

    def prepare(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        """Write one part's rows where no reader sees them. Replay: writes them once more."""
        ...

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Show all parts at once, under the commit id.

        Parts may be of an older term than the delivery. Raises `StagedRowsGone` where they are no
        longer there; they are then prepared anew, under the same id.
        Replay: as `TransactionalSink.deliver`.
        """
        ...

    def abort(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Remove what `prepare` wrote, if it can be found also where its receipts are lost.

        Only what this term and older ones wrote: the last call of an engine that was replaced may
        come while a later one delivers the same epochs. Never called for a delivery that the
        target has. Replay: nothing left to do.
        """
        ...
