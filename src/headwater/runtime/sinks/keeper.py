"""What each epoch owes the sinks, inside its commit.

When an epoch is about to be committed, all relations have staged what it changes. The keeper
writes that into the logs of the sinks, and the ends of these logs go into the same record: what
readers see of an epoch and what sinks are owed for it are one thing.

    a sink is     its log is written by
    filled        its own job, slice by slice, until it joins (`filling.py`)
    live          the keeper, for every epoch that changes its relation; an idle one costs nothing

Replay: nothing here is durable by itself. A commit that is repeated calls `discard` first.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headwater.catalog.relation import ObjectDef
from headwater.logstore.items import Segment
from headwater.logstore.serde import write_segment
from headwater.logstore.writer import KvLogStoreWriter
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId, Term
from headwater.runtime.sinks.owed import Owing, owed_segments
from headwater.runtime.view_fill import as_inserts
from headwater.runtime.view_world import ViewWorld
from headwater.state.storage import Storage
from headwater.state.store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def log_key(id_: int) -> str:
    """What the end of a sink's log is filed under in the ledger."""
    return f"sink/{id_}"


def _write(storage: Storage, epoch: Epoch, term: Term, rows: pa.Table) -> Segment:
    return write_segment(storage, rows, epoch, term=term)


@dataclass(slots=True, kw_only=True)
class LiveSink:
    """A sink and its log."""

    definition: ObjectDef
    writer: KvLogStoreWriter
    storage: Storage
    """The folder of its log."""
    term: Term
    filling: bool = False
    """Whether its job writes its log."""
    staged: list[Epoch] = field(default_factory=list)
    """Epochs that wait for the ledger."""

    @property
    def id(self) -> int:
        """Its id in the catalog."""
        return self.definition.id

    @property
    def table(self) -> TableId:
        """The relation whose changes it delivers."""
        assert self.definition.table is not None
        return self.definition.table

    @property
    def log(self) -> str:
        """What the end of its log is filed under in the ledger."""
        return log_key(self.id)

    def segment_writer(self, epoch: Epoch) -> Callable[[pa.Table], Segment]:
        """Writes rows of an epoch to a file of the log; travels to Spark tasks."""
        return partial(_write, self.storage, epoch, self.term)

    def confirm(self, epoch: Epoch) -> None:
        """The ledger has the log up to this epoch."""
        due = [each for each in self.staged if each <= epoch]
        if due:
            self.writer.confirm(due[-1])
            self.staged = [each for each in self.staged if each > epoch]

    def discard(self) -> None:
        """Forget what is staged."""
        self.writer.discard()
        self.staged.clear()


@dataclass(frozen=True, slots=True)
class Owed:
    """What an epoch owes a sink besides what it changes."""

    NOTHING: ClassVar[Epoch] = Epoch(-1)
    """Stands for: only what comes after this epoch."""

    sink: LiveSink
    after: Epoch | None
    """All that changed after an epoch; None for all rows there are."""
    joins: bool = False
    """Whether its job has filled it up to that epoch, and it is live from now on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What goes into a sink's log for one epoch: rows, or segments that tasks have written."""

    sink: LiveSink
    rows: pa.Table | None = None
    segments: Sequence[Segment] = ()
    joins: bool = False


class SinkKeeper:
    """Writes the logs of live sinks; called by the committer only, one epoch at a time."""

    def __init__(self, store: StateStore, parallelism: int) -> None:
        self._store = store
        self.parallelism = parallelism
        self.live: dict[int, LiveSink] = {}
        self._staged: list[Entry] = []
        self._altered: dict[int, ObjectDef] = {}

    def entries(
        self,
        epoch: Epoch,
        owed: Iterable[Owed] = (),
        without: Set[int] = frozenset(),
        altered: Iterable[ObjectDef] = (),
    ) -> list[Entry]:
        """What the epoch owes each sink. Blocks; large changes are written by Spark tasks.

        Sinks that are altered with the epoch are owed it as they will be.
        Replay: files that no log names are collected.
        """
        self._altered = {each.id: each for each in altered}
        world = ViewWorld(self._store, epoch)
        special = {each.sink.id: each for each in owed}
        sinks = {**self.live, **{each.sink.id: each.sink for each in special.values()}}
        shared: dict[TableId, pa.Table | DataFrame | None] = {}
        found = []
        for id_, sink in sinks.items():
            each = special.get(id_)
            if id_ in without or (sink.filling and each is None):
                continue
            if each is not None:
                changes = self._changes(sink, world, each)
            else:
                # Sinks of one relation read its changes once.
                if sink.table not in shared:
                    shared[sink.table] = self._changes(sink, world, None)
                changes = shared[sink.table]
            found.append(self._entry(sink, changes, epoch, joins=each is not None and each.joins))
        return found

    async def log(self, epoch: Epoch, entries: Iterable[Entry]) -> dict[str, str]:
        """Put it into the logs; gives their ends, for the record. Replay: after `discard`."""
        ends: dict[str, str] = {}
        for entry in entries:
            self._staged.append(entry)
            ends[entry.sink.log] = await append(entry.sink, epoch, entry.rows, entry.segments)
        return ends

    def owing(self, sink: LiveSink) -> Owing:
        """How its relation's changes become rows of its log."""
        schema = self._store[sink.table].staged_schema
        definition = self._altered.get(sink.id, sink.definition)
        return Owing(definition.columns, schema, definition.keys or schema.key)

    def confirm(self, epoch: Epoch, gone: Iterable[int] = ()) -> None:
        """The ledger has the epoch: sinks may have what it owes them; some are gone with it."""
        for id_ in gone:
            self.live.pop(id_, None)
        for entry in self._staged:
            self.live[entry.sink.id] = entry.sink
            if entry.joins:
                entry.sink.filling = False
        self._staged.clear()
        for id_, definition in self._altered.items():
            if id_ in self.live:
                self.live[id_].definition = definition
        self._altered.clear()
        for sink in self.live.values():
            sink.confirm(epoch)

    def discard(self) -> None:
        """Drop what is staged. Replay: nothing staged is left."""
        for entry in self._staged:
            entry.sink.discard()
        self._staged.clear()
        self._altered.clear()

    # Inside

    def _entry(
        self, sink: LiveSink, changes: "pa.Table | DataFrame | None", epoch: Epoch, *, joins: bool
    ) -> Entry:
        if changes is None:
            return Entry(sink, joins=joins)
        owing = self.owing(sink)
        if isinstance(changes, pa.Table):
            return Entry(sink, rows=owing.rows(changes), joins=joins)
        write = sink.segment_writer(epoch)
        segments = owed_segments(owing, changes, self.parallelism, write)
        return Entry(sink, segments=segments, joins=joins)

    def _changes(
        self, sink: LiveSink, world: ViewWorld, owed: Owed | None
    ) -> "pa.Table | DataFrame | None":
        table = self._store[sink.table]
        if owed is not None and owed.after is None:
            after = world.upcoming(sink.table).after
            return as_inserts(table.rows_of(after)) if after.rows else None
        if owed is not None and owed.after == Owed.NOTHING:
            return None
        upcoming = world.upcoming(sink.table)
        if owed is not None:
            upcoming = table.upcoming(world.epoch, owed.after)
        if not upcoming.entries:
            return None
        return table.changes_of(upcoming.after, upcoming.entries)


async def append(
    sink: LiveSink, epoch: Epoch, rows: pa.Table | None, segments: Sequence[Segment] = ()
) -> str:
    """End an epoch of a sink's log with these rows; gives the text that the ledger is to have.

    Replay: after `discard` the epoch is written again, to other files.
    """
    writer = sink.writer
    if writer.epoch is None:
        await writer.init(epoch)
    elif writer.epoch < epoch:
        # Epochs in between have nothing for this sink.
        await writer.flush_current_epoch(epoch, checkpoint=False)
    if rows is not None:
        await writer.write_chunk(rows)
    if segments:
        await writer.add_segments(segments)
    end = await writer.flush_current_epoch(Epoch(epoch + 1), checkpoint=True)
    assert end is not None
    sink.staged.append(epoch)
    return end
