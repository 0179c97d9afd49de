"""One state table with everything around it that a test needs: a ledger, a model, dice.

`Rig` keeps a list of epoch records where an engine keeps its ledger, and beside every epoch the
rows that a plain dict says must be there. `Dice` draws changes, keys and schema changes that
are likely to hurt. A test moves the rig by hand or lets `wander` do it.
"""

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from headwater.config import Settings
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_at
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord
from headwater.model.reserved import CHANGE_TYPE, VNODE
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import TableCommit
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.state.collect import collect_orphans, expire
from headwater.state.fold import FoldPlan
from headwater.state.row_cache import RowCache
from headwater.state.storage import Storage, open_storage
from headwater.state.store import StateStore, TableSpec
from headwater.state.table import StateTable, Surroundings
from headwater.testing.oracle import (
    Key,
    Row,
    apply_changes,
    apply_exact,
    assert_same_rows,
    rows_of,
)
from headwater.testing.value_pools import distinct_keys, pool_of

TABLE = TableId(7)
START = epoch_at(datetime(2024, 5, 1, tzinfo=UTC))

STRUCT = DataType(Kind.STRUCT, fields=(("x", INTEGER), ("y", VARCHAR)))


def schema_of(key: Iterable[str], **columns: DataType) -> Schema:
    """A schema in few words."""
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()), tuple(key))


SCHEMAS: dict[str, Schema] = {
    "int": schema_of(["id"], id=BIGINT, name=VARCHAR, amount=decimal(12, 2), score=DOUBLE),
    "text": schema_of(["k"], k=VARCHAR, v=INTEGER, flag=BOOLEAN),
    "composite": schema_of(
        ["a", "b", "c"], a=INTEGER, v=VARCHAR, b=VARCHAR, c=DATE, w=TIMESTAMPTZ
    ),
    "numbers": schema_of(["r", "n"], r=DOUBLE, n=decimal(38, 10), f=REAL, s=SMALLINT),
    "times": schema_of(["t", "z"], t=TIMESTAMP, z=TIMESTAMPTZ, d=DATE, u=UUID),
    "everything": schema_of(
        ["u"], u=UUID, bo=BOOLEAN, s=SMALLINT, i=INTEGER, b=BIGINT, r=REAL, d=DOUBLE,
        m=decimal(38, 18), n=NUMERIC, t=VARCHAR, y=BYTEA, da=DATE, ti=TIME, ts=TIMESTAMP,
        tz=TIMESTAMPTZ, j=JSONB, li=list_of(DOUBLE), lt=list_of(VARCHAR), st=STRUCT,
    ),
    "bytes": schema_of(["o", "y"], y=BYTEA, o=BOOLEAN, v=VARCHAR),
}  # fmt: skip


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


def changes_of(rows: Iterable[tuple[str, Row]], schema: Schema) -> pa.Table:
    """Changes as a table; columns that a row leaves out are null."""
    listed = list(rows)
    arrays = [
        pa.array([row.get(column.name) for _, row in listed], column.type.arrow)
        for column in schema.columns
    ]
    kinds = pa.array([kind for kind, _ in listed], pa.string())
    return pa.table([*arrays, kinds], names=[*schema.names, CHANGE_TYPE])


class Dice:
    """Draws keys, rows, changes and schemas, the same ones for the same seed."""

    def __init__(self, seed: object, schema: Schema, keys: int = 40) -> None:
        self.random = Random(f"{seed}")
        self.schema = schema
        self.keys = distinct_keys(schema, keys, extreme=True).to_pylist()
        for key in list(self.keys[:: max(1, keys // 8)]):
            for name in schema.key[1:]:
                if {**key, name: None} not in self.keys:
                    self.keys.append({**key, name: None})
        self._added = 0

    def key(self) -> Row:
        """One of the keys; a zero of a floating point key has either sign."""
        key = dict(self.random.choice(self.keys))
        for name, value in key.items():
            if isinstance(value, float) and value == 0:
                key[name] = math.copysign(0.0, self.random.choice((-1, 1)))
        return key

    def row(self) -> Row:
        """A whole row; extreme values are as likely as ordinary ones."""
        row = self.key()
        for column in self.schema.columns:
            if column.name in row:
                continue
            pool = pool_of(column.type)
            upto = pool.extremes if self.random.random() < 0.5 else len(pool.values)
            picked = pool.values[self.random.randrange(upto)].as_py()
            row[column.name] = None if self.random.random() < 0.1 else picked
        return row

    def changes(self, most: int = 16) -> pa.Table:
        """Some changes, several of one key among them, and preimages that mean nothing."""
        listed: list[tuple[str, Row]] = []
        for _ in range(self.random.randrange(most + 1)):
            kind = self.random.choices(
                ("insert", "update_postimage", "delete", "update_preimage"), (5, 3, 4, 1)
            )[0]
            listed.append((kind, self.key() if kind == "delete" else self.row()))
        return changes_of(listed, self.schema)

    def other_schema(self) -> Schema:
        """A schema that the table may change to: a column more, one less, or a wider type."""
        columns = list(self.schema.columns)
        free = [c for c in columns if c.name not in self.schema.key]
        wider = {INTEGER: BIGINT, SMALLINT: INTEGER, REAL: DOUBLE, decimal(12, 2): decimal(20, 2)}
        match self.random.randrange(3):
            case 1 if len(free) > 1:
                columns.remove(self.random.choice(free))
            case 2 if any(c.type in wider for c in columns):
                at = self.random.choice([i for i, c in enumerate(columns) if c.type in wider])
                columns[at] = Column(columns[at].name, wider[columns[at].type])
            case _:
                self._added += 1
                type_ = self.random.choice((INTEGER, VARCHAR, REAL, TIMESTAMPTZ, BOOLEAN))
                columns.append(Column(f"added {self._added}", type_))
        self.schema = Schema(tuple(columns), self.schema.key)
        return self.schema


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
        self.cache = cache or RowCache(cache_folder.with_name(cache_folder.name + "-cache"), 1 << 30)
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

    def stage(self, changes: Any = None, schema: Schema | None = None) -> TableCommit | None:
        """Stage the next epoch, in the table and in the model."""
        self.last = Epoch(self.last + (1 << 16 if self.last % 3 else 1))
        commit = self.table.stage(self.last, changes, schema=schema)
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
        for before, epoch in zip(epochs, epochs[1:], strict=False):
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
                rig.expire(random.choice(sorted(rig.models.keys() & {r.epoch for r in rig.records})))
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
