"""Bring large deliveries from the log to a target by Spark tasks.

    a sink that            is given its rows by
    has transactions       one task, which reads one part of the rows after the other
    is staged              as many tasks as Spark has room for, each with a share of its own

The tasks read the files themselves; no row comes to the driver. A task that Spark runs twice is
what every sink must bear: a delivery that the target has changes nothing.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.errors import BrokenInvariant, HeadwaterError
from headwater.logstore.items import LogChunk
from headwater.runtime.blocking import Blocking
from headwater.runtime.sinks.bringing import ANSWER, Part, bringing
from headwater.runtime.sinks.log_files import LogFiles, Share
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_world import SparkSource
from headwater.sinks.fold import Folding
from headwater.sinks.sink import Delivery, Receipt, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkCourier:
    """Satisfies the sinks room's `Courier` for one sink."""

    def __init__(
        self,
        folding: Folding,
        log: LogFiles,
        spark: SparkSource,
        *,
        parallelism: int,
        blocking: Blocking,
    ) -> None:
        self._folding = folding
        self._log = log
        self._spark = spark
        self._parallelism = parallelism
        self._blocking = blocking

    async def deliver(self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]) -> None:
        """Bring all rows to a transactional sink. Replay: as the sink's `deliver`."""
        fresh = await self._blocking(self._log.inserts_only, chunks)
        whole = replace(delivery, inserts_only=fresh)
        shares = await self._blocking(self._log.shares, chunks, 1)
        await self._blocking(self._run, self._parts(shares, sink, whole))

    async def prepare(
        self, sink: Sink, delivery: Delivery, chunks: Sequence[LogChunk]
    ) -> tuple[Receipt, ...]:
        """Bring all rows to a staged sink, in parts. Replay: writes new parts."""
        shares = await self._blocking(self._log.shares, chunks, self._parallelism)
        return tuple(await self._blocking(self._run, self._parts(shares, sink, delivery)))

    # Inside

    def _parts(self, shares: Sequence[Share], sink: Sink, delivery: Delivery) -> list[Part]:
        return [
            Part(number, share, sink, delivery, self._folding)
            for number, share in enumerate(shares)
        ]

    def _run(self, parts: Sequence[Part]) -> list[Receipt]:
        try:
            answers = _answers(self._spark(), parts)
        except HeadwaterError:
            raise
        except Exception as error:
            why = explained(error)
            if isinstance(why, SparkGone):
                self._spark.lost()
            raise why from error
        for answer in answers:
            if answer["error"] is not None:
                raise pickle.loads(answer["error"])
        if len(answers) != len(parts):
            raise BrokenInvariant(f"{len(parts)} tasks were to bring rows, {len(answers)} answered")
        return [answer["receipt"] or b"" for answer in sorted(answers, key=lambda a: a["part"])]


def _answers(spark: "SparkSession", parts: Sequence[Part]) -> list[dict[str, Any]]:
    # One task for each, without a shuffle.
    frame = spark.range(0, len(parts), 1, len(parts))
    found: list[dict[str, Any]] = frame.mapInArrow(bringing(parts), ANSWER).toArrow().to_pylist()
    return found
