"""Row images of a batch of events as tables of changes, in the words of every log."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.cdc.external_table import COMMITTED_AT, TRANSACTION, ExternalSchema
from headwater.cdc.mysql.events import DELETE_V1, DELETE_V2, UPDATE_V1, UPDATE_V2, Events
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.pieces import Array
from headwater.cdc.mysql.row_images import Images, decode_images
from headwater.cdc.mysql.table_map import TableMap
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ

_WORDS = (
    ChangeType.INSERT, ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE
)  # fmt: skip
_INSERT, _DELETE, _BEFORE, _AFTER = range(4)
_UPDATES = (UPDATE_V1, UPDATE_V2)
_DELETES = (DELETE_V1, DELETE_V2)


@dataclass(frozen=True, slots=True)
class RowEvents:
    """Row events of one table in one form, and the transaction that each belongs to."""

    table: TableMap
    numbers: Array
    transactions: Array
    committed_at: Array | None = None
    """When, in microseconds since 1970, where that is asked for."""


def decode_changes(
    events: Events,
    groups: list[RowEvents],
    schemas: Mapping[str, ExternalSchema],
    options: MySqlOptions,
) -> dict[str, pa.Table]:
    """The changes of each table; `_seq` counts over all of them in the order of the log."""
    decoded = []
    for group in groups:
        columns = [
            (each.column.name, each.column.type) for each in schemas[group.table.name].columns
        ]
        decoded.append(decode_images(events, group.numbers, group.table, columns, options))
    firsts = _first_seqs(len(events), groups, decoded)
    tables: dict[str, list[pa.Table]] = {}
    for group, images in zip(groups, decoded, strict=True):
        key = schemas[group.table.name].key
        table = _change_table(events, group, images, key, firsts[group.numbers])
        tables.setdefault(group.table.name, []).append(table)
    return {name: _one_table(parts) for name, parts in tables.items()}


def _one_table(parts: list[pa.Table]) -> pa.Table:
    """A table that was logged in several forms, in one, with all columns of both."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_tables(parts, promote_options="default").sort_by(SEQ)


def _first_seqs(count: int, groups: list[RowEvents], decoded: list[Images]) -> Array:
    """By event: how many changes come before it."""
    counts = np.zeros(count + 1, dtype=np.int64)
    for group, images in zip(groups, decoded, strict=True):
        counts[group.numbers + 1] = images.counts
    return np.cumsum(counts)[:-1]


def _change_table(
    events: Events, group: RowEvents, images: Images, key: tuple[str, ...], firsts: Array
) -> pa.Table:
    counts = images.counts
    total = int(counts.sum())
    inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    kinds = np.repeat(events.types[group.numbers], counts)
    codes = np.full(total, _INSERT)
    codes[np.isin(kinds, _DELETES)] = _DELETE
    update = np.isin(kinds, _UPDATES)
    codes[update] = np.where(inside[update] % 2 == 0, _BEFORE, _AFTER)
    moved = (codes == _BEFORE) & _differs_from_next(images, key, total)
    codes[moved] = _DELETE
    codes[np.flatnonzero(moved) + 1] = _INSERT
    arrays = {
        **images.columns,
        CHANGE_TYPE: pa.array(_WORDS, pa.string()).take(pa.array(codes)),
        SEQ: pa.array(np.repeat(firsts, counts) + inside),
        TRANSACTION: pa.array(np.repeat(group.transactions, counts)),
    }
    if group.committed_at is not None:
        moments = pa.array(np.repeat(group.committed_at, counts))
        arrays[COMMITTED_AT] = moments.cast(pa.timestamp("us", tz="UTC"))
    return pa.table(arrays)


def _differs_from_next(images: Images, key: tuple[str, ...], total: int) -> Array:
    """Whether the key of an image is another than that of the image after it."""
    differs = np.zeros(total, dtype=np.bool_)
    for name in key:
        if total > 1 and name in images.columns:
            column = images.columns[name]
            other = pc.not_equal(column.slice(0, total - 1), column.slice(1))
            differs[:-1] |= pc.fill_null(other, True).to_numpy(zero_copy_only=False)
    return differs
