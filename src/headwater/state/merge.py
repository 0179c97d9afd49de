"""Turn incoming changes into what they change.

Incoming changes say what a row shall be; a table must also say what it was. For the last
change of each key and the row that is stored under it:

    the last change     no row stored         a row stored
    insert, update      insert                update_preimage, update_postimage
                                              nothing when the rows are equal
    delete              nothing               delete

Promises
    Pure         No I/O. The caller looks the stored rows up.
    Exact        Each delete and preimage is the stored row; a preimage stands right before its
                 postimage; a key appears once.
    Ordered      by vnode, then in the order in which keys first came.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import SchemaError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.state.key_hash import exact_keys, key_hashes, vnodes
from headwater.state.lookup import Found, same_values

_CODES = {change.value: code for code, change in enumerate(ChangeType)}
_INSERT, _DELETE, _PREIMAGE, _POSTIMAGE = (_CODES[change.value] for change in ChangeType)
_NAMES = pa.array([change.value for change in ChangeType])


@dataclass(frozen=True, slots=True)
class NetChanges:
    """One change per key: the row it shall be, or that it shall be gone."""

    rows: pa.Table
    deletes: "np.ndarray[Any, Any]"
    vnodes: "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class Merged:
    """What an epoch does: exact changes, the rows to add, and the places that die."""

    changes: pa.Table
    change_types: pa.Array
    change_vnodes: "np.ndarray[Any, Any]"
    new_rows: pa.Table
    new_vnodes: "np.ndarray[Any, Any]"
    dead_file: "np.ndarray[Any, Any]"
    dead_position: "np.ndarray[Any, Any]"


def conform(changes: pa.Table, schema: Schema) -> pa.Table:
    """Check incoming changes against the schema and give them its exact types."""
    names = changes.column_names
    if CHANGE_TYPE not in names:
        raise SchemaError(
            f"changes need a column {CHANGE_TYPE}", detail=f"Columns: {', '.join(names)}."
        )
    for name in schema.names:
        if name not in names:
            raise SchemaError(
                f'column "{name}" is missing in the changes', detail=f"Columns: {', '.join(names)}."
            )
    columns = []
    for column in schema.columns:
        values = changes.column(column.name)
        if values.type != column.type.arrow:
            try:
                values = values.cast(column.type.arrow)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaError(
                    f'column "{column.name}" does not fit type {column.type.postgres}',
                    detail=str(error),
                ) from error
        columns.append(values)
    codes = pc.index_in(changes.column(CHANGE_TYPE), value_set=_NAMES)
    if codes.null_count:
        unknown = changes.column(CHANGE_TYPE).filter(pc.is_null(codes))[0].as_py()
        raise SchemaError(
            f"unknown change type {unknown!r}", hint=f"Use one of {', '.join(_CODES)}."
        )
    fields = [*schema.arrow, pa.field(CHANGE_TYPE, pa.int32())]
    return pa.Table.from_arrays([*columns, codes], schema=pa.schema(fields))


def net(conformed: pa.Table, schema: Schema) -> NetChanges:
    """Keep the last change of each key."""
    codes = conformed.column(CHANGE_TYPE).to_numpy()
    if (codes == _PREIMAGE).any():
        conformed = conformed.filter(pa.array(codes != _PREIMAGE))
        codes = conformed.column(CHANGE_TYPE).to_numpy()
    conformed = conformed.combine_chunks()
    slots = vnodes(conformed, schema)
    last = _last_of_each_key(conformed, schema)
    order = last[np.argsort(slots[last], kind="stable")]
    chosen = conformed.take(pa.array(order))
    return NetChanges(chosen.select(list(schema.names)), codes[order] == _DELETE, slots[order])


def merge(changes: NetChanges, stored: Found, schema: Schema) -> Merged:
    """Compare each change with the row that is stored."""
    count = changes.rows.num_rows
    found, deletes = stored.mask, changes.deletes
    stored_at = np.cumsum(found) - 1
    unchanged = np.zeros(count, dtype=np.bool_)
    candidates = np.flatnonzero(found & ~deletes)
    if candidates.size:
        old = stored.rows.take(pa.array(stored_at[candidates]))
        new = changes.rows.take(pa.array(candidates))
        unchanged[candidates] = same_values(old, new, schema.columns, one_zero=False)
    dies = found & ~unchanged
    lives = ~deletes & ~unchanged

    # Rows of the change log are picked out of stored rows followed by incoming ones.
    both = pa.concat_tables([stored.rows, changes.rows])
    offset = stored.rows.num_rows
    old_keys, new_keys = np.flatnonzero(dies), np.flatnonzero(lives)
    keys = np.concatenate([old_keys, new_keys])
    source = np.concatenate([stored_at[old_keys], offset + new_keys])
    kinds = np.concatenate(
        [
            np.where(deletes[old_keys], _DELETE, _PREIMAGE),
            np.where(found[new_keys], _POSTIMAGE, _INSERT),
        ]
    )
    order = np.argsort(keys, kind="stable")
    return Merged(
        changes=both.take(pa.array(source[order])),
        change_types=_NAMES.take(pa.array(kinds[order])),
        change_vnodes=changes.vnodes[keys[order]],
        new_rows=changes.rows.take(pa.array(new_keys)),
        new_vnodes=changes.vnodes[new_keys],
        dead_file=stored.file[old_keys],
        dead_position=stored.position[old_keys],
    )


def net_effect(changes: pa.Table, schema: Schema) -> pa.Table:
    """The exact changes of several epochs, oldest first, as if they were of one.

    For each key: the row that it had before the first of them, and the one after the last.
    """
    rows = changes.combine_chunks()
    codes = np.asarray(pc.index_in(rows.column(CHANGE_TYPE), value_set=_NAMES))
    count = rows.num_rows
    backwards = rows.take(pa.array(np.arange(count)[::-1]))
    first = np.sort(count - 1 - _last_of_each_key(backwards, schema))
    last = _last_of_each_key(rows, schema)
    had = np.isin(codes[first], (_DELETE, _PREIMAGE))
    has = np.isin(codes[last], (_INSERT, _POSTIMAGE))
    # Keys are in the order in which they first came, on both sides.
    both = np.flatnonzero(had & has)
    old, new = (rows.take(pa.array(side[both])) for side in (first, last))
    same = np.zeros(first.size, dtype=np.bool_)
    same[both] = same_values(old, new, schema.columns, one_zero=False)
    goes, comes = np.flatnonzero(had & ~same), np.flatnonzero(has & ~same)
    keys = np.concatenate([goes, comes])
    kinds = np.concatenate(
        [
            np.where(has[goes], _PREIMAGE, _DELETE),
            np.where(had[comes], _POSTIMAGE, _INSERT),
        ]
    )
    order = np.argsort(keys, kind="stable")
    source = np.concatenate([first[goes], last[comes]])
    chosen = rows.take(pa.array(source[order]))
    place = chosen.column_names.index(CHANGE_TYPE)
    return chosen.set_column(place, CHANGE_TYPE, _NAMES.take(pa.array(kinds[order])))


def _last_of_each_key(table: pa.Table, schema: Schema) -> "np.ndarray[Any, Any]":
    """The positions of each key's last row, in the order in which keys first came."""
    hashes = key_hashes(table, schema.key_columns)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(order) else order
    if len(ends) == len(order):
        return np.arange(len(order))
    starts = np.append(0, ends[:-1] + 1)
    # Rows with equal hashes must have equal keys; if not, group by the keys themselves.
    inner = np.setdiff1d(np.arange(len(order)), ends, assume_unique=True)
    left, right = (table.take(pa.array(order[place])) for place in (inner, inner + 1))
    if not same_values(left, right, schema.key_columns).all():
        return _last_by_value(table, schema)
    firsts = order[starts]
    return order[ends][np.argsort(firsts, kind="stable")]


def _last_by_value(table: pa.Table, schema: Schema) -> "np.ndarray[Any, Any]":
    last: dict[tuple[Any, ...], int] = {}
    for place, key in enumerate(exact_keys(table, schema.key_columns)):
        last[key] = place
    return np.array(list(last.values()), dtype=np.int64)
