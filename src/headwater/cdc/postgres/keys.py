"""Keys as texts that PostgreSQL reads back as the same values.

Where a key stands in a chunk, the server spelled it or its text is beyond doubt. Keys that come
from our own tables are Arrow values, and are spelled here: moments by their distance from 1970,
in a form that holds for every year.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_DAY_US = 86_400_000_000


def spelled_keys(keys: pa.Table) -> Iterator[tuple[str, ...]]:
    """Each row of some key columns, as texts."""
    yield from zip(*(_texts(column.combine_chunks()) for column in keys.columns), strict=True)


def spelled_value(value: Any) -> str:
    """A value whose text is the same everywhere."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(column: pa.Array) -> list[str]:
    if pa.types.is_date(column.type):
        return [_day(days) for days in column.view(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(column.type):
        return [_moment(micros) for micros in column.view(pa.int64()).to_pylist()]
    if pa.types.is_float32(column.type):
        return [str(value) for value in column.to_numpy()]
    return [spelled_value(value) for value in column.to_pylist()]


def _day(days: int) -> str:
    year, month, day = _civil(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{_era(year)}"


def _moment(micros: int) -> str:
    days, within = divmod(micros, _DAY_US)
    seconds, fraction = divmod(within, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    year, month, day = _civil(days)
    shown = year if year > 0 else 1 - year
    return f"{shown:04d}-{month:02d}-{day:02d} {clock}+00{_era(year)}"


def _era(year: int) -> str:
    return "" if year > 0 else " BC"


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of days since 1970; years begin in March, the leap day is their last."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year + (month <= 2), month, day
