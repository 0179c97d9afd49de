"""`spark.readStream.format("headwater-postgres")`: rows, then changes; none lost, none doubled."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
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
CALM = {"processingTime": "4 seconds"}
"""Time enough for a batch, so that one can stop between two."""


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def options(upstream):  # noqa: F811
    return postgres_options(upstream.url, slot__name="plain")


def slot(upstream):  # noqa: F811
    query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
    return upstream.rows(query)[0][0]


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
            eventually(lambda: len(applied.numbers) >= batches, 120)  # noqa: B023
            _stop_between(query, applied)
        assert 0 < len(applied.rows) < MOST - 4 * 1500
        assert count[0] > 100
    applied.run(changes)
    assert_both_ways(applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not applied.wrong, applied.wrong[:3]
    assert applied.numbers == list(range(len(applied.numbers)))
    assert min(applied.kinds[kind] for kind in ("insert", "delete", "update_postimage")) > 10
    assert any(row["_commit_timestamp"] for row in applied.changes)
    # What is committed is acknowledged, and nothing more.
    applied.run(changes)
    assert slot(upstream) > 0


def _stop_between(query, applied):
    """Stop a query while it waits: no batch is under way."""
    eventually(lambda: not query.status["isTriggerActive"])
    query.stop()
    names = [
        sorted(int(file.name) for file in (applied.checkpoint / kind).iterdir()
               if file.name.isdigit())
        for kind in ("offsets", "commits")
    ]  # fmt: skip
    assert names[0] == names[1], "the test stopped in the middle of a batch"
