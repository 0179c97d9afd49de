"""What an epoch of views costs, beside recomputing them in the same session.

    python bench/views.py [--rows 3e6] [--shares 0.0001,0.001,0.01] [--runs 5] [--many 20]

Three tables: orders, customers (a tenth as many) and regions (100). Views: a filter, an
aggregate by region and status, and a join of all three. For each share of changed orders:

    epoch       find the views' changes (`views.maintain`) and stage them into their stores
    floor       the query over the changed rows alone, to nowhere
    full        the query over the whole tables, to nowhere: writing the result would come on top

Changed orders are random over the whole table: a fifth inserts, three fifths updates, a fifth
deletes. Ratios are what counts; machines differ.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kit import bare_job, verdict

from headwater.config import Settings
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId, Term
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, VARCHAR, decimal
from headwater.sql.algebra import (
    Aggregate,
    AggregateCall,
    Expression,
    Filter,
    Join,
    JoinKind,
    Named,
    Output,
    Plan,
    Project,
    Query,
    Scan,
)
from headwater.state.row_cache import RowCache
from headwater.state.storage import LocalStorage
from headwater.state.store import StateStore, TableSpec
from headwater.state.table import StateTable, Surroundings
from headwater.views.desk import Side
from headwater.views.layout import Layout, RefreshPolicy, lay_out, view_of
from headwater.views.maintain import LiveView, maintain
from headwater.views.recompute import batch, fill
from headwater.views.relation import StateRelation

MONEY = decimal(12, 2)
ORDERS = Schema(
    (
        Column("id", BIGINT),
        Column("customer", BIGINT),
        Column("status", VARCHAR),
        Column("amount", MONEY),
        Column("items", INTEGER),
    ),
    ("id",),
)
CUSTOMERS = Schema(
    (Column("id", BIGINT), Column("region", INTEGER), Column("name", VARCHAR)), ("id",)
)
REGIONS = Schema((Column("id", INTEGER), Column("name", VARCHAR)), ("id",))
TABLES = {TableId(1): ORDERS, TableId(2): CUSTOMERS, TableId(3): REGIONS}


def scan(table: int, prefix: str) -> Scan:
    schema = TABLES[TableId(table)]
    return Scan(
        table=TableId(table),
        columns=tuple((f"{prefix}{name}", name) for name in schema.names),
        outputs=tuple(Output(f"{prefix}{c.name}", c.type) for c in schema.columns),
        key=tuple(f"{prefix}{name}" for name in schema.key),
    )


def column(plan: Plan, name: str) -> Expression:
    type_ = next(output.type for output in plan.outputs if output.name == name)
    return Expression(name, type_, frozenset({name}))


def joined(left: Plan, right: Plan, a: str, b: str) -> Join:
    on = ((column(left, a), column(right, b)),)
    return Join(kind=JoinKind.INNER, left=left, right=right, on=on, key=(*left.key, *right.key))


def plans(number: int) -> dict[str, Plan]:
    """The three views; `number` makes their texts differ, so that nothing is shared by luck."""
    orders = scan(1, "o_")
    text = f"o_amount > {5000 + number}"
    paid = Filter(input=orders, predicate=Expression(text, BIGINT, frozenset({"o_amount"})))
    three = joined(
        joined(orders, scan(2, "c_"), "o_customer", "c_id"), scan(3, "r_"), "c_region", "r_id"
    )
    flat = Project(
        input=three,
        expressions=tuple(
            Named(f"j_{name}", column(three, name))
            for name in ("o_id", "c_id", "r_id", "o_amount", "c_name", "r_name")
        ),
        key=("j_o_id", "j_c_id", "j_r_id"),
    )
    amount = column(orders, "o_amount")
    calls = (
        AggregateCall(
            name="n", function="count", expression=Expression("count(*)", BIGINT), argument=None
        ),
        AggregateCall(
            name="total",
            function="sum",
            expression=Expression("sum(o_amount)", decimal(22, 2)),
            argument=amount,
        ),
    )
    group = Project(
        input=orders,
        expressions=(
            Named("o_bucket", Expression(f"(o_customer + {number}) % 1000", BIGINT)),
            Named("o_status", column(orders, "o_status")),
            Named("o_amount", amount),
        ),
        key=(),
    )
    return {
        "filter": paid,
        "aggregate": Aggregate(input=group, group=("o_bucket", "o_status"), calls=calls),
        "join": flat,
    }


class Yard:
    """State tables of one benchmark, without an engine: stage, confirm, go on."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.spark = spark
        self.cache = RowCache(folder / "cache", 8 << 30)
        around = Surroundings(
            storage=LocalStorage(folder / "data"),
            cache=self.cache,
            settings=Settings(),
            term=Term(1),
            spark=lambda: spark,
            parallelism=2,
        )
        self.store = StateStore(around)
        self.epoch = 1 << 16
        self._ids = iter(range(1, 10_000))

    def table(self, name: str, schema: Schema) -> StateTable:
        """A new table."""
        id_ = next(self._ids)
        spec = TableSpec(
            id=TableId(id_), name=name, folder=f"t{id_}", schema=schema, created=Epoch(self.epoch)
        )
        return self.store.create(spec)

    def next(self) -> Epoch:
        """The next epoch."""
        self.epoch += 1 << 16
        return Epoch(self.epoch)

    def relation(self, table: StateTable, changes: pa.Table | None = None) -> StateRelation:
        """The table as it was before `changes`, which are staged on top of it already."""
        before = table.view(Epoch(self.epoch - (1 << 16))) if changes else table.view()
        at = {Side.OLD: before.epoch, Side.NEW: table.view().epoch}
        return StateRelation(
            table, self.cache, before, frames=lambda side: table.frame(at[side]), changes=changes
        )


def random_orders(random: np.random.Generator, rows: int, count: int, fresh: int) -> pa.Table:
    kinds = random.choice(3, size=count, p=[0.2, 0.6, 0.2])
    ids = random.integers(0, rows, count)
    ids[kinds == 0] = fresh + np.arange((kinds == 0).sum())
    words = np.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE])
    cents = pa.array(random.integers(0, 10**6, count)).cast(pa.decimal128(19, 0))
    return pa.table(
        {
            "id": ids,
            "customer": random.integers(0, max(1, rows // 10), count),
            "status": np.array(["new", "paid", "sent"])[random.integers(0, 3, count)],
            "amount": cents.cast(pa.decimal128(12, 2), safe=False),
            "items": random.integers(0, 9, count).astype(np.int32),
            CHANGE_TYPE: words[kinds],
        }
    )


def median(runs: int, work: Callable[[], float]) -> float:
    work()
    return statistics.median(work() for _ in range(runs))


class Bench:
    """Tables, views and their stores at one size."""

    def __init__(self, spark: Any, folder: Path, rows: int) -> None:
        self.spark, self.rows, self.yard = spark, rows, Yard(folder, spark)
        self.random = np.random.default_rng(rows)
        self.fresh = 2 * rows
        self.tables = {id_: self.yard.table(f"t{id_}", schema) for id_, schema in TABLES.items()}
        insert = f"'{ChangeType.INSERT}' as {CHANGE_TYPE}"
        frames = {
            1: spark.range(rows).selectExpr(
                "id", f"pmod(xxhash64(id), {max(1, rows // 10)}) as customer",
                "element_at(array('new', 'paid', 'sent'), cast(id % 3 + 1 as int)) as status",
                "cast(pmod(xxhash64(id, 1), 1000000) / 100 as decimal(12,2)) as amount",
                "cast(id % 9 as int) as items", insert,
            ),
            2: spark.range(max(1, rows // 10)).selectExpr(
                "id", "cast(id % 100 as int) as region", "concat('c', id) as name", insert
            ),
            3: spark.range(100).selectExpr(
                "cast(id as int) as id", "concat('r', id) as name", insert
            ),
        }  # fmt: skip
        self._commit({table: frames[id_] for id_, table in self.tables.items()})

    def _commit(self, changes: dict[StateTable, Any]) -> Epoch:
        epoch = self.yard.next()
        for table, chunk in changes.items():
            table.stage(epoch, chunk)
            table.confirm(epoch)
        return epoch

    def view(self, name: str, plan: Plan) -> tuple[Layout, list[StateTable]]:
        """A new view, filled."""
        visible = tuple((output.name, output.name) for output in plan.outputs)
        layout = lay_out(
            view_of(name, Query(plan=plan, visible=visible), RefreshPolicy.INCREMENTAL)
        )
        stores = [self.yard.table(f"{name}_{n}", s) for n, s in enumerate(layout.schemas)]
        frames = fill(self.spark, layout, {id_: t.frame() for id_, t in self.tables.items()})
        insert = f"'{ChangeType.INSERT}' as {CHANGE_TYPE}"
        self._commit({s: f.selectExpr("*", insert) for s, f in zip(stores, frames, strict=True)})
        return layout, stores

    def epoch(self, views: list[tuple[Layout, list[StateTable]]], count: int) -> float:
        """The time of one epoch's views, from the table's exact changes to staged stores."""
        self.fresh += count
        orders = self.tables[TableId(1)]
        before = orders.view().epoch
        epoch = self._commit({orders: random_orders(self.random, self.rows, count, self.fresh)})
        changes = orders.change_rows(before, epoch)
        relations = {id_: self.yard.relation(t) for id_, t in self.tables.items()}
        relations[TableId(1)] = StateRelation(
            orders,
            self.yard.cache,
            orders.view(before),
            frames=lambda side: orders.frame(before if side is Side.OLD else epoch),
            changes=changes,
        )
        started = time.perf_counter()
        live = [LiveView(layout, tuple(map(self.yard.relation, s))) for layout, s in views]
        report = maintain(self.spark, live, relations)
        found = time.perf_counter()
        self.report = report
        next_epoch = self.yard.next()
        for found_changes, (_, stores) in zip(report.views, views, strict=True):
            for number, chunk in found_changes.stores.items():
                stores[number].stage(next_epoch, chunk)
        ended = time.perf_counter()
        for _, stores in views:
            for store in stores:
                store.confirm(next_epoch)
        self.found = found - started
        return ended - started

    def full(self, plan: Plan) -> float:
        """The time of recomputing a query."""
        started = time.perf_counter()
        frames = {id_: table.frame() for id_, table in self.tables.items()}
        batch(self.spark, plan, frames).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def floor(self, plan: Plan, count: int) -> float:
        """The query over as many orders as changed."""
        small = random_orders(self.random, self.rows, count, self.fresh).drop_columns([CHANGE_TYPE])
        orders = self.spark.createDataFrame(small, ORDERS.spark)
        frames = {id_: table.frame() for id_, table in self.tables.items()}
        frames[TableId(1)] = orders
        started = time.perf_counter()
        batch(self.spark, plan, frames).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="3e6")
    parser.add_argument("--shares", default="0.0001,0.001,0.01")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--many", type=int, default=20)
    arguments = parser.parse_args()
    from headwater.runtime.spark import start_spark

    rows = int(float(arguments.rows))
    spark = start_spark(Settings(spark_driver_memory="3g"))
    for _ in range(5):
        bare_job(spark)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, Path(folder), rows)
        bare = statistics.median(bare_job(spark) for _ in range(5))
        print(f"{rows:,} orders; bare Spark job {bare * 1000:.0f} ms")
        for name, plan in plans(0).items():
            view = bench.view(name, plan)
            full = median(arguments.runs, lambda plan=plan: bench.full(plan))
            for share in map(float, arguments.shares.split(",")):
                count = max(1, int(rows * share))
                work = lambda: bench.epoch([view], count)  # noqa: B023, E731
                cost = median(arguments.runs, work)
                report = bench.report
                floor = median(arguments.runs, lambda p=plan, c=count: bench.floor(p, c))
                print(
                    f"{name:>10} {share:8.2%} changed: epoch {cost:6.3f} s "
                    f"({bench.found:.3f} found), "
                    f"full {full:6.3f} s, floor {floor:6.3f} s; {cost / full:5.2f} x full, "
                    f"{cost / floor:5.2f} x floor; {report.jobs} jobs, "
                    f"{report.rows_looked_up / count:.1f} rows read per change"
                )
        one = bench.view("one", plans(0)["aggregate"])
        many = [
            bench.view(f"many{number}", list(plans(number).values())[number % 3])
            for number in range(arguments.many)
        ]
        count = max(1, int(rows * 0.0001))
        single = median(arguments.runs, lambda: bench.epoch([one], count))
        several = median(arguments.runs, lambda: bench.epoch(many, count))
        jobs = bench.report.jobs
        ratio = several / single
        print(
            f"{arguments.many} views {several:.3f} s ({bench.found:.3f} found), "
            f"one {single:.3f} s: "
            f"{ratio:.1f} times, {jobs} jobs ({verdict(ratio, 5)})"
        )
    spark.stop()


if __name__ == "__main__":
    main()
