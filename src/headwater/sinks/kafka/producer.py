"""An open producer: messages into a transaction, bounded in memory, with every error looked at.

The client's queue is never overfilled. Of messages that it refuses some may follow that it takes,
and the order of a key would be lost; so the queue is emptied before it could be full.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headwater.errors import HeadwaterError, SinkUnavailable
from headwater.sinks.kafka.broker_errors import (
    TOO_LARGE,
    LastWord,
    as_ours,
    kafka_error,
    too_large,
)
from headwater.sinks.kafka.messages import Messages
from headwater.sinks.kafka.options import KafkaOptions

_QUEUE_MESSAGES = 1_000_000
_QUEUE_BYTES = 32 << 20
_OVERHEAD = 100
"""What the client adds to a message of its own, about."""
_ABORT_WITHIN_S = 5.0
_REPORT_WITHIN_S = 2.0
_CONSEQUENCES = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL, KafkaError._STATE}
)
"""What messages are told when something else went wrong; the transaction's own call says what."""


class OpenProducer:
    """A producer for one sink; with a transactional id it displaces every other one of it."""

    def __init__(self, options: KafkaOptions, transactional_id: str | None) -> None:
        self._options = options
        self._transactional = transactional_id is not None
        self._heard = LastWord()
        self._failed: tuple[Any, bytes | None, int] | None = None
        self._queued_messages = self._queued_bytes = 0
        self._in_transaction = False
        self._producer = Producer(self._settings(transactional_id))
        if self._transactional:
            self._call(
                "opening a transactional producer",
                lambda: self._producer.init_transactions(options.message_timeout_s),
            )

    def _settings(self, transactional_id: str | None) -> dict[str, Any]:
        options = self._options
        timeout = round(options.message_timeout_s * 1000)
        settings: dict[str, Any] = {
            **options.client,
            "log_level": 0,  # errors come by `error_cb`, and become ours
            "error_cb": self._heard,
            "enable.idempotence": True,
            "queue.buffering.max.messages": _QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": (2 * _QUEUE_BYTES) >> 10,
            "delivery.report.only.error": True,
            "reconnect.backoff.max.ms": 1000,
        }
        if transactional_id is None:
            return settings | {"message.timeout.ms": timeout}
        return settings | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": options.transaction_timeout_ms,
            "message.timeout.ms": min(timeout, options.transaction_timeout_ms),
        }

    def begin(self) -> None:
        """Begin a transaction, where there are any."""
        if self._transactional:
            self._call("beginning a transaction", self._producer.begin_transaction)
            self._in_transaction = True

    def send(self, topic: str, messages: Messages) -> None:
        """Put messages into the queue; waits while it is full."""
        keys, values = messages
        size = sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
        size += _OVERHEAD * len(keys)
        if len(keys) > 1 and size > _QUEUE_BYTES // 2:
            middle = len(keys) // 2
            self.send(topic, (keys[:middle], values[:middle]))
            self.send(topic, (keys[middle:], values[middle:]))
            return
        if (
            self._queued_bytes + size > _QUEUE_BYTES
            or self._queued_messages + len(keys) > _QUEUE_MESSAGES
        ):
            self.flush()
        self._queued_bytes += size
        self._queued_messages += len(keys)
        batch = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        taken = self._call(
            "sending messages",
            lambda: self._producer.produce_batch(topic, batch, on_delivery=self._delivered),
        )
        self._call("sending messages", lambda: self._producer.poll(0))
        if taken < len(batch):
            self._refused(next(message for message in batch if "_error" in message))
        self._raise_failed()

    def send_one(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        """Put one message into the queue, for a given partition."""
        self._call(
            "sending progress",
            lambda: self._producer.produce(
                topic, value, key, partition, on_delivery=self._delivered
            ),
        )

    def flush(self) -> None:
        """Wait until the broker has all messages."""
        deadline = time.monotonic() + 2 * self._options.message_timeout_s
        while self._call("sending messages", lambda: self._producer.flush(0.5)):
            self._raise_failed()
            if time.monotonic() > deadline:
                raise self._ours(KafkaError(KafkaError._TIMED_OUT), "sending messages")
        self._queued_bytes = self._queued_messages = 0
        self._raise_failed()

    def commit(self) -> None:
        """End the transaction; raises `SinkUnavailable` also where its outcome is unknown."""
        if not self._transactional:
            self.flush()
            return
        # What was sent is waited for here, so that a message that fails is told by its own error.
        self.flush()
        self._call(
            "committing a transaction",
            lambda: self._producer.commit_transaction(self._options.message_timeout_s),
        )
        self._in_transaction = False

    def close(self) -> None:
        """Give up what is open. The next producer of the same id would do the same."""
        with suppress(KafkaException, SystemError):
            self._producer.purge()
        if self._in_transaction:
            self._in_transaction = False
            # Readers of committed messages wait at an open transaction.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(_ABORT_WITHIN_S)
        # The last reference closes it; what was purged is reported first, since it refers to us.
        with suppress(KafkaException, SystemError):
            self._producer.poll(0)
        del self._producer

    def _call(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BufferError as error:
            raise SinkUnavailable(f"Kafka: {doing} failed", detail=str(error)) from error
        except (KafkaException, SystemError) as error:
            failed = self._fatal() if isinstance(error, SystemError) else kafka_error(error)
            follows = failed.code() in _CONSEQUENCES
            if failed.fatal() or not (follows or failed.txn_requires_abort()):
                # Nothing can be aborted any more, or it is not known whether there is anything.
                self._in_transaction = False
            if follows or failed.code() in TOO_LARGE:
                self._await_report()
            self._raise_failed()
            raise self._ours(failed, doing) from error

    def _await_report(self) -> None:
        """Let the message that was refused tell which it is; the transaction hears of it first."""
        deadline = time.monotonic() + _REPORT_WITHIN_S
        while not self._cause_known() and time.monotonic() < deadline:
            with suppress(KafkaException, SystemError):
                self._producer.poll(0.05)

    def _cause_known(self) -> bool:
        return self._failed is not None and self._failed[0].code() not in _CONSEQUENCES

    def _fatal(self) -> Any:
        """What went wrong for good, where a callback has swallowed it on its way to us."""
        try:
            if self._transactional:
                self._producer.abort_transaction(_ABORT_WITHIN_S)
        except KafkaException as error:
            return kafka_error(error)
        return KafkaError(KafkaError._FATAL)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None or self._cause_known():
            return
        try:
            self._failed = error, message.key(), len(message.value() or b"")
        except SystemError:
            # The client calls back while it raises a fatal error: then a message tells nothing.
            self._failed = error, None, 0

    def _refused(self, message: dict[str, Any]) -> None:
        """The client itself does not take a message."""
        error = message["_error"]
        if self._failed is None:
            self._failed = error, message["key"], len(message["value"] or b"")

    def _raise_failed(self) -> None:
        if self._failed is None:
            return
        error, key, size = self._failed
        if self._transactional and error.code() in _CONSEQUENCES:
            return
        if error.code() in TOO_LARGE:
            raise too_large(self._options, key, size)
        raise self._ours(error, "sending a message")

    def _ours(self, error: Any, doing: str) -> HeadwaterError | Exception:
        with suppress(KafkaException):
            self._producer.poll(0)  # what was heard of connections is told in here
        return as_ours(error, self._options, doing, self._heard)
