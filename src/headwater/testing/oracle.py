"""Compare rows in both directions, and say what a chunk of changes means.

`assert_same_rows(actual, expected)` is `EXCEPT ALL` both ways: it passes only if every row is
there exactly as often on both sides, in any order. Rows may be an Arrow table, a Spark
DataFrame, a list of dicts, or a dict from key to row. Columns go by name.

    what                       compares as
    null                       equal to null
    NaN                        equal to NaN
    0.0 and -0.0               different, because a source can store either;
                               equal with `one_zero=True`, as Spark and SQL group them
    boolean, integer, float,   different families are never equal: 1 is not 1.0, not True
    decimal                    and not Decimal(1); the width (int32, int64) does not matter
    decimal                    by value: 1.0 equals 1.00, and nothing is rounded
    timestamp, date            exact to the nanosecond; with and without time zone differ
    list, struct               item by item, field by field (by name)

A list or struct must not hold dates beyond the year 9999, which Python cannot name.

`apply_changes` and `apply_exact` are the two meanings of a chunk (`model/change.py`) on a plain
dict from key to row, the model that state tables are tested against.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_never

import pyarrow as pa

from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, RESERVED_COLUMNS, SEQ

Row = dict[str, Any]
Key = tuple[Any, ...]
Rows = Any
"""An Arrow table, a DataFrame with `toArrow`, a list of dicts, or a dict from key to row."""

_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 10


class RowsDiffer(AssertionError):
    """Two sets of rows are not the same; the message shows a sample of each direction."""


class InexactChunk(AssertionError):
    """A chunk that must be exact does not fit the rows it is applied to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """What is expected and not there, and what is there and not expected."""

    missing: tuple[Row, ...]
    extra: tuple[Row, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)


def assert_same_rows(
    actual: Rows, expected: Rows, *, key: Sequence[str] = (), one_zero: bool = False
) -> None:
    """Raise `RowsDiffer` unless both hold the same rows equally often.

    `key` only helps the message: rows of one key are shown as what differs in them.
    """
    difference = compare_rows(actual, expected, one_zero=one_zero)
    if difference:
        raise RowsDiffer(_describe(difference, key))


def compare_rows(actual: Rows, expected: Rows, *, one_zero: bool = False) -> RowDifference:
    """Find the rows of each side that the other lacks, as often as it lacks them."""
    if isinstance(actual, pa.Table) and isinstance(expected, pa.Table):
        if not _holds_floats(actual.schema) and actual.equals(expected):
            return RowDifference(missing=(), extra=())
    left, right = _columns(actual), _columns(expected)
    names = sorted(left or right)
    if left and right and left.keys() != right.keys():
        only_left, only_right = sorted(left.keys() - right), sorted(right.keys() - left)
        raise RowsDiffer(
            "the columns differ"
            + (f"; not expected: {', '.join(only_left)}" if only_left else "")
            + (f"; missing: {', '.join(only_right)}" if only_right else "")
        )
    left_rows = _counted(left, names, one_zero=one_zero)
    right_rows = _counted(right, names, one_zero=one_zero)
    return RowDifference(
        missing=_sample(right_rows, left_rows, right, names),
        extra=_sample(left_rows, right_rows, left, names),
    )


def rows_of(rows: Rows) -> list[Row]:
    """The rows as plain dicts, in their order."""
    if isinstance(rows, Mapping):
        return [dict(row) for row in rows.values()]
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return [dict(row) for row in rows.to_pylist()]
    if hasattr(rows, "toArrow"):
        return rows_of(rows.toArrow())
    return [dict(row) for row in rows]


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> Key:
    """The key of a row, with one NaN and one zero."""
    return tuple(_key_value(row[name]) for name in key)


def apply_changes(rows: dict[Key, Row], chunk: Rows, key: Sequence[str]) -> None:
    """Do to `rows`, in place, what a chunk does that goes into a state table.

    An insert and a postimage set the row of their key, a delete takes it away if it is there,
    a preimage says nothing. So the same chunk may be applied twice.
    """
    for change, row in _changes(chunk):
        match change:
            case ChangeType.INSERT | ChangeType.UPDATE_POSTIMAGE:
                rows[key_of(row, key)] = row
            case ChangeType.DELETE:
                rows.pop(key_of(row, key), None)
            case ChangeType.UPDATE_PREIMAGE:
                pass
            case _ as never:
                assert_never(never)


def apply_exact(  # noqa: PLR0912  one branch per rule
    rows: dict[Key, Row], chunk: Rows, key: Sequence[str]
) -> None:
    """Do to `rows`, in place, what a chunk does that came out of a state table.

    Raises `InexactChunk`, and leaves `rows` as they were, if the chunk deletes or updates a row
    that is not there, inserts one that is, shows an old row other than the stored one, or parts
    the two halves of an update.
    """
    changed: dict[Key, Row | None] = {}
    preimage: Key | None = None

    def stored(at: Key) -> Row | None:
        return changed[at] if at in changed else rows.get(at)

    for number, (change, row) in enumerate(_changes(chunk), 1):
        at = key_of(row, key)
        where = f"change {number}, {change.value} of key {_show_key(at, key)}"
        if preimage is not None and (change is not ChangeType.UPDATE_POSTIMAGE or at != preimage):
            raise InexactChunk(
                f"{where}: the preimage before it, of key {_show_key(preimage, key)}, "
                "has no postimage right after it"
            )
        match change:
            case ChangeType.INSERT:
                if (there := stored(at)) is not None:
                    raise InexactChunk(f"{where}: the key is there already, as {_show(there)}")
                changed[at] = row
            case ChangeType.DELETE | ChangeType.UPDATE_PREIMAGE:
                _check_old_row(where, row, stored(at))
                if change is ChangeType.DELETE:
                    changed[at] = None
                else:
                    preimage = at
            case ChangeType.UPDATE_POSTIMAGE:
                if preimage is None:
                    raise InexactChunk(f"{where}: no preimage stands right before it")
                changed[at], preimage = row, None
            case _ as never:
                assert_never(never)
    if preimage is not None:
        raise InexactChunk(f"the chunk ends with a preimage of key {_show_key(preimage, key)}")
    for at, new in changed.items():
        if new is None:
            rows.pop(at, None)
        else:
            rows[at] = new


def _check_old_row(where: str, row: Row, there: Row | None) -> None:
    if there is None:
        raise InexactChunk(f"{where}: no such key is there")
    names = {**there, **row}
    if any(_exact(row.get(n), False) != _exact(there.get(n), False) for n in names):
        raise InexactChunk(f"{where}: it shows {_show(row)}, but stored is {_show(there)}")


def _changes(chunk: Rows) -> Iterator[tuple[ChangeType, Row]]:
    rows = rows_of(chunk)
    if rows and SEQ in rows[0]:
        rows.sort(key=lambda row: row[SEQ])
    for row in rows:
        if CHANGE_TYPE not in row:
            raise ValueError(f"a chunk needs the column {CHANGE_TYPE}; it has {', '.join(row)}")
        change = ChangeType(row[CHANGE_TYPE])
        yield change, {name: row[name] for name in row if name not in RESERVED_COLUMNS}


def _columns(rows: Rows) -> dict[str, list[Any] | pa.ChunkedArray]:
    """The values by column; empty when there is no row to name the columns."""
    if hasattr(rows, "toArrow"):
        rows = rows.toArrow()
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return {name: rows.column(name) for name in rows.schema.names}
    listed = rows_of(rows)
    if not listed:
        return {}
    names = listed[0].keys()
    for number, row in enumerate(listed, 1):
        if row.keys() != names:
            unlike = ", ".join(sorted(row.keys() ^ names))
            raise ValueError(f"row {number} and row 1 do not have the same columns: {unlike}")
    return {name: [row[name] for row in listed] for name in names}


def _counted(
    columns: Mapping[str, list[Any] | pa.ChunkedArray], names: Sequence[str], *, one_zero: bool
) -> dict[Hashable, list[int]]:
    """By exact row: the numbers of the rows that are equal to it."""
    if not columns:
        return {}
    exact = [_exact_column(columns[name], one_zero) for name in names]
    found: dict[Hashable, list[int]] = {}
    for number, row in enumerate(zip(*exact, strict=True)):
        found.setdefault(row, []).append(number)
    return found


def _sample(
    rows: Mapping[Hashable, list[int]],
    others: Mapping[Hashable, list[int]],
    columns: Mapping[str, list[Any] | pa.ChunkedArray],
    names: Sequence[str],
) -> tuple[Row, ...]:
    numbers: list[int] = []
    for row, where in rows.items():
        numbers.extend(where[len(others.get(row, ())) :])
    numbers.sort()
    return tuple({name: _item(columns[name], number) for name in names} for number in numbers)


def _item(column: list[Any] | pa.ChunkedArray, number: int) -> Any:
    if isinstance(column, list):
        return column[number]
    try:
        return column[number].as_py()
    except (ValueError, OverflowError):
        return f"@{column[number].value}"


def _holds_floats(schema: pa.Schema) -> bool:
    """Whether Arrow's own comparison, for which both zeros are equal, is not enough."""
    return any("float" in str(f.type) or "double" in str(f.type) for f in schema)


def _exact_column(column: list[Any] | pa.ChunkedArray, one_zero: bool) -> list[Hashable]:
    if isinstance(column, list):
        return [_exact(value, one_zero) for value in column]
    kind = column.type
    if pa.types.is_timestamp(kind):
        tag, factor = ("timestamptz" if kind.tz else "timestamp"), _NANOS[kind.unit]
        numbers = column.cast(pa.int64()).to_pylist()
        return [None if number is None else (tag, number * factor) for number in numbers]
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32()).to_pylist()
        return [None if day is None else ("date", day) for day in days]
    values = column.to_pylist()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        exact: list[Hashable] = values
        return exact
    return [_exact(value, one_zero) for value in values]


def _exact(value: Any, one_zero: bool) -> Hashable:  # noqa: PLR0911  one return per family
    """A hashable stand-in that is equal exactly when the table in the header says so."""
    match value:
        case None | str() | bytes():
            return value
        case bool():
            return ("boolean", value)
        case int():
            return ("integer", int(value))
        case float():
            return ("float", _exact_float(value, one_zero))
        case Decimal():
            return ("decimal", str(value) if value.is_nan() else value)
        case datetime():
            tag = "timestamp" if value.tzinfo is None else "timestamptz"
            moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
            return (tag, (moment - _EPOCH) // timedelta(microseconds=1) * 1000)
        case date():
            return ("date", (value - _EPOCH.date()).days)
        case Mapping():
            fields = sorted((name, _exact(item, one_zero)) for name, item in value.items())
            return ("struct", tuple(fields))
        case list() | tuple():
            return ("list", tuple(_exact(item, one_zero) for item in value))
        case _:
            return (type(value).__name__, value)


def _exact_float(value: float, one_zero: bool) -> Hashable:
    if math.isnan(value):
        return "NaN"
    if value == 0 and not one_zero:
        return math.copysign(1, value), "zero"
    return value


def _key_value(value: Any) -> Any:
    if isinstance(value, float):
        # NaN is a key only as one and the same object, and Python hashes both zeros alike.
        return math.nan if math.isnan(value) else value + 0.0
    return value


def _describe(difference: RowDifference, key: Sequence[str]) -> str:
    missing, extra = difference.missing, difference.extra
    lines = [f"rows differ: {len(missing)} missing, {len(extra)} extra"]
    if key:
        lines.extend(_describe_by_key(missing, extra, key))
    for title, rows in (("missing (expected, not there)", missing), ("extra", extra)):
        if rows:
            lines.append(f"{title}:")
            lines.extend(f"  {_show(row)}" for row in rows[:_SHOWN])
            if len(rows) > _SHOWN:
                lines.append(f"  ... and {len(rows) - _SHOWN} more")
    return "\n".join(lines)


def _describe_by_key(
    missing: Sequence[Row], extra: Sequence[Row], key: Sequence[str]
) -> Iterator[str]:
    wanted = {key_of(row, key): row for row in missing}
    twice = [at for at, count in Counter(key_of(row, key) for row in extra).items() if count > 1]
    for at in twice[:_SHOWN]:
        yield f"  key {_show_key(at, key)} is there more than once"
    pairs = [(row, wanted[at]) for row in extra if (at := key_of(row, key)) in wanted]
    for row, want in pairs[:_SHOWN]:
        unlike = [n for n in row if _exact(row[n], False) != _exact(want[n], False)]
        told = ", ".join(f"{n} is {row[n]!r}, expected {want[n]!r}" for n in unlike)
        yield f"  key {_show_key(key_of(row, key), key)}: {told}"


def _show(row: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in row.items()) + "}"


def _show_key(at: Key, key: Sequence[str]) -> str:
    return _show(dict(zip(key, at, strict=True)))
