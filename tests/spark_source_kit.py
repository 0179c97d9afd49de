"""What the tests of the Spark data source share: an engine that is fed, and ways to read it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine_kit import CALM, SHOP_TABLES, Tap
from headwater import Headwater
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, COMMIT_VERSION
from headwater.testing.oracle import apply_exact
from headwater.testing.source_kinds import generated

EVERYTHING = (
    "id I  b B  s s  i i  r f  f F  d D(12,2)  wide D(38,10)  n N  text T  x X  day d  clock t  "
    "ts TS  tz TZ  v V  j J  u U  many I[]  pair {a:I,b:T}"
)
TABLES = {**SHOP_TABLES, "things": {"columns": EVERYTHING, "key": ["id"]}}


class Fed:
    """An engine whose source gives as much as the test says, and what its tables must hold."""

    def __init__(self, hw: Headwater, tap: Tap, folder: Path) -> None:
        self.hw, self.tap, self.folder = hw, tap, folder
        self.epochs: list[Epoch] = []
        self.truth: dict[Epoch, dict[str, list[dict[str, Any]]]] = {}

    def feed(self, upto: int) -> Epoch:
        """Let that many transactions in, all in one epoch or more; the last one is returned."""
        self.tap.open(upto)
        for _ in range(100):
            epoch = self.hw.flush()
            if self.hw.engine.position(self.tap.name) == str(upto):
                break
        else:
            raise AssertionError(f"not at {upto}: {self.hw.engine.position(self.tap.name)}")
        oracle = self.tap.truth.oracle_at(str(upto))
        self.truth[epoch] = {table: list(rows.values()) for table, rows in oracle.items()}
        self.epochs.append(epoch)
        return epoch

    def key(self, table: str) -> Sequence[str]:
        return self.tap.schemas[table].key


@contextmanager
def fed_engine(folder: Path, **settings: Any) -> Iterator[Fed]:
    """A calm engine on a shop of four tables that are still empty."""
    options = {"seed": 5, "tables": TABLES, "keys": 60}
    tap = Tap("generated", "shop", options, 0)
    connectors = {"shop": tap, "generated": generated}
    with Headwater(folder, settings={**CALM, **settings}, connectors=connectors) as hw:
        hw.create_source("shop", "shop", {}, tables=tap.schemas)
        yield Fed(hw, tap, folder)


def load(spark: Any, folder: Path, table: str, **options: Any) -> Any:
    """The rows of a table, as a user loads them."""
    reader = spark.read.format("headwater").option("workspace", str(folder)).option("table", table)
    return reader.options(**options).load()


def stream(spark: Any, folder: Path, table: str, **options: Any) -> Any:
    """The changes of a table, as a user loads them."""
    reader = spark.readStream.format("headwater").options(workspace=str(folder), table=table)
    return reader.options(**options).load()


class Collected:
    """The batches of a streaming query, by number, as Arrow tables; a batch again replaces."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, pa.Table] = {}
        self.fail_in: int | None = None

    def run(self, changes: Any, **trigger: Any) -> Any:
        """Start a query; by default one that ends at what is committed now, and wait for it."""
        query = (
            changes.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        if not trigger:
            try:
                query.awaitTermination()
            finally:
                query.stop()
        return query

    def _take(self, batch: Any, number: int) -> None:
        rows = batch.toArrow()
        if number == self.fail_in:
            raise RuntimeError("the sink is out of order")
        self.batches[number] = rows

    @property
    def rows(self) -> pa.Table:
        """Everything, in epoch order, each update's preimage before its postimage."""
        found = pa.concat_tables([self.batches[number] for number in sorted(self.batches)])
        return found.sort_by([(COMMIT_VERSION, "ascending")])


def replayed(changes: pa.Table, key: Sequence[str]) -> dict[Any, dict[str, Any]]:
    """The rows that exact changes lead to, from nothing; each epoch must fit the one before."""
    rows: dict[Any, dict[str, Any]] = {}
    for epoch in sorted(set(changes.column(COMMIT_VERSION).to_pylist())):
        mine = changes.filter(pc.equal(changes.column(COMMIT_VERSION), epoch))
        _check_one_change_each(mine, key)
        apply_exact(rows, mine, key)
    return rows


def _check_one_change_each(changes: pa.Table, key: Sequence[str]) -> None:
    """Within an epoch a row is inserted, deleted or updated, and only one of them."""
    kinds: dict[Any, list[str]] = {}
    for row in changes.select([*key, CHANGE_TYPE]).to_pylist():
        kinds.setdefault(tuple(row[name] for name in key), []).append(row[CHANGE_TYPE])
    for row_key, seen in kinds.items():
        pair = [ChangeType.UPDATE_POSTIMAGE.value, ChangeType.UPDATE_PREIMAGE.value]
        assert len(seen) == 1 or sorted(seen) == pair, f"{row_key}: {seen}"
