"""What creating a view over filled tables costs, beside one run of its query.

    python bench/creating.py [--rows 10e6,30e6] [--views filter,aggregate,join,groups,spark]
                             [--figures create,pace,resumed]

Orders of the given number, and customers for the join. `aggregate` has few groups, `groups` has
nearly as many as there are orders, and `spark` is a filter that only Spark can compute: the last
two are filled in another way, and only if asked for. For each view and size:

    create    CREATE MATERIALIZED VIEW until the view is live, in slices beside the epochs
    query     Spark runs the query over the same table and writes its rows as Parquet: the mean of
              a run before and one after the view was created
    resumed   the engine is killed with -9 half way; rows of the large table that both lives have
              read, as a share. Slices that were being read when it died count whole
    pace      a small write until it is visible, with a live view: p50 and p99 while the view is
              filled, beside what they were without

Views are compared with their queries, both ways, before a figure is printed. What the engine does
by itself after the tables were filled is waited for first, and Spark, Java and its Python processes
are warm: a view and a query over the small tables come before those that are measured.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from kit import ORDERS, order_changes, order_frame, verdict

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef
from headwater.model.change import ChangeType
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR
from headwater.runtime.creating.sweep import Sweeps
from headwater.runtime.creating.target import ViewTarget
from headwater.runtime.engine import Engine
from headwater.runtime.view_plan import plan_view
from headwater.session.queries import frame_of, plan
from headwater.sql.parse import parse_one
from headwater.state.receipts import found_before

CUSTOMERS = Schema(
    (Column("customer", BIGINT), Column("name", VARCHAR), Column("region", BIGINT)), ("customer",)
)
REGIONS = Schema((Column("region", BIGINT), Column("title", VARCHAR)), ("region",))
VIEWS = {
    "filter": "select id, customer, amount from orders where status = 'paid' and items < 5",
    "aggregate": "select customer % 1000 as c, status, count(*) n, sum(amount) total from orders "
    "group by 1, 2",
    "groups": "select customer, status, count(*) n, sum(amount) total from orders "
    "group by customer, status",
    "spark": "select id, customer, upper(note) as note from orders where note like '%a'",
    "join": "select id, name, title, amount from orders "
    "join customers on orders.customer = customers.customer "
    "join regions on customers.region = regions.region",
}
WARMING = (
    "select customer, name from customers where region < 20",
    "select region, count(*) n, sum(customer) total from customers group by region",
    "select customer, name, title from customers join regions on customers.region = regions.region",
)
LIVE = "select items, count(*) n, sum(amount) total from orders group by items"
SETTINGS = {"barrier_interval_ms": 1000, "spark_master": "local[2]", "spark_driver_memory": "2g"}


async def load(engine: Engine, rows: int) -> None:
    """The three tables, each in one epoch."""
    spark = engine.spark()
    insert = f"'{ChangeType.INSERT}' as {CHANGE_TYPE}"
    region = "pmod(hash(id), 25) as region"
    named = spark.range(1_000_000).selectExpr(
        "id as customer", "concat('customer ', id) as name", region, insert
    )
    titled = spark.range(25).selectExpr("id as region", "concat('region ', id) as title", insert)
    for name, schema, frame in (
        ("orders", ORDERS, order_frame(spark, 0, rows)),
        ("customers", CUSTOMERS, named),
        ("regions", REGIONS, titled),
    ):
        table = TableDef(id=TableId(0), name=name, schema=schema, folder="")
        await engine.ddl.create_table(table, lambda frame=frame: frame)
    await settled()


async def settled() -> None:
    """Wait until this process and its children have had little to do for three seconds."""
    calm = 0
    for _ in range(120):
        before = _cpu_seconds()
        await asyncio.sleep(1)
        calm = calm + 1 if _cpu_seconds() - before < 0.15 else 0
        if calm == 3:
            return


def _cpu_seconds() -> float:
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def begin(engine: Engine, name: str, query: str) -> Any:
    """What CREATE MATERIALIZED VIEW does for tables that are not small."""
    text = f"create materialized view {name} as {query}"
    planned = plan_view(parse_one(text), engine.catalog.snapshot())
    intent = ObjectDef(id=0, kind=ObjectKind.CREATING, name=name, definition=text)
    return await engine.ddl.begin_view(intent, planned)


def rows_of(engine: Engine, text: str) -> Any:
    statement = parse_one(text)
    planned = plan(statement.query, text, engine.catalog.snapshot())
    return frame_of(engine, planned.query, engine.visible)


def compared(engine: Engine, name: str, query: str) -> None:
    """Raise unless the view has exactly the rows of its query."""
    view, wanted = rows_of(engine, f"select * from {name}"), rows_of(engine, query)
    more, less = view.exceptAll(wanted).count(), wanted.exceptAll(view).count()
    if more or less:
        raise SystemExit(f"{name}: {more} rows too many, {less} too few")


async def created(engine: Engine, name: str, query: str, folder: Path) -> tuple[float, float]:
    """Seconds of creating the view, and of one run of its query."""
    before = await asked(engine, query, folder)
    await settled()
    started = time.perf_counter()
    made = await begin(engine, name, query)
    await made.done
    took = time.perf_counter() - started
    await settled()
    once = (before + await asked(engine, query, folder)) / 2
    await asyncio.to_thread(compared, engine, name, query)
    await settled()
    return took, once


async def asked(engine: Engine, query: str, folder: Path) -> float:
    """Seconds of one run of a query, written as Parquet."""
    started = time.perf_counter()
    frame = await asyncio.to_thread(rows_of, engine, query)
    await asyncio.to_thread(frame.write.mode("overwrite").parquet, str(folder / "written"))
    return time.perf_counter() - started


async def warmed(engine: Engine, folder: Path) -> None:
    """Let everything be loaded that views and queries need."""
    for number, query in enumerate(WARMING):
        await asked(engine, query, folder)
        await (await begin(engine, f"warm_{number}", query)).done
    await settled()


async def paced(engine: Engine, random: Any, rows: int, over: Any) -> list[float]:
    """How long small writes take to be visible, until `over` says so."""
    table = engine.catalog.snapshot().table("orders").id
    taken, fresh = [], rows
    while not over(len(taken)):
        changes = order_changes(random, rows, 1000, fresh)
        fresh += 1000
        started = time.perf_counter()
        await engine.dml.source.put({table: changes})
        await engine.flush()
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(0.1)
    return taken


def quantiles(taken: list[float]) -> tuple[float, float]:
    ordered = sorted(taken)
    return statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]


async def pace(engine: Engine, rows: int) -> None:
    """Print what filling a view does to the epochs of others."""
    random = np.random.default_rng(1)
    made = await begin(engine, "live", LIVE)
    await made.done
    await paced(engine, random, rows, lambda count: count >= 5)
    before = quantiles(await paced(engine, random, rows, lambda count: count >= 40))
    made = await begin(engine, "meanwhile", VIEWS["join"])
    found = await paced(engine, random, rows, lambda count: made.done.done())
    during = quantiles(found)
    await asyncio.to_thread(compared, engine, "meanwhile", VIEWS["join"])
    ratio = during[1] / before[1]
    print(
        f"  pace: without p50 {before[0]:.2f} s, p99 {before[1]:.2f} s; while a view is filled "
        f"p50 {during[0]:.2f} s, p99 {during[1]:.2f} s ({len(found)} writes): "
        f"p99 {ratio:.2f} x, {verdict(ratio, 2)}"
    )


async def _life(folder: Path, view: str, kill_at: int) -> None:
    """One life of an engine that says what it has read, and may kill itself."""
    seen = 0

    def said(place: str, rows: int) -> None:
        nonlocal seen
        seen += rows
        print(f"read {place} {rows}", flush=True)
        if kill_at and seen >= kill_at:
            os.kill(os.getpid(), 9)

    read, sweep = ViewTarget.read, Sweeps.read

    def slice_read(self: Any, what: Any, so_far: Any, epoch: Any) -> Any:
        found = read(self, what, so_far, epoch)
        large = what.slices[-1][1]
        said(f"{large.parts[0].path}:{large.parts[0].start}", large.rows)
        return found

    def swept(self: Any, spark: Any, slices: Any, epoch: Any, *given: Any) -> None:
        arrived, over = given
        adopted = found_before(self._target.storage)

        def heard(found: Any) -> bool:
            for number, receipt in found:
                if receipt.key not in adopted:
                    parts = slices[number]
                    rows = sum(part.stop - part.start for part in parts)
                    said(f"{parts[0].path}:{parts[0].start}", rows)
            return arrived(found)

        sweep(self, spark, slices, epoch, heard, over)

    ViewTarget.read, Sweeps.read = slice_read, swept  # type: ignore[method-assign]
    async with Engine(folder, settings=SETTINGS) as engine:
        if not engine.creating.running:
            await begin(engine, "resumed", VIEWS[view])
        (made,) = engine.creating.running.values()
        await made.done
        await asyncio.to_thread(compared, engine, "resumed", VIEWS[view])


def resumed(folder: Path, view: str, rows: int) -> None:
    """Print how many rows are read twice when the engine is killed half way."""
    lives: list[dict[str, int]] = []
    for kill_at in (rows // 2, 0):
        command = [sys.executable, __file__, "--life", str(folder), view, str(kill_at)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != (-9 if kill_at else 0):
            raise SystemExit(ended.stderr)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("read ")]
        lives.append({line.split()[1]: int(line.split()[2]) for line in lines})
    first, second = lives
    # One on each core was being read.
    under_way = 2 * max(first.values())
    twice = sum(count for place, count in second.items() if place in first) + under_way
    share = twice / rows
    print(
        f"{view:>10} {rows / 1e6:5.1f} M resumed: at most {100 * share:.1f} % of the table read "
        f"twice ({len(first)} slices in the first life, {len(second)} in the second), "
        f"aim at most 5: {'met' if share <= 0.05 else 'NOT met'}",
        flush=True,
    )


async def measure(sizes: list[int], views: list[str], figures: list[str]) -> None:
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="hw-creating-") as name:
            folder = Path(name)
            async with Engine(folder / "w", settings=SETTINGS) as engine:
                await load(engine, rows)
                await warmed(engine, folder)
                for view in views if "create" in figures else ():
                    took, once = await created(engine, f"v_{view}", VIEWS[view], folder)
                    print(
                        f"{view:>10} {rows / 1e6:5.1f} M: created in {took:.1f} s = "
                        f"{took / once:.2f} x one run of its query ({once:.1f} s), "
                        f"{verdict(took / once, 1.3)}",
                        flush=True,
                    )
                if "pace" in figures:
                    await pace(engine, rows)
        for view in views if "resumed" in figures else ():
            with tempfile.TemporaryDirectory(prefix="hw-creating-") as name:
                async with Engine(Path(name), settings=SETTINGS) as engine:
                    await load(engine, rows)
                await asyncio.to_thread(resumed, Path(name), view, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="10e6,30e6")
    parser.add_argument("--views", default="filter,aggregate,join")
    parser.add_argument("--figures", default="create,pace,resumed")
    parser.add_argument("--life", nargs=3)
    given = parser.parse_args()
    if given.life:
        folder, view, kill_at = given.life
        asyncio.run(_life(Path(folder), view, int(kill_at)))
        return
    sizes = [int(float(each)) for each in given.rows.split(",")]
    asyncio.run(measure(sizes, given.views.split(","), given.figures.split(",")))


if __name__ == "__main__":
    main()
