"""What an epoch costs, beside a bare Spark job of the same session.

    python bench/epoch.py [--sizes 1e6,1e7,3e7] [--runs 20]

Measured is the whole way of an epoch: from FLUSH to visible, with barrier, staging, ledger and
Delta version. The changes are random over the whole table, which is the worst case for lookups.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from kit import (
    ORDERS,
    HandedSource,
    bare_job,
    median_of,
    order_changes,
    order_frame,
    verdict,
)

from headwater.runtime.engine import Engine

CHANGES = 1000


async def measure(rows: int, runs: int, spark: object) -> tuple[float, float, float]:
    """(bare job, empty epoch, epoch of 1,000 changes) in seconds, at a table of `rows`."""
    source = HandedSource()
    random = np.random.default_rng(rows)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(
            Path(folder),
            settings={"barrier_interval_ms": 600_000, "maintenance_interval_s": 3600},
            connectors={"bench": lambda name, options: source},
            spark=spark,  # type: ignore[arg-type]
        )
        async with engine:
            await engine.create_source("bench", "bench", {}, tables={"orders": ORDERS})
            started = time.perf_counter()
            await source.hand(orders=order_frame(spark, 0, rows))
            await engine.flush()
            loaded = time.perf_counter() - started
            table = engine.table("orders")
            await settle(engine)
            started = time.perf_counter()
            await source.hand(orders=order_changes(random, rows, CHANGES, rows))
            await engine.flush()
            print(
                f"{rows:>12,} rows: loaded in {loaded:.1f} s, {len(table.view().files)} files; "
                f"first lookup, which builds the cache, {time.perf_counter() - started:.1f} s"
            )
            fresh = 2 * rows
            bare: list[float] = []

            async def empty() -> float:
                bare.append(bare_job(spark))
                started = time.perf_counter()
                await engine.flush()
                return time.perf_counter() - started

            async def thousand() -> float:
                nonlocal fresh
                bare.append(bare_job(spark))
                fresh += CHANGES
                await source.hand(orders=order_changes(random, rows, CHANGES, fresh))
                started = time.perf_counter()
                await engine.flush()
                return time.perf_counter() - started

            return (
                await median_of(runs, empty),
                await median_of(runs, thousand),
                (statistics.median(bare)),
            )


async def settle(engine: Engine) -> None:
    """Fold until nothing is left to fold."""
    while any(table.plan_fold() for table in engine.store):
        await engine.maintain()
        await engine.flush()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1e6,1e7,3e7")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    from headwater.config import Settings
    from headwater.runtime.spark import start_spark

    spark = start_spark(Settings(spark_driver_memory="3g"))
    for _ in range(10):
        bare_job(spark)
    costs: list[float] = []
    for size in (int(float(text)) for text in arguments.sizes.split(",")):
        empty, thousand, bare = asyncio.run(measure(size, arguments.runs, spark))
        costs.append(thousand)
        print(f"{'':>12}  bare Spark job                {bare * 1000:8.1f} ms")
        print(
            f"{'':>12}  empty epoch                   {empty * 1000:8.1f} ms"
            f" = {empty / bare:5.2f} jobs"
        )
        print(
            f"{'':>12}  epoch of {CHANGES:,} changes       {thousand * 1000:8.1f} ms"
            f" = {thousand / bare:5.2f} jobs  ({verdict(thousand / bare, 3)})"
        )
    ratio = costs[-1] / costs[0]
    print(f"from the first to the last size: {ratio:.2f} times  ({verdict(ratio, 1.5)})")
    spark.stop()


if __name__ == "__main__":
    main()
