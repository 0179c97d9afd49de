"""Two tables that change from epoch to epoch, views of them, and their files at any epoch.

A view is an ordinary function of rows, so what it should be is never in doubt. A view that is
live is a table to others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headwater.backfill.snapshot.machine import LogEpoch
from headwater.backfill.snapshot.order import Order
from headwater.backfill.snapshot.slices import SnapshotFile, groups_of, read_so_far
from headwater.backfill.snapshot.state import TableProgress
from headwater.errors import HistoryGone
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import DataFile
from headwater.model.types import BIGINT
from headwater.model.vnode import VNODE_COUNT
from headwater.state.file_parts import FilePart
from headwater.state.manifest import LiveFile, TableView

SMALL, LARGE = TableId(1), TableId(2)
SCHEMA = Schema((Column("k", BIGINT), Column("v", BIGINT)), ("k",))

Rows = Mapping[tuple[int, ...], tuple[int, ...]]
"""By key: in the small table a name, in the large one a value; its group is its key modulo 5."""
State = Mapping[TableId, Rows]
View = dict[tuple[int, ...], tuple[int, ...]]

_GROUPS = 5
_KEYS = 1000


def join(small: Rows, large: Rows) -> View:
    """The rows of the large table that have a name."""
    names = {key[0]: row[0] for key, row in small.items()}
    return {
        key: (row[0], names[key[0] % _GROUPS])
        for key, row in large.items()
        if key[0] % _GROUPS in names
    }


def groups(small: Rows, large: Rows) -> View:
    """Names with what is under them."""
    return _sums(join(small, large))


def odd(large: Rows) -> View:
    """The rows with an odd value."""
    return {key: row for key, row in large.items() if row[-1] % 2}


def tally(rows: Rows) -> View:
    """How many rows have the same last value."""
    return _sums({key: (1, row[-1]) for key, row in rows.items()})


def _sums(rows: Rows) -> View:
    found: View = {}
    for value, name in rows.values():
        count, total = found.get((name,), (0, 0))
        found[name,] = (count + 1, total + value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a view is, and how it reads: `tables` in the order of the query, the largest last."""

    query: Callable[..., View]
    tables: tuple[TableId, ...]
    fresh: bool = False
    order: Order = ()

    def over(self, state: State) -> View:
        """Its rows over some state of its tables."""
        return self.query(*(state[table] for table in self.tables))


@dataclass(slots=True)
class _Files:
    view: TableView
    keys: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(slots=True)
class Upstream:
    """The tables through time, and what the next epoch will have of them."""

    dice: Random
    seed: int
    states: dict[Epoch, dict[TableId, Rows]] = field(default_factory=dict)
    changed: dict[Epoch, dict[TableId, int]] = field(default_factory=dict)
    horizon: Epoch = NO_EPOCH
    _now: dict[TableId, View] = field(default_factory=dict)
    _counts: dict[TableId, int] = field(default_factory=dict)
    _files: dict[tuple[TableId, Epoch], _Files] = field(default_factory=dict)

    def begin(self, epoch: Epoch) -> None:
        """Rows to begin with."""
        dice = self.dice
        keys = dice.sample(range(_KEYS), dice.randrange(40))
        self._now = {
            SMALL: {(g,): (dice.randrange(4),) for g in range(_GROUPS) if dice.random() < 0.7},
            LARGE: {(key,): (dice.randrange(9),) for key in keys},
        }
        self.seal(epoch)

    def change(self) -> None:
        """Nothing, or a few changes of each kind."""
        dice = self.dice
        for table, keys, values in ((LARGE, _KEYS, 9), (SMALL, _GROUPS, 4)):
            for _ in range(dice.choice((0, 0, 0, 1, 3)) if table is LARGE else 1):
                if dice.random() < 0.6:
                    continue
                rows = self._now[table]
                there = list(rows)
                key = dice.choice(there) if there else (dice.randrange(keys),)
                if dice.random() < 0.3:
                    rows.pop(key, None)
                else:
                    key = key if dice.random() < 0.5 else (dice.randrange(keys),)
                    rows[key] = (dice.randrange(values),)
                self._counts[table] = self._counts.get(table, 0) + 1

    def seal(self, epoch: Epoch) -> None:
        """An epoch is committed with the changes since the last one that was."""
        self.states[epoch] = {table: dict(rows) for table, rows in self._now.items()}
        self.changed[epoch], self._counts = self._counts, {}

    def lost(self, last: Epoch) -> None:
        """What no epoch got, sources bring again in another way."""
        self._now = {table: dict(self.states[last][table]) for table in (SMALL, LARGE)}
        self._counts = {}

    def show(self, table: TableId, epoch: Epoch, rows: Rows, changes: int) -> None:
        """What a live view has at an epoch."""
        self.states[epoch][table] = dict(rows)
        if changes:
            self.changed[epoch][table] = changes

    def log(self, tables: Sequence[TableId], after: Epoch, upto: Epoch) -> list[LogEpoch]:
        """The epochs that changed something in tables."""
        self._check_kept(after)
        found = []
        for epoch in sorted(self.changed):
            if after < epoch <= upto:
                rows = {t: n for t, n in self.changed[epoch].items() if t in tables}
                if rows:
                    found.append(LogEpoch(epoch, rows))
        return found

    # Files

    def view(self, table: TableId, epoch: Epoch) -> TableView:
        """A table at an epoch as files; the same whenever they are asked for."""
        self._check_kept(epoch)
        return self._of(table, epoch).view

    def rows(self, table: TableId, epoch: Epoch, parts: Sequence[FilePart]) -> View:
        """The rows of parts of files."""
        keys = self._of(table, epoch).keys
        state = self.states[epoch][table]
        found: View = {}
        for part in parts:
            for key in keys[part.path][part.start : part.stop]:
                assert key not in found, f"key {key} of table {table} is read twice"
                found[key] = state[key]
        return found

    def so_far(self, table: TableId, progress: TableProgress) -> Rows:
        """What of a table lies before its cursors."""
        if progress.finished:
            return self.states[progress.epoch][table]
        live = self._of(table, progress.epoch).view.files
        known = groups_of(SnapshotFile(each.file, each.live_rows) for each in live)
        pairs = zip(known, progress.states, strict=True)
        parts = [part for group, state in pairs for part in read_so_far(group, state)]
        return self.rows(table, progress.epoch, parts)

    def _check_kept(self, epoch: Epoch) -> None:
        if epoch < self.horizon:
            raise HistoryGone(f"epoch {epoch} is no longer kept")

    def _of(self, table: TableId, epoch: Epoch) -> _Files:
        found = self._files.get((table, epoch))
        if found is None:
            found = self._files[table, epoch] = self._laid_out(table, epoch)
        return found

    def _laid_out(self, table: TableId, epoch: Epoch) -> _Files:
        dice = Random(f"{self.seed}/{table}/{epoch}")
        spans = dice.choice(([(0, 255)], [(0, 99), (100, 255)], [(0, 63), (64, 127), (128, 255)]))
        keys: dict[str, tuple[tuple[int, ...], ...]] = {}
        files: list[LiveFile] = []
        everything = sorted(self.states[epoch][table])
        for low, high in spans:
            inside = [key for key in everything if low <= key[0] * 37 % VNODE_COUNT <= high]
            while inside:
                count = dice.randrange(1, 20)
                path = f"{table}-{low}-{len(keys)}"
                keys[path], inside = tuple(inside[:count]), inside[count:]
                size = len(keys[path])
                made: Any = {"first_vnode": low, "last_vnode": high, "rows": size}
                files.append(LiveFile(DataFile(path=path, bytes=size * 10, **made)))
        return _Files(TableView(epoch, SCHEMA, tuple(files)), keys)
