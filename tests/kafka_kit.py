"""What tests of the Kafka sink share: specs, deliveries, and a reader of committed messages."""

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import BIGINT, VARCHAR
from headwater.sinks.kafka.session import SESSIONS
from headwater.sinks.kafka.sink import kafka_sink
from headwater.sinks.sink import Delivery, SinkKind, SinkSpec, TransactionalSink
from kafka_servers import RunningBroker

Row = tuple[Any, ...]
Rows = Sequence[Row]
_SETTLED_WITHIN_S = 60.0


def options(broker: RunningBroker, topic: str, **more: str) -> dict[str, str]:
    given = {
        "properties.bootstrap.server": broker.address,
        "topic": topic,
        "partitions": "3",
        "properties.message.timeout.ms": "20000",
    }
    return given | {name.replace("_", "."): value for name, value in more.items()}


def sink_spec(broker: RunningBroker, kind: SinkKind = SinkKind.UPSERT, **more: str) -> SinkSpec:
    ident = f"t_{secrets.token_hex(5)}"
    return SinkSpec(
        name="orders",
        ident=ident,
        columns=(Column("id", BIGINT), Column("name", VARCHAR)),
        key=("id",),
        kind=kind,
        options=options(broker, ident, **more),
    )


def batches(spec: SinkSpec, rows: Rows) -> Iterator[pa.RecordBatch]:
    for low in range(0, len(rows), 3):
        columns = [list(column) for column in zip(*rows[low : low + 3], strict=True)]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, spec.arrow, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=spec.arrow)


def delivery(spec: SinkSpec, epoch: int, term: int = 1) -> Delivery:
    after = Epoch(epoch - 1)
    return Delivery(sink=spec.ident, after=after, epoch=Epoch(epoch), term=Term(term), rows=0)


def read(broker: RunningBroker, topic: str, isolation: str = "read_committed") -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader-of-the-test",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + _SETTLED_WITHIN_S

    def waits() -> bool:
        """A commit is decided before readers see it: only where nothing is under way wait."""
        lock = SESSIONS._locks.get(topic)
        return time.monotonic() < deadline and not (lock is not None and lock.locked())

    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        messages, ended = [], set()
        while len(ended) < len(partitions):
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    break
                continue
            if message.error() is None:
                messages.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                place = TopicPartition(topic, message.partition())
                _, end = consumer.get_watermark_offsets(place, cached=True)
                if message.offset() >= end or not waits():
                    ended.add(message.partition())
        return messages
    finally:
        consumer.close()


def pairs(messages: Sequence[Any]) -> list[Any]:
    return [
        (
            message.key() and json.loads(message.key()),
            message.value() and json.loads(message.value()),
        )
        for message in messages
    ]


def seen(broker: RunningBroker, spec: SinkSpec) -> Counter[tuple[int, str | None]]:
    """Ids with their names, as often as a reader sees them; None for a delete."""
    return Counter(
        (key["id"], value and value["name"])
        for key, value in pairs(read(broker, spec.options["topic"]))
    )


class KafkaCase:
    """The sink as the public kit tries it; what a reader has after reading all messages."""

    large_rows = 20_000

    def __init__(self, broker: RunningBroker, kind: SinkKind) -> None:
        self.broker, self.kind = broker, kind

    def make(self, spec: SinkSpec) -> TransactionalSink:
        return kafka_sink(replace(spec, options=options(self.broker, spec.ident)))

    def rows(self, spec: SinkSpec) -> list[Row]:
        found = pairs(read(self.broker, spec.ident))
        if self.kind is SinkKind.APPEND_ONLY:
            return [tuple(value.values()) for _, value in found]
        rows: dict[int, Row] = {}
        for key, value in found:
            if self.kind is SinkKind.RETRACT and value is not None:
                before = value["before"] and tuple(value["before"].values())
                assert before == rows.get(key["id"])
                value = value["after"]  # noqa: PLW2901
            if value is None:
                rows.pop(key["id"], None)
            else:
                rows[key["id"]] = tuple(value.values())
        return list(rows.values())

    def stop_target(self) -> None:
        self.broker.stop()

    def start_target(self) -> None:
        self.broker.start()
