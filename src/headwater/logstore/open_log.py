"""A log as one engine has it open: what writer and readers share.

    storage    segments and index files, named by the ledger's last text
    state      that text; replaced when the ledger has a later one
    buffer     the last items, with their rows where there was room
    progress   how far readers have truncated; in the ledger with the next text

Files go when a text that no longer needs them is in the ledger, never before: a crash in between
would find a log that names what is not there. What a crash leaves behind is found at the next
start, by name.

All methods run on the event loop; storage is used through `blocking`.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from headwater.logstore.buffer import LogStoreBuffer
from headwater.logstore.items import LENT, Lender, LogItem, Offset
from headwater.logstore.serde import VnodeOf, is_old_layout, migrate_segment
from headwater.logstore.state import (
    IndexFile,
    LoggedEpoch,
    LogStoreState,
    read_index,
    write_index,
)
from headwater.logstore.storage import LogStorage, Origin, origin_of
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VnodeBitmap

_R = TypeVar("_R")

_INDEXES_IN_MEMORY = 2


class Blocking(Protocol):
    """Runs a call that blocks beside the event loop."""

    async def __call__(self, call: Callable[..., _R], *args: Any, **kwargs: Any) -> _R:
        """Run it and wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class Resharding:
    """From an epoch on, reader n has the n-th of these vnodes."""

    epoch: Epoch
    shards: tuple[VnodeBitmap, ...]

    def of(self, reader: int) -> VnodeBitmap:
        """What a reader has; nothing if there are fewer."""
        return self.shards[reader] if reader < len(self.shards) else VnodeBitmap.empty()


class OpenLog:
    """One sink's log."""

    def __init__(  # noqa: PLR0913  what a log is made of
        self,
        *,
        storage: LogStorage,
        term: Term,
        state: LogStoreState,
        blocking: Blocking,
        max_bytes: int,
        vnode_of: VnodeOf | None = None,
        lender: Lender | None = None,
        replaced: Sequence[str] = (),
    ) -> None:
        self.storage = storage
        self.term = term
        self.state = state
        self.progress = state.progress
        self.blocking = blocking
        self.vnode_of = vnode_of
        self.lender = lender
        self.buffer = LogStoreBuffer(max_bytes, Offset(state.epoch))
        self.paused = False
        self.reshardings: list[Resharding] = []
        self._collected = state.progress.floor()
        self._doomed: list[str] = []
        self._replaced = tuple(replaced)
        """Files that the ledger's text names and ours does not; the next commit frees them."""
        self._doomed_indexes: list[IndexFile] = []
        self._indexes: dict[str, tuple[LoggedEpoch, ...]] = {}
        self._reading: dict[str, asyncio.Task[tuple[LoggedEpoch, ...]]] = {}

    def commit(
        self, state: LogStoreState, items: Iterable[LogItem], resharding: Sequence[Resharding]
    ) -> None:
        """The ledger has a later text: its items may be read, what it lacks may go."""
        delivered, kept = state.progress.floor(), set(state.indexes)
        for entry in self.state.entries:
            self._doomed += [s.name for place, s in entry.chunks() if place <= delivered]
        self._doomed_indexes += [index for index in self.state.indexes if index not in kept]
        self._doomed += self._replaced
        self._replaced = ()
        self.state = state
        self.reshardings.extend(resharding)
        self.buffer.append(items)

    def doom(self, names: Iterable[str]) -> None:
        """Files that no text will ever name."""
        self._doomed.extend(names)

    def truncate(self, vnodes: VnodeBitmap, place: Offset) -> None:
        """Everything of these vnodes up to a place is delivered."""
        self.progress = self.progress.reach(vnodes, place)
        self.buffer.truncate(self.progress.floor())
        # Another reader may wait for vnodes that it takes over here.
        self.buffer.wake()

    def pause(self, *, paused: bool) -> None:
        """Hold readers back, or let them go on."""
        self.paused = paused
        self.buffer.wake()

    async def index(self, file: IndexFile) -> tuple[LoggedEpoch, ...]:
        """The epochs of an index file. Cancelled callers do not interrupt the reading."""
        if file.name in self._indexes:
            return self._indexes[file.name]
        if file.name not in self._reading:
            task = asyncio.ensure_future(self.blocking(read_index, self.storage, file))
            task.add_done_callback(lambda done: self._index_read(file.name, done))
            self._reading[file.name] = task
        return await asyncio.shield(self._reading[file.name])

    def _index_read(self, name: str, done: "asyncio.Task[tuple[LoggedEpoch, ...]]") -> None:
        del self._reading[name]
        if not done.cancelled() and done.exception() is None:
            while len(self._indexes) >= _INDEXES_IN_MEMORY:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[name] = done.result()

    async def collect(self) -> int:
        """Delete what the ledger's text no longer needs, and say how many files that were.

        Replay: files already gone are passed over; what a crash leaves is found by name.
        """
        upto = self.state.progress.floor()
        files, self._doomed = self._doomed, []
        indexes, self._doomed_indexes = self._doomed_indexes, []
        # An index file stays until all of it is delivered; the segments it lists need not.
        partly = self.state.indexes[:1] if upto > self._collected else ()
        try:
            deleted = await self.blocking(
                _delete,
                self.storage,
                files,
                indexes=indexes,
                partly=partly,
                after=self._collected,
                upto=upto,
            )
        except BaseException:
            self._doomed += files
            self._doomed_indexes += indexes
            raise
        self._collected = max(self._collected, upto)
        return deleted

    async def collect_orphans(self, *, alone: bool = False) -> int:
        """Delete files that nothing names: of engines that are gone, and of epochs that are over.

        `alone` says that nothing is being written, so that all of our own can be judged.
        Replay: what is gone is gone.
        """
        spared = {*self._replaced, *self._doomed}
        return await self.blocking(
            delete_orphans, self.storage, self.state, self.term, spared=spared, alone=alone
        )

    async def close(self) -> None:
        """End what is being read."""
        for task in list(self._reading.values()):
            task.cancel()
            await asyncio.wait([task])


def migrated(
    storage: LogStorage, state: LogStoreState, *, term: Term, vnode_of: VnodeOf
) -> tuple[LogStoreState, tuple[str, ...]]:
    """The same log with all its segments in today's layout, and the names of replaced files.

    It counts when the ledger has its text; until then the old files must stay.
    Replay: writes other files; what nobody names is collected.
    """
    replaced: list[str] = []

    def renew(entry: LoggedEpoch) -> LoggedEpoch:
        old = [segment for segment in entry.segments if is_old_layout(segment)]
        if not old:
            return entry
        replaced.extend(segment.name for segment in old)
        segments = (
            migrate_segment(storage, s, term=term, vnode_of=vnode_of) if s in old else s
            for s in entry.segments
        )
        return replace(entry, segments=tuple(segments))

    delivered = state.progress.floor()
    indexes = []
    for index in state.indexes:
        entries = read_index(storage, index)
        left = [kept for entry in entries if (kept := entry.without(delivered)) is not None]
        renewed = [renew(entry) for entry in left]
        if renewed != left:
            replaced.append(index.name)
            index = write_index(storage, renewed, Origin(term, state.epoch))  # noqa: PLW2901
        indexes.append(index)
    entries = tuple(renew(entry) for entry in state.entries)
    return replace(state, indexes=tuple(indexes), entries=entries), tuple(replaced)


def needed_files(storage: LogStorage, state: LogStoreState) -> Iterator[str]:
    """Every file that a log needs."""
    delivered = state.progress.floor()
    for index in state.indexes:
        yield index.name
        for entry in read_index(storage, index):
            yield from (s.name for place, s in entry.chunks() if place > delivered)
    for entry in state.entries:
        yield from (segment.name for segment in entry.segments)


def delete_orphans(
    storage: LogStorage,
    state: LogStoreState,
    term: Term,
    *,
    spared: Collection[str] = (),
    alone: bool = False,
) -> int:
    """Delete files that a log does not need and nobody is about to name.

    Replay: what is gone is gone.
    """
    found = list(storage.list())
    needed = {*needed_files(storage, state), *spared}
    orphans = []
    for path in found:
        origin = origin_of(path)
        # A later term means that we are the ones who are gone: nothing of it is ours to judge.
        if origin is None or path in needed or origin.term > term:
            continue
        if origin.term < term or alone or origin.epoch <= state.epoch:
            orphans.append(path)
    for path in orphans:
        storage.delete(path)
    return len(orphans)


def delete_log(storage: LogStorage) -> int:
    """Delete every file of a log whose sink is gone. Replay: what is gone is gone."""
    found = [path for path in storage.list() if origin_of(path) is not None]
    for path in found:
        storage.delete(path)
    return len(found)


def _delete(  # noqa: PLR0913  what goes, and between which places
    storage: LogStorage,
    files: Sequence[str],
    *,
    indexes: Sequence[IndexFile],
    partly: Sequence[IndexFile],
    after: Offset,
    upto: Offset,
) -> int:
    deleted = list(files)
    for index in (*indexes, *partly):
        try:
            entries = read_index(storage, index)
        except FileNotFoundError:
            continue
        for entry in entries:
            deleted += [s.name for place, s in entry.chunks() if after < place <= upto]
        if index in indexes:
            # Last, so that an interrupted run finds its segments again.
            deleted.append(index.name)
    # What was lent is the lender's.
    own = [path for path in deleted if not path.startswith(LENT)]
    for path in own:
        storage.delete(path)
    return len(own)
