"""A target that is away for a minute while its table changes: pace, memory, storage.

    python bench/sink_outage.py [--seconds 60] [--rows 200]

A writer changes a table in every epoch; a sink follows it into a PostgreSQL, which is stopped for
so many seconds and comes back. Printed are the time of an epoch before, during and after, the
memory of the engine's process, and the size of the sink's log. At the end the target is compared
with the table, both ways.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psutil
import psycopg

import headwater
from sql_sink_kit import restartable_postgres

SETTINGS = {"barrier_interval_ms": 200, "spark_master": "local[2]", "retention_s": 5}
KEYS = 5_000
WARM_S = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", type=int, default=200)
    given = parser.parse_args()
    with (
        restartable_postgres() as server,
        tempfile.TemporaryDirectory() as folder,
        headwater.connect(Path(folder) / "w", settings=SETTINGS) as hw,
    ):
        log = Path(folder) / "w"
        options = ", ".join(f"{name} = '{value}'" for name, value in server.options("t").items())
        hw.sql("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, note varchar)")
        hw.sql(f"CREATE SINK s FROM t WITH (connector = 'postgres', {options})")
        writes = _writes(hw, given.rows)
        _phase("warm", writes, WARM_S, log)
        before = _phase("before", writes, WARM_S, log)
        server.stop()
        during = _phase("away", writes, given.seconds, log)
        server.start()
        _phase("back", writes, WARM_S, log)
        took = _caught_up(hw, server.url)
        after = _phase("after", writes, WARM_S, log)
        _caught_up(hw, server.url)
        time.sleep(12)
        print(
            f"caught up {took:.1f} s after that, and equal both ways; storage {_log(log):,} bytes"
        )
        print(
            f"epoch p99 while it was away: {during[1] / before[1]:.2f} of before;"
            f" after: {after[1] / before[1]:.2f}"
        )
        print(f"memory while it was away: {during[2] / before[2]:.2f} of before")


def _writes(hw: Any, rows: int) -> Iterator[float]:
    """Each change of some rows, until it can be read; gives how long that took."""
    number = 0
    while True:
        number += 1
        first = number * rows % KEYS
        values = ", ".join(f"({first + i}, {number}, 'note {number}')" for i in range(rows))
        began = time.perf_counter()
        hw.sql(f"INSERT INTO t VALUES {values}")
        hw.sql("FLUSH")
        yield time.perf_counter() - began
        time.sleep(0.05)


def _phase(
    name: str, writes: Iterator[float], seconds: float, folder: Path
) -> tuple[float, float, float]:
    until = time.monotonic() + seconds
    took, memory = [], []
    process = psutil.Process()
    while time.monotonic() < until:
        took.append(next(writes))
        memory.append(process.memory_info().rss)
    worst = sorted(took)[int(len(took) * 0.99)]
    half = statistics.median(took)
    most = max(memory)
    print(
        f"{name:7} {len(took):4} epochs, p50 {half * 1000:4.0f} ms, p99 {worst * 1000:4.0f} ms,"
        f" memory {most / 2**20:5.0f} MiB, log {_log(folder):>12,} bytes"
    )
    return half, worst, most


def _log(folder: Path) -> int:
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if "sink_logs" in path.parts and path.is_file()
    )


def _caught_up(hw: Any, url: str) -> float:
    began = time.perf_counter()
    hw.sql("FLUSH")
    mine = sorted(
        tuple(row.values())
        for row in hw.stored("t").rows(hw.visible).select(["id", "v", "note"]).to_pylist()
    )
    while True:
        with psycopg.connect(url, autocommit=True) as db:
            if sorted(db.execute("SELECT id, v, note FROM t").fetchall()) == mine:
                return time.perf_counter() - began
        if time.perf_counter() - began > 120:
            raise SystemExit("the target does not have the rows of the table")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
