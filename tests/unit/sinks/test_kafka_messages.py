"""Messages by FORMAT and ENCODE, and what is refused before anything is sent."""

import io
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headwater.errors import BrokenInvariant, ConfigError, SchemaError, SinkUnavailable, UserError
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_millis
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import (
    BIGINT,
    DATE,
    INTEGER,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sinks.kafka.encoders import encoder_of
from headwater.sinks.kafka.messages import ROWS_AT_ONCE, checked_format, messages
from headwater.sinks.kafka.options import KafkaOptions
from headwater.sinks.kafka.sink import kafka_sink
from headwater.sinks.sink import Delivery, Encoding, SinkKind, SinkSpec
from schema_registry import Registry, schema_registry

OPTIONS = {"properties.bootstrap.server": "127.0.0.1:1", "topic": "orders"}
COLUMNS = (Column("id", BIGINT), Column("name", VARCHAR))
EPOCH = Epoch(7 << 16)
DELIVERY = Delivery(sink="s", after=NO_EPOCH, epoch=EPOCH, term=Term(1), rows=0)
Row = tuple[Any, ...]


def _spec(kind: SinkKind, encode: str = "", **encode_options: str) -> SinkSpec:
    return SinkSpec(
        name="s",
        ident="s",
        columns=COLUMNS,
        key=("id",),
        kind=kind,
        options=OPTIONS,
        encoding=Encoding(
            encode=encode, options={n.replace("_", "."): v for n, v in encode_options.items()}
        ),
    )


def _batch(spec: SinkSpec, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in spec.arrow]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, spec.arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.arrow)


def _made(spec: SinkSpec, *batches: Sequence[Row]) -> list[tuple[bytes | None, bytes | None]]:
    format_ = checked_format(spec)
    encoder = encoder_of(spec, format_, KafkaOptions.of(spec.options))
    rows = (_batch(spec, batch) for batch in batches)
    return [
        pair
        for keys, values in messages(spec, format_, encoder, DELIVERY, rows)
        for pair in zip(keys, values, strict=True)
    ]


INSERT, DELETE, NEW, OLD = RowOp.INSERT, RowOp.DELETE, RowOp.UPDATE_INSERT, RowOp.UPDATE_DELETE


def test_plain_has_a_key_only_where_rows_have_one() -> None:
    spec = _spec(SinkKind.APPEND_ONLY)
    rows = [(INSERT, 1, "ann"), (INSERT, 2, None)]
    values = [b'{"id":1,"name":"ann"}', b'{"id":2,"name":null}']
    assert _made(spec, rows) == list(zip([b'{"id":1}', b'{"id":2}'], values, strict=True))
    assert _made(replace(spec, key=()), rows) == [(None, value) for value in values]


def test_upsert_deletes_are_null_whatever_stands_beside_the_key() -> None:
    rows = [(DELETE, 1, None), (DELETE, 2, "x"), (INSERT, 3, "c")]
    expected = [(b'{"id":1}', None), (b'{"id":2}', None), (b'{"id":3}', b'{"id":3,"name":"c"}')]
    spec = _spec(SinkKind.UPSERT)
    assert _made(spec, rows) == expected
    assert _made(spec, rows[:2], rows[2:], []) == expected
    # Several vnode ranges in one batch: deletes are not all in front.
    assert _made(spec, rows[2:] + rows[:2]) == expected[2:] + expected[:2]


def test_key_columns_are_in_the_order_of_the_key() -> None:
    spec = replace(_spec(SinkKind.UPSERT), key=("name", "id"))
    assert _made(spec, [(DELETE, 1, "a")]) == [(b'{"name":"a","id":1}', None)]


def test_debezium_envelopes_and_tombstones() -> None:
    rows = [(DELETE, 1, "a"), (OLD, 2, "b"), (NEW, 2, "B"), (INSERT, 3, None)]
    made = _made(_spec(SinkKind.RETRACT), rows)
    millis = epoch_millis(EPOCH)
    source = {"connector": "headwater", "name": "s", "ts_ms": millis, "epoch": str(EPOCH)}

    def envelope(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"before": before, "after": after, "op": op, "ts_ms": millis, "source": source}

    assert [(key, value and json.loads(value)) for key, value in made] == [
        (b'{"id":1}', envelope("d", {"id": 1, "name": "a"}, None)),
        (b'{"id":1}', None),
        (b'{"id":2}', envelope("u", {"id": 2, "name": "b"}, {"id": 2, "name": "B"})),
        (b'{"id":3}', envelope("c", None, {"id": 3, "name": None})),
    ]
    for cut in range(len(rows) + 1):
        assert _made(_spec(SinkKind.RETRACT), rows[:cut], rows[cut:]) == made


def test_large_batches_are_cut_and_pairs_stay_together() -> None:
    rows: list[Row] = [(INSERT, 0, "first")]
    for number in range(1, ROWS_AT_ONCE):
        rows += [(OLD, number, "old"), (NEW, number, "new")]
    made = [value and json.loads(value)["op"] for _, value in _made(_spec(SinkKind.RETRACT), rows)]
    assert made == ["c"] + ["u"] * (ROWS_AT_ONCE - 1)


@pytest.mark.parametrize(
    "rows",
    [
        [(OLD, 1, "a")],
        [(NEW, 1, "a")],
        [(OLD, 1, "a"), (INSERT, 2, "b"), (NEW, 1, "c")],
        [(OLD, 1, "a"), (NEW, 2, "b")],
    ],
)
def test_torn_updates_are_our_bug(rows: list[Row]) -> None:
    with pytest.raises(BrokenInvariant):
        _made(_spec(SinkKind.RETRACT), rows)


@pytest.mark.parametrize("kind", SinkKind)
def test_a_null_in_a_key_names_the_column(kind: SinkKind) -> None:
    spec = replace(_spec(kind), key=("id", "name"))
    with pytest.raises(UserError, match='column "name" of the key') as raised:
        _made(spec, [(INSERT, 1, "a"), (INSERT, 2, None)])
    assert "id = 2" in raised.value.detail


def test_formats_and_types_go_together() -> None:
    for kind, format_ in (("upsert", "PLAIN"), ("append-only", "UPSERT"), ("upsert", "DEBEZIUM")):
        spec = replace(_spec(SinkKind(kind)), encoding=Encoding(format=format_, encode="JSON"))
        with pytest.raises(ConfigError, match=f"FORMAT {format_} takes a sink of type"):
            kafka_sink(spec)
    with pytest.raises(ConfigError, match="primary key not defined"):
        kafka_sink(replace(_spec(SinkKind.UPSERT), key=()))
    with pytest.raises(ConfigError, match="no FORMAT CANAL"):
        kafka_sink(replace(_spec(SinkKind.UPSERT), encoding=Encoding(format="CANAL")))
    with pytest.raises(ConfigError, match="no ENCODE PROTOBUF"):
        kafka_sink(_spec(SinkKind.UPSERT, "PROTOBUF"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "x"}, 'Did you mean "topic"'),
        ({"properties.ssl.ca.locatoin": "x"}, "properties.ssl.ca.location"),
        ({"properties.bootstrap.server": None}, 'needs the option "properties.bootstrap.server"'),
        ({"transactions": "maybe"}, "must be true or false"),
        ({"partitions": "0"}, "whole number from 1"),
        ({"topic.config": "cleanup.policy"}, "no value for"),
        ({"progress.topic": "orders"}, "name the same topic"),
        ({"properties.message.max.bytes": "many"}, "whole number"),
    ],
)
def test_wrong_options(options: dict[str, str | None], message: str) -> None:
    given = {name: value for name, value in (OPTIONS | options).items() if value is not None}
    with pytest.raises(ConfigError) as raised:
        kafka_sink(replace(_spec(SinkKind.UPSERT), options=given))
    assert message in str(raised.value)


def test_passwords_are_in_no_repr() -> None:
    secret = "s3cret-word"
    options = OPTIONS | {"properties.sasl.password": secret, "properties.ssl.key.pem": secret}
    spec = replace(_spec(SinkKind.UPSERT, "AVRO", schema_registry="http://h",
                         schema_registry_password=secret), options=options)  # fmt: skip
    sink = kafka_sink(spec)
    assert secret not in repr(vars(sink))
    assert secret not in repr(vars(sink._encoder))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with schema_registry() as running:
        yield running


def _read(registry: Registry, message: bytes | None) -> Any:
    assert message is not None
    assert message[0] == 0
    schema = registry.schema(int.from_bytes(message[1:5], "big"))
    return fastavro.schemaless_reader(io.BytesIO(message[5:]), schema, None)


def test_avro_upserts(registry: Registry) -> None:
    rows = [(DELETE, 1, None), (INSERT, 2, "b")]
    spec = _spec(SinkKind.UPSERT, "AVRO", schema_registry=registry.address)
    (gone, nothing), (key, value) = _made(spec, rows)
    assert (_read(registry, gone), nothing) == ({"id": 1}, None)
    assert (_read(registry, key), _read(registry, value)) == ({"id": 2}, {"id": 2, "name": "b"})
    assert {"orders-key", "orders-value"} <= set(registry.subjects)


def test_avro_debezium(registry: Registry) -> None:
    rows = [(DELETE, 1, "a"), (OLD, 2, "b"), (NEW, 2, None), (INSERT, 3, "c")]
    spec = _spec(SinkKind.RETRACT, "AVRO", schema_registry=registry.address)
    made = [(_read(registry, key), value and _read(registry, value))
            for key, value in _made(spec, rows)]  # fmt: skip
    assert [(key["id"], value and (value["op"], value["before"], value["after"]))
            for key, value in made] == [
        (1, ("d", {"id": 1, "name": "a"}, None)),
        (1, None),
        (2, ("u", {"id": 2, "name": "b"}, {"id": 2, "name": None})),
        (3, ("c", None, {"id": 3, "name": "c"})),
    ]  # fmt: skip


def test_avro_types(registry: Registry) -> None:
    pair = DataType(Kind.STRUCT, fields=(("at", TIMESTAMPTZ), ("x", INTEGER)))
    at = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    naive = at.replace(tzinfo=None)
    values = {
        "amount": (decimal(38, 10), Decimal("-12345678901234567890.0000000001")),
        "any_size": (NUMERIC, "1" * 50),
        "day": (DATE, date(1969, 12, 31)),
        "at": (TIMESTAMPTZ, at),
        "local": (TIMESTAMP, naive),
        "days": (list_of(DATE), [date(2024, 1, 1), None]),
        "pair": (pair, {"at": at, "x": None}),
    }
    columns = (Column("id", BIGINT), *(Column(name, type_) for name, (type_, _) in values.items()))
    spec = replace(
        _spec(SinkKind.UPSERT, "AVRO", schema_registry=registry.address), columns=columns
    )
    row = {"id": 1} | {name: value for name, (_, value) in values.items()}
    ((_, value),) = _made(spec, [(INSERT, *row.values())])
    assert _read(registry, value) == row


def test_avro_names_and_the_registry_s_errors(registry: Registry) -> None:
    spec = _spec(SinkKind.UPSERT, "AVRO", schema_registry=registry.address)
    with pytest.raises(SchemaError, match='column "größe" cannot go to Avro'):
        _made(replace(spec, columns=(*COLUMNS, Column("größe", INTEGER))), [])
    with pytest.raises(ConfigError, match=r'needs the option "schema\.registry"'):
        kafka_sink(_spec(SinkKind.UPSERT, "AVRO"))
    with pytest.raises(ConfigError, match="does not begin with http"):
        kafka_sink(_spec(SinkKind.UPSERT, "AVRO", schema_registry="registry:8081"))
    rows = [(INSERT, 1, "a")]
    with pytest.raises(SinkUnavailable, match="does not answer"):
        _made(_spec(SinkKind.UPSERT, "AVRO", schema_registry="http://127.0.0.1:1"), rows)
    # The first address is away; the second one answers.
    both = f"http://127.0.0.1:1, {registry.address}"
    assert _made(_spec(SinkKind.UPSERT, "AVRO", schema_registry=both), rows)
    registry.refuses["orders-value"] = (409, "reader field is missing")
    try:
        with pytest.raises(UserError, match="refuses the new schema") as raised:
            _made(spec, rows)
        assert raised.value.detail == "reader field is missing"
        registry.refuses["orders-value"] = (503, "not ready")
        with pytest.raises(SinkUnavailable):
            _made(spec, rows)
    finally:
        registry.refuses.clear()


def test_the_registry_asks_for_a_password(registry: Registry) -> None:
    registry.login = "ann:s3cret"
    rows = [(INSERT, 1, "a")]
    try:
        with pytest.raises(ConfigError, match="does not let us in"):
            _made(_spec(SinkKind.UPSERT, "AVRO", schema_registry=registry.address), rows)
        spec = _spec(SinkKind.UPSERT, "AVRO", schema_registry=registry.address,
                     schema_registry_username="ann", schema_registry_password="s3cret")  # fmt: skip
        assert _read(registry, _made(spec, rows)[0][1]) == {"id": 1, "name": "a"}
        # An encoder that has registered its schemas can still travel to a task.
        encoder = encoder_of(spec, "UPSERT", KafkaOptions.of(OPTIONS))
        encoder.open()
        again = pickle.loads(pickle.dumps(encoder)).values(_batch(spec, rows)).to_pylist()
        assert _read(registry, again[0]) == {"id": 1, "name": "a"}
    finally:
        registry.login = ""
