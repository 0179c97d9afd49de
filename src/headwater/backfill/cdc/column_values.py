"""Values of columns that were added upstream, for rows that are here already.

A database gives a new column's default to all rows without a word in its log. So the values are
read by key, in chunks, like a snapshot, and each goes into the row of its key as it stands:

    the key                                          its row
    has a change that the chunk does not hold        stays: the change brought the value
    has a change in this very epoch                  stays: the same
    has no row here                                  none is made: the log brings it, or took it
    else                                             gets the chunk's values

Pure but for the lookup of the stored rows.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headwater.backfill.cdc.key_match import match_keys
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.state.lookup import same_values


def column_values(
    chunk: pa.Table,
    newer: pa.Table,
    changes: pa.Table,
    stored: Callable[[pa.Table], pa.Table],
    schema: Schema,
) -> pa.Table:
    """Whole rows with the values of a chunk, which has the key and some columns, as changes."""
    keys = list(schema.key)
    chunk = chunk.cast(pa.schema([schema.arrow.field(name) for name in chunk.column_names]))
    untouched = match_keys(chunk, newer, schema) < 0
    untouched &= match_keys(chunk, changes, schema) < 0
    chunk = chunk.filter(pa.array(untouched))
    rows = stored(chunk.select(keys)) if chunk.num_rows else schema.arrow.empty_table()
    found = match_keys(rows, chunk, schema)
    rows = rows.filter(pa.array(found >= 0))
    brought = chunk.take(pa.array(found[found >= 0]))
    filled = rows
    names = [name for name in chunk.column_names if name not in keys]
    for name in names:
        place = filled.schema.get_field_index(name)
        filled = filled.set_column(place, filled.schema.field(place), brought[name])
    columns = [schema[name] for name in names]
    differs = ~same_values(rows, filled, columns, one_zero=False)
    filled = filled.filter(pa.array(np.asarray(differs)))
    kinds = pa.array([ChangeType.INSERT.value] * filled.num_rows, pa.string())
    return filled.append_column(CHANGE_TYPE, kinds)
