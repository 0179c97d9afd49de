"""Values to test with: ordinary ones, and the ones that break things.

A pool is an Arrow array of one type whose first entries are extreme: the least and the greatest
value, NaN, infinities, both zeros, the empty text, text with quotes, separators and characters
beyond the basic plane, the first and the last day. A pool depends on its type and on nothing
else, so a source that picks from it by number is repeatable. There is no NUL in any text,
because PostgreSQL stores none; dates stay within Python's calendar, so that rows can be shown.
"""

import functools
import itertools
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model.schema import Schema
from headwater.model.types import DataType, Kind

POOL_SIZE = 2048

_MIDDAY = datetime(2024, 1, 1, 12, tzinfo=UTC)
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_TEXTS = (
    "", " ", ".", "null", "NULL", "\\N", "'", '"', "a,b", "a\tb", "a\nb", "\x1f", "\x7f",
    "ann", "Ann", "ann ", "ä", "a\u0308", "日本語", "🦉", "\U0010ffff", "\u2028", "x" * 1000,
)  # fmt: skip
_NUMERICS = ("0", "-0.1", "NaN", "9" * 60, "-" + "9" * 40 + ".5", "0." + "0" * 50 + "1")
_JSONS = ("null", "{}", "[]", '{"a": [1, null]}', '"\\u0000"', "1e400")
_DOUBLES = (0.0, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324, 0.1)
_REALS = (0.0, math.nan, math.inf, -math.inf, 3.4028234663852886e38, 1e-45, 0.5)
_UUID_STEP = 0x9E3779B97F4A7C15F39CC0605CEDC835
_CAPACITY = {
    Kind.BOOLEAN: 2,
    Kind.SMALLINT: 32_000,
    Kind.REAL: 1 << 23,
    Kind.DATE: 1_000_000,
    Kind.TIME: 86_400,
}
_BITS = {Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}


@dataclass(frozen=True, slots=True)
class Pool:
    """Values of one type, the extreme ones first."""

    values: pa.Array
    extremes: int


@functools.cache
def pool_of(type_: DataType) -> Pool:
    """The pool of a type, made once per process."""
    extremes = _extremes(type_)
    random = Random(f"pool of {type_.postgres}")
    ordinary = [_ordinary(type_, random) for _ in range(POOL_SIZE - len(extremes))]
    return Pool(pa.array([*extremes, *ordinary], type=type_.arrow), len(extremes))


def distinct_keys(schema: Schema, count: int, *, extreme: bool) -> pa.Table:
    """That many different keys, as the key's columns; extreme ones among them if wanted."""
    columns = schema.key_columns
    each = max(1, math.ceil(count ** (1 / len(columns))))
    sizes: list[int] = []
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        wanted = math.ceil(count / math.prod(sizes)) if last else each
        sizes.append(min(wanted, _key_capacity(column.type)))
    if math.prod(sizes) < count:
        raise SchemaError(
            f"a key of ({', '.join(schema.key)}) cannot have {count} different values",
            detail=f"At most {math.prod(sizes)} fit.",
            hint="Ask for fewer keys, or add a column to the key.",
        )
    numbers = np.arange(count)
    arrays: dict[str, pa.Array] = {}
    for column, size in zip(reversed(columns), reversed(sizes), strict=True):
        numbers, digit = np.divmod(numbers, size)
        arrays[column.name] = _key_values(column.type, size, extreme).take(pa.array(digit))
    return pa.table({name: arrays[name] for name in schema.key})


def _key_capacity(type_: DataType) -> int:
    if type_.kind is Kind.DECIMAL:
        return int(min(10 ** (type_.precision or 1), 10**9)) - 1
    return _CAPACITY.get(type_.kind, 10**9)


def _key_values(type_: DataType, count: int, extreme: bool) -> pa.Array:
    if type_.kind in _BITS and not extreme:
        return pa.array(np.arange(1, count + 1), type=type_.arrow)
    seen: dict[Any, None] = {}
    chosen = itertools.chain(_extremes(type_) if extreme else (), _counting(type_))
    for value in chosen:
        # -0.0 and 0.0 are one key, and so are all NaNs.
        seen.setdefault("NaN" if isinstance(value, float) and math.isnan(value) else value)
        if len(seen) == count:
            break
    return pa.array([math.nan if v == "NaN" and _floats(type_) else v for v in seen], type_.arrow)


def _floats(type_: DataType) -> bool:
    return type_.kind in (Kind.REAL, Kind.DOUBLE)


def _counting(type_: DataType) -> Iterator[Any]:
    """Different ordinary values, in a fixed order."""
    nth: Callable[[int], Any]
    match type_.kind:
        case Kind.BOOLEAN:
            return iter((False, True))
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return itertools.count(1)
        case Kind.DECIMAL:
            nth = functools.partial(_scaled, scale=type_.scale or 0)
        case _:
            nth = _NTH[type_.kind]
    return (nth(number) for number in itertools.count(1))


def _scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal(f"{unscaled}E-{scale}")


def _extremes(type_: DataType) -> list[Any]:
    match type_.kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            top = 1 << (_BITS[type_.kind] - 1)
            return [0, -1, 1, top - 1, -top]
        case Kind.DECIMAL:
            top = 10 ** (type_.precision or 1) - 1
            return [_scaled(number, type_.scale or 0) for number in (0, 1, -1, top, -top)]
        case Kind.LIST:
            assert type_.element is not None
            return [[], [None], _extremes(type_.element)]
        case Kind.STRUCT:
            columns = [(name, _extremes(inner)) for name, inner in type_.fields]
            return [{name: None for name, _ in columns}, {n: v[-1] for n, v in columns}]
        case _:
            return list(_EXTREMES[type_.kind])


def _ordinary(type_: DataType, random: Random) -> Any:
    match type_.kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            top = 1 << (_BITS[type_.kind] - 1)
            return random.randrange(-top, top)
        case Kind.DECIMAL:
            top = 10 ** (type_.precision or 1)
            return _scaled(random.randrange(-top + 1, top), type_.scale or 0)
        case Kind.LIST:
            assert type_.element is not None
            return [_ordinary(type_.element, random) for _ in range(random.randrange(4))]
        case Kind.STRUCT:
            return {name: _ordinary(inner, random) for name, inner in type_.fields}
        case _:
            return _NTH[type_.kind](random.randrange(1, 1 << 20))


def _timestamp(number: int) -> datetime:
    return _MIDDAY + timedelta(microseconds=number * 1_000_001)


_EXTREMES: dict[Kind, tuple[Any, ...]] = {
    Kind.BOOLEAN: (False, True),
    Kind.REAL: (*_REALS, -0.0),
    Kind.DOUBLE: (*_DOUBLES, -0.0),
    Kind.NUMERIC: _NUMERICS,
    Kind.VARCHAR: _TEXTS,
    Kind.BYTEA: (b"", b"\x00", b"\xff" * 300, b"\x1f"),
    Kind.DATE: (date.min, date.max, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)),
    Kind.TIME: ("00:00:00", "23:59:59.999999", "24:00:00"),
    Kind.TIMESTAMP: (_FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None)),
    Kind.TIMESTAMPTZ: (_FIRST, _LAST, datetime(1970, 1, 1, tzinfo=UTC)),
    Kind.INTERVAL: ("00:00:00", "-178000000 years", "1 year 2 mons 3 days 04:05:06.000007"),
    Kind.JSONB: _JSONS,
    Kind.UUID: (str(uuid.UUID(int=0)), str(uuid.UUID(int=(1 << 128) - 1))),
}
_NTH: dict[Kind, Callable[[int], Any]] = {
    Kind.BOOLEAN: lambda n: n % 2 == 1,
    Kind.REAL: lambda n: n / 2,
    Kind.DOUBLE: lambda n: n / 10,
    Kind.NUMERIC: lambda n: f"{n}.50",
    Kind.VARCHAR: lambda n: f"text {n}" if n % 2 else f"t{n}",
    Kind.BYTEA: lambda n: n.to_bytes(8, "big"),
    Kind.DATE: lambda n: date(1990, 1, 1) + timedelta(days=n % 1_000_000),
    Kind.TIME: lambda n: (_FIRST + timedelta(seconds=n % 86_400)).time().isoformat(),
    Kind.TIMESTAMP: lambda n: _timestamp(n).replace(tzinfo=None),
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.INTERVAL: lambda n: f"{n} days",
    Kind.JSONB: lambda n: f'{{"n": {n}}}',
    Kind.UUID: lambda n: str(uuid.UUID(int=n * _UUID_STEP % (1 << 128))),
}
