"""Number equal rows: changes of a view without a key.

The hidden key of such a row is the hash of its columns and a number. Rows that come take the
lowest free numbers of their hash, rows that go free those of stored rows equal to them. Two
different rows with one hash share its numbers, so a collision does no harm.
"""

from typing import Any

import pyarrow as pa

from headwater.errors import BrokenInvariant
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.views.layout import ROW_HASH, ROW_NUMBER
from headwater.views.spelling import WEIGHT


def numbered(delta: pa.Table, stored: pa.Table, schema: Schema) -> pa.Table:
    """Upserts and deletes by hidden key; `stored` has all rows of the delta's hashes."""
    columns = [name for name in schema.names if name not in (ROW_HASH, ROW_NUMBER)]
    taken: dict[int, set[int]] = {}
    places: dict[tuple[Any, ...], list[int]] = {}
    for row in stored.to_pylist():
        taken.setdefault(row[ROW_HASH], set()).add(row[ROW_NUMBER])
        places.setdefault(_identity(row, columns), []).append(row[ROW_NUMBER])
    changes: list[tuple[int, int, ChangeType]] = []
    rows = delta.to_pylist()
    for at, row in enumerate(rows):
        if row[WEIGHT] < 0:
            here = places.get(_identity(row, columns), [])
            if len(here) < -row[WEIGHT]:
                raise BrokenInvariant("a view lacks a row that went", story=[str(row)])
            for _ in range(-row[WEIGHT]):
                number = here.pop()
                taken[row[ROW_HASH]].remove(number)
                changes.append((at, number, ChangeType.DELETE))
    for at, row in enumerate(rows):
        used = taken.setdefault(row[ROW_HASH], set())
        number = 1
        for _ in range(max(0, row[WEIGHT])):
            while number in used:
                number += 1
            used.add(number)
            changes.append((at, number, ChangeType.INSERT))
    chosen = delta.drop_columns([WEIGHT]).take(pa.array([at for at, _, _ in changes], pa.int64()))
    numbers = pa.array([number for _, number, _ in changes], pa.int64())
    kinds = pa.array([kind.value for _, _, kind in changes], pa.string())
    return chosen.append_column(ROW_NUMBER, numbers).append_column(CHANGE_TYPE, kinds)


def _identity(row: dict[str, Any], columns: list[str]) -> tuple[Any, ...]:
    return (row[ROW_HASH], *(_comparable(row[name]) for name in columns))


def _comparable(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if value != value else value + 0.0  # noqa: PLR0124  only NaN differs
        case list():
            return tuple(_comparable(each) for each in value)
        case dict():
            return tuple((name, _comparable(each)) for name, each in value.items())
        case _:
            return value
