"""`spark.readStream.format("headwater-postgres")`: rows, then changes; none lost, none doubled."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cdc_kit import (  # noqa: F401  fixtures
    FILL,
    MOST,
    ORDERS,
    eventually,
    server,
    upstream,
    write_orders,
    writers,
)
from external_source_kit import (
    POSTGRES,
    SECRET,
    Applied,
    assert_both_ways,
    postgres_options,
    stream_of,
)
from headwater.spark_source.register import register

QUICK = {"processingTime": "0 seconds"}
CALM_S = 4
CALM = {"processingTime": f"{CALM_S} seconds"}
"""Time enough for a batch, so that one can stop between two."""


pytestmark = pytest.mark.timeout(600)
"""Tasks of a fresh session load a lot before they read their first row."""


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def options(upstream):  # noqa: F811
    return postgres_options(upstream.url, slot__name="plain")


def test_rows_and_then_every_change_once(session, upstream, options, tmp_path):  # noqa: F811
    """Writers write all the time; the query is stopped and started again, also in the rows."""
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(MOST))
    changes = stream_of(
        session, POSTGRES, options, "orders", rows_per_split=1500, splits_per_batch=4
    )
    applied = Applied(tmp_path / "checkpoint", ["id"])
    with writers(upstream, write_orders) as count:
        for batches in (4, 7):
            query = applied.start(changes, **CALM)
            eventually(lambda: len(applied.numbers) >= batches, 240)  # noqa: B023
            _stop_between(query, applied)
        assert 0 < len(applied.rows) < MOST - 4 * 1500
        assert count[0] > 100
    applied.run(changes)
    assert_both_ways(applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not applied.wrong, applied.wrong[:3]
    assert applied.numbers == list(range(len(applied.numbers)))
    assert min(applied.kinds[kind] for kind in ("insert", "delete", "update_postimage")) > 10
    assert any(row["_commit_timestamp"] for row in applied.changes)
    assert SECRET not in _everything_in(applied.checkpoint)


def _everything_in(folder):
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return "".join(file.read_text(errors="replace") for file in files)


def _stop_between(query, applied):
    """Stop a query while it waits: no batch is under way."""

    def waits():
        # Batches begin at multiples of the interval: none just now.
        left = CALM_S - time.time() % CALM_S
        return left > 0.5 and not query.status["isTriggerActive"]

    eventually(waits)
    assert SECRET not in f"{query.lastProgress} {query._jsq.explainInternal(True)}"
    query.stop()
    names = [
        sorted(int(file.name) for file in (applied.checkpoint / kind).iterdir()
               if file.name.isdigit())
        for kind in ("offsets", "commits")
    ]  # fmt: skip
    assert names[0] == names[1], "the test stopped in the middle of a batch"


FOLLOW = """
import json, os, sys
from headwater.spark_source.register import register
from pyspark.sql import SparkSession

options, folder, trigger = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)


def keep(batch, number):
    rows = batch.toArrow().to_pylist()
    with open(f"{folder}/new", "w") as file:
        json.dump(rows, file, default=str)
    os.replace(f"{folder}/new", f"{folder}/{number:06d}.json")


changes = spark.readStream.format("headwater-postgres").options(**options).load()
writer = changes.writeStream.foreachBatch(keep).option("checkpointLocation", folder + "/checkpoint")
writer.trigger(**trigger).start().awaitTermination()
"""


@contextlib.contextmanager
def _follower(options, folder, trigger):
    """A driver in a process of its own, with all its children gone in the end."""
    arguments = [json.dumps(options), str(folder), json.dumps(trigger)]
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, *arguments], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def test_a_driver_that_is_killed_goes_on_from_its_checkpoint(upstream, options, tmp_path):  # noqa: F811
    """Batches that come again replace those of the same number, as a sink by number has it."""
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(MOST))
    options |= {"table.name": "orders", "since": "snapshot"}
    options |= {"rows_per_split": "1000", "splits_per_batch": "2"}

    def kept():
        return sorted(tmp_path.glob("*.json"))

    with writers(upstream, write_orders):
        with _follower(options, tmp_path, QUICK) as process:
            eventually(lambda: len(kept()) >= 5 or process.poll() is not None, 240)
            assert process.poll() is None, process.stderr.read()[-2000:]
    before = len(kept())
    with _follower(options, tmp_path, {"availableNow": True}) as process:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said[-2000:]
    assert len(kept()) > before + 5
    applied = Applied(None, ["id"], exact=False)
    for file in kept():
        applied.apply(json.loads(file.read_text()))
    theirs = upstream.rows("SELECT id, customer, status, amount::text, n, note FROM orders")
    ours = [
        tuple(row[name] for name in ("id", "customer", "status", "amount", "n", "note"))
        for row in applied.rows.values()
    ]
    assert_both_ways(ours, theirs)
    assert not applied.wrong, applied.wrong[:3]
