"""Find the rows of one table in another by key, over whole columns.

Hashes find candidates, and the keys themselves decide: two keys that share a hash are told
apart, because a row that is mistaken for another would be lost.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from headwater.model.schema import Schema
from headwater.state.key_hash import exact_keys, key_hashes
from headwater.state.lookup import same_values

Numbers = np.ndarray[Any, Any]


def match_keys(left: pa.Table, right: pa.Table, schema: Schema) -> Numbers:
    """For each row of `left`, a row of `right` with the same key, the last one; -1 for none."""
    found = np.full(left.num_rows, -1, dtype=np.int64)
    if not left.num_rows or not right.num_rows:
        return found
    columns = schema.key_columns
    wanted, there = key_hashes(left, columns), key_hashes(right, columns)
    order = np.argsort(there, kind="stable")
    place = np.searchsorted(there, wanted, side="right", sorter=order) - 1
    candidate = order[np.maximum(place, 0)]
    rows = np.flatnonzero((place >= 0) & (there[candidate] == wanted))
    if not rows.size:
        return found
    same = same_values(
        left.select(list(schema.key)).take(pa.array(rows)),
        right.select(list(schema.key)).take(pa.array(candidate[rows])),
        columns,
    )
    found[rows[same]] = candidate[rows[same]]
    if not same.all():
        _match_by_value(left, right, schema, rows[~same], found)
    return found


def _match_by_value(
    left: pa.Table, right: pa.Table, schema: Schema, rows: Numbers, found: Numbers
) -> None:
    """Settle the rows whose hash led to another key."""
    last = {key: row for row, key in enumerate(exact_keys(right, schema.key_columns))}
    unsettled = left.take(pa.array(rows))
    for row, key in zip(rows.tolist(), exact_keys(unsettled, schema.key_columns), strict=True):
        found[row] = last.get(key, -1)


def group_ids(table: pa.Table, schema: Schema) -> Numbers | None:
    """A number per key, equal exactly for equal keys; None when hashes cannot tell."""
    hashes = key_hashes(table, schema.key_columns)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    if first.size < table.num_rows:
        keys = table.select(list(schema.key))
        firsts = keys.take(pa.array(first[group]))
        if not same_values(keys, firsts, schema.key_columns).all():
            return None
    numbers: Numbers = group
    return numbers
