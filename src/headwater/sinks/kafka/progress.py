"""How far a sink is, as records of a compacted topic: one key per sink.

    key      the sink's ident
    value    {"epoch": 41, "term": 3, "commit_id": "orders_41"}

A record is written in the transaction of the messages it stands for, so it is there if and only
if they are. It is looked for only after `init_transactions`, which ends what a predecessor left
open; and up to the true end of the partition, since a transaction of another sink that is still
open hides all that comes after it from those who read committed records only.
"""

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headwater.errors import DamagedState, SinkUnavailable
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term

NO_TERM = Term(0)
PARTITIONS = 16
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted, and every start reads the whole partition.
    "segment.bytes": str(1 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a target has of a sink, and who wrote it."""

    epoch: Epoch = NO_EPOCH
    term: Term = NO_TERM
    commit_id: str = ""

    def to_bytes(self) -> bytes:
        """As it stands in the topic."""
        return json.dumps(
            {"epoch": self.epoch, "term": self.term, "commit_id": self.commit_id}
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes | None, where: str) -> Self:
        """Read it back; a sink that was dropped has no value."""
        if value is None:
            return cls()
        try:
            found = json.loads(value)
            return cls(
                epoch=Epoch(int(found["epoch"])),
                term=Term(int(found["term"])),
                commit_id=str(found["commit_id"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedState(f"{where} holds a record that is no progress") from error


def partition_of(ident: str, partitions: int) -> int:
    """Where a sink's records are."""
    return zlib.crc32(ident.encode()) % partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTopic:
    """Where a sink's records are, and how to get there."""

    client: Mapping[str, Any] = field(repr=False)
    topic: str
    partition: int
    ident: str
    timeout_s: float

    def read(self, *, whole: bool) -> Progress:
        """The last committed record of the sink, or one that says nothing.

        Where `whole` is false it may be an older one: nobody's open transaction is waited for.
        Raises `KafkaException` when the broker does not answer, `SinkUnavailable` when another
        sink's transaction stays open for too long.
        """
        consumer = Consumer(
            {
                **self.client,
                # Never a member of a group: nothing is subscribed to and nothing is committed.
                "group.id": f"headwater-{self.ident}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, self.partition, 0)])
            return self._last(consumer, whole)
        finally:
            consumer.close()

    def _last(self, consumer: Consumer, whole: bool) -> Progress:
        deadline = time.monotonic() + self.timeout_s
        last = Progress()
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            error = None if message is None else message.error()
            if message is None:
                continue
            if error is None:
                if message.key() == self.ident.encode():
                    last = Progress.from_bytes(message.value(), f'"{self.topic}"')
            elif error.code() == KafkaError._PARTITION_EOF:
                if not whole or (message.offset() or 0) >= self._true_end(consumer):
                    return last
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        raise SinkUnavailable(
            f'the progress topic "{self.topic}" cannot be read to its end',
            detail=f"Partition {self.partition}: somebody's transaction is open, or the broker "
            "does not answer.",
        )

    def _true_end(self, consumer: Consumer) -> int:
        """The end as the last answer had it, with what open transactions have written."""
        place = TopicPartition(self.topic, self.partition)
        _, high = consumer.get_watermark_offsets(place, cached=True)
        return int(high)
