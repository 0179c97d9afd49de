"""Find the current rows of keys, and where they lie.

At most one live row has a given key, so the order in which files are searched does not matter.
A file is searched when the vnode of a key is in its range; a hit counts when the row is not
dead and its key is equal, not only its hash.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from headwater.model.schema import Column, Schema
from headwater.state.dead_rows import DeadRows
from headwater.state.key_hash import key_hashes, vnodes
from headwater.state.manifest import LiveFile
from headwater.state.row_cache import CachedFile, RowCache
from headwater.state.storage import Storage


@dataclass(frozen=True, slots=True)
class Found:
    """For each key: the row, or none. `rows` holds the found ones in key order."""

    rows: pa.Table
    file: "np.ndarray[Any, Any]"
    """Index into the files searched, -1 where there is no row."""
    position: "np.ndarray[Any, Any]"

    @property
    def mask(self) -> "np.ndarray[Any, Any]":
        """Which keys have a row."""
        found: np.ndarray[Any, Any] = self.file >= 0
        return found


class Lookup:
    """Searches the files of one table. Instances travel to Spark tasks."""

    def __init__(self, storage: Storage, cache: RowCache, dead_rows: DeadRows) -> None:
        self._storage = storage
        self._cache = cache
        self._dead_rows = dead_rows

    def find(self, keys: pa.Table, schema: Schema, files: Sequence[LiveFile]) -> Found:
        """Look up keys; `keys` has the key's columns, without repetition."""
        count = keys.num_rows
        file_of = np.full(count, -1, dtype=np.int64)
        position_of = np.full(count, -1, dtype=np.int64)
        parts: list[pa.Table] = []
        owners: list[np.ndarray[Any, Any]] = []
        if count:
            hashes, slots = key_hashes(keys, schema.key_columns), vnodes(keys, schema)
            for index, live in enumerate(files):
                wanted = np.flatnonzero(
                    (file_of < 0)
                    & (slots >= live.file.first_vnode)
                    & (slots <= live.file.last_vnode)
                )
                if not wanted.size:
                    continue
                cached = self._cache.open(self._storage, live.file.path, schema, live.file.bytes)
                dead = self._dead_rows.of_file(live)
                owner, position = _search(cached, hashes, wanted, dead)
                if not owner.size:
                    continue
                rows = cached.take(position)
                equal = same_values(rows, keys.take(pa.array(owner)), schema.key_columns)
                if not equal.all():
                    owner, position = owner[equal], position[equal]
                    rows = rows.filter(pa.array(equal))
                file_of[owner], position_of[owner] = index, position
                parts.append(rows)
                owners.append(owner)
        if not parts:
            return Found(schema.arrow.empty_table(), file_of, position_of)
        rows = pa.concat_tables(parts)
        in_key_order = np.argsort(np.concatenate(owners), kind="stable")
        return Found(rows.take(pa.array(in_key_order)), file_of, position_of)


def _search(cached: CachedFile, hashes: Any, wanted: Any, dead: BitMap | None) -> tuple[Any, Any]:
    """(key, position) pairs of live rows whose hash fits."""
    probe = hashes[wanted]
    first = np.searchsorted(cached.hashes, probe, side="left")
    owners, positions = [], []
    while wanted.size:
        inside = first < cached.hashes.size
        wanted, probe, first = wanted[inside], probe[inside], first[inside]
        hit = cached.hashes[first] == probe
        wanted, probe, first = wanted[hit], probe[hit], first[hit]
        owners.append(wanted)
        positions.append(cached.positions[first].astype(np.int64))
        first = first + 1
    owner = np.concatenate(owners) if owners else np.empty(0, dtype=np.int64)
    position = np.concatenate(positions) if positions else np.empty(0, dtype=np.int64)
    if dead is not None and position.size:
        alive = ~_contained(dead, position)
        owner, position = owner[alive], position[alive]
    return owner, position


def _contained(dead: BitMap, position: Any) -> Any:
    if position.size < 512:
        return np.fromiter((int(place) in dead for place in position), np.bool_, position.size)
    return np.isin(position, np.array(dead.to_array(), dtype=np.int64))


def same_values(
    left: pa.Table, right: pa.Table, columns: Sequence[Column], *, one_zero: bool = True
) -> Any:
    """Row by row, whether all these columns are equal; null equals null and NaN equals NaN.

    Both zeros are one key, but as values they differ: `one_zero` says which is meant.
    """
    same = np.ones(left.num_rows, dtype=np.bool_)
    for column in columns:
        a, b = left.column(column.name), right.column(column.name)
        if pa.types.is_nested(a.type):
            plain = _without_calendar(a.type)
            pairs = zip(a.cast(plain).to_pylist(), b.cast(plain).to_pylist(), strict=True)
            same &= np.fromiter((_same_nested(x, y) for x, y in pairs), np.bool_, left.num_rows)
            continue
        equal = pc.fill_null(pc.equal(a, b), False)
        both_null = pc.and_(pc.is_null(a), pc.is_null(b))
        equal = pc.or_(equal, both_null)
        if pa.types.is_floating(a.type):
            both_nan = pc.and_(pc.is_nan(a), pc.is_nan(b))
            equal = pc.or_(equal, pc.fill_null(both_nan, False))
            if not one_zero:
                signs = (np.signbit(x.to_numpy(zero_copy_only=False)) for x in (a, b))
                zeros = pc.fill_null(pc.and_(pc.equal(a, 0.0), pc.equal(b, 0.0)), False)
                same &= ~np.asarray(zeros) | np.equal(*signs)
        same &= np.asarray(equal)
    return same


def _without_calendar(type_: pa.DataType) -> pa.DataType:
    """The type with plain numbers for dates and times, which may lie beyond Python's years."""
    if pa.types.is_list(type_):
        return pa.list_(_without_calendar(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _without_calendar(field.type)) for field in type_])
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _same_nested(left: Any, right: Any) -> bool:
    match left, right:
        case float(), float():
            both_nan = math.isnan(left) and math.isnan(right)
            same_sign = math.copysign(1, left) == math.copysign(1, right)
            return both_nan or (left == right and same_sign)
        case list(), list():
            return len(left) == len(right) and all(map(_same_nested, left, right))
        case dict(), dict():
            return all(_same_nested(left[name], right[name]) for name in left)
        case _:
            return bool(left == right)
