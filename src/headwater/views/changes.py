"""Chunks of exact changes as rows with weights, and back to upserts and deletes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BrokenInvariant
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.views.spelling import WEIGHT

_COMES = pa.array([change.value for change in ChangeType if change.adds])


def weighted(changes: pa.Table, schema: Schema) -> pa.Table:
    """Exact changes as a delta."""
    comes = pc.is_in(changes.column(CHANGE_TYPE), value_set=_COMES)
    weights = pc.if_else(comes, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
    return conformed(changes, schema).append_column(WEIGHT, weights)


def split(changes: pa.Table, schema: Schema) -> tuple[pa.Table, pa.Table]:
    """The rows that go, and the rows that come."""
    comes = pc.is_in(changes.column(CHANGE_TYPE), value_set=_COMES)
    rows = conformed(changes, schema)
    return rows.filter(pc.invert(comes)), rows.filter(comes)


def conformed(rows: pa.Table, schema: Schema) -> pa.Table:
    """The schema's columns in their exact types."""
    return rows.select(list(schema.names)).cast(schema.arrow).combine_chunks()


def as_changes(delta: pa.Table) -> pa.Table:
    """A delta of rows that have a key as deletes, then upserts."""
    weights = np.asarray(delta.column(WEIGHT).combine_chunks())
    if (wrong := np.flatnonzero(np.abs(weights) != 1)).size:
        raise BrokenInvariant(
            "a row with a key would be there more than once, or less than not at all",
            story=[str(row) for row in delta.take(pa.array(wrong[:3])).to_pylist()],
        )
    order = np.concatenate([np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)])
    words = np.array([ChangeType.DELETE.value, ChangeType.INSERT.value])
    kinds = pa.array(words[(weights[order] > 0).astype(int)], pa.string())
    return delta.drop_columns([WEIGHT]).take(pa.array(order)).append_column(CHANGE_TYPE, kinds)


WEIGHT_SQL = f"case when {CHANGE_TYPE} in ('insert', 'update_postimage') then 1L else -1L end"
"""The weight of a change, where changes are a DataFrame."""
