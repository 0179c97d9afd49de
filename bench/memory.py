"""Memory while a table many times larger than the driver's heap is staged and read.

    python bench/memory.py [--heap-mib 512] [--times 1,10]

Each size runs in a process of its own with the same small heap. Printed is the largest resident
memory of the whole family of processes (driver, its JVM, Python workers), sampled all the time.
It must not grow with the table.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from kit import ORDERS, HandedSource, order_frame, verdict

from headwater.config import Settings
from headwater.runtime.engine import Engine
from headwater.runtime.spark import start_spark

ROW_BYTES = 110
"""An order in memory, about: 4 numbers of 8 bytes, a decimal of 16, and 44 bytes of text."""


class Sampler(threading.Thread):
    """The largest resident memory of this process and all below it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.parts: dict[str, int] = {}
        self.ended = False

    def run(self) -> None:
        """Sample until told to end."""
        me = psutil.Process()
        while not self.ended:
            parts = {"driver": 0, "jvm": 0, "workers": 0}
            for process in [me, *me.children(recursive=True)]:
                try:
                    size = process.memory_full_info().pss
                    name = "jvm" if process.name() == "java" else "workers"
                except psutil.Error:
                    continue
                parts["driver" if process.pid == me.pid else name] += size
            if (total := sum(parts.values())) > self.peak:
                self.peak, self.parts = total, parts
            time.sleep(0.05)


async def stage_and_read(rows: int, heap_mib: int) -> dict[str, float]:
    """Stage `rows` orders in one epoch, read them all, and say what it took."""
    spark = start_spark(Settings(spark_driver_memory=f"{heap_mib}m"))
    spark.range(1000).selectExpr("sum(id)").collect()
    sampler = Sampler()
    sampler.start()
    source = HandedSource()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(
            Path(folder),
            settings={"barrier_interval_ms": 600_000, "maintenance_interval_s": 3600},
            connectors={"bench": lambda name, options: source},
            spark=spark,
        )
        async with engine:
            await engine.create_source("bench", "bench", {}, tables={"orders": ORDERS})
            started = time.perf_counter()
            await source.hand(orders=order_frame(spark, 0, rows))
            await engine.flush()
            staged = time.perf_counter() - started
            started = time.perf_counter()
            frame = engine.table("orders").frame()
            found = frame.selectExpr("count(*)", "sum(id)", "max(note)").collect()[0]
            read = time.perf_counter() - started
            assert (found[0], found[1]) == (rows, rows * (rows - 1) // 2), found
    sampler.ended = True
    sampler.join()
    spark.stop()
    return {"peak": sampler.peak, "staged": staged, "read": read, **sampler.parts}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heap-mib", type=int, default=512)
    parser.add_argument("--times", default="1,10")
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows:
        print(json.dumps(asyncio.run(stage_and_read(arguments.rows, arguments.heap_mib))))
        return
    peaks = []
    for times in (float(text) for text in arguments.times.split(",")):
        rows = int(times * arguments.heap_mib * (1 << 20) / ROW_BYTES)
        command = [sys.executable, __file__, "--rows", str(rows)]
        command += ["--heap-mib", str(arguments.heap_mib)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures = json.loads(answer.stdout.splitlines()[-1])
        peaks.append(figures["peak"])
        print(
            f"{times:5.1f} x heap = {rows:>12,} rows: largest resident memory "
            f"{figures['peak'] / (1 << 20):7.0f} MiB (driver {figures['driver'] >> 20}, "
            f"jvm {figures['jvm'] >> 20}, workers {figures['workers'] >> 20}), staged at "
            f"{rows / figures['staged'] / 1e6:.2f} M rows/s, read at "
            f"{rows / figures['read'] / 1e6:.2f} M rows/s"
        )
    ratio = peaks[-1] / peaks[0]
    print(f"from the first to the last size: {ratio:.2f} times  ({verdict(ratio, 1.2)})")


if __name__ == "__main__":
    main()
