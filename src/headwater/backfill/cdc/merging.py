"""Merge a snapshot with a live log, key by key.

While a table fills, two streams carry its rows: chunks of a snapshot and changes from the log.
Changes are applied as soon as they arrive, for every key. This module says what becomes of a
chunk's row:

    the key's last change since the      held by the chunk    not held by the chunk
    chunk was begun
    there is none                        write the row
    insert, or update with a row here    write the row        keep what is there
    delete                               write the row        keep it deleted
    update that waits for its row        write the row        write the row, changed by the update

*Held* means that the chunk's own snapshot saw the transaction. Changes from before the chunk was
begun are held by all of it (`TransactionsToSee` refuses a chunk of which that is not true), so
only those that came after are remembered, and only while chunks are under way.

Promises
    Pure         No I/O, no clock, no Spark.
    Exact        Keys decide, never only their hashes, and never their order.
    Bounded      Remembered changes have a limit in bytes. When it is reached they are forgotten
                 and the chunks that needed them are read again.

Why transactions and not log places: a commit record can be in the log while a snapshot taken
afterwards does not see the transaction yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.filling import PartialRows, complete
from headwater.backfill.cdc.key_match import Numbers, match_keys
from headwater.backfill.cdc.places import later, reaches
from headwater.cdc.external_table import TRANSACTION, Seen, SnapshotChunk
from headwater.cdc.offset import CdcOffset
from headwater.model.schema import Schema


class ChunkRows(Protocol):
    """A chunk's rows, in memory or in a file that a task has written."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def nbytes(self) -> int:
        """How much memory they hold here; a file holds none."""
        ...

    @property
    def size(self) -> int:
        """How large they are, wherever they are: what a limit of bytes counts."""
        ...

    def keys(self) -> pa.Table:
        """The key's columns of all rows, in order."""
        ...

    def take(self, places: Numbers) -> pa.Table:
        """Some whole rows, by place."""
        ...


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """A chunk's rows in memory."""

    table: pa.Table
    key: tuple[str, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return int(self.table.nbytes)

    @property
    def size(self) -> int:
        """The same."""
        return self.nbytes

    def keys(self) -> pa.Table:
        """The key's columns."""
        return self.table.select(list(self.key))

    def take(self, places: Numbers) -> pa.Table:
        """Some rows."""
        return self.table.take(pa.array(places))


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A chunk to be written, without the rows at these places, over whatever is there."""

    chunk: ChunkRows
    dropped: Numbers

    @property
    def rows(self) -> int:
        """How many rows it writes."""
        return self.chunk.rows - len(self.dropped)

    def table(self) -> pa.Table:
        """The rows that it writes."""
        if not len(self.dropped):
            return self.chunk.take(np.arange(self.chunk.rows))
        keeps = np.ones(self.chunk.rows, dtype=np.bool_)
        keeps[self.dropped] = False
        return self.chunk.take(np.flatnonzero(keeps))


@dataclass(frozen=True, slots=True)
class _Remembered:
    delivery: int
    keys: pa.Table
    transactions: Numbers

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.transactions.nbytes)


class RememberedChanges:
    """The keys that changed while chunks are under way, each with its transaction."""

    def __init__(self, schema: Schema, *, max_bytes: int) -> None:
        self._schema = schema
        self._max_bytes = max_bytes
        self._parts: list[_Remembered] = []
        self._none = schema.arrow.empty_table().select(list(schema.key))

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return sum(part.nbytes for part in self._parts)

    @property
    def full(self) -> bool:
        """Whether the limit is passed: the caller must let go of the chunks under way."""
        return self.nbytes > self._max_bytes

    def remember(self, changes: pa.Table, delivery: int) -> None:
        """Take in changes that the log has delivered, in deliveries that count upwards."""
        if changes.num_rows:
            keys = changes.select(list(self._schema.key))
            self._parts.append(_Remembered(delivery, keys, changes.column(TRANSACTION).to_numpy()))

    def forget_before(self, delivery: int) -> None:
        """No chunk under way was begun before this delivery."""
        self._parts = [part for part in self._parts if part.delivery >= delivery]

    def newer_than(self, seen: Seen) -> pa.Table:
        """The keys with a change that the chunk does not hold."""
        newer = []
        for part in self._parts:
            held = np.asarray(seen.holds(pa.array(part.transactions)))
            if not held.all():
                newer.append(part.keys.filter(pa.array(~held)))
        return pa.concat_tables(newer) if newer else self._none


def mark_cdc_chunk(keys: pa.Table, newer: pa.Table, schema: Schema) -> Numbers:
    """Which rows of a snapshot chunk may be written: those without a newer change."""
    survives: Numbers = match_keys(keys, newer, schema) < 0
    return survives


@dataclass(frozen=True, slots=True)
class MergedChunk:
    """What a chunk comes to."""

    part: SnapshotPart
    completed: pa.Table
    """Rows that a waiting change needed, with that change made."""
    brought: Numbers
    """Which waiting rows the chunk has brought, by place."""


def merge_chunk(
    chunk: ChunkRows,
    seen: Seen,
    remembered: RememberedChanges,
    waiting: PartialRows,
    schema: Schema,
) -> MergedChunk:
    """Decide on every row of a chunk. All changes delivered so far have been remembered."""
    nothing = np.empty(0, dtype=np.int64)
    newer = remembered.newer_than(seen)
    if not waiting.rows.num_rows and not newer.num_rows:
        # The keys of a chunk in a file are not even read.
        return MergedChunk(SnapshotPart(chunk, nothing), waiting.rows, nothing)
    keys = chunk.keys()
    dropped = np.flatnonzero(~mark_cdc_chunk(keys, newer, schema))
    if not waiting.rows.num_rows:
        return MergedChunk(SnapshotPart(chunk, dropped), waiting.rows, nothing)
    found = match_keys(waiting.rows, keys, schema)
    brought = np.flatnonzero(found >= 0)
    held = np.asarray(seen.holds(pa.array(waiting.transactions[brought])), dtype=np.bool_)
    # A waiting change that the chunk holds is in the chunk's row already.
    apply = brought[~held]
    whole = chunk.take(found[apply]).select(waiting.rows.column_names)
    completed = complete(waiting.take(apply), whole)
    # Rows that wait have a newer change, so the row as the chunk has it is dropped already.
    return MergedChunk(SnapshotPart(chunk, dropped), completed, brought)


class TransactionsToSee:
    """The transactions that every chunk begun from now on must see.

    A transaction is in here from its delivery by the log until some chunk has seen it; later
    chunks see it as well. What is in here must be stored with the epoch that applied it, because
    after a restart the log does not deliver it again.
    """

    def __init__(
        self,
        transactions: Iterable[int] = (),
        *,
        floor: CdcOffset | None = None,
        most: int = 1 << 20,
    ) -> None:
        self._ids = np.unique(np.fromiter(transactions, dtype=np.int64))
        self._most = most
        self.floor = floor
        """Chunks must also hold everything that committed before here."""

    def __len__(self) -> int:
        return int(self._ids.size)

    @property
    def ids(self) -> Numbers:
        """The transactions as they are now; a chunk keeps these from its beginning."""
        return self._ids

    def delivered(self, transactions: Numbers, before: CdcOffset) -> None:
        """The log has delivered these, and has come to `before`."""
        self._ids = np.union1d(self._ids, transactions)
        if self._ids.size > self._most:
            # Chunks have failed for long. A place in the log says the same, with less precision.
            self._ids = np.empty(0, dtype=np.int64)
            self.floor = before if self.floor is None else later(self.floor, before)

    def seen_by(self, chunk: SnapshotChunk, since: Numbers, floor: CdcOffset | None) -> bool:
        """Whether a chunk sees all that was to be seen when it was begun; learns from it."""
        # Not only what is still to be seen: a chunk begun later may have come before this one.
        if since.size and not np.asarray(chunk.seen.holds(pa.array(since))).all():
            return False
        if floor is not None and not reaches(chunk.low, floor):
            return False
        self.learn(chunk)
        return True

    def learn(self, chunk: SnapshotChunk) -> None:
        """What one chunk has seen, all that are begun later see."""
        if self._ids.size:
            self._ids = self._ids[~np.asarray(chunk.seen.holds(pa.array(self._ids)))]
        if self.floor is not None and reaches(chunk.low, self.floor):
            self.floor = None
