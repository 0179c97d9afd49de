"""The options of a Kafka sink: those of WITH, and those of FORMAT ... ENCODE.

`properties.x` is the client library's own setting `x`, for those named here; a misspelled
`properties.ssl.ca.location` would otherwise trust whoever answers, without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from headwater.errors import ConfigError
from headwater.sinks.options import Option, Options, checked_options

CONNECTOR = "kafka"
_SECOND = 1000
_PASSED_ON = (
    Option("properties.security.protocol", "plaintext, ssl, sasl_plaintext or sasl_ssl", ""),
    Option("properties.sasl.mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", "",
           also=("properties.sasl.mechanisms",)),
    Option("properties.sasl.username", "the name to log in with", ""),
    Option("properties.sasl.password", "its password", "", secret=True),
    Option("properties.ssl.ca.location", "file with the authorities to trust", ""),
    Option("properties.ssl.ca.pem", "the authorities to trust, as text", ""),
    Option("properties.ssl.certificate.location", "file with our own certificate", ""),
    Option("properties.ssl.certificate.pem", "our own certificate, as text", ""),
    Option("properties.ssl.key.location", "file with its key", ""),
    Option("properties.ssl.key.pem", "its key, as text", "", secret=True),
    Option("properties.ssl.key.password", "the password of the key", "", secret=True),
    Option("properties.ssl.endpoint.identification.algorithm", "https, or none: whether the "
           "broker's certificate must name its host", ""),
    Option("properties.enable.ssl.certificate.verification", "true or false", ""),
    Option("properties.client.id", "how the broker's logs name us", "headwater"),
    Option("properties.message.max.bytes", "the largest message that is sent", "1000000"),
    Option("properties.compression.codec", "none, gzip, snappy, lz4 or zstd", "none",
           also=("properties.compression.type",)),
    Option("properties.linger.ms", "how long a message waits for others to travel with", "5",
           also=("properties.queue.buffering.max.ms",)),
    Option("properties.batch.size", "the largest batch of messages, in bytes", "1000000"),
    Option("properties.batch.num.messages", "the most messages in a batch", "10000"),
    Option("properties.retry.backoff.ms", "how long to wait before a request is repeated", "100"),
    Option("properties.partitioner", "how a key finds its partition; murmur2_random is what "
           "Kafka's Java clients do", "murmur2_random"),
    Option("properties.socket.keepalive.enable", "true or false", "true"),
    Option("properties.client.dns.lookup", "use_all_dns_ips, or "
           "resolve_canonical_bootstrap_servers_only", ""),
    Option("properties.broker.address.family", "any, v4 or v6", ""),
)  # fmt: skip
OPTIONS: tuple[Option, ...] = (
    Option("properties.bootstrap.server", "brokers to begin with, as host:port, with commas",
           also=("properties.bootstrap.servers", "kafka.brokers")),
    Option("topic", "the topic that messages go to", also=("kafka.topic",)),
    *_PASSED_ON,
    Option("transactions", "false: at least once, and readers need not read committed", "true"),
    Option("properties.transaction.timeout.ms", "the longest that one delivery may take; at most "
           "the broker's transaction.max.timeout.ms", str(300 * _SECOND)),
    Option("properties.message.timeout.ms", "how long a message, or the end of a transaction, may "
           "wait for its broker before the delivery counts as failed", str(30 * _SECOND),
           also=("message.timeout",)),
    Option("create.topic", "whether a missing topic is created", "true"),
    Option("partitions", "of a topic that is created; empty: as the broker likes", ""),
    Option("replication.factor", "of topics that are created; empty: as the broker likes", ""),
    Option("topic.config", "of a topic that is created: name=value, with commas", ""),
    Option("progress.topic", "where progress is kept, in the same transactions",
           "_headwater_progress"),
)  # fmt: skip
ENCODE_OPTIONS: tuple[Option, ...] = (
    Option("timestamptz.handling.mode", "utc_string, utc_without_suffix, micro or milli; JSON only",
           "utc_string"),
    Option("jsonb.handling.mode", "string, or dynamic: as JSON inside the JSON", "string"),
    Option("schema.registry", "address of the schema registry, several with commas; Avro only", ""),
    Option("schema.registry.username", "the name to log in with there", ""),
    Option("schema.registry.password", "its password", "", secret=True),
    Option("schema.registry.ca.location", "file with the authorities to trust there", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Checked options; the settings of the client hold passwords and are shown nowhere."""

    topic: str
    progress_topic: str
    transactional: bool
    create_topic: bool
    partitions: int
    replication_factor: int
    topic_config: Mapping[str, str]
    message_timeout_s: float
    transaction_timeout_ms: int
    client: Mapping[str, str] = field(repr=False)
    given: Options = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Check what a user wrote in WITH."""
        given = checked_options(CONNECTOR, options, OPTIONS)
        client = {
            option.name.removeprefix("properties."): given[option.name]
            for option in _PASSED_ON
            if given[option.name]
        }
        client["bootstrap.servers"] = given["properties.bootstrap.server"]
        given.integer("properties.message.max.bytes", 1000, 1_000_000_000)
        return cls(
            topic=given["topic"],
            progress_topic=given["progress.topic"],
            transactional=given.flag("transactions"),
            create_topic=given.flag("create.topic"),
            partitions=_count(given, "partitions", 100_000),
            replication_factor=_count(given, "replication.factor", 1000),
            topic_config=_pairs(given["topic.config"]),
            message_timeout_s=given.integer("properties.message.timeout.ms", 1000, 3600 * _SECOND)
            / _SECOND,
            transaction_timeout_ms=given.integer(
                "properties.transaction.timeout.ms", 1000, 24 * 3600 * _SECOND
            ),
            client=client,
            given=given,
        )


def _count(given: Options, name: str, most: int) -> int:
    """A number; -1, which leaves it to the broker, where none was given."""
    return given.integer(name, 1, most) if given[name] else -1


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(
                f'option "topic.config" has no value for "{name}"',
                hint="Write it as 'cleanup.policy=compact, retention.ms=86400000'.",
            )
        pairs[name.strip()] = value.strip()
    return pairs
