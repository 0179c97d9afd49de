"""The fuzzer's command line: seeds one after the other on one Spark session."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.config import Settings
from headwater.runtime.spark import start_spark
from headwater.testing.fuzz.life import QUICK
from headwater.testing.fuzz.shrink import shrunk
from headwater.testing.fuzz.world import SeedFailed, run_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN_INVALID = 10


def quick_session() -> "SparkSession":
    """A Spark session for few rows."""
    settings = Settings().change({"spark_master": "local[2]", "spark_driver_memory": "1g"})
    spark = start_spark(settings, app="headwater-fuzz")
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    return spark


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds that were asked for; the exit code says whether all were well."""
    asked = _parser().parse_args(arguments)
    spark = quick_session()
    began = time.monotonic()
    told: Counter[str] = Counter()
    invalid: list[str] = []
    failures: list[SeedFailed] = []
    done = 0
    for seed in range(asked.seed0, asked.seed0 + asked.seeds):
        if asked.minutes and time.monotonic() - began > 60 * asked.minutes:
            break
        done += 1
        with tempfile.TemporaryDirectory(prefix="headwater-fuzz-") as folder:
            try:
                report = run_seed(spark, seed, Path(folder))
            except SeedFailed as failed:
                failures.append(failed)
                print(failed, flush=True)
                if asked.shrink:
                    _print_shrunk(spark, failed, Path(folder))
                if asked.stop_at_first:
                    break
                continue
        told += report.told
        invalid += report.invalid
        if asked.verbose:
            print(f"seed {seed}: {report.seconds:.1f} s, {_listed(report.told)}", flush=True)
    took = time.monotonic() - began
    for text in invalid[:_SHOWN_INVALID]:
        print(f"invalid: {text}", file=sys.stderr)
    each = took / max(done, 1)
    print(f"{done} seeds, {len(failures)} failures in {took:.0f} s ({each:.1f} s per seed)")
    print(_listed(told))
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headwater.testing.fuzz")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed0", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=0, help="begin no seed after that long")
    parser.add_argument("--stop-at-first", action="store_true", help="stop at a failure")
    parser.add_argument("--shrink", action="store_true", help="make failures smaller")
    parser.add_argument("--verbose", action="store_true", help="print a line per seed")
    return parser


def _print_shrunk(spark: "SparkSession", failed: SeedFailed, folder: Path) -> None:
    smaller = shrunk(spark, failed.steps, folder)
    print(f"seed {failed.seed}, made smaller: {smaller}", flush=True)


def _listed(told: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(told.items()))
