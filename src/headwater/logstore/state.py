"""What the ledger keeps of a log: a short text, from which all of it is found again.

    text       the last epoch, how far vnodes are delivered, names of index files, and the last
               epochs with their segments
    index      an immutable file with older epochs and their segments
    segment    an immutable file of rows (`serde.py`)

The text counts when the ledger has it, with the epoch's record; files are written before. While a
target is behind, older epochs move from the text to index files. These are merged as a binary
counter is, so that a log of n epochs has few of them and each epoch is written a few times only.

An epoch without rows is one entry, and so are several of them in a row: a reader that comes later
is told of the last one. An idle sink writes a text of some hundred bytes and no file.

Promises
    Small        The text has at most `INLINE` segments and epochs, however far a target is behind.
    Exact        Chunks keep their number for ever: the n-th segment of an epoch is its chunk n,
                 also when those before it are delivered and gone.
    Versioned    A text or a file of another format is refused, never guessed at.

    format   what is new                  read from the one before
    1
    2        segments may be lent         as it is: none of them is
"""

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset, Segment
from headwater.logstore.progress import LogStoreVnodeProgress
from headwater.logstore.serde import BarrierOp
from headwater.logstore.storage import LogStorage, Origin
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.vnode import VnodeBitmap

FORMAT = 2
_READABLE = (1, FORMAT)
INLINE = 32
"""How many epochs and segments, together, stand in the text itself."""
LARGEST_INDEX = 16_384
"""How many epochs and segments an index file has at most, unless one epoch has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEpoch:
    """The rows of an epoch and the barrier after them, or several barriers without rows."""

    epoch: Epoch
    checkpoint: bool
    segments: tuple[Segment, ...] = ()
    first_chunk: int = 0
    """The chunk of the first segment; those before it are delivered and forgotten."""
    first: Epoch
    """The first barrier that it stands for; mostly its own."""
    stop: bool = False

    @property
    def weight(self) -> int:
        """How much room it takes in a text."""
        return 1 + len(self.segments)

    @property
    def bare(self) -> bool:
        """Whether it is nothing but barriers that say nothing."""
        return not (self.segments or self.first_chunk or self.stop)

    def chunks(self) -> Iterator[tuple[Offset, Segment]]:
        """Its segments, each with the place after it."""
        for chunk_id, segment in enumerate(self.segments, self.first_chunk):
            yield Offset(self.epoch, chunk_id), segment

    def item_after(self, place: Offset) -> LogItem | None:
        """The first item behind a place."""
        if place >= Offset(self.epoch):
            return None
        number = 0
        if place.epoch == self.epoch:
            number = max(0, int(place.chunk_id) + 1 - self.first_chunk)
        if number < len(self.segments):
            return stored_chunk(self.segments[number], self.first_chunk + number)
        return self.barrier()

    def barrier(self) -> LogBarrier:
        """The item after its rows."""
        return LogBarrier(epoch=self.epoch, checkpoint=self.checkpoint, stop=self.stop)

    def without(self, delivered: Offset) -> "LoggedEpoch | None":
        """What is left of it when everything up to a place is delivered; None for nothing."""
        if delivered >= Offset(self.epoch):
            return None
        gone = sum(at <= delivered for at, _ in self.chunks())
        if not gone:
            return self
        return replace(self, segments=self.segments[gone:], first_chunk=self.first_chunk + gone)


def stored_chunk(segment: Segment, chunk_id: int) -> LogChunk:
    """A segment as an item of the log."""
    return LogChunk(
        epoch=segment.epoch,
        chunk_id=chunk_id,
        first_seq=segment.first_seq,
        count=segment.rows,
        nbytes=segment.bytes,
        stored=segment,
    )


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file that lists epochs."""

    name: str
    last: Epoch
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreState:
    """A log as one text of the ledger has it."""

    epoch: Epoch = NO_EPOCH
    """The last barrier."""
    progress: LogStoreVnodeProgress = field(default_factory=LogStoreVnodeProgress)
    indexes: tuple[IndexFile, ...] = ()
    entries: tuple[LoggedEpoch, ...] = ()

    @property
    def overfull(self) -> bool:
        """Whether some of it has to move to an index file (`settle`)."""
        return sum(entry.weight for entry in self.entries) > INLINE

    def locate(self, place: Offset) -> IndexFile | LoggedEpoch | None:
        """What has the first item behind a place: a file, an epoch, or nothing yet."""
        for index in self.indexes:
            if Offset(index.last) > place:
                return index
        return entry_after(self.entries, place)

    def grown(
        self, entries: Iterable[LoggedEpoch], progress: LogStoreVnodeProgress
    ) -> "LogStoreState":
        """With later epochs, and without what is delivered."""
        delivered = progress.floor()
        kept, epoch = list(self.entries), self.epoch
        for entry in entries:
            if entry.epoch <= epoch:
                raise BrokenInvariant(f"epoch {entry.epoch} of a log is not after {epoch}")
            epoch = entry.epoch
            if kept and kept[-1].bare and entry.bare:
                kept[-1] = replace(entry, first=kept[-1].first)
            else:
                kept.append(entry)
        left = (entry.without(delivered) for entry in kept)
        return LogStoreState(
            epoch=epoch,
            progress=progress,
            indexes=tuple(index for index in self.indexes if Offset(index.last) > delivered),
            entries=tuple(entry for entry in left if entry is not None),
        )

    def encode(self) -> str:
        """The text for the ledger."""
        stored = {
            "format": FORMAT,
            "epoch": self.epoch,
            "progress": self.progress.encode(),
            "indexes": [[index.name, index.last, index.weight] for index in self.indexes],
            "entries": [_encode(entry) for entry in self.entries],
        }
        return json.dumps({k: v for k, v in stored.items() if v != []}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "LogStoreState":
        """Read back what `encode` wrote."""
        try:
            stored = json.loads(text)
            if stored["format"] not in _READABLE:
                raise DamagedState(
                    f"the end of a sink's log has the unknown format {stored['format']}"
                )
            indexes = stored.get("indexes", [])
            return cls(
                epoch=Epoch(stored["epoch"]),
                progress=LogStoreVnodeProgress.decode(stored.get("progress", [])),
                indexes=tuple(IndexFile(name, Epoch(e), weight) for name, e, weight in indexes),
                entries=tuple(_decode(entry) for entry in stored.get("entries", [])),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedState(
                "the end of a sink's log cannot be read", detail=str(error)[:300]
            ) from error


def entry_after(entries: Sequence[LoggedEpoch], place: Offset) -> LoggedEpoch | None:
    """The first epoch of which anything is behind a place."""
    at = bisect_right(entries, place, key=lambda entry: Offset(entry.epoch))
    return entries[at] if at < len(entries) else None


def settle(storage: LogStorage, state: LogStoreState, origin: Origin) -> LogStoreState:
    """Move older epochs to a new index file, together with those of small ones before it.

    Replay: writes another file; what nobody names is collected.
    """
    moved, kept = list(state.entries), []
    room = INLINE // 2
    while moved and moved[-1].weight <= room:
        room -= moved[-1].weight
        kept.append(moved.pop())
    if not moved:
        return state
    indexes, delivered = list(state.indexes), state.progress.floor()
    while indexes and indexes[-1].weight <= _weight(moved):
        if indexes[-1].weight + _weight(moved) > LARGEST_INDEX:
            break
        older = (entry.without(delivered) for entry in read_index(storage, indexes.pop()))
        moved[:0] = [entry for entry in older if entry is not None]
    indexes.append(write_index(storage, moved, origin))
    return replace(state, indexes=tuple(indexes), entries=tuple(reversed(kept)))


def write_index(storage: LogStorage, entries: Sequence[LoggedEpoch], origin: Origin) -> IndexFile:
    """Write a new index file. Replay: writes another one."""
    stored = {"format": FORMAT, "entries": [_encode(entry) for entry in entries]}
    name = origin.index_file()
    storage.put(name, zlib.compress(json.dumps(stored, separators=(",", ":")).encode(), 1))
    return IndexFile(name, entries[-1].epoch, _weight(entries))


def read_index(storage: LogStorage, index: IndexFile) -> tuple[LoggedEpoch, ...]:
    """The epochs of an index file; `FileNotFoundError` if it is no longer there."""
    content = storage.get(index.name)
    try:
        stored = json.loads(zlib.decompress(content))
        if stored["format"] not in _READABLE:
            raise DamagedState(f"file {index.name} has the unknown format {stored['format']}")
        return tuple(_decode(entry) for entry in stored["entries"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise DamagedState(
            f"a list of a sink's log cannot be read: {index.name}", detail=str(error)[:300]
        ) from error


def _weight(entries: Iterable[LoggedEpoch]) -> int:
    return sum(entry.weight for entry in entries)


def _encode(entry: LoggedEpoch) -> list[Any]:
    op = BarrierOp.CHECKPOINT_BARRIER if entry.checkpoint else BarrierOp.BARRIER
    full = VnodeBitmap.full()
    segments = [
        [s.name, s.first_seq, s.rows, s.bytes, "" if s.vnodes == full else f"{s.vnodes.bits:x}"]
        for s in entry.segments
    ]
    head = [int(op), entry.epoch, entry.epoch - entry.first, int(entry.stop), entry.first_chunk]
    return [*head, segments]


def _decode(stored: list[Any]) -> LoggedEpoch:
    op, number, stands_for, stop, first_chunk, segments = stored
    epoch = Epoch(number)
    return LoggedEpoch(
        epoch=epoch,
        checkpoint=BarrierOp(op) is BarrierOp.CHECKPOINT_BARRIER,
        segments=tuple(_segment(epoch, segment) for segment in segments),
        first_chunk=first_chunk,
        first=Epoch(epoch - stands_for),
        stop=bool(stop),
    )


def _segment(epoch: Epoch, stored: list[Any]) -> Segment:
    name, first_seq, rows, size, bits = stored
    vnodes = VnodeBitmap(int(bits, 16)) if bits else VnodeBitmap.full()
    return Segment(
        name=name, epoch=epoch, first_seq=first_seq, rows=rows, bytes=size, vnodes=vnodes
    )
