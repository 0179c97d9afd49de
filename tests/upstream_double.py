"""An upstream table in memory that is an honest model, and a strict table that follows it."""

from dataclasses import dataclass, field, replace

import pyarrow as pa

from headwater.backfill.snapshot.slices import SnapshotFile, groups_of
from headwater.backfill.snapshot.state import BackfillState
from headwater.backfill.snapshot.target import Prepared
from headwater.backfill.snapshot.upstream.table import LoggedEpoch
from headwater.errors import HistoryGone
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, COMMIT_VERSION, VNODE
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import DataFile, TableCommit
from headwater.model.types import BIGINT, VARCHAR
from headwater.model.vnode import vnode_of

SCHEMA = Schema((Column("id", BIGINT, nullable=False), Column("v", VARCHAR)), ("id",))
FILE_ROWS = 5


def vnode(key):
    return vnode_of(str(key).encode())


def chunk(changes):
    """Changes as (word, id, v, epoch), each in the vnode of its key."""
    words, ids, values, epochs = zip(*changes, strict=True) if changes else ((), (), (), ())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array(values, pa.string()),
            CHANGE_TYPE: pa.array(words, pa.string()),
            VNODE: pa.array([vnode(key) for key in ids], pa.int16()),
            COMMIT_VERSION: pa.array(epochs, pa.int64()),
        }
    )


class MemoryUpstream:
    """Rows through time: `write` commits an epoch, `forget` drops what is older than one.

    The files of a snapshot hold a few rows each, sorted by vnode, as those of a real table do.
    """

    name = "t"
    schema = SCHEMA

    def __init__(self, spread=1):
        self.at = {Epoch(1): {}}
        self.log_ = []
        self.horizon = Epoch(1)
        self.pinned = {}
        self.spread = spread
        self.committed = self.oldest = Epoch(0)
        self.raises = []
        self.reads = []

    @property
    def head(self):
        return max(self.at)

    @property
    def now(self):
        return self.at[self.head]

    def write(self, rows, epoch=None):
        """Commit an epoch in which keys have these values; None is gone."""
        epoch = epoch or Epoch(self.head + 10)
        after = dict(self.now)
        changes = []
        for key, value in rows.items():
            before = after.pop(key, None)
            if value is not None:
                after[key] = value
            if before is None and value is not None:
                changes.append(("insert", key, value, epoch))
            elif before is not None and value is None:
                changes.append(("delete", key, before, epoch))
            elif before is not None and before != value:
                changes += [
                    ("update_preimage", key, before, epoch),
                    ("update_postimage", key, value, epoch),
                ]
        self.at[epoch] = after
        if changes:
            self.log_.append((epoch, changes))
        return epoch

    def forget(self, horizon):
        """Drop what is older; a pin is kept."""
        self.horizon = max(self.horizon, min([horizon, *self.pinned.values()]))

    # The contract

    def refresh(self):
        self._trip("refresh")
        self.committed, self.oldest = self.head, self.horizon

    def groups(self, epoch):
        self._kept(epoch)
        files = self._files(epoch)
        return groups_of(
            SnapshotFile(
                DataFile(
                    path=path,
                    bytes=100 * len(rows),
                    rows=len(rows),
                    first_vnode=vnode(rows[0][0]),
                    last_vnode=vnode(rows[-1][0]),
                ),
                len(rows),
            )
            for path, rows in files.items()
        )

    def snapshot(self, epoch, slices):
        self._trip("snapshot")
        self._kept(epoch)
        files = self._files(epoch)
        found = [
            row
            for each in slices
            for part in each.parts
            for row in files[part.path][part.start : part.stop]
            if each.vnodes is None or vnode(row[0]) in each.vnodes
        ]
        self.reads += [key for key, _ in found]
        return chunk([("insert", key, value, epoch) for key, value in found])

    def log(self, after):
        self._kept(after)
        return [
            LoggedEpoch(epoch, len(changes), 100 * len(changes))
            for epoch, changes in self.log_
            if after < epoch <= self.committed
        ]

    def changes(self, after, upto):
        self._trip("changes")
        self._kept(after)
        assert upto <= self.committed, "reads what is not committed"
        return chunk([c for epoch, cs in self.log_ if after < epoch <= upto for c in cs])

    def pin(self, epoch, name=""):
        self._trip("pin")
        self._kept(epoch)
        self.pinned[name] = epoch

    def unpin(self, name=""):
        self.pinned.pop(name, None)

    def _files(self, epoch):
        rows = sorted(self.at[epoch].items(), key=lambda row: (vnode(row[0]), row[0]))
        return {
            f"f{start // FILE_ROWS:04}": rows[start : start + FILE_ROWS]
            for start in range(0, len(rows), FILE_ROWS)
        }

    def _kept(self, epoch):
        if epoch < self.horizon:
            raise HistoryGone(f"epoch {epoch} is no longer kept")

    def _trip(self, what):
        if self.raises and self.raises[0][0] == what:
            raise self.raises.pop(0)[1]


class Seen:
    """The same upstream as one of several readers sees it, with a pin of its own."""

    def __init__(self, upstream, reader):
        self._upstream, self._reader = upstream, reader

    def __getattr__(self, name):
        return getattr(self._upstream, name)

    def pin(self, epoch):
        self._upstream.pin(epoch, self._reader)

    def unpin(self):
        self._upstream.unpin(self._reader)


@dataclass
class Ledger:
    """What is committed here: rows and how far they are, together or not at all."""

    rows: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)
    """By vnode: the state that speaks of it."""
    stopped: str = ""

    def stored(self):
        """The states of all vnodes, as few as can be."""
        runs = []
        for at in sorted(self.states):
            if runs and runs[-1][0] is self.states[at] and runs[-1][2] == at - 1:
                runs[-1][2] = at
            else:
                runs.append([self.states[at], at, at])
        return [
            replace(s, first=first, last=last, rows=s.rows if s.first == first else 0)
            for s, first, last in runs
        ]

    def keep(self, states):
        for state in states:
            for at in range(state.first, state.last + 1):
                self.states[at] = state


class StrictTable:
    """Takes changes only where they fit: no key twice, none that is missing. (A05)"""

    exists = True

    def __init__(self, ledger):
        self.ledger = ledger
        self.head = dict(ledger.rows)
        self.staged = {}
        self.raises = []

    def insert(self, rows, epoch):
        self._trip()
        return Prepared(("insert", rows.to_pylist()), rows.num_rows)

    def apply(self, changes, epoch):
        self._trip()
        return Prepared(("apply", changes.to_pylist()), changes.num_rows)

    def stage(self, epoch, prepared):
        for each in prepared:
            _, rows = each.parts
            for row in rows:
                self._one(row)
        self.staged[epoch] = dict(self.head)
        return TableCommit(table=1, version=len(self.staged))

    def _one(self, row):
        key, word = row["id"], row[CHANGE_TYPE]
        match word:
            case "insert":
                assert key not in self.head, f"{key} is inserted twice"
                self.head[key] = row["v"]
            case "update_postimage":
                assert key in self.head, f"{key} is updated and not there"
                self.head[key] = row["v"]
            case "delete" | "update_preimage":
                assert self.head.get(key) == row["v"], f"{key} was {self.head.get(key)}: {row}"
                if word == "delete":
                    del self.head[key]

    def _trip(self):
        if self.raises:
            raise self.raises.pop(0)


def finished(first, last, epoch, rows=0):
    return BackfillState(first=first, last=last, epoch=Epoch(epoch), cursor=None, rows=rows)
