"""Joins, groups and orders of small Arrow tables, with Spark's meaning.

Keys are compared by codes: every different value of a column, null included, gets a number, and
the numbers of several columns are put together into one. So one way serves all exact types, and
null-safe joins beside ordinary ones.

A join by one whole number or time, the usual one, goes by an index of its second side instead
(`KeyIndex`), which is made once for all who join with the same rows.

Promises
    Bounded   A join of more than `MOST_PAIRS` pairs, and of several times the rows that it joins,
              is refused before it is made.
    Exact     Sums that might overflow are refused; Spark has words for it.
"""

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.views.on_arrow.terms import NotHere, exact

MOST_PAIRS = 1_000_000
_GROWTH = 4
"""Of how many rows a side has, a join may make so many times as many."""
_DENSE = 4
"""Keys that lie in so small a range, counted in keys, are found by their place in it."""
_MOST_DIGITS = 38

Positions = "np.ndarray[Any, Any]"


def pairs(
    left: Sequence[Any], right: Sequence[Any], sizes: tuple[int, int], *, null_safe: bool
) -> tuple[Any, Any]:
    """Positions of the rows that meet: all columns of the one are equal to those of the other."""
    first, second = sizes
    if not left:
        if first * second > MOST_PAIRS:
            raise NotHere("a large product")
        return np.repeat(np.arange(first), second), np.tile(np.arange(second), first)
    codes, null = _codes(
        [
            pa.chunked_array([*_chunks(a), *_chunks(b)], type=a.type)
            for a, b in zip(left, right, strict=True)
        ]
    )
    ours, theirs = np.arange(first), np.arange(first, first + second)
    if not null_safe:
        ours, theirs = ours[~null[:first]], theirs[~null[first:]]
    order = theirs[np.argsort(codes[theirs], kind="stable")]
    ordered = codes[order]
    begin = np.searchsorted(ordered, codes[ours], side="left")
    counts = np.searchsorted(ordered, codes[ours], side="right") - begin
    return _expanded(ours, order - first, begin, counts, max(sizes))


def _expanded(ours: Any, order: Any, begin: Any, counts: Any, rows: int) -> tuple[Any, Any]:
    """Each of ours with as many of theirs, from a place in their order on."""
    total = int(counts.sum())
    if total > max(MOST_PAIRS, _GROWTH * rows):
        raise NotHere("a large join")
    starts = np.repeat(begin - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return np.repeat(ours, counts), order[starts + np.arange(total)]


class KeyIndex:
    """Where rows are by one key column, whole numbers or times; nulls are nowhere."""

    def __init__(self, values: Any) -> None:
        keys, null = _whole_numbers(values)
        self._rows = len(keys)
        there = np.flatnonzero(~null)
        self._order = there[np.argsort(keys[there], kind="stable")]
        self._keys = keys[self._order]
        self._places: Any = None
        unique = bool((self._keys[1:] != self._keys[:-1]).all())
        if len(self._keys) and unique:
            self._low, high = int(self._keys[0]), int(self._keys[-1])
            if high - self._low < _DENSE * len(self._keys):
                self._places = np.full(high - self._low + 1, -1, dtype=np.int64)
                self._places[self._keys - self._low] = self._order

    @staticmethod
    def serves(type_: pa.DataType) -> bool:
        """Whether keys of a type can be found by it."""
        return bool(
            pa.types.is_integer(type_) or type_ == pa.date32() or pa.types.is_timestamp(type_)
        )

    def pairs(self, values: Any) -> tuple[Any, Any]:
        """Positions of the values that are here, and of the rows that they meet."""
        keys, null = _whole_numbers(values)
        if self._places is not None:
            near = (keys >= self._low) & (keys < self._low + len(self._places)) & ~null
            ours = np.flatnonzero(near)
            theirs = self._places[keys[ours] - self._low]
            there = theirs >= 0
            return ours[there], theirs[there]
        ours = np.flatnonzero(~null)
        begin = np.searchsorted(self._keys, keys[ours], side="left")
        counts = np.searchsorted(self._keys, keys[ours], side="right") - begin
        return _expanded(ours, self._order, begin, counts, max(self._rows, len(keys)))


def _whole_numbers(values: Any) -> tuple[Any, Any]:
    """Keys as 64-bit numbers, and which of them are null."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    null = np.asarray(pc.is_null(whole))
    if whole.type == pa.date32():
        whole = whole.cast(pa.int32())
    numbers = pc.fill_null(whole.cast(pa.int64()), 0)
    return np.asarray(numbers), null


def _chunks(values: Any) -> list[Any]:
    return list(values.chunks) if isinstance(values, pa.ChunkedArray) else [values]


def _codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Any, Any]:
    """One number per different row, and which rows hold a null."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    null = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        null |= np.asarray(pc.is_null(column))
        numbers = np.asarray(encoded.indices).astype(np.int64)
        codes = codes * max(1, len(encoded.dictionary)) + numbers
        # Renumbered, so that no number of columns can make the codes overflow.
        _, codes = np.unique(codes, return_inverse=True)
    return codes, null


def taken(table: pa.Table, positions: Any) -> pa.Table:
    """The rows at some positions."""
    return table.take(pa.array(positions))


@dataclass(frozen=True, slots=True)
class Total:
    """One aggregate over a column, or over rows when there is none."""

    function: str
    column: str | None
    type: pa.DataType


def total_type(function: str, given: pa.DataType | None) -> pa.DataType:
    """The type of an aggregate in Spark."""
    if function == "count":
        return pa.int64()
    assert given is not None
    if function == "sum":
        if pa.types.is_decimal128(given):
            return pa.decimal128(min(_MOST_DIGITS, given.precision + 10), given.scale)
        if pa.types.is_integer(given):
            return pa.int64()
    elif exact(given) and not pa.types.is_boolean(given):
        return given
    raise NotHere(f"{function} of {given}")


def grouped(
    table: pa.Table, keys: Sequence[str], totals: Sequence[Total], names: Sequence[str]
) -> pa.Table:
    """One row per group: its keys, then the totals under these names; without keys one row."""
    for name in keys:
        if not exact(table.schema.field(name).type):
            raise NotHere("groups of a type that is not exact")
    for total in totals:
        if total.function == "sum":
            _refuse_overflow(table.column(total.column))
    if not keys:
        return _whole(table, totals, names)
    plain = table.select(list(dict.fromkeys([*keys, *(t.column for t in totals if t.column)])))
    asked = [
        ([], "count_all") if total.column is None else (total.column, total.function)
        for total in totals
    ]
    made = plain.group_by(list(keys), use_threads=False).aggregate(asked)
    columns = [made.column(name) for name in keys]
    for total in totals:
        found = "count_all" if total.column is None else f"{total.column}_{total.function}"
        columns.append(made.column(found).cast(total.type))
    return pa.table(columns, names=[*keys, *names])


def _whole(table: pa.Table, totals: Sequence[Total], names: Sequence[str]) -> pa.Table:
    if not totals:
        raise NotHere("an aggregate of nothing")
    columns = []
    for total in totals:
        if total.column is None:
            value: Any = pa.scalar(table.num_rows, pa.int64())
        else:
            value = getattr(pc, total.function)(table.column(total.column))
        columns.append(pa.array([value.as_py()], total.type))
    return pa.table(columns, names=list(names))


def _refuse_overflow(column: pa.ChunkedArray) -> None:
    seen = pc.min_max(column)
    low, high = seen["min"].as_py(), seen["max"].as_py()
    if low is None:
        return
    type_ = column.type
    most = 1 << 63
    if pa.types.is_decimal128(type_):
        digits = min(_MOST_DIGITS, type_.precision + 10) - type_.scale
        most = 10**digits
    with decimal.localcontext(prec=100):
        if max(abs(low), abs(high)) * len(column) >= most:
            raise NotHere("a sum that may overflow")


@dataclass(frozen=True, slots=True)
class Order:
    """One term of an ORDER BY."""

    column: str
    descending: bool
    nulls_first: bool


def sorted_positions(table: pa.Table, order: Sequence[Order]) -> Any:
    """The positions of a table's rows in some order; ties stay as they are."""
    columns: list[Any] = []
    ways: list[tuple[str, str]] = []
    for place, each in enumerate(order):
        values = table.column(each.column)
        if not exact(values.type):
            raise NotHere("an order of a type that is not exact")
        if values.null_count:
            columns.append(pc.cast(pc.is_null(values), pa.int8()))
            ways.append((f"n{place}", "descending" if each.nulls_first else "ascending"))
        columns.append(values)
        ways.append((f"v{place}", "descending" if each.descending else "ascending"))
    keys = pa.table(columns, names=[name for name, _ in ways])
    return np.asarray(pc.sort_indices(keys, sort_keys=ways)).astype(np.int64)


def places(
    table: pa.Table, function: str, partition: Sequence[str], order: Sequence[Order]
) -> pa.Array:
    """Each row's ROW_NUMBER, RANK or DENSE_RANK within its partition, from 1 on."""
    count = table.num_rows
    for name in partition:
        if not exact(table.schema.field(name).type):
            raise NotHere("partitions of a type that is not exact")
    codes = _codes([table.column(name) for name in partition])[0] if partition else np.zeros(count)
    by_order = sorted_positions(table, order)
    # A stable sort by partition keeps the order inside of each.
    at = by_order[np.argsort(codes[by_order], kind="stable")]
    starts = np.ones(count, dtype=np.bool_)
    starts[1:] = codes[at][1:] != codes[at][:-1]
    if function == "row_number":
        news = np.ones(count, dtype=np.bool_)
    else:
        ties = _codes([table.column(each.column) for each in order])[0][at]
        news = starts.copy()
        news[1:] |= ties[1:] != ties[:-1]
    begin = np.maximum.accumulate(np.where(starts, np.arange(count), 0))
    if function == "dense_rank":
        seen = np.cumsum(news)
        numbers = seen - seen[begin] + 1
    else:
        first = np.maximum.accumulate(np.where(news, np.arange(count), 0))
        numbers = first - begin + 1
    place = np.empty(count, dtype=np.int32)
    place[at] = numbers
    return pa.array(place)
