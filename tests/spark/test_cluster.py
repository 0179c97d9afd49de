"""A pipeline on a Spark cluster loses a worker in the middle and is still exact.

The cluster is a standalone master with two workers, all from the PySpark wheel, on loopback.
Every batch is staged by executors (`driver_bytes = 0`). While a stage runs, one worker is
killed together with its executor and the Python processes of that.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from cluster_engine import SOURCES, connector

from engine_kit import (
    CALM,
    built,
    check_change_log,
    check_rows,
    check_versions,
    lost_files,
    stray_files,
)
from headwater.runtime.engine import Engine
from headwater.runtime.java import find_java_home
from headwater.testing.processes import ChildProcess

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PROGRAM = Path(__file__).resolve().parent / "cluster_engine.py"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[psutil.Process]:
    """A process of the cluster; it and all its children are gone afterwards."""
    environment = {**os.environ, **LOOPBACK, "JAVA_HOME": str(find_java_home())}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            [SPARK_CLASS, *arguments],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    process = psutil.Process(started.pid)
    try:
        yield process
    finally:
        kill_tree(process)
        started.wait(60)


def kill_tree(process: psutil.Process) -> list[int]:
    """End a process and all that it started, as `kill -9` does."""
    with suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        return [each.pid for each in family]
    return []


def wait_for(log: Path, text: str, timeout: float = 180) -> None:
    deadline = time.monotonic() + timeout
    while text not in (said := log.read_text(errors="replace")):
        assert time.monotonic() < deadline, f"no {text!r} in {log}:\n{said[-3000:]}"
        time.sleep(0.1)


def executors(worker: psutil.Process) -> list[psutil.Process]:
    """The processes of a worker that run tasks for an application."""
    found = []
    for child in worker.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, psutil.Process, psutil.Process]]:
    """The address of a master, and its two workers."""
    deploy = "org.apache.spark.deploy"
    master = (f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0")
    with daemon(tmp_path, "master", *master, "--webui-port", "0"):
        wait_for(tmp_path / "master.log", "I have been elected leader")
        said = re.search(r"spark://127\.0\.0\.1:\d+", (tmp_path / "master.log").read_text())
        assert said is not None
        url = said[0]
        worker = (f"{deploy}.worker.Worker", url, "--host", "127.0.0.1", "--cores", "1")
        worker += ("--memory", "1g", "--webui-port", "0")
        with (
            daemon(tmp_path, "one", *worker, "--work-dir", str(tmp_path / "one")) as one,
            daemon(tmp_path, "two", *worker, "--work-dir", str(tmp_path / "two")) as two,
        ):
            for name in ("one", "two"):
                wait_for(tmp_path / f"{name}.log", "Successfully registered with master")
            yield url, one, two


@pytest.mark.timeout(1500)
async def test_a_worker_dies_in_the_middle_of_an_epoch(cluster, tmp_path):
    url, doomed, survivor = cluster
    workspace, storage = tmp_path / "w", tmp_path / "storage"
    with ChildProcess(PROGRAM, workspace, storage, url, environment=LOOPBACK) as child:
        child.wait_for_line("^busy", timeout=300)
        assert executors(survivor)
        [executor] = executors(doomed)
        assert executor.pid in kill_tree(doomed)
        child.wait_for_line("^read", timeout=300)
        child.wait_for_line("^done", timeout=300)
        assert child.wait(timeout=120) == 0, child.errors[-3000:]
        child.wait_until_gone(timeout=60)

    settings = {**CALM, "storage_url": str(storage), "retention_s": 86_400}
    connectors = {kind: connector(kind) for kind in ("bank", "generated")}
    sources = built(SOURCES)
    async with Engine(workspace, settings=settings, connectors=connectors) as engine:
        check_rows(engine, sources)
        check_versions(engine)
        for table in engine.store:
            check_change_log(table)
            assert table.manifest().version >= 3, "too few epochs to speak of a middle"
        await engine.maintain()
        assert not (stray := stray_files(engine)), stray
        assert not (lost := lost_files(engine)), lost
