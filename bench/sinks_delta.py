"""How fast a delivery reaches Delta: append and upsert, beside Spark writing the same rows.

    python bench/sinks_delta.py [--rows 1000000] [--turns 5]

Append: rows in memory, two parts prepared side by side and committed as one version; against a
cached DataFrame of the same rows, in two partitions, that Spark (local[2]) writes as Parquet.
Spark's files are neither forced to disk nor a version of a table; ours are both. Upsert: 10 %
of the rows set anew and 1 % deleted, as one version; against delta-rs's merge of the same rows
alone. Turns alternate, and medians are compared.
"""

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kit import ORDERS, order_frame

from headwater.config import Settings
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.runtime.spark import start_spark
from headwater.sinks.delta.sink import delta_sink
from headwater.sinks.sink import OP, Delivery, SinkKind, SinkSpec

PARTS = 2
BATCH_ROWS = 65_536
AIM = 0.8


def spec_of(folder: Path, kind: SinkKind) -> SinkSpec:
    return SinkSpec(
        name="bench",
        ident="bench_1",
        columns=ORDERS.columns,
        key=ORDERS.key,
        kind=kind,
        options={"location": str(folder)},
    )


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def with_op(rows: pa.Table, op: RowOp) -> pa.Table:
    return rows.add_column(0, pa.field(OP, pa.int8()), pa.array(np.full(len(rows), op, np.int8)))


def deliver(sink: Any, epoch: int, rows: pa.Table) -> None:
    """All rows in parts side by side, then the commit."""
    delivery = Delivery(
        sink="bench_1", after=Epoch(epoch - 1), epoch=Epoch(epoch), term=Term(1), rows=len(rows)
    )
    step = -(-len(rows) // PARTS)

    def prepare(part: int) -> bytes:
        mine = rows.slice(part * step, step).to_batches(max_chunksize=BATCH_ROWS)
        return bytes(sink.prepare(delivery, part, mine))

    with ThreadPoolExecutor(PARTS) as pool:
        receipts = list(pool.map(prepare, range(PARTS)))
    sink.commit(delivery, receipts)


def append(rows: pa.Table, frame: Any, folder: Path, turns: int) -> None:
    sink = delta_sink(spec_of(folder / "append", SinkKind.APPEND_ONLY))
    sink.check()
    sink.begin(Term(1))
    brought = with_op(rows, RowOp.INSERT)
    ours, spark = [], []
    for turn in range(turns + 1):
        target = str(folder / f"spark-{turn}")
        spark.append(timed(lambda path=target: frame.write.parquet(path)))
        ours.append(timed(lambda epoch=turn + 1: deliver(sink, epoch, brought)))
    mine, theirs = statistics.median(ours[1:]), statistics.median(spark[1:])
    share = theirs / mine
    met = "met" if share >= AIM else "NOT met"
    print(f"append, {len(rows):,} rows to one version  {mine:6.2f} s  {len(rows) / mine:11,.0f}/s")
    print(
        f"Spark writes them as Parquet             {theirs:6.2f} s  {len(rows) / theirs:11,.0f}/s"
    )
    print(f"our speed to Spark's: {share:.2f} (aim at least {AIM}: {met})")


def upsert(rows: pa.Table, folder: Path, turns: int) -> None:
    from deltalake import DeltaTable, write_deltalake

    sink = delta_sink(spec_of(folder / "upsert", SinkKind.UPSERT))
    sink.check()
    sink.begin(Term(1))
    deliver(sink, 1, with_op(rows, RowOp.INSERT))
    write_deltalake(str(folder / "merged"), rows)
    random = np.random.default_rng(1)
    ours, bare = [], []
    for turn in range(turns + 1):
        chosen = random.choice(len(rows), len(rows) // 10, replace=False)
        picked = rows.take(pa.array(chosen))
        gone, kept = picked.slice(0, len(rows) // 100), picked.slice(len(rows) // 100)
        changes = pa.concat_tables([with_op(gone, RowOp.DELETE), with_op(kept, RowOp.INSERT)])
        ours.append(timed(lambda epoch=turn + 2, rows=changes: deliver(sink, epoch, rows)))
        names = {name: f"s.{name}" for name in rows.column_names}
        merger = (
            DeltaTable(str(folder / "merged"))
            .merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_delete(f"s.{OP} = {RowOp.DELETE}")
            .when_matched_update(names, predicate=f"s.{OP} = {RowOp.INSERT}")
            .when_not_matched_insert(names, predicate=f"s.{OP} = {RowOp.INSERT}")
        )
        bare.append(timed(merger.execute))
    mine, theirs = statistics.median(ours[1:]), statistics.median(bare[1:])
    print(f"upsert of 10 % of them                   {mine:6.2f} s")
    print(f"delta-rs merges the same                 {theirs:6.2f} s")
    print(f"our speed to delta-rs's: {theirs / mine:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    spark = start_spark(Settings().change({"spark_master": "local[2]"}))
    names = [column.name for column in ORDERS.columns]
    frame = order_frame(spark, 0, arguments.rows).select(*names).repartition(PARTS).cache()
    rows = frame.toArrow().cast(ORDERS.arrow)
    with tempfile.TemporaryDirectory() as folder:
        append(rows, frame, Path(folder), arguments.turns)
        upsert(rows, Path(folder), arguments.turns)
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
