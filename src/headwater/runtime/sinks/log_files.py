"""The rows of a large delivery, divided among the tasks that read them.

    a delivery has           a task is given          and holds at a time
    lent rows only           some of the files        files of about `_HELD_BYTES`, at least one
    rows of the log as well  some ranges of vnodes    one range

Of lent rows no two have the same key, so nothing has to be brought together by vnode, and a file
is read once. The rows of the log come in the order of their changes, a range of vnodes at a time.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import BrokenInvariant
from headwater.logstore.items import LogChunk, Segment
from headwater.logstore.serde import only_inserts, read_segment
from headwater.logstore.storage import LogStorage
from headwater.model.vnode import VnodeBitmap
from headwater.runtime.sinks.lent_rows import LentFiles
from headwater.sinks.courier import joined, ranges_for

if TYPE_CHECKING:
    # Tasks import this module, and would import all that lending needs.
    from headwater.runtime.sinks.lending import TableLender

_RANGE_BYTES = 16 << 20
_HELD_BYTES = 32 << 20
_READ_AGAIN = 4
"""So many tasks may read the same lent files, where there are fewer files than tasks."""


@dataclass(frozen=True, slots=True)
class Share:
    """Rows that one task reads, a table at a time. Travels to it, and can be read again."""

    storage: LogStorage
    lent: LentFiles
    segments: tuple[Segment, ...]
    ranges: tuple[VnodeBitmap, ...] = ()
    """None of them where the files are read one after the other."""

    def __iter__(self) -> Iterator[pa.Table]:
        if not self.ranges:
            for files in _together(self.segments):
                yield joined(self._read(each, None) for each in files)
        for vnodes in self.ranges:
            having = [each for each in self.segments if each.vnodes & vnodes]
            if having:
                yield joined(self._read(each, vnodes) for each in having)

    def _read(self, segment: Segment, vnodes: VnodeBitmap | None) -> pa.Table:
        return read_segment(self.storage, segment, vnodes, lender=self.lent)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one sink's log, and of those who lend to it."""

    storage: LogStorage
    lender: "TableLender"

    def shares(self, chunks: Sequence[LogChunk], most: int) -> list[Share]:
        """Divide a delivery into so many shares at most; no key is in two of them."""
        segments = _segments_of(chunks)
        lent = self.lender.files_of(segments)
        ranges = ranges_for(sum(chunk.nbytes for chunk in chunks), _RANGE_BYTES)
        count = min(most, len(ranges))
        if all(each.lent for each in segments):
            count = min(count, max(len(segments), _READ_AGAIN))
            if len(segments) >= count:
                divided = _divided(segments, count)
                return [Share(self.storage, lent, tuple(each)) for each in divided]
            # Every task reads every file, since they are few.
            ranges = VnodeBitmap.split(count)
        edges = [len(ranges) * number // count for number in range(count + 1)]
        return [
            Share(self.storage, lent, segments, ranges[low:high])
            for low, high in itertools.pairwise(edges)
        ]

    def inserts_only(self, chunks: Sequence[LogChunk]) -> bool:
        """Whether all rows of a delivery are plain inserts."""
        return all(only_inserts(self.storage, each) for each in _segments_of(chunks))


def _segments_of(chunks: Sequence[LogChunk]) -> tuple[Segment, ...]:
    found = [chunk.stored for chunk in chunks if chunk.stored is not None]
    if len(found) != len(chunks):
        raise BrokenInvariant("a delivery has rows that are in no file of the log")
    return tuple(found)


def _divided(segments: Sequence[Segment], count: int) -> list[list[Segment]]:
    """About as much for each: the largest first, each to who has least."""
    parts: list[list[Segment]] = [[] for _ in range(count)]
    loads = [0] * count
    for each in sorted(segments, key=lambda each: -each.bytes):
        least = loads.index(min(loads))
        parts[least].append(each)
        loads[least] += each.bytes
    return parts


def _together(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Files that may be held at the same time."""
    held: list[Segment] = []
    for each in segments:
        if held and sum(one.bytes for one in held) + each.bytes > _HELD_BYTES:
            yield held
            held = []
        held.append(each)
    if held:
        yield held
