"""A sink's open producer with what it knows, kept in a process from delivery to delivery.

Opening costs a round or two with the broker. Whoever opens displaces all others of the same
sink, and only then reads how far it is: so what a session knows stays true for as long as its
own transactions succeed, and no look at the topic is needed before each of them.

    opened by                      finds in the progress topic    goes on
    an engine of a newer term      an older term, or nothing      and writes its own term
    a task of the same engine      its own term                   yes
    an engine that was replaced    a newer term                   no: `Fenced`

An engine that was replaced is told so before it displaces anybody.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaException

from headwater.errors import Fenced, SinkUnavailable
from headwater.model.ids import Term
from headwater.sinks.kafka.broker_errors import Displaced, as_ours
from headwater.sinks.kafka.messages import Messages
from headwater.sinks.kafka.options import KafkaOptions
from headwater.sinks.kafka.producer import OpenProducer
from headwater.sinks.kafka.progress import Progress, ProgressTopic, partition_of
from headwater.sinks.kafka.topics import Topics


@dataclass
class Session:
    """One sink's producer and progress."""

    ident: str
    options: KafkaOptions
    partition: int
    producer: OpenProducer
    progress: Progress

    def write(self, batches: Iterator[Messages], progress: Progress | None) -> None:
        """Messages and progress in one transaction; None takes the progress away."""
        key = self.ident.encode()
        value = None if progress is None else progress.to_bytes()
        self.producer.begin()
        for messages in batches:
            self.producer.send(self.options.topic, messages)
        if not self.options.transactional:
            # At least once: progress must never be ahead of what it stands for.
            self.producer.flush()
        self.producer.send_one(self.options.progress_topic, self.partition, key, value)
        self.producer.commit()
        self.progress = progress or Progress()

    def take_over(self, term: Term) -> None:
        """Write our term, so that nobody of an older one goes on."""
        if self.progress.term < term:
            self.write(iter(()), replace(self.progress, term=term))

    def read(self) -> Progress:
        """Look at the progress topic, to its end."""
        return _read(self.ident, self.options, self.partition, whole=True)


class Sessions:
    """The sessions of this process, one per sink."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._open: dict[str, Session] = {}

    @contextmanager
    def held(self, ident: str) -> Iterator[None]:
        """Nobody else in this process uses the sink meanwhile."""
        with self._guard:
            if self._pid != os.getpid():
                # A fork has the producers' memory and not their threads: they are left alone.
                self._pid, self._locks, self._open = os.getpid(), {}, {}
            lock = self._locks.setdefault(ident, threading.Lock())
        with lock:
            yield

    def found(self, ident: str, options: KafkaOptions) -> Session | None:
        """The open session of a sink, if it was opened with the same options."""
        session = self._open.get(ident)
        if session is not None and session.options != options:
            self.close(ident)
            return None
        return session

    def open(self, ident: str, options: KafkaOptions, term: Term | None) -> Session:
        """A new session; displaces all others of the sink, unless a newer term was here."""
        self.close(ident)
        partitions = Topics(options, client_settings(options)).ensure()
        partition = partition_of(ident, partitions)
        if term is not None:
            require_term(ident, _read(ident, options, partition, whole=False), term)
        producer = _producer(ident, options)
        try:
            progress = _read(ident, options, partition, whole=True)
            if term is not None:
                require_term(ident, progress, term)
        except BaseException:
            producer.close()
            raise
        session = Session(ident, options, partition, producer, progress)
        self._open[ident] = session
        return session

    def close(self, ident: str) -> None:
        """Close what is open; the next delivery opens again."""
        session = self._open.pop(ident, None)
        if session is not None:
            session.producer.close()


SESSIONS = Sessions()


def require_term(ident: str, progress: Progress, term: Term) -> None:
    """Nobody of a newer term was here."""
    if progress.term > term:
        raise Fenced(
            f"another engine delivers {ident} to Kafka",
            detail=f"It has term {progress.term}, and we have {term}.",
        )


def committed_progress(ident: str, options: KafkaOptions) -> Progress:
    """What can be seen of a sink's progress without displacing anybody."""
    partitions = Topics(options, client_settings(options)).ensure()
    return _read(ident, options, partition_of(ident, partitions), whole=False)


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """What every client is given; producers get more."""
    for_producers = (
        "message.max.bytes", "compression.codec", "linger.ms", "batch.size",
        "batch.num.messages", "partitioner",
    )  # fmt: skip
    settings: dict[str, Any] = {
        name: value for name, value in options.client.items() if name not in for_producers
    }
    return settings | {"log_level": 0}


def _producer(ident: str, options: KafkaOptions) -> OpenProducer:
    transactional_id = f"headwater-{ident}" if options.transactional else None
    try:
        return OpenProducer(options, transactional_id)
    except Displaced as error:
        raise SinkUnavailable(
            f"another process opens {ident} at the same moment", detail=str(error)
        ) from error


def _read(ident: str, options: KafkaOptions, partition: int, *, whole: bool) -> Progress:
    place = ProgressTopic(
        client=client_settings(options),
        topic=options.progress_topic,
        partition=partition,
        ident=ident,
        timeout_s=options.message_timeout_s,
    )
    try:
        return place.read(whole=whole)
    except KafkaException as failed:
        raise as_ours(failed, options, "reading the progress topic") from failed
