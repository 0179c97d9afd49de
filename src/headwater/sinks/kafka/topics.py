"""The topics of a sink: looked up, created where missing, and checked."""

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.errors import ConfigError, SinkUnavailable
from headwater.sinks.kafka.broker_errors import (
    Displaced,
    LastWord,
    as_ours,
    is_no_topic,
    kafka_error,
    missing_topic,
)
from headwater.sinks.kafka.options import KafkaOptions
from headwater.sinks.kafka.progress import PARTITIONS, TOPIC_CONFIG

_CREATED_WITHIN_S = 10.0


class Topics:
    """What a broker has, and what we add to it."""

    def __init__(self, options: KafkaOptions, client: dict[str, Any]) -> None:
        self._options, self._timeout_s = options, options.message_timeout_s
        self._heard = LastWord()
        settings: dict[str, Any] = {**client, "error_cb": self._heard}
        self._admin: Any = AdminClient(settings)

    def ensure(self) -> int:
        """See to it that both topics are there; says how many partitions progress has.

        Replay: what is there is left as it is.
        """
        options = self._options
        if self._partitions(options.topic) is None:
            if not options.create_topic:
                raise missing_topic(options.topic)
            self._create(options.topic, options.partitions, dict(options.topic_config))
        partitions = self._partitions(options.progress_topic)
        if partitions is None:
            partitions = self._create(options.progress_topic, PARTITIONS, TOPIC_CONFIG)
        return partitions

    def check(self) -> None:
        """The same, and progress is where it is kept for ever."""
        self.ensure()
        topic = self._options.progress_topic
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
            policy = found[resource].result()["cleanup.policy"].value
        except KafkaException as failed:
            if kafka_error(failed).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return  # Whoever may not see a topic's settings has to trust them.
            if is_no_topic(failed):
                return  # It is so new that this broker has not heard of it: it is ours.
            raise self._ours(failed, "a look at the progress topic") from failed
        if policy != "compact":
            raise ConfigError(
                f'the progress topic "{topic}" has cleanup.policy = {policy}',
                detail="Records that are deleted after a while would be delivered again.",
                hint="Set it to compact, or name another one with progress.topic.",
            )

    def has_progress(self) -> int | None:
        """The partitions of the progress topic; None where it does not exist."""
        return self._partitions(self._options.progress_topic)

    def _partitions(self, topic: str) -> int | None:
        try:
            asked = self._admin.describe_topics(
                TopicCollection([topic]), request_timeout=self._timeout_s
            )
            return len(asked[topic].result().partitions)
        except KafkaException as failed:
            if is_no_topic(failed):
                return None
            raise self._ours(failed, f'a look at the topic "{topic}"') from failed

    def _create(self, topic: str, partitions: int, config: dict[str, str]) -> int:
        new = NewTopic(topic, partitions, self._options.replication_factor, config=config)
        try:
            asked = self._admin.create_topics(
                [new], operation_timeout=_CREATED_WITHIN_S, request_timeout=self._timeout_s
            )
            asked[topic].result()
        except KafkaException as failed:
            if kafka_error(failed).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._ours(failed, f'creating the topic "{topic}"') from failed
        deadline = time.monotonic() + _CREATED_WITHIN_S
        while (found := self._partitions(topic)) is None:
            # The brokers hear of it one after the other.
            if time.monotonic() > deadline:
                raise SinkUnavailable(f'the topic "{topic}" was created and does not appear')
            time.sleep(0.02)
        return found

    def _ours(self, failed: KafkaException, doing: str) -> Exception:
        self._admin.poll(0)  # what was heard of connections is told in here
        ours = as_ours(failed, self._options, doing, self._heard)
        assert not isinstance(ours, Displaced)
        return ours
