"""What an epoch of views costs, beside recomputing them in the same session.

    python bench/views.py [--rows 1e6,3e6] [--shares 0.0001,0.001,0.01,0.1] [--runs 3]
                          [--views filter,q3] [--many 20]

TPC-H tables of the given numbers of lineitems. For each view, size and share of changed lineitems
(a fifth inserts, a fifth deletes, the others updates, random over the whole table):

    epoch     what the engine does: from staged changes of the tables to staged changes of the views
    full      Spark computes the query over the whole tables and writes its rows as Parquet
    query     the same to nowhere, as if a refresh need not be stored
    floor     Spark computes the query over the changed lineitems and the rows of other tables that
              these meet, all in memory, to nowhere: no way of keeping a view can do less
    DuckDB    computes the query over the same Parquet files, with as many threads

and how many rows were read for each changed one; what was read whole counts with all its rows.
Views have the policy `auto`, as they do unless a user says otherwise. Spark and DuckDB read the
files as they were after loading, without the changes since, which is to their advantage. In the
end: from which number of lineitems on an epoch is faster than DuckDB, by a line through the sizes
measured, and twenty views beside one. Ratios are what counts; machines differ.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import bare_job, verdict
from views_yard import TPCH, Cost, Yard, duckdb_full, generated

from headwater.config import Settings

FILTER = """select l_orderkey, l_linenumber, l_extendedprice, l_discount from lineitem
where l_discount > 0.05 and l_quantity < {0}"""
JOIN = """select l_orderkey, l_linenumber, o_orderdate, c_name, l_extendedprice - {0} as price
from lineitem join orders on l_orderkey = o_orderkey join customer on o_custkey = c_custkey"""
AGGREGATE = """select l_suppkey, l_returnflag, count(*) as n, sum(l_extendedprice + {0}) as total
from lineitem group by l_suppkey, l_returnflag"""
TOP_N = """select l_orderkey, l_linenumber, l_extendedprice from lineitem
order by l_extendedprice desc, l_orderkey, l_linenumber limit 100"""
WINDOW = """select l_orderkey, l_linenumber, l_extendedprice,
  rank() over (partition by l_orderkey order by l_extendedprice desc) as place from lineitem"""


def tpch(number: int) -> str:
    return (TPCH / f"q{number:02}.sql").read_text().strip().rstrip(";")


VIEWS = {
    "filter": FILTER.format(24),
    "3-way join": JOIN.format(0),
    "aggregate": AGGREGATE.format(0),
    "top-n": TOP_N,
    "window": WINDOW,
    **{f"q{number}": tpch(number) for number in (1, 3, 5, 18)},
}
SOME = [FILTER, JOIN, AGGREGATE]
LARGE = 30_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One view at one size and share."""

    view: str
    rows: int
    share: float
    epoch: float
    full: float
    query: float
    floor: float
    duckdb: float
    cost: Cost
    per_change: float

    def __str__(self) -> str:
        whole = f", {' and '.join(self.cost.whole)} whole" if self.cost.whole else ""
        return (
            f"{self.view:>10} {self.rows / 1e6:5.1f} M {self.share:7.2%}: epoch {self.epoch:7.3f} s"
            f" ({self.cost.ways[0]}) = {self.epoch / self.full:6.2f} x full"
            f" = {self.epoch / self.query:6.2f} x query"
            f" = {self.epoch / self.floor:6.2f} x floor"
            f" = {self.epoch / self.duckdb:7.2f} x DuckDB;"
            f" {self.cost.jobs} jobs, {self.per_change:.1f} rows read per change{whole}"
        )


def median(runs: int, work: Callable[[int], float]) -> float:
    work(-1)
    return statistics.median(work(run) for run in range(runs))


class Bench:
    """All measurements in one Spark session."""

    def __init__(self, spark: Any, arguments: argparse.Namespace) -> None:
        self.spark = spark
        self.runs = arguments.runs
        self.shares = [float(share) for share in arguments.shares.split(",")]
        self.views = arguments.views.split(",") if arguments.views else list(VIEWS)
        self.many = arguments.many
        self.lines: list[Line] = []
        self._run = 0

    def size(self, rows: int, *, last: bool) -> None:
        """Measure all views at one size; after the last one, many views at once."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            yard = Yard(self.spark, folder, generated(folder / "files", rows))
            bare = statistics.median(bare_job(self.spark) for _ in range(5))
            print(f"\n{yard.lines:,} lineitems; bare Spark job {bare * 1000:.0f} ms", flush=True)
            duck = yard.duckdb()
            for view in self.views:
                self._view(yard, duck, view)
            duck.close()
            if last and self.many:
                self._together(yard)
            for relation in self.spark.catalog.listTables():
                self.spark.catalog.dropTempView(relation.name)

    def _view(self, yard: Yard, duck: Any, name: str) -> None:
        text = VIEWS[name]
        view = yard.view(name.replace("-", "_").replace(" ", "_"), text)
        query = yard.plan(text)
        full = median(self.runs, lambda _: yard.full(query))
        alone = median(self.runs, lambda _: yard.read(query))
        theirs = median(self.runs, lambda _: duckdb_full(duck, text))
        for share in self.shares:
            few = yard.floor_tables(share, self._run)
            floor = median(self.runs, lambda _: yard.read(query, few))  # noqa: B023
            costs, count = self._epochs(yard, [view], share)
            cost = sorted(costs, key=lambda each: each.seconds)[len(costs) // 2]
            line = Line(
                view=name, rows=yard.lines, share=share, epoch=cost.seconds, full=full,
                query=alone, floor=floor, duckdb=theirs, cost=cost,
                per_change=cost.read / max(1, count),
            )  # fmt: skip
            self.lines.append(line)
            print(line, flush=True)

    def _epochs(self, yard: Yard, views: list[Any], share: float) -> tuple[list[Cost], int]:
        """Epochs with fresh changes each; the first does not count, it fills caches."""
        costs = []
        for _ in range(self.runs + 1):
            self._run += 1
            changes, count = yard.changes(share, self._run)
            costs.append(yard.epoch(views, changes))
        return costs[1:], count

    def _together(self, yard: Yard) -> None:
        share = self.shares[0]
        views = [
            yard.view(f"many_{number}", SOME[number % len(SOME)].format(number))
            for number in range(self.many)
        ]
        alone = [self._seconds(yard, [view], share) for view in views[: len(SOME)]]
        one = statistics.mean(alone)
        all_ = self._seconds(yard, views, share)
        print(
            f"\n{self.many} views (filters, joins, aggregates) at {share:.2%}: {all_:.3f} s; one"
            f" alone {one:.3f} s on average: {all_ / one:.1f} times ({verdict(all_ / one, 5)})"
        )

    def _seconds(self, yard: Yard, views: list[Any], share: float) -> float:
        costs, _ = self._epochs(yard, views, share)
        return statistics.median(cost.seconds for cost in costs)

    # What it all says

    def say_where_faster(self) -> None:
        """The number of lineitems from which an epoch is faster than DuckDB."""
        share = min(self.shares, key=lambda each: abs(each - 0.001))
        print(f"\nfaster than DuckDB's full refresh, with {share:.2%} changed, from")
        for name in self.views:
            points = [line for line in self.lines if line.view == name and line.share == share]
            print(f"{name:>10}: {_crossing(points)}")

    def say_aims(self) -> None:
        """Which aims are met."""
        print("\naims")
        slow = [line for line in self.lines if line.epoch > 1.1 * line.full]
        met = "met" if not slow else "NOT met"
        print(f"  never slower than 1.1 x full: {met} ({len(slow)} of {len(self.lines)} are)")
        for line in slow:
            ratio = line.epoch / line.full
            print(f"    {line.view} at {line.rows / 1e6:.1f} M, {line.share:.2%}: {ratio:.2f} x")
        large = [each for each in self.lines if each.rows >= LARGE and each.share == 0.001]
        if not large:
            print("  0.1 % of 30 M rows: not measured; --rows 30e6 does")
        for line in large:
            full, floor = line.epoch / line.full, line.epoch / line.floor
            print(
                f"  {line.view}, 0.1 % of 30 M: {full:.2f} x full ({verdict(full, 0.1)}), "
                f"{floor:.1f} x floor ({verdict(floor, 3)})"
            )


def _crossing(points: list[Line]) -> str:
    """Where the line of our times crosses the line of DuckDB's."""
    if len(points) < 2:
        (only,) = points
        # One size gives no line: let DuckDB's time grow with the rows, and ours stay.
        return f"about {only.rows * only.epoch / only.duckdb / 1e6:,.0f} M (from one size: rough)"
    first, last = points[0], points[-1]
    span = last.rows - first.rows
    ours, theirs = (last.epoch - first.epoch) / span, (last.duckdb - first.duckdb) / span
    if ours >= theirs:
        return "no size, as far as these sizes tell"
    rows = first.rows + (first.epoch - first.duckdb) / (theirs - ours)
    return f"about {max(0.0, rows) / 1e6:,.0f} M"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1e6")
    parser.add_argument("--shares", default="0.0001,0.001,0.01,0.1")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--views", default="")
    parser.add_argument("--many", type=int, default=20)
    arguments = parser.parse_args()
    from headwater.runtime.spark import start_spark

    spark = start_spark(Settings(spark_driver_memory="3g", spark_master="local[2]"))
    for _ in range(5):
        bare_job(spark)
    bench = Bench(spark, arguments)
    sizes = sorted(int(float(rows)) for rows in arguments.rows.split(","))
    for size in sizes:
        bench.size(size, last=size == sizes[-1])
    bench.say_where_faster()
    bench.say_aims()
    spark.stop()


if __name__ == "__main__":
    main()
