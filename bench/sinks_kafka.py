"""How fast rows reach Kafka, against a bare loop of `produce()` over ready-made messages.

    python bench/sinks_kafka.py [rows]

All figures are ratios to that loop, which sends messages of 100 bytes outside of transactions and
runs in between the things that are measured, against the same broker: a real one, on one partition
more than it has cores. Aim: 0.6 with JSON made on the way.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import BIGINT, TIMESTAMPTZ, VARCHAR, decimal
from headwater.sinks.kafka.options import KafkaOptions
from headwater.sinks.kafka.producer import OpenProducer
from headwater.sinks.kafka.sink import kafka_sink
from headwater.sinks.sink import Delivery, SinkKind, SinkSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from kafka_servers import RunningBroker, kafka_broker

ROUNDS = 3
AIM = 0.6
COLUMNS = (
    Column("id", BIGINT),
    Column("status", VARCHAR),
    Column("amount", decimal(12, 2)),
    Column("placed_at", TIMESTAMPTZ),
)


def bare(broker: RunningBroker, count: int) -> float:
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    keys, value = [b'{"id":%d}' % number for number in range(count)], b"x" * 100
    started = time.perf_counter()
    for key in keys:
        while True:
            try:
                producer.produce("bench", value, key)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return time.perf_counter() - started


def ready_made(options: KafkaOptions, count: int) -> float:
    producer = OpenProducer(options, "bench-ready")
    keys, value = [b'{"id":%d}' % number for number in range(count)], b"x" * 100
    started = time.perf_counter()
    producer.begin()
    for low in range(0, count, 16_384):
        some = keys[low : low + 16_384]
        producer.send("bench", (list(some), [value] * len(some)))
    producer.commit()
    taken = time.perf_counter() - started
    producer.close()
    return taken


def batches(schema: pa.Schema, count: int) -> list[pa.RecordBatch]:
    random = np.random.default_rng(1)
    cents = pa.array(random.integers(0, 10**6, count)).cast(pa.decimal128(19, 0))
    table = pa.table(
        [
            pa.array(np.full(count, int(RowOp.INSERT), dtype=np.int8)),
            pa.array(np.arange(count)),
            pa.array(np.array(["new", "paid", "sent"])[random.integers(0, 3, count)]),
            cents.cast(pa.decimal128(12, 2), safe=False),
            pa.array(random.integers(0, 2**50, count)).cast(pa.timestamp("us", tz="UTC")),
        ],
        schema=schema,
    )
    return table.to_batches(max_chunksize=65_536)


def delivering(broker: RunningBroker, count: int) -> Callable[[], float]:
    spec = SinkSpec(
        name="bench", ident="bench", columns=COLUMNS, key=("id",), kind=SinkKind.UPSERT,
        options={"properties.bootstrap.server": broker.address, "topic": "bench"},
    )  # fmt: skip
    sink, rows = kafka_sink(spec), batches(spec.arrow, count)
    epochs: Iterator[int] = iter(range(sink.begin(Term(1)) + 1, 1_000_000))

    def deliver() -> float:
        epoch = Epoch(next(epochs))
        started = time.perf_counter()
        sink.deliver(
            Delivery(sink="bench", after=Epoch(epoch - 1), epoch=epoch, term=Term(1), rows=count),
            rows,
        )
        return time.perf_counter() - started

    return deliver


def small(broker: RunningBroker) -> float:
    deliver = delivering(broker, 100)
    for _ in range(3):
        deliver()
    return statistics.median(deliver() for _ in range(20))


def main(count: int) -> None:
    with kafka_broker() as broker:
        given = {"properties.bootstrap.server": broker.address, "topic": "bench"}
        options = KafkaOptions.of(given | {"partitions": "3"})
        kafka_sink(
            SinkSpec(name="b", ident="b", columns=COLUMNS, key=("id",), kind=SinkKind.UPSERT,
                     options=given | {"partitions": "3"})
        ).check()  # fmt: skip
        deliver = delivering(broker, count)
        bare(broker, count // 10)
        ready, made, loops = [], [], []
        for _ in range(ROUNDS):
            before = bare(broker, count)
            ready.append(ready_made(options, count))
            made.append(deliver())
            after = bare(broker, count)
            loops += [before, after]
        loop = statistics.median(loops)
        print(f"bare produce() loop       {count / loop / 1e6:5.2f} M messages/s")
        print(f"ready-made, our producer  {loop / statistics.median(ready):5.2f} of it")
        ratio = loop / statistics.median(made)
        met = "met" if ratio >= AIM else "NOT met"
        print(f"JSON upsert, deliver      {ratio:5.2f} of it; aim at least {AIM}: {met}")
        print(f"delivery of 100 rows      {small(broker) * 1000:5.0f} ms until committed")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
