"""The door to the Kafka sink: its options, and a sink made of what a user asked for."""

from headwater.errors import ConfigError
from headwater.sinks.kafka.options import ENCODE_OPTIONS, OPTIONS
from headwater.sinks.sink import SinkSpec, TransactionalSink

__all__ = ["ENCODE_OPTIONS", "OPTIONS", "kafka_sink"]


def kafka_sink(spec: SinkSpec) -> TransactionalSink:
    """A sink to a topic; nothing is connected yet."""
    try:
        from headwater.sinks.kafka.target import KafkaSink  # noqa: PLC0415

        return KafkaSink(spec)
    except ImportError as error:
        raise ConfigError(
            'connector "kafka" needs libraries that are not installed',
            detail=str(error),
            hint="pip install 'headwater[kafka]'",
        ) from error
