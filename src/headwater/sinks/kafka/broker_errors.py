"""What a broker's error means, and who has to act.

Every error of the client library goes through here; a code in no row is a target that is away.

    the broker or the client says                         it becomes
    does not answer, is starting, is busy                 SinkUnavailable
    no room: a log folder is away                         SinkUnavailable
    cannot log in, certificate not trusted                ConfigError
    no right                                              UserError, with what is not allowed
    no such topic, no such setting of a topic             UserError
    message too large                                     UserError, with key and size
    somebody else has taken this transactional id         Displaced: who, says the progress topic
"""

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headwater.errors import ConfigError, HeadwaterError, SinkUnavailable, UserError
from headwater.sinks.kafka.options import KafkaOptions

_DISPLACED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
_LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._SSL,
    }
)
_NO_RIGHT = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Write and Describe on the topic and the progress "
    "topic, Read on the progress topic, Create where they are missing",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Create on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write and Describe on transactional ids "
    "with the prefix headwater-",
}
_NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_WRONG_SETTING = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


class Displaced(Exception):
    """Another process has opened a producer with the same transactional id."""


class LastWord:
    """The last error that the client told about its connections; the call itself only waits."""

    def __init__(self) -> None:
        self.error: Any = None

    def __call__(self, error: Any) -> None:
        """Take an error from the client's own thread; a failed log-in is the one to keep."""
        if self.error is None or self.error.code() not in _LOGIN:
            self.error = error


def kafka_error(failed: Any) -> Any:
    """The `KafkaError` inside an exception; itself where it is one."""
    if isinstance(failed, KafkaException) and failed.args:
        return failed.args[0]
    return failed


def is_no_topic(failed: Any) -> bool:
    """Whether a broker says that it has no such topic."""
    error = kafka_error(failed)
    return isinstance(error, KafkaError) and error.code() in _NO_TOPIC


def as_ours(
    failed: Any, options: KafkaOptions, doing: str, heard: LastWord | None = None
) -> HeadwaterError | Displaced:
    """One of our errors for one of Kafka's."""
    error = kafka_error(failed)
    if not isinstance(error, KafkaError):
        return SinkUnavailable(f"Kafka: {doing} failed", detail=_shown(options, str(error)))
    if heard is not None and heard.error is not None and heard.error.code() in _LOGIN:
        error = heard.error
    detail = _shown(options, error.str())
    for_the_user = _for_the_user(error.code(), options, doing, detail)
    if for_the_user is not None:
        return for_the_user
    if error.code() in _DISPLACED:
        return Displaced(error.str())
    if heard is not None and heard.error is not None:
        detail = f"{detail}; {_shown(options, heard.error.str())}"
    return SinkUnavailable(f"Kafka at {_servers(options)}: {doing} failed", detail=detail)


def _for_the_user(code: int, options: KafkaOptions, doing: str, detail: str) -> UserError | None:
    if code in _LOGIN:
        return ConfigError(
            f"Kafka at {_servers(options)} does not let us in",
            detail=detail,
            hint="See properties.sasl.*, properties.ssl.* and properties.security.protocol.",
        )
    if code in _NO_RIGHT:
        return UserError(
            f"Kafka: {doing} is not allowed", detail=detail, hint=f"It needs {_NO_RIGHT[code]}."
        )
    if code in _NO_TOPIC:
        return missing_topic(options.topic)
    if code in _WRONG_SETTING:
        return ConfigError(f"Kafka: {doing} was refused", detail=detail)
    return too_large(options, None, None, detail) if code in TOO_LARGE else None


def missing_topic(topic: str) -> UserError:
    """No such topic, and it is not ours to create."""
    return UserError(
        f'Kafka has no topic "{topic}"',
        hint="Create it, or let the sink do it: create.topic = true.",
    )


def too_large(
    options: KafkaOptions, key: bytes | None, size: int | None, detail: str = ""
) -> UserError:
    """A message that nobody takes."""
    named = "" if key is None else f" with the key {key.decode('utf-8', 'replace')[:200]}"
    sized = "" if size is None else f" has {size} bytes and"
    return UserError(
        f'a message to the topic "{options.topic}"{named}{sized} is larger than what is taken',
        detail=detail,
        hint="Raise properties.message.max.bytes of the sink and max.message.bytes of the topic; "
        f"the sink's is {options.given['properties.message.max.bytes']}.",
    )


def _servers(options: KafkaOptions) -> str:
    return options.client["bootstrap.servers"]


def _shown(options: KafkaOptions, text: str) -> str:
    return options.given.without_secrets(text)
