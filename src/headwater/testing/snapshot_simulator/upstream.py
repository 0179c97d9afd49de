"""Two tables that change from epoch to epoch, their files at one of these, and a view of them.

The view is an ordinary function of rows, so what it should be is never in doubt:

    join      each row of the large table with the name that its group has in the small one
    groups    how many rows of the large table each name has, and their sum
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from headwater.backfill.snapshot.machine import LogEpoch
from headwater.backfill.snapshot.slices import Group, SnapshotFile, groups_of, read_so_far
from headwater.backfill.snapshot.state import TableProgress
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.table_commit import DataFile
from headwater.model.vnode import VNODE_COUNT
from headwater.state.file_parts import FilePart

SMALL, LARGE = TableId(1), TableId(2)
Rows = Mapping[int, int]
"""By key: in the small table a name, in the large one a value; its group is its key modulo 5."""
State = Mapping[TableId, Rows]
View = dict[tuple[int, ...], tuple[int, ...]]

_GROUPS = 5


def join(state: State) -> View:
    """The rows of the large table that have a name."""
    names = state[SMALL]
    return {
        (key,): (value, names[key % _GROUPS])
        for key, value in state[LARGE].items()
        if key % _GROUPS in names
    }


def groups(state: State) -> View:
    """Names with what is under them."""
    found: dict[int, tuple[int, int]] = {}
    for value, name in join(state).values():
        count, total = found.get(name, (0, 0))
        found[name] = (count + 1, total + value)
    return {(name,): sums for name, sums in found.items()}


@dataclass(slots=True)
class Upstream:
    """The tables through time."""

    dice: Random
    states: dict[Epoch, State] = field(default_factory=dict)
    changed: dict[Epoch, dict[TableId, int]] = field(default_factory=dict)

    def begin(self, epoch: Epoch) -> None:
        """Rows to begin with."""
        keys = self.dice.sample(range(1000), self.dice.randrange(60))
        large = {key: self.dice.randrange(9) for key in keys}
        small = {g: self.dice.randrange(4) for g in range(_GROUPS) if self.dice.random() < 0.7}
        self.states[epoch] = {SMALL: small, LARGE: large}

    def change(self, before: Epoch, epoch: Epoch) -> None:
        """The next epoch: nothing, or a few changes of each kind."""
        state = {table: dict(rows) for table, rows in self.states[before].items()}
        counts: dict[TableId, int] = {}
        for table, keys, values in ((LARGE, 1000, 9), (SMALL, _GROUPS, 4)):
            for _ in range(self.dice.choice((0, 0, 1, 3)) if table is LARGE else 1):
                if self.dice.random() < 0.5:
                    continue
                there = list(state[table])
                key = self.dice.choice(there) if there else self.dice.randrange(keys)
                if self.dice.random() < 0.3:
                    state[table].pop(key, None)
                else:
                    key = key if self.dice.random() < 0.5 else self.dice.randrange(keys)
                    state[table][key] = self.dice.randrange(values)
                counts[table] = counts.get(table, 0) + 1
        self.states[epoch] = state
        if counts:
            self.changed[epoch] = counts

    def log(self, after: Epoch, upto: Epoch) -> list[LogEpoch]:
        """The epochs that changed something."""
        wanted = sorted(epoch for epoch in self.changed if after < epoch <= upto)
        return [LogEpoch(epoch, self.changed[epoch]) for epoch in wanted]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables at one epoch as files: which keys each of them has, in order."""

    epoch: Epoch
    groups: Mapping[TableId, Sequence[Group]]
    keys: Mapping[str, tuple[int, ...]]
    state: State

    def rows(self, table: TableId, parts: Sequence[FilePart]) -> Rows:
        """The rows of parts of files."""
        found: dict[int, int] = {}
        for part in parts:
            for key in self.keys[part.path][part.start : part.stop]:
                assert key not in found, f"key {key} of table {table} is read twice"
                found[key] = self.state[table][key]
        return found

    def so_far(self, table: TableId, progress: TableProgress) -> Rows:
        """What of a table lies before its cursors."""
        pairs = zip(self.groups[table], progress.states, strict=True)
        parts = [part for group, state in pairs for part in read_so_far(group, state)]
        return self.rows(table, parts)


def snapshot_of(upstream: Upstream, epoch: Epoch, seed: int) -> Snapshot:
    """The files of an epoch; the same whenever they are asked for."""
    dice = Random(seed * 1_000_003 + epoch)
    state = upstream.states[epoch]
    found: dict[TableId, Sequence[Group]] = {}
    keys: dict[str, tuple[int, ...]] = {}
    for table, rows in state.items():
        spans = dice.choice(([(0, 255)], [(0, 99), (100, 255)], [(0, 63), (64, 127), (128, 255)]))
        files = []
        for low, high in spans:
            inside = sorted(key for key in rows if low <= key * 37 % VNODE_COUNT <= high)
            while inside:
                count = dice.randrange(1, 20)
                path = f"{table}-{low}-{len(keys)}"
                keys[path] = tuple(inside[:count])
                inside = inside[count:]
                size = len(keys[path])
                file = DataFile(
                    path=path, bytes=size * 10, rows=size, first_vnode=low, last_vnode=high
                )
                files.append(SnapshotFile(file, size))
        found[table] = groups_of(files)
    return Snapshot(epoch, found, keys, state)
