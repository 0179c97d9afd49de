"""The Spark session, tuned for many short jobs.

Everything Headwater asks of Spark's settings is here, with the reason beside it. A session that
the user made is taken as it is, except for settings that results depend on; those are checked.
"""

import contextlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.config import Settings
from headwater.errors import ConfigError
from headwater.runtime.class_archive import archive_options
from headwater.runtime.java import find_java_home
from headwater.runtime.niceness import standing_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties")

_MEANING = {
    # Values must not depend on where the engine runs.
    "spark.sql.session.timeZone": "UTC",
    # Decimals are written without exponent, overflow is an error and not a null.
    "spark.sql.ansi.enabled": "true",
    # Identifiers follow PostgreSQL's rules; the planner lower-cases the unquoted ones.
    "spark.sql.caseSensitive": "true",
}

_SPEED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Rows of a kilobyte and more: the heap holds several batches of each task.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # Files of a table are many and small; one task should read several of them.
    "spark.sql.files.openCostInBytes": str(1 << 20),
    # Listing is never needed, the manifest names the files; keep it on the driver.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Rows from the driver that are more than a handful are for tasks, not for the optimizer, which
    # would filter and project them itself.
    "spark.sql.execution.arrow.localRelationThreshold": "256k",
    "spark.sql.adaptive.enabled": "true",
    # One file per task of a shuffle, however many parts it has.
    "spark.shuffle.sort.bypassMergeThreshold": "2",
    # The views' changes of an epoch are few rows in many operators of one task. Each of them
    # takes at least one page, and pages of the default size use the memory up. A page of a
    # megabyte and its header take two regions of G1 in a heap of 2 GB, so that sorting ran out
    # of memory at half of what Spark had counted; less than half a region is an object like others.
    "spark.buffer.pageSize": "256k",
    # Views have the same plans epoch after epoch: what was compiled once should be found again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Workers keep their memory-mapped files and compiled kernels from job to job.
    "spark.python.worker.reuse": "true",
    "spark.python.worker.idleTimeoutSeconds": "600",
    "spark.locality.wait": "0s",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "headwater-warehouse"),
}

_INITIAL_PARTS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_PARTS_PER_TASK = 8

_ONE_MACHINE = {
    # Nobody from outside has to reach the driver; executors of a cluster have to.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def running_session() -> "SparkSession | None":
    """The session that runs in this process already, whoever started it."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # noqa: PLC0415  the CLI must start fast
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # Spark's "active session" is that of a thread; a process has one context.
    if SparkContext._active_spark_context is None:
        return None
    known = SparkSession._instantiatedSession
    # The builder would ask the Java process, at every call.
    if known is not None and known._sc is SparkContext._active_spark_context:
        return known
    return SparkSession.builder.getOrCreate()


def start_spark(settings: Settings, *, app: str = "headwater") -> "SparkSession":
    """Start a session in a process that has none."""
    java_home = find_java_home()
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  the CLI must start fast

    partitions = settings.spark_shuffle_partitions or _cores(settings.spark_master)
    builder = (
        SparkSession.builder.master(settings.spark_master)
        .appName(app)
        .config("spark.driver.memory", settings.spark_driver_memory)
        .config("spark.sql.shuffle.partitions", str(partitions))
        .config("spark.default.parallelism", str(partitions))
        # What a shuffle divides into few parts does not fit a task's memory when it is large;
        # small parts are put together again once their sizes are known.
        .config(_INITIAL_PARTS, str(partitions * _PARTS_PER_TASK))
        .config(
            "spark.driver.extraJavaOptions",
            # A process that ran out of memory answers nobody: better that it ends, and is
            # started again.
            f"-Dlog4j2.configurationFile=file:{_LOGGING} -XX:+ExitOnOutOfMemoryError "
            f"{archive_options(java_home)} {settings.spark_java_options}",
        )
    )
    place = _ONE_MACHINE if is_local(settings.spark_master) else {}
    for name, value in {**_SPEED, **place, **_MEANING}.items():
        builder = builder.config(name, value)
    # PySpark logs the stack of every error that it raises as well.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if not is_local(settings.spark_master):
        return builder.getOrCreate()
    # Its tasks run in the process that is started here.
    return standing_back(settings.background_niceness, builder.getOrCreate)


def forget_spark() -> None:
    """Let go of a session whose process is gone, so that another can be started.

    PySpark keeps the way to its one Java process in class variables, and has no other means to
    begin anew.
    """
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    gateway = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()


def check_session(spark: "SparkSession") -> None:
    """Refuse a session under which the same query would mean something else."""
    for name, value in _MEANING.items():
        found = spark.conf.get(name, None)
        if str(found).lower() != value.lower():
            raise ConfigError(
                f"the Spark session has {name} = {found}",
                detail=f"Headwater needs {name} = {value}: results depend on it.",
                hint=f'Build the session with .config("{name}", "{value}").',
            )


def parallelism(settings: Settings) -> int:
    """How many tasks run side by side, as far as the master's name tells."""
    return settings.spark_shuffle_partitions or _cores(settings.spark_master)


def is_local(master: str) -> bool:
    """Whether the executors are in this process."""
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    if master.startswith("local[") and master.endswith("]"):
        inside = master[len("local[") : -1].split(",", maxsplit=1)[0]
        return (os.cpu_count() or 1) if inside == "*" else int(inside)
    if master == "local":
        return 1
    return max(4, os.cpu_count() or 1)
