"""The Kafka sink against a real broker, by the eyes of a reader of committed messages."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.errors import ConfigError, Fenced, RetryableError, SinkUnavailable, UserError
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH
from headwater.model.ids import Term
from headwater.sinks.kafka import target
from headwater.sinks.kafka.producer import OpenProducer
from headwater.sinks.kafka.progress import PARTITIONS, partition_of
from headwater.sinks.kafka.session import Sessions
from headwater.sinks.kafka.sink import kafka_sink
from headwater.sinks.sink import SinkKind, SinkSpec, TransactionalSink
from headwater.testing.sink_kit import CHECKS, run_check
from kafka_kit import KafkaCase, Rows, batches, delivery, read, seen, sink_spec
from kafka_servers import PASSWORD, USER, RunningBroker, kafka_broker

pytestmark = pytest.mark.server

INSERT, DELETE = RowOp.INSERT, RowOp.DELETE


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with kafka_broker() as running:
        yield running


@pytest.fixture
def in_other_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Run something as another process would: with no producer of ours."""
    other = Sessions()

    def run(call: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(target, "SESSIONS", other)
            return call()

    return run


_FOR_ALL = ("rows_arrive", "broken_off")


@pytest.mark.parametrize(
    ("kind", "check"),
    [(SinkKind.UPSERT, check) for check in CHECKS]
    + [(kind, check) for kind in SinkKind if kind is not SinkKind.UPSERT for check in _FOR_ALL],
)
def test_kit(broker: RunningBroker, kind: SinkKind, check: str) -> None:
    run_check(KafkaCase(broker, kind), check)


def test_a_key_stays_in_its_partition_and_in_order(broker: RunningBroker) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    for epoch in range(1, 6):
        rows: Rows = [(INSERT, key, f"{epoch}") for key in range(40)]
        sink.deliver(delivery(spec, epoch), batches(spec, rows))
    places: dict[bytes, set[int]] = {}
    names: dict[bytes, list[str]] = {}
    for message in read(broker, spec.ident):
        places.setdefault(message.key(), set()).add(message.partition())
        names.setdefault(message.key(), []).append(json.loads(message.value())["name"])
    assert set(names) == {f'{{"id":{key}}}'.encode() for key in range(40)}
    assert all(order == ["1", "2", "3", "4", "5"] for order in names.values())
    assert all(len(place) == 1 for place in places.values())
    assert {place for (place,) in places.values()} == {0, 1, 2}


def test_what_is_under_way_is_not_seen_and_readers_are_not_held_up(broker: RunningBroker) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))

    def breaking() -> Iterator[pa.RecordBatch]:
        yield from batches(spec, [(INSERT, 2, "b"), (DELETE, 1, None)])
        deadline = time.monotonic() + 60
        while len(read(broker, spec.ident, "read_uncommitted")) < 3:
            assert time.monotonic() < deadline, "messages are not sent before the commit"
        assert seen(broker, spec) == Counter({(1, "a"): 1})
        raise RetryableError("the log cannot be read")

    with pytest.raises(RetryableError, match="log cannot be read"):
        sink.deliver(delivery(spec, 2), breaking())
    # Aborted at once: somebody else's later message is not held back by ours.
    other = Producer({"bootstrap.servers": broker.address})
    other.produce(spec.ident, b'{"id":9,"name":"z"}', b'{"id":9}')
    other.flush()
    assert seen(broker, spec) == Counter({(1, "a"): 1, (9, "z"): 1})
    sink.deliver(delivery(spec, 2), batches(spec, [(INSERT, 2, "b"), (DELETE, 1, None)]))
    assert seen(broker, spec) == Counter({(1, "a"): 1, (9, "z"): 1, (2, "b"): 1, (1, None): 1})


def test_an_engine_that_was_replaced_in_the_middle(
    broker: RunningBroker, in_other_process: Callable[[Callable[[], Any]], Any]
) -> None:
    spec = sink_spec(broker)
    old, new = kafka_sink(spec), kafka_sink(spec)
    old.check()
    old.begin(Term(1))
    old.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))

    def while_another_begins() -> Iterator[pa.RecordBatch]:
        yield from batches(spec, [(INSERT, 2, "zombie")])
        assert in_other_process(lambda: new.begin(Term(2))) == 1

    with pytest.raises(Fenced, match="term 2"):
        old.deliver(delivery(spec, 2), while_another_begins())
    with pytest.raises(Fenced, match="term 2"):
        old.deliver(delivery(spec, 2), batches(spec, [(INSERT, 2, "zombie")]))
    with pytest.raises(Fenced):
        old.begin(Term(1))
    # The zombie's attempts have not displaced the new engine's producer.
    in_other_process(lambda: new.deliver(delivery(spec, 2, 2), batches(spec, [(INSERT, 2, "new")])))
    assert seen(broker, spec) == Counter({(1, "a"): 1, (2, "new"): 1})


def test_tasks_of_one_engine_take_turns(
    broker: RunningBroker, in_other_process: Callable[[Callable[[], Any]], Any]
) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    for epoch in range(1, 5):
        rows = list(batches(spec, [(INSERT, epoch, "x")]))

        def deliver(epoch: int = epoch, rows: list[pa.RecordBatch] = rows) -> None:
            sink.deliver(delivery(spec, epoch), rows)

        in_other_process(deliver) if epoch % 2 else deliver()
        # The same once more, by the one that did not do it.
        deliver() if epoch % 2 else in_other_process(deliver)
    assert seen(broker, spec) == Counter({(epoch, "x"): 1 for epoch in range(1, 5)})


_CHILD = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
from kafka_kit import *
from headwater.model.change import RowOp
from headwater.sinks.kafka import producer
columns = (Column("id", BIGINT), Column("name", VARCHAR))
spec = SinkSpec(name="orders", ident={ident!r}, columns=columns, key=("id",),
                kind=SinkKind.UPSERT, options={options!r})
def die(): os.kill(os.getpid(), signal.SIGKILL)
real = producer.OpenProducer.commit
def commit(self):
    self.flush()
    if {place!r} == "before": die()
    real(self)
    if {place!r} == "after": die()
sink = kafka_sink(spec)
assert sink.begin(Term(1)) == 0
producer.OpenProducer.commit = commit
sink.deliver(delivery(spec, 1), batches(spec, [(RowOp.INSERT, n, "x") for n in range(10)]))
"""


@pytest.mark.parametrize("place", ["before", "after"])
def test_killed_around_the_commit(broker: RunningBroker, place: str) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    here = Path(__file__).resolve()
    script = _CHILD.format(
        tests=str(here.parent.parent), ident=spec.ident,
        options=dict(spec.options), place=place,
    )  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    written = len(read(broker, spec.ident, "read_uncommitted"))
    assert written == 10
    assert sink.begin(Term(2)) == (1 if place == "after" else NO_EPOCH)
    for _ in range(2):
        rows = [(INSERT, number, "x") for number in range(10)]
        sink.deliver(delivery(spec, 1, 2), batches(spec, rows))
    assert seen(broker, spec) == Counter({(number, "x"): 1 for number in range(10)})


def test_the_outcome_of_a_commit_is_not_known(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sink_spec(broker, properties_message_timeout_ms="6000")
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    flush, close = OpenProducer.flush, OpenProducer.close

    def freeze_after_flush(self: OpenProducer) -> None:
        flush(self)
        broker.freeze()

    def thaw_before_close(self: OpenProducer) -> None:
        broker.thaw()
        close(self)

    with monkeypatch.context() as patched:
        patched.setattr(OpenProducer, "flush", freeze_after_flush)
        patched.setattr(OpenProducer, "close", thaw_before_close)
        try:
            with pytest.raises(SinkUnavailable, match="committing"):
                sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))
        finally:
            broker.thaw()
    _until_delivered(sink, spec, 1, [(INSERT, 1, "a")])
    assert seen(broker, spec) == Counter({(1, "a"): 1})


def _until_delivered(sink: TransactionalSink, spec: SinkSpec, epoch: int, rows: Rows) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            return sink.deliver(delivery(spec, epoch), batches(spec, rows))
        except SinkUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_the_broker_is_killed_in_the_middle_and_comes_back(broker: RunningBroker) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    rows = [(INSERT, number, "x") for number in range(12)]

    def with_a_crash() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(spec, rows)):
            yield batch
            if number == 1:
                broker.stop()
                broker.start()

    try:
        sink.deliver(delivery(spec, 1), with_a_crash())
    except SinkUnavailable:
        _until_delivered(sink, spec, 1, rows)
    _until_delivered(sink, spec, 1, rows)
    assert seen(broker, spec) == Counter({(number, "x"): 1 for number in range(12)})


@pytest.mark.parametrize("who", ["client", "broker"])
def test_a_message_that_is_too_large(broker: RunningBroker, who: str) -> None:
    limits = {
        "client": {"properties_message_max_bytes": "2000"},
        "broker": {"topic_config": "max.message.bytes=2000"},
    }
    spec = sink_spec(broker, **limits[who])
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    rows = [(INSERT, 1, "a"), (INSERT, 2, "b" * 3000), (INSERT, 3, "c")]
    for _ in range(2):
        with pytest.raises(UserError, match=r'with the key {"id":2} has 30.. bytes') as raised:
            sink.deliver(delivery(spec, 1), batches(spec, rows))
        assert "properties.message.max.bytes" in raised.value.hint
        assert seen(broker, spec) == Counter()
    sink.deliver(delivery(spec, 1), batches(spec, [rows[0], rows[2]]))
    assert seen(broker, spec) == Counter({(1, "a"): 1, (3, "c"): 1})


@pytest.mark.parametrize("step", ["send_one", "flush", "commit"])
def test_the_broker_refuses_a_message_before_the_next_step(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    spec = sink_spec(broker, topic_config="max.message.bytes=2000")
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    taken = getattr(OpenProducer, step)

    def late(producer: OpenProducer, *given: object) -> None:
        time.sleep(1)  # the client's own thread hears from the broker, and we look at nothing
        taken(producer, *given)

    with monkeypatch.context() as patched:
        patched.setattr(OpenProducer, step, late)
        with pytest.raises(UserError, match=r'with the key {"id":2} has 30.. bytes'):
            sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 2, "b" * 3000)]))
    sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))
    assert seen(broker, spec) == Counter({(1, "a"): 1})


def test_a_null_in_a_key_stalls_and_leaves_nothing(broker: RunningBroker) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    with pytest.raises(UserError, match='column "id" of the key'):
        sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a"), (INSERT, None, "b")]))
    assert seen(broker, spec) == Counter()


def test_topics_that_are_not_as_they_should_be(broker: RunningBroker) -> None:
    missing = kafka_sink(sink_spec(broker, create_topic="false"))
    for call in (missing.check, lambda: missing.begin(Term(1))):
        with pytest.raises(UserError, match="Kafka has no topic") as raised:
            call()
        assert "create.topic" in raised.value.hint
    with pytest.raises(ConfigError, match="was refused") as raised:
        kafka_sink(sink_spec(broker, topic_config="retention.hours=3")).check()
    assert "retention.hours" in raised.value.detail
    with pytest.raises(ConfigError, match="was refused"):
        kafka_sink(sink_spec(broker, replication_factor="3")).check()
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = f"progress_{secrets.token_hex(4)}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    with pytest.raises(ConfigError, match=r"cleanup\.policy = delete"):
        kafka_sink(sink_spec(broker, progress_topic=topic)).check()


def test_nobody_answers() -> None:
    nowhere = RunningBroker([], Path(), 1, 1)
    sink = kafka_sink(sink_spec(nowhere, properties_message_timeout_ms="1000"))
    for call in (sink.check, lambda: sink.begin(Term(1)), sink.drop):
        with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1"):
            call()


def test_passwords_and_rights(broker: RunningBroker) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    def login(password: str) -> dict[str, str]:
        return {
            "properties_bootstrap_server": broker.login_address,
            "properties_security_protocol": "SASL_PLAINTEXT",
            "properties_sasl_mechanism": "PLAIN",
            "properties_sasl_username": USER,
            "properties_sasl_password": password,
        }

    with pytest.raises(ConfigError, match="does not let us in") as refused:
        kafka_sink(sink_spec(broker, **login("wr0ng-word"))).check()
    assert "wr0ng-word" not in str(refused.value)
    spec = sink_spec(broker, **login(PASSWORD))
    sink = kafka_sink(spec)
    with pytest.raises(UserError, match="not allowed") as raised:
        sink.check()
    assert PASSWORD not in str(raised.value)
    admin = AdminClient({"bootstrap.servers": broker.address})
    resources = {
        ResourceType.TOPIC: (spec.ident, spec.options.get("progress.topic", "_headwater_progress")),
        ResourceType.TRANSACTIONAL_ID: (f"headwater-{spec.ident}",),
    }

    def grant(kind: Any) -> None:
        rules = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*",
                       AclOperation.ALL, AclPermissionType.ALLOW)
            for name in resources[kind]
        ]  # fmt: skip
        for created in admin.create_acls(rules).values():
            created.result()
        # They are decided before the broker heeds them.
        known = AclBindingFilter(kind, None, ResourcePatternType.ANY, None, None,
                                 AclOperation.ANY, AclPermissionType.ANY)  # fmt: skip
        deadline = time.monotonic() + 60
        while not all(rule in admin.describe_acls(known).result() for rule in rules):
            assert time.monotonic() < deadline, "the broker does not hear of new rules"
            time.sleep(0.02)

    grant(ResourceType.TOPIC)
    with pytest.raises(UserError, match="not allowed") as raised:
        sink.check()
    assert "transactional ids" in raised.value.hint
    grant(ResourceType.TRANSACTIONAL_ID)
    sink.check()
    sink.begin(Term(1))
    sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))
    assert seen(broker, spec) == Counter({(1, "a"): 1})


def test_progress_behind_somebody_s_open_transaction(
    broker: RunningBroker, in_other_process: Callable[[Callable[[], Any]], Any]
) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    hasty = {**spec.options, "properties.message.timeout.ms": "6000"}
    sink.check()
    sink.begin(Term(1))
    stranger = Producer({"bootstrap.servers": broker.address, "transactional.id": spec.ident})
    stranger.init_transactions()
    stranger.begin_transaction()
    place = partition_of(spec.ident, PARTITIONS)
    stranger.produce("_headwater_progress", b"{}", b"stranger", place)
    stranger.flush()
    rows = [(INSERT, 1, "a")]
    sink.deliver(delivery(spec, 1), batches(spec, rows))
    # What a reader of committed records can see ends before our own.
    with pytest.raises(SinkUnavailable, match="transaction is open"):
        in_other_process(lambda: kafka_sink(replace(spec, options=hasty)).begin(Term(1)))
    stranger.abort_transaction()
    assert in_other_process(lambda: sink.begin(Term(1))) == 1
    sink.deliver(delivery(spec, 1), batches(spec, rows))
    assert seen(broker, spec) == Counter({(1, "a"): 1})


def test_at_least_once(
    broker: RunningBroker, in_other_process: Callable[[Callable[[], Any]], Any]
) -> None:
    spec = sink_spec(broker, transactions="false")
    sink = kafka_sink(spec)
    sink.check()
    assert sink.begin(Term(1)) == NO_EPOCH
    for _ in range(2):
        sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))

    def breaking() -> Iterator[pa.RecordBatch]:
        yield from batches(spec, [(INSERT, 2, "b")])
        raise RetryableError("the log cannot be read")

    with pytest.raises(RetryableError):
        sink.deliver(delivery(spec, 2), breaking())
    assert sink.begin(Term(1)) == 1
    sink.deliver(delivery(spec, 2), batches(spec, [(INSERT, 2, "b")]))
    found = seen(broker, spec)
    assert found[1, "a"] == 1
    assert found[2, "b"] >= 1
    assert set(found) == {(1, "a"), (2, "b")}
    assert in_other_process(lambda: sink.begin(Term(2))) == 2
    with pytest.raises(Fenced):
        sink.deliver(delivery(spec, 3), batches(spec, [(INSERT, 3, "c")]))


def test_a_dropped_sink_leaves_no_record(broker: RunningBroker) -> None:
    spec = sink_spec(broker)
    sink = kafka_sink(spec)
    sink.check()
    sink.begin(Term(1))
    sink.deliver(delivery(spec, 1), batches(spec, [(INSERT, 1, "a")]))

    def record() -> bytes | None:
        ours = [m for m in read(broker, "_headwater_progress") if m.key() == spec.ident.encode()]
        last: bytes | None = ours[-1].value()
        return last

    assert json.loads(record() or b"") == {
        "epoch": 1, "term": 1, "commit_id": f"{spec.ident}_1",
    }  # fmt: skip
    for _ in range(2):
        sink.drop()
        assert record() is None
    assert seen(broker, spec) == Counter({(1, "a"): 1})
