"""Divide a table's snapshot into slices that can be read, counted and resumed.

Files belong to the vnodes whose rows they hold. Vnodes that share a file, directly or by way of
others, are one group: a slice is the rows of one group from a cursor to another, so that no file
is read twice for the sake of another group. A folded table has many groups, one that was just
read from a database has one.

    nothing limits         a slice is as many whole files as `most_bytes` allows
    a sweep                the same, and it may end at a seam of a file, from where on the file can
                           be read without what is before
    a rate limit           a slice ends inside a file, after so many rows
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.backfill.snapshot.state import BackfillState, Cursor
from headwater.model.table_commit import DataFile
from headwater.model.vnode import VNODE_COUNT
from headwater.state.file_parts import FilePart


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of the snapshot, and how many of its rows are alive."""

    file: DataFile
    live_rows: int
    seams: tuple[int, ...] = ()
    """Places between its rows where a slice of a sweep may end."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What is read at once: parts of files, and where reading goes on after them."""

    first: int
    """The first vnode of its group."""
    parts: tuple[FilePart, ...]
    after: Cursor | None
    """None when it is the last of its group."""
    rows: int
    """About: of a part of a file it is not known how many rows are alive."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Vnodes that share files, and these, in the order in which they are read."""

    first: int
    last: int
    files: tuple[SnapshotFile, ...]


def groups_of(files: Iterable[SnapshotFile]) -> list[Group]:
    """The groups of a snapshot; together they are all vnodes. The same files, the same groups."""
    ordered = sorted(files, key=lambda each: (each.file.first_vnode, each.file.path))
    gathered: list[list[SnapshotFile]] = []
    reach = -1
    for each in ordered:
        if gathered and each.file.first_vnode <= reach:
            gathered[-1].append(each)
        else:
            gathered.append([each])
        reach = max(reach, each.file.last_vnode)
    if not gathered:
        return [Group(0, VNODE_COUNT - 1, ())]
    # Vnodes without rows belong to the group before them, those at the start to the first.
    starts = [0, *(min(f.file.first_vnode for f in group) for group in gathered[1:])]
    ends = [*(start - 1 for start in starts[1:]), VNODE_COUNT - 1]
    return [
        Group(start, end, tuple(group))
        for start, end, group in zip(starts, ends, gathered, strict=True)
    ]


def next_slice(
    group: Group,
    state: BackfillState,
    *,
    most_bytes: int,
    most_rows: int | None = None,
    at_seams: bool = False,
) -> Slice | None:
    """What to read next of a group; None when it is finished.

    At least one row, or one whole file when rows do not count, or up to its first seam.
    `most_rows` counts dead rows too.
    """
    if state.cursor is None:
        return None
    parts: list[FilePart] = []
    size = rows = places = 0
    for number in range(state.cursor.file, len(group.files)):
        each = group.files[number]
        start = state.cursor.row if number == state.cursor.file else 0
        stop = each.file.rows
        if most_rows is not None:
            stop = min(stop, start + most_rows - places)
        elif at_seams:
            stop = _seam(each, start, most_bytes - size, some=not parts)
        share = (stop - start) / max(1, each.file.rows)
        full = parts and size + each.file.bytes * share > most_bytes
        if full or stop == start:
            return Slice(group.first, tuple(parts), Cursor(number, start), rows, size)
        parts.append(FilePart(each.file.path, start, stop))
        size += round(each.file.bytes * share)
        rows += round(each.live_rows * share)
        places += stop - start
        if stop < each.file.rows:
            return Slice(group.first, tuple(parts), Cursor(number, stop), rows, size)
    return Slice(group.first, tuple(parts), None, rows, size)


def _seam(each: SnapshotFile, start: int, room: int, *, some: bool) -> int:
    """Up to where a file is read from a place on, if so many bytes are wanted; `some` at least."""
    by_row = each.file.bytes / max(1, each.file.rows)
    ends = [at for at in (*each.seams, each.file.rows) if at > start]
    fitting = [at for at in ends if (at - start) * by_row <= room]
    if fitting:
        return fitting[-1]
    return ends[0] if some and ends else start


def read_so_far(group: Group, state: BackfillState) -> Sequence[FilePart]:
    """The parts that come before a cursor."""
    if state.cursor is None:
        return [FilePart(each.file.path, 0, each.file.rows) for each in group.files]
    whole = group.files[: state.cursor.file]
    parts = [FilePart(each.file.path, 0, each.file.rows) for each in whole]
    if state.cursor.row:
        parts.append(FilePart(group.files[state.cursor.file].file.path, 0, state.cursor.row))
    return parts
