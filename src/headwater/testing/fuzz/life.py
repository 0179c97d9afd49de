"""One engine after the other on a workspace: how the fuzzer starts, crashes and ends them.

A crash in this process cannot be as hard as SIGKILL: Python still unwinds. But no last checkpoint
is made, nothing is released, and once a crash point was hit, every later one raises too, so that
nothing after it is written. The engine after it takes the workspace over, as after a real crash.
`tests/crash/test_fuzz_kills.py` has the real one.
"""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.session.synchronous import Headwater
from headwater.testing.crash_plan import CrashPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: dict[str, Any] = {
    # Epochs come when the script asks for them; folding too.
    "barrier_interval_ms": 60_000,
    "maintenance_interval_s": 3600.0,
    "fold_files": 2,
    "manifest_every": 3,
    "delta_checkpoint_every": 2,
    "storage_fsync": False,
    "takeover_wait_s": 1.0,
    "spark_master": "local[2]",
}
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
}
"""Spark settings under which a query over few rows does not wait for the compiler."""

_POLL_S = 0.005
_GRACE_S = 30.0


class Life:
    """A running engine; `crash` ends it badly, `stop` well."""

    def __init__(self, workspace: Path, spark: "SparkSession | None") -> None:
        self.hw = Headwater(workspace, spark=spark, settings=SETTINGS, take_over=True)

    def stop(self) -> None:
        """End well."""
        self.hw.stop()

    def flush_and_crash(self, point: str, nth: int) -> bool:
        """Commit an epoch and die at a crash point; False when it was not reached."""
        with CrashPlan.at(point, nth) as plan:
            committing = asyncio.run_coroutine_threadsafe(self.hw.engine.flush(), self.hw._loop)
            while plan.crashed is None and not committing.done():
                time.sleep(_POLL_S)
            if plan.crashed is None:
                committing.result()
                return False
            self.crash()
            return True

    def crash(self) -> None:
        """End without a last checkpoint, and without giving the workspace up."""
        hw = self.hw
        hw._wait(_cancel_all())
        hw._interpreter.house.blocking.close()
        hw.engine._blocking.close()
        hw.engine.ledger.close()
        hw._end_loop()


async def _cancel_all() -> None:
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            # A crash that nobody waited for is no news.
            task.exception()
