"""ENCODE and its options, as the encoder that they ask for."""

from headwater.errors import ConfigError
from headwater.sinks.kafka.avro_messages import AvroEncoder
from headwater.sinks.kafka.json_rows import JsonStyle, TimestamptzMode
from headwater.sinks.kafka.messages import Encoder, JsonEncoder, RowColumns
from headwater.sinks.kafka.options import CONNECTOR, ENCODE_OPTIONS, KafkaOptions
from headwater.sinks.kafka.registry import SchemaRegistry
from headwater.sinks.options import Options, checked_options
from headwater.sinks.sink import SinkSpec


def encoder_of(spec: SinkSpec, format_: str, options: KafkaOptions) -> Encoder:
    """The encoder of a sink."""
    given = checked_options(CONNECTOR, spec.encoding.options, ENCODE_OPTIONS)
    encode = spec.encoding.encode.upper() or "JSON"
    columns = RowColumns.of(spec)
    if encode == "JSON":
        style = JsonStyle(
            timestamptz=TimestamptzMode(
                given.choice("timestamptz.handling.mode", tuple(TimestamptzMode))
            ),
            jsonb_is_json=given.choice("jsonb.handling.mode", ("string", "dynamic")) == "dynamic",
        )
        return JsonEncoder(columns=columns, style=style)
    if encode == "AVRO":
        return AvroEncoder(
            columns=columns,
            topic=options.topic,
            debezium=format_ == "DEBEZIUM",
            registry=_registry(given),
        )
    raise ConfigError(f'connector "kafka" has no ENCODE {encode}', hint="Use JSON or AVRO.")


def _registry(given: Options) -> SchemaRegistry:
    addresses = (address.strip() for address in given["schema.registry"].split(","))
    return SchemaRegistry(
        addresses=tuple(address for address in addresses if address),
        username=given["schema.registry.username"],
        password=given["schema.registry.password"],
        ca_location=given["schema.registry.ca.location"],
    )
