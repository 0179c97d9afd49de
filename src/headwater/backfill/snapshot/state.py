"""How far a new view has read the tables that it is made of, vnode by vnode.

A table at an epoch is a list of files, which never changes. Vnodes that share a file are read
together, and have one `BackfillState`; vnodes that share none are read side by side.

    a state with        means
    a cursor            inside the snapshot of its epoch; the cursor is the next row to read
    no cursor           done with its epoch: its snapshot, or the changes up to it

Stored as a line of text: `1j` and JSON, or `1z` and the same compressed.

Promises
    Monotone     `follow` refuses whatever goes back: a smaller epoch, a cursor or a count of
                 rows that shrinks, a finished epoch that is opened again. (A12)
    Exact        A cursor is inclusive for the reader and exclusive for the writer, so that a
                 row is read once, whoever goes on from it. (A13)
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap

_VERSION = "1"
_COMPRESS_FROM = 2048


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The next row to read: its file's place among the files of its vnodes, and its own in it."""

    file: int
    row: int = 0


START = Cursor(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillState:
    """How far the vnodes from `first` to `last` are."""

    first: int
    last: int
    epoch: Epoch
    cursor: Cursor | None = START
    rows: int = 0

    @property
    def finished(self) -> bool:
        """Whether everything up to its epoch has been read."""
        return self.cursor is None

    @property
    def vnodes(self) -> VnodeBitmap:
        """The vnodes that it speaks of."""
        return VnodeBitmap.of(range(self.first, self.last + 1))

    def moved(self, cursor: Cursor | None, rows: int) -> "BackfillState":
        """The same after reading so many rows up to a cursor, or to the end."""
        return self.follow(replace(self, cursor=cursor, rows=self.rows + rows))

    def consumed(self, epoch: Epoch, rows: int) -> "BackfillState":
        """The same after the changes up to an epoch, so many rows."""
        if not self.finished:
            raise BrokenInvariant(
                f"changes up to epoch {epoch} come before the snapshot of {self.epoch} is read"
            )
        return self.follow(replace(self, epoch=epoch, rows=self.rows + rows))

    def follow(self, after: "BackfillState") -> "BackfillState":
        """`after`, when it can come after this."""
        if why := _goes_back(self, after):
            raise BrokenInvariant(f"progress of a backfill goes back: {why}", story=[str(after)])
        return after


def _goes_back(before: BackfillState, after: BackfillState) -> str:
    found = ""
    if (before.first, before.last) != (after.first, after.last):
        found = f"vnodes {before.first}-{before.last} are {after.first}-{after.last} now"
    elif after.epoch < before.epoch:
        found = f"epoch {after.epoch} after {before.epoch}"
    elif after.rows < before.rows:
        found = f"{after.rows} rows after {before.rows}"
    elif after.epoch > before.epoch:
        if not before.finished or not after.finished:
            found = f"epoch {after.epoch} while {before.epoch} is open"
    elif before.cursor is None:
        found = f"epoch {before.epoch} was finished already"
    elif after.cursor is not None and after.cursor <= before.cursor:
        found = f"row {after.cursor} after {before.cursor}"
    return found


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far one table is, all its vnodes."""

    states: tuple[BackfillState, ...]

    def __post_init__(self) -> None:
        edges = [(each.first, each.last) for each in self.states]
        ahead = [0, *(last + 1 for _, last in edges)]
        if [first for first, _ in edges] != ahead[:-1] or ahead[-1] != VNODE_COUNT:
            raise BrokenInvariant(f"these are not all vnodes, each once: {edges}")

    @property
    def finished(self) -> bool:
        """Whether the snapshot is read whole."""
        return all(each.finished for each in self.states)

    @property
    def rows(self) -> int:
        """Rows and changes read."""
        return sum(each.rows for each in self.states)

    @property
    def epoch(self) -> Epoch:
        """The oldest epoch that is still needed."""
        return min(each.epoch for each in self.states)

    def with_state(self, state: BackfillState) -> "TableProgress":
        """The same with one state in the place of its predecessor."""
        found = [each.first for each in self.states].index(state.first)
        states = list(self.states)
        states[found] = states[found].follow(state)
        return TableProgress(tuple(states))

    def consumed(self, epoch: Epoch, rows: int) -> "TableProgress":
        """The same after the changes of all vnodes up to an epoch, so many rows."""
        first, *others = self.states
        moved = [first.consumed(epoch, rows), *(each.consumed(epoch, 0) for each in others)]
        return TableProgress(tuple(moved))


def unread(groups: Iterable[tuple[int, int]], epoch: Epoch) -> TableProgress:
    """A table of which nothing is read yet, by the vnodes that share files."""
    return TableProgress(tuple(BackfillState(first=f, last=n, epoch=epoch) for f, n in groups))


def encoded(tables: Mapping[TableId, TableProgress]) -> str:
    """What the ledger keeps."""
    content = {
        str(table): [
            [s.first, s.last, s.epoch, *((s.cursor.file, s.cursor.row) if s.cursor else ()), s.rows]
            for s in progress.states
        ]
        for table, progress in tables.items()
    }
    text = json.dumps(content, separators=(",", ":"))
    if len(text) < _COMPRESS_FROM:
        return f"{_VERSION}j{text}"
    return f"{_VERSION}z{base64.b85encode(zlib.compress(text.encode())).decode()}"


def decoded(text: str) -> dict[TableId, TableProgress]:
    """The same, back."""
    version, form, content = text[:1], text[1:2], text[2:]
    if version != _VERSION or form not in ("j", "z"):
        raise DamagedState(
            f"the progress of a new view is stored in a form that this version does not know: "
            f"{text[:2]!r}",
            hint="It was written by a newer version. Start that version again.",
        )
    if form == "z":
        content = zlib.decompress(base64.b85decode(content)).decode()
    stored = json.loads(content)
    return {
        TableId(int(table)): TableProgress(tuple(_state(each) for each in states))
        for table, states in stored.items()
    }


def _state(stored: list[int]) -> BackfillState:
    first, last, epoch, *place, rows = stored
    cursor = Cursor(place[0], place[1]) if place else None
    return BackfillState(first=first, last=last, epoch=Epoch(epoch), cursor=cursor, rows=rows)
