"""What the benchmarks share: a source that is handed its batches, and honest clocks.

Machines are noisy, so every figure is a median and is printed as a ratio to a bare Spark job
that runs in the same session, in between the things that are measured.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.model.change import ChangeType
from headwater.model.ids import SourceName
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, TIMESTAMPTZ, VARCHAR, decimal

ORDERS = Schema(
    (
        Column("id", BIGINT),
        Column("customer", BIGINT),
        Column("status", VARCHAR),
        Column("amount", decimal(12, 2)),
        Column("items", INTEGER),
        Column("placed_at", TIMESTAMPTZ),
        Column("note", VARCHAR),
    ),
    ("id",),
)


class HandedSource:
    """A source whose batches are handed in; position n is after the n-th of them."""

    def __init__(self) -> None:
        self.name = SourceName("bench")
        self._batches: list[dict[str, Any]] = []
        self._read = 0

    async def hand(self, **changes: Any) -> None:
        """Offer a batch and wait until the engine has read it."""
        self._batches.append(changes)
        while self._read < len(self._batches):
            await asyncio.sleep(0.001)

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """The next batch."""
        del max_bytes
        at = int(after or 0)
        if at >= len(self._batches):
            return SourceBatch(position=str(at))
        self._read = at + 1
        return SourceBatch(position=str(at + 1), changes=self._batches[at])

    async def acknowledge(self, position: str) -> None:
        """Nothing to forget."""

    async def close(self) -> None:
        """Nothing to close."""


def order_frame(spark: Any, first: int, count: int) -> Any:
    """Orders as inserts, made by Spark."""
    return spark.range(first, first + count).selectExpr(
        "id",
        "pmod(hash(id), 1000000) as customer",
        "element_at(array('new', 'paid', 'sent'), cast(id % 3 + 1 as int)) as status",
        "cast(pmod(xxhash64(id), 1000000) / 100 as decimal(12,2)) as amount",
        "cast(id % 9 as int) as items",
        "timestamp_micros(1700000000000000 + id * 1000) as placed_at",
        "sha1(cast(id as string)) as note",
        f"'{ChangeType.INSERT}' as {CHANGE_TYPE}",
    )


def order_changes(random: np.random.Generator, rows: int, count: int, fresh: int) -> pa.Table:
    """`count` changes over a table of `rows`: 20 % inserts, 60 % updates, 20 % deletes."""
    kinds = random.choice(3, size=count, p=[0.2, 0.6, 0.2])
    ids = random.integers(0, rows, count)
    ids[kinds == 0] = fresh + np.arange((kinds == 0).sum())
    words = np.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE])
    cents = pa.array(random.integers(0, 10**6, count)).cast(pa.decimal128(19, 0))
    return pa.table(
        {
            "id": ids,
            "customer": random.integers(0, 10**6, count),
            "status": np.array(["new", "paid", "sent"])[random.integers(0, 3, count)],
            "amount": cents.cast(pa.decimal128(12, 2), safe=False),
            "items": random.integers(0, 9, count).astype(np.int32),
            "placed_at": pa.array(random.integers(0, 2**50, count)).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "note": [f"changed {number:032d}" for number in range(count)],
            CHANGE_TYPE: words[kinds],
        }
    )


async def median_of(runs: int, work: Callable[[], Awaitable[float]]) -> float:
    """The median of what `work` answers, after two runs that do not count."""
    for _ in range(2):
        await work()
    return statistics.median([await work() for _ in range(runs)])


def bare_job(spark: Any) -> float:
    """The time of the smallest Spark job there is."""
    started = time.perf_counter()
    spark.range(10).selectExpr("sum(id)").collect()
    return time.perf_counter() - started


def verdict(value: float, aim: float) -> str:
    """Whether an aim is met, in words."""
    return f"aim at most {aim:g}: {'met' if value <= aim else 'NOT met'}"
