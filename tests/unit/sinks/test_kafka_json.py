"""JSON made a column at a time equals JSON made a value at a time."""

import base64
import json
import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import SchemaError
from headwater.model.schema import Column
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sinks.kafka.json_rows import JsonStyle, TimestamptzMode, json_rows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = ("", "ann", 'say "hi"', "back\\slash", "\x00\x01\x1f\x7f", "tab\tline\nfeed\rend\b\f",
          "漢字 ünï 😀", '\\"', "\\\\n", "null", "{}", "\u2028")  # fmt: skip
PAIR = DataType(Kind.STRUCT, fields=(("x", INTEGER), ('odd "name"', VARCHAR)))
VALUES: dict[DataType, tuple[Any, ...]] = {
    BOOLEAN: (True, False),
    SMALLINT: (0, -32768, 32767),
    INTEGER: (0, -(2**31), 2**31 - 1),
    BIGINT: (0, -(2**63), 2**63 - 1),
    REAL: (0.0, 1.5, -3.4028234663852886e38, 1.401298464324817e-45, math.nan, math.inf),
    DOUBLE: (0.0, 0.1, -0.0, 1e300, 5e-324, 123456789012345680.0, math.nan, math.inf, -math.inf),
    decimal(12, 2): (Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99")),
    decimal(38, 20): (Decimal("0E-20"), Decimal("-0.00000000000000000001"), Decimal("1.5")),
    decimal(38, 38): (Decimal("0." + "9" * 38), Decimal("-1E-38"), Decimal("0E-38")),
    decimal(38, 0): (Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0)),
    NUMERIC: ("NaN", "1" * 60 + ".5", "-0.1"),
    VARCHAR: _TEXTS,
    BYTEA: (b"", b"\x00\xff", b"abc"),
    DATE: (date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)),
    TIME: ("00:00:00", "24:00:00", "23:59:59.999999"),
    TIMESTAMP: (datetime(1, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 999999)),  # noqa: DTZ001
    TIMESTAMPTZ: (_EPOCH, _EPOCH - timedelta(microseconds=1), datetime(9999, 12, 31, tzinfo=UTC)),
    INTERVAL: ("1 year", "-3 days"),
    JSONB: ('{"a": [1, "b\\n"]}', "null", '"\\u0000"'),
    UUID: ("123e4567-e89b-12d3-a456-426614174000",),
    list_of(VARCHAR): ([], ["a", None, 'q"'], [None]),
    list_of(list_of(DOUBLE)): ([[1.5], None, []], [[math.nan]]),
    PAIR: ({"x": 1, 'odd "name"': "a\nb"}, {"x": None, 'odd "name"': None}),
    list_of(PAIR): ([{"x": 1, 'odd "name"': None}, None],),
}


def plain(  # noqa: PLR0911, PLR0912
    type_: DataType, value: Any, style: JsonStyle
) -> Any:
    """What a value is in JSON, as Python's `json` would take it."""
    if value is None:
        return None
    if type_ == TIMESTAMPTZ:
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        match style.timestamptz:
            case TimestamptzMode.MICRO:
                return micros
            case TimestamptzMode.MILLI:
                return micros // 1000
            case TimestamptzMode.UTC_STRING:
                return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z".rjust(27, "0")
            case TimestamptzMode.UTC_WITHOUT_SUFFIX:
                return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")
    match type_.kind:
        case Kind.REAL | Kind.DOUBLE if math.isnan(value):
            return "NaN"
        case Kind.REAL | Kind.DOUBLE if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case Kind.REAL:
            return float(str(np.float32(value)))
        case Kind.DECIMAL:
            return f"{value:.{type_.scale}f}"
        case Kind.BYTEA:
            return base64.b64encode(value).decode()
        case Kind.DATE:
            return value.isoformat()
        case Kind.TIMESTAMP:
            return value.isoformat(" ", "microseconds")
        case Kind.JSONB if style.jsonb_is_json:
            return json.loads(value)
        case Kind.LIST:
            assert type_.element is not None
            return [plain(type_.element, item, style) for item in value]
        case Kind.STRUCT:
            return {name: plain(field, value[name], style) for name, field in type_.fields}
    return value


def _table(rows: list[list[Any]], types: list[DataType]) -> list[Any]:
    return [
        pa.array([row[place] for row in rows], type_.arrow) for place, type_ in enumerate(types)
    ]


@pytest.mark.parametrize("mode", TimestamptzMode)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_of_all_types(mode: TimestamptzMode, dynamic: bool, seed: int) -> None:
    dice = random.Random(seed)
    style = JsonStyle(timestamptz=mode, jsonb_is_json=dynamic)
    types = list(VALUES)
    columns = [Column(f'c{place} "{type_.kind}"', type_) for place, type_ in enumerate(types)]
    rows = [
        [None if dice.random() < 0.2 else dice.choice(VALUES[type_]) for type_ in types]
        for _ in range(200)
    ]
    arrays = _table(rows, types)
    expected = [
        {c.name: plain(c.type, v, style) for c, v in zip(columns, row, strict=True)} for row in rows
    ]
    made = json_rows(columns, arrays, style).to_pylist()
    for text, row in zip(made, expected, strict=True):
        assert json.loads(text, parse_constant=pytest.fail) == row
    # A slice begins inside its buffers.
    sliced = json_rows(columns, [array.slice(7, 90) for array in arrays], style).to_pylist()
    assert sliced == made[7:97]


@pytest.mark.parametrize("type_", VALUES, ids=lambda type_: type_.postgres)
def test_values_of_a_type_without_nulls(type_: DataType) -> None:
    values = list(VALUES[type_])
    array = pa.array(values, type_.arrow)
    made = json_rows([Column("v", type_)], [array], JsonStyle()).to_pylist()
    assert [json.loads(text)["v"] for text in made] == [
        plain(type_, value, JsonStyle()) for value in values
    ]
    assert json_rows([Column("v", type_)], [array.slice(0, 0)], JsonStyle()).to_pylist() == []
    nulls = pa.nulls(2, type_.arrow)
    assert json_rows([Column("v", type_)], [nulls], JsonStyle()).to_pylist() == ['{"v":null}'] * 2


def test_every_character() -> None:
    texts = ["".join(map(chr, range(low, low + 256))) for low in range(0, 0xD800, 256)]
    texts += [chr(code) for code in (0xE000, 0xFFFF, 0x10000, 0x10FFFF)]
    made = json_rows([Column("v", VARCHAR)], [pa.array(texts)], JsonStyle()).to_pylist()
    assert [json.loads(text)["v"] for text in made] == texts


def test_text_is_compact_and_as_it_is_documented() -> None:
    columns = [Column("id", INTEGER), Column("price", decimal(9, 2)), Column("at", TIMESTAMPTZ)]
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    arrays = _table([[1, Decimal("12.50"), at]], [column.type for column in columns])
    assert json_rows(columns, arrays, JsonStyle()).to_pylist() == [
        '{"id":1,"price":"12.50","at":"2024-02-29T12:00:00.000000Z"}'
    ]


def test_a_time_that_has_no_text_is_refused() -> None:
    far = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us"))
    with pytest.raises(SchemaError, match='"v"'):
        json_rows([Column("v", TIMESTAMP)], [far], JsonStyle())
