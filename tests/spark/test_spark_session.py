"""Whose Spark session it is: the engine stops what it started and nothing else."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.config import Settings
from headwater.errors import ConfigError
from headwater.runtime.session import SparkHandle

ALONE = """
from headwater.config import Settings
from headwater.runtime.session import SparkHandle

settings = Settings().change({"spark_master": "local[1]", "spark_driver_memory": "512m"})
first, second = SparkHandle(settings), SparkHandle(settings)
second.stop()
assert first() is second()
second.stop()
assert first().range(10).count() == 10
first.stop()
assert second().range(20).count() == 20
second.stop()
first.stop()
print("done")
"""


def in_another_thread(deed):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(deed).result()


def test_a_session_that_runs_already_is_used_and_left_alone(spark):
    handle = SparkHandle(Settings())
    # The active session is one of a thread: this one has none.
    assert in_another_thread(handle) is spark
    assert handle() is spark
    handle.lost()
    handle.stop()
    assert spark.range(3).count() == 3


def test_a_session_that_runs_already_is_checked(spark):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(ConfigError, match=r"spark\.sql\.ansi\.enabled = false"):
            in_another_thread(SparkHandle(Settings()))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_two_in_one_process_outlive_each_other():
    answer = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.split()[-1] == "done"
