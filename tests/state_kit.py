"""One state table with everything around it that a test needs: a ledger and a model.

`Rig` keeps a list of epoch records where an engine keeps its ledger, and beside every epoch the
rows that a plain dict says must be there. A test moves the rig by hand or lets `wander` do it.
"""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.config import Settings
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_at
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord
from headwater.model.reserved import VNODE
from headwater.model.schema import Schema
from headwater.model.table_commit import TableCommit
from headwater.state.collect import collect_orphans, expire
from headwater.state.fold import FoldPlan
from headwater.state.row_cache import RowCache
from headwater.state.storage import Storage, open_storage
from headwater.state.store import StateStore, TableSpec
from headwater.state.surroundings import Surroundings
from headwater.state.table import StateTable
from headwater.testing.oracle import (
    Key,
    Row,
    apply_changes,
    apply_exact,
    assert_same_rows,
    rows_of,
)
from state_dice import SCHEMAS, Dice, changes_of, schema_of

__all__ = ["SCHEMAS", "Dice", "Rig", "changes_of", "look_up", "plain", "schema_of", "wander"]

TABLE = TableId(7)
START = epoch_at(datetime(2024, 5, 1, tzinfo=UTC))


def small_files(**changes: Any) -> Settings:
    """Settings under which a few rows fold and divide like millions."""
    values = {"fold_files": 3, "fold_dead_ratio": 0.3, "target_file_bytes": 4000}
    return Settings(**{**values, "storage_fsync": False, **changes})


def converted(rows: dict[Key, Row], schema: Schema) -> dict[Key, Row]:
    """The model's rows under another schema."""
    return {key: {name: row.get(name) for name in schema.names} for key, row in rows.items()}


def plain(table: pa.Table) -> pa.Table:
    """Rows without the columns that are only ours."""
    return table.drop_columns([name for name in (VNODE,) if name in table.column_names])


class Rig:
    """A table, its ledger, and what must be in it."""

    def __init__(
        self,
        folder: Path | str,
        schema: Schema,
        *,
        settings: Settings | None = None,
        spark: Callable[[], Any] | None = None,
        cache: RowCache | None = None,
        parallelism: int = 2,
    ) -> None:
        self.settings = settings or small_files()
        self.root = folder
        self.storage: Storage = open_storage(str(folder), fsync=False)
        self.spark = spark
        self.parallelism = parallelism
        cache_folder = Path(str(folder)) if self.storage.local_root else Path("/nonexistent")
        self.cache = cache or RowCache(
            cache_folder.with_name(cache_folder.name + "-cache"), 1 << 30
        )
        self.term = Term(1)
        self.spec = TableSpec(
            id=TABLE, name="t", folder="t", schema=schema, created=Epoch(START - 1)
        )
        self.records: list[EpochRecord] = []
        self.published = 0
        self.horizon: Epoch | None = None
        self.stored: bytes | None = None
        self.staged: list[tuple[Epoch, TableCommit | None]] = []
        self.models: dict[Epoch, tuple[Schema, dict[Key, Row]]] = {}
        self.head: dict[Key, Row] = {}
        self.head_schema = schema
        self.last = START
        self.plan: FoldPlan | None = None
        self.table: StateTable
        self.store: StateStore
        self._open()

    def _open(self) -> None:
        around = Surroundings(
            self.storage, self.cache, self.settings, self.term, self.spark, self.parallelism
        )
        self.store = StateStore(around)
        if not self.records and self.stored is None:
            self.table = self.store.create(self.spec)
            return
        stored = {} if self.stored is None else {TABLE: self.stored}
        horizons = {} if self.horizon is None else {TABLE: self.horizon}
        self.store.recover(iter([self.spec]), stored, iter(self.records), horizons)
        self.table = self.store[TABLE]

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns."""
        return self.spec.schema.key

    @property
    def committed(self) -> Epoch:
        """The ledger's last epoch."""
        return self.records[-1].epoch if self.records else NO_EPOCH

    @property
    def model(self) -> dict[Key, Row]:
        """What must be in the table as of the last epoch in the ledger."""
        return self.models[self.committed][1] if self.records else {}

    def stage(
        self, changes: Any = None, schema: Schema | None = None, fresh: Any = None
    ) -> TableCommit | None:
        """Stage the next epoch, in the table and in the model; `fresh` is a frame of the same."""
        self.last = Epoch(self.last + (1 << 16 if self.last % 3 else 1))
        if fresh is None:
            commit = self.table.stage(self.last, changes, schema=schema)
        else:
            part = self.table.prepare(self.last, fresh, fresh=True)
            commit = self.table.stage(self.last, parts=[part])
        if schema is not None:
            self.head_schema = schema
        self.head = converted(self.head, self.head_schema)
        if changes is not None:
            apply_changes(self.head, changes, self.key)
        self.staged.append((self.last, commit))
        self.models[self.last] = (self.head_schema, dict(self.head))
        return commit

    def commit(self, count: int | None = None, *, publish: bool = True) -> None:
        """Put staged epochs into the ledger."""
        for epoch, commit in self.staged[:count]:
            tables = () if commit is None else (commit,)
            self.records.append(
                EpochRecord(epoch=epoch, after=self.committed, term=self.term, tables=tables)
            )
            self.table.confirm(epoch)
            if publish:
                self.publish()
        del self.staged[:count]

    def put(self, *rows: tuple[str, Row], schema: Schema | None = None) -> TableCommit | None:
        """Stage and commit a few changes."""
        commit = self.stage(changes_of(rows, schema or self.head_schema), schema)
        self.commit()
        return commit

    def publish(self) -> None:
        """Publish what the ledger has and Delta lacks."""
        for record in self.records[self.published :]:
            for commit in record.tables:
                self.table.publish(record, commit)
        self.published = len(self.records)

    def discard(self) -> None:
        """What is staged did not happen."""
        self.table.discard()
        self._forget_staged()

    def _forget_staged(self) -> None:
        for epoch, _ in self.staged:
            del self.models[epoch]
        self.staged.clear()
        self.head_schema, rows = self.models.get(self.committed, (self.spec.schema, {}))
        self.head = dict(rows)

    def restart(self, *, store: bool = False) -> None:
        """The engine dies, and another one takes over; `store` keeps the list of files first."""
        if store and self.records:
            self.stored = self.table.manifest().encode()
        self._forget_staged()
        self.plan = None
        self.term = Term(self.term + 1)
        self._open()

    def fold(self) -> bool:
        """Fold if it pays; says whether it did."""
        plan = self.table.plan_fold()
        if plan is not None:
            self.table.fold(plan)
        return plan is not None

    def expire(self, horizon: Epoch) -> int:
        """The ledger gets a horizon, and what it makes useless goes."""
        self.horizon = max(horizon, self.horizon or horizon)
        for epoch in [e for e in self.models if e < self.horizon]:
            del self.models[epoch]
        return expire(self.table, self.horizon)

    def collect(self, *, alone: bool = False) -> int:
        """Delete orphans."""
        return collect_orphans(self.table, self.term, committed=self.committed, alone=alone)

    def check(self, *, every: bool = False) -> None:
        """Rows equal both ways, now or at every epoch that is kept; changes lead to each."""
        epochs = [record.epoch for record in self.records if record.epoch in self.models]
        for epoch in epochs if every else epochs[-1:]:
            self.check_at(epoch)
        if epochs:
            assert_same_rows(plain(self.table.rows()), self.model, key=self.key)
        if every:
            self.check_changes(epochs)

    def check_at(self, epoch: Epoch) -> None:
        """One epoch's rows equal both ways, in the schema they had."""
        schema, rows = self.models[epoch]
        found = self.table.rows(epoch)
        assert plain(found).schema.equals(schema.arrow)
        assert_same_rows(plain(found), rows, key=self.key)

    def check_changes(self, epochs: list[Epoch]) -> None:
        """Each epoch's exact changes lead from the epoch before to it."""
        if not epochs:
            return
        state = dict(self.models[epochs[0]][1])
        for before, epoch in itertools.pairwise(epochs):
            schema, rows = self.models[epoch]
            state = converted(state, schema)
            changes = self.table.change_rows(before, epoch)
            assert set(changes.column("_commit_version").to_pylist()) <= {epoch}
            apply_exact(state, changes, self.key)
            assert_same_rows(state, rows, key=self.key)

    def files(self) -> set[str]:
        """The table's files, without Delta's own."""
        return {path for path in self.table.storage.list() if not path.startswith("_delta_log/")}

    def check_folder(self) -> None:
        """After a collection with nobody at work, exactly the needed files are there."""
        assert not self.staged
        self.collect(alone=True)
        needed = set(self.table.manifest().paths()) | self.table.busy_paths()
        assert self.files() == needed


def wander(rig: Rig, dice: Dice, steps: int, *, evolve: bool = True, most: int = 16) -> None:
    """Move the rig at random, looking at everything on the way."""
    random = dice.random
    for _ in range(steps):
        match random.choices(
            ("stage", "commit", "discard", "plan", "fold", "expire", "collect", "restart", "look"),
            (30, 25, 3, 10, 10, 4, 6, 3, 6),
        )[0]:
            case "stage":
                schema = dice.other_schema() if evolve and random.random() < 0.08 else None
                rig.stage(dice.changes(most) if random.random() < 0.95 else None, schema)
            case "commit":
                rig.commit(random.choice((1, 1, 2, None)), publish=random.random() < 0.7)
                rig.check()
            case "discard":
                rig.discard()
                dice.schema = rig.head_schema
                rig.check()
            case "plan" if rig.plan is None:
                rig.plan = rig.table.plan_fold()
            case "fold" if rig.plan is not None:
                rig.table.fold(rig.plan)
                rig.plan = None
            case "expire" if rig.records:
                rig.publish()
                rig.expire(
                    random.choice(sorted(rig.models.keys() & {r.epoch for r in rig.records}))
                )
                rig.check(every=True)
            case "collect":
                rig.collect()
            case "restart":
                rig.restart(store=random.random() < 0.5)
                dice.schema = rig.head_schema
                if random.random() < 0.5:
                    rig.store.publish_missing(rig.records)
                    rig.published = len(rig.records)
                rig.check(every=True)
            case "look":
                rig.check(every=True)
    rig.discard()
    dice.schema = rig.head_schema
    rig.publish()
    rig.check(every=True)
    rig.check_folder()


def look_up(rig: Rig, dice: Dice) -> None:
    """Every key the dice know gives its row or none."""
    schema = rig.head_schema
    arrow = pa.schema([schema.arrow.field(name) for name in schema.key])
    found = rig.table.lookup(pa.Table.from_pylist(dice.keys, schema=arrow))
    assert_same_rows(rows_of(found), rig.model, key=rig.key)
