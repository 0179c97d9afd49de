"""The snapshot of one table, read by vnode: what comes next, and how far each vnode is. Pure.

Vnodes that share files have one `BackfillState`, and states are read side by side: none waits for
another, and each moves when the epoch that takes its rows along is staged.

    nothing limits     few reads: each takes files of several states along, up to so many bytes
    a rate limit       a read ends inside a file, after so many rows

After a rescale a reader may have only some vnodes of those that share files. It then reads the same
files, leaves the rows of the others out, and keeps a cursor of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headwater.backfill.snapshot.slices import Group, next_slice
from headwater.backfill.snapshot.state import BackfillState, Cursor
from headwater.errors import BrokenInvariant
from headwater.model.vnode import VnodeBitmap
from headwater.state.file_parts import FilePart


@dataclass(frozen=True, slots=True)
class VnodeSlice:
    """Parts of files, whose rows of some vnodes are read, and where reading goes on after them."""

    first: int
    last: int
    parts: tuple[FilePart, ...]
    after: Cursor | None
    """None when nothing is left of these vnodes."""
    rows: int
    """About."""
    bytes: int
    whole: bool
    """Whether all rows of the parts are of these vnodes."""

    @property
    def vnodes(self) -> VnodeBitmap | None:
        """The vnodes whose rows count; None when they all do."""
        return None if self.whole else VnodeBitmap.of(range(self.first, self.last + 1))


class VnodeStream:
    """How far the vnodes of one reader are in a table's snapshot."""

    def __init__(self, groups: Sequence[Group], states: Iterable[BackfillState]) -> None:
        self._states = {state.first: state for state in states}
        self._groups = {first: _of(groups, state) for first, state in self._states.items()}
        self._read: set[int] = set()
        """The states, by their first vnode, of which a slice is under way."""

    @property
    def states(self) -> tuple[BackfillState, ...]:
        """How far all of them are, by vnode."""
        return tuple(self._states[first] for first in sorted(self._states))

    @property
    def finished(self) -> bool:
        """Whether everything is read."""
        return all(state.finished for state in self._states.values())

    @property
    def bytes(self) -> int:
        """The size of all files, also of those that were read already."""
        by_path = {f.file.path: f.file.bytes for g in self._groups.values() for f in g.files}
        return sum(by_path.values())

    @property
    def rows(self) -> int:
        """About how many rows the snapshot has for these vnodes."""
        return sum(round(_share(g, self._states[f]) * _rows(g)) for f, g in self._groups.items())

    def next(self, most_bytes: int, most_rows: int | None = None) -> tuple[VnodeSlice, ...]:
        """Slices to read together, of states that nobody reads now; none when there are none.

        At least one row, or one whole file where rows do not count.
        """
        found: list[VnodeSlice] = []
        for first, state in sorted(self._states.items()):
            if first in self._read:
                continue
            each = self._slice(state, most_bytes, most_rows)
            if each is None or (found and each.bytes > most_bytes):
                continue
            found.append(each)
            most_bytes -= each.bytes
            if most_rows is not None:
                most_rows -= sum(part.stop - part.start for part in each.parts)
            if most_bytes <= 0 or (most_rows is not None and most_rows <= 0):
                break
        self._read |= {each.first for each in found}
        return tuple(found)

    def settle(self, slice_: VnodeSlice, rows: int) -> None:
        """Its rows, so many, are in the epoch that is staged."""
        state = self._states[slice_.first]
        self._states[slice_.first] = state.moved(slice_.after, rows)
        self._read.discard(slice_.first)

    def give_up(self, slice_: VnodeSlice) -> None:
        """It was not read; it is handed out again."""
        self._read.discard(slice_.first)

    def _slice(
        self, state: BackfillState, most_bytes: int, most_rows: int | None
    ) -> VnodeSlice | None:
        group = self._groups[state.first]
        each = next_slice(group, state, most_bytes=most_bytes, most_rows=most_rows)
        if each is None:
            return None
        whole = (state.first, state.last) == (group.first, group.last)
        rows = each.rows if whole else round(each.rows * _share(group, state))
        return VnodeSlice(state.first, state.last, each.parts, each.after, rows, each.bytes, whole)


def owned(states: Iterable[BackfillState], vnodes: VnodeBitmap) -> tuple[BackfillState, ...]:
    """What of these states belongs to the reader of some vnodes.

    A state that is divided keeps its cursor in every part; the rows that were counted stay with
    its first vnode, so that they are counted once.
    """
    found = []
    for state in states:
        for first, last in _runs(state, vnodes):
            rows = state.rows if first == state.first else 0
            found.append(replace(state, first=first, last=last, rows=rows))
    return tuple(found)


def joined(states: Sequence[BackfillState]) -> tuple[BackfillState, ...]:
    """The same in as few states as can be: neighbours that are done with the same epoch."""
    found: list[BackfillState] = []
    for state in states:
        before = found[-1] if found else None
        if (
            before is not None
            and before.finished
            and state.finished
            and before.epoch == state.epoch
            and before.last + 1 == state.first
        ):
            found[-1] = replace(before, last=state.last, rows=before.rows + state.rows)
        else:
            found.append(state)
    return tuple(found)


def _runs(state: BackfillState, vnodes: VnodeBitmap) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for vnode in range(state.first, state.last + 1):
        if vnode not in vnodes:
            continue
        if runs and runs[-1][1] == vnode - 1:
            runs[-1] = (runs[-1][0], vnode)
        else:
            runs.append((vnode, vnode))
    return runs


def _of(groups: Sequence[Group], state: BackfillState) -> Group:
    if state.finished:
        # It may come from a reader that is further, and need not know the files any more.
        return Group(state.first, state.last, ())
    for group in groups:
        if group.first <= state.first and state.last <= group.last:
            return group
    spans = [(group.first, group.last) for group in groups]
    raise BrokenInvariant(
        f"vnodes {state.first} to {state.last} were read together, and do not share files: {spans}"
    )


def _rows(group: Group) -> int:
    return sum(each.live_rows for each in group.files)


def _share(group: Group, state: BackfillState) -> float:
    return (state.last - state.first + 1) / (group.last - group.first + 1)
