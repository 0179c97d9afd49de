"""Hashes of keys: the vnode, and the 64 bits that lookups search by.

Both are computed over whole Arrow columns by compiled kernels. The vnode is a crc32 of the
key's canonical text (`model/vnode.py`), which Spark computes as well; `vnode_sql` is the same
rule as a Spark expression. The 64-bit hash is private to the lookup cache: it may collide,
readers compare keys, and `HASH_VERSION` is part of the cache's file names.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.schema import Column, Schema
from headwater.model.spelling import quoted
from headwater.model.types import Kind
from headwater.model.vnode import KEY_NULL, KEY_SEPARATOR, VNODE_COUNT

HASH_VERSION = 1

_INTEGERS = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
_FLOATS = frozenset({Kind.REAL, Kind.DOUBLE})


def _crc_table() -> "np.ndarray[Any, np.dtype[np.uint32]]":
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(
            np.uint32
        )
    return table


_CRC = _crc_table()
_EMPTY = np.empty(0, dtype=np.bool_)


@numba.njit(cache=True, nogil=True)
def _crc_integers(state, values, valid, null):  # type: ignore[no-untyped-def]
    digits = np.empty(20, dtype=np.uint8)
    for row in range(values.size):
        crc = state[row]
        if valid.size and not valid[row]:
            crc = _CRC[(crc ^ null) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
            state[row] = crc
            continue
        value = values[row]
        rest = np.uint64(value)
        if value < 0:
            crc = _CRC[(crc ^ np.uint32(45)) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
            rest = np.uint64(0) - rest
        count = 0
        while True:
            digits[count] = np.uint8(48) + np.uint8(rest % np.uint64(10))
            count += 1
            rest //= np.uint64(10)
            if rest == 0:
                break
        for place in range(count - 1, -1, -1):
            byte = np.uint32(digits[place])
            crc = _CRC[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        state[row] = crc


@numba.njit(cache=True, nogil=True)
def _crc_bytes(state, offsets, data, valid, null):  # type: ignore[no-untyped-def]
    for row in range(state.size):
        crc = state[row]
        if valid.size and not valid[row]:
            crc = _CRC[(crc ^ null) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        else:
            for place in range(offsets[row], offsets[row + 1]):
                byte = np.uint32(data[place])
                crc = _CRC[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        state[row] = crc


@numba.njit(cache=True, nogil=True)
def _crc_one(state, byte):  # type: ignore[no-untyped-def]
    for row in range(state.size):
        crc = state[row]
        state[row] = _CRC[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))


@numba.njit(cache=True, nogil=True)
def _mixed(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def _hash_integers(state, values, valid):  # type: ignore[no-untyped-def]
    for row in range(values.size):
        if valid.size and not valid[row]:
            state[row] = _mixed(state[row] + np.uint64(0x9E3779B97F4A7C15))
        else:
            state[row] = _mixed(
                state[row] * np.uint64(31) + np.uint64(values[row]) + np.uint64(0x632BE59BD9B4E019)
            )


@numba.njit(cache=True, nogil=True)
def _hash_bytes(state, offsets, data, valid):  # type: ignore[no-untyped-def]
    for row in range(state.size):
        if valid.size and not valid[row]:
            state[row] = _mixed(state[row] + np.uint64(0x9E3779B97F4A7C15))
            continue
        value = state[row] ^ np.uint64(0xCBF29CE484222325)
        for place in range(offsets[row], offsets[row + 1]):
            value = (value ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
        state[row] = _mixed(value)


def vnodes(table: pa.Table | pa.RecordBatch, schema: Schema) -> "np.ndarray[Any, Any]":
    """The vnode of each row, as uint8."""
    state = np.full(table.num_rows, 0xFFFFFFFF, dtype=np.uint32)
    null = np.uint32(KEY_NULL[0])
    for place, column in enumerate(schema.key_columns):
        if place:
            _crc_one(state, np.uint32(KEY_SEPARATOR[0]))
        integers, text, valid = _canonical(_single(table.column(column.name)), column)
        if integers is not None:
            _crc_integers(state, integers, valid, null)
        else:
            _crc_bytes(state, *_buffers(text), valid, null)
    return ((state ^ np.uint32(0xFFFFFFFF)) % VNODE_COUNT).astype(np.uint8)


def key_hashes(table: pa.Table | pa.RecordBatch, columns: Sequence[Column]) -> Any:
    """A 64-bit hash of each row's key columns, as uint64; nulls hash like any value."""
    state = np.zeros(table.num_rows, dtype=np.uint64)
    for column in columns:
        integers, text, valid = _canonical(_single(table.column(column.name)), column)
        if integers is not None:
            _hash_integers(state, integers, valid)
        else:
            _hash_bytes(state, *_buffers(text), valid)
    return state


def exact_keys(
    table: pa.Table | pa.RecordBatch, columns: Sequence[Column]
) -> Iterator[tuple[Any, ...]]:
    """Each row's key as values that are equal exactly when the keys are; slow."""
    parts = []
    for column in columns:
        integers, text, valid = _canonical(_single(table.column(column.name)), column)
        values = text.to_pylist() if integers is None else integers.tolist()
        if valid.size:
            values = [v if there else None for v, there in zip(values, valid, strict=True)]
        parts.append(values)
    return zip(*parts, strict=True)


def vnode_sql(schema: Schema) -> str | None:
    """The vnode as a Spark SQL expression, or None when only the kernels can compute it.

    Decimals need `spark.sql.ansi.enabled`, under which they are never written with an exponent.
    """
    texts: list[str] = []
    for column in schema.key_columns:
        name = quoted(column.name)
        match column.type.kind:
            case Kind.BOOLEAN:
                text = f"case {name} when true then 't' when false then 'f' end"
            case Kind.DATE:
                text = f"cast(unix_date({name}) as string)"
            case Kind.TIMESTAMP:
                # Subtracting avoids a trip through the session's time zone.
                text = (
                    f"cast(timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', {name})"
                    " as string)"
                )
            case Kind.TIMESTAMPTZ:
                text = f"cast(unix_micros({name}) as string)"
            case kind if kind in _FLOATS:
                return None
            case _:
                text = f"cast({name} as string)" if column.type.kind is not Kind.BYTEA else name
        binary = f"cast({text} as binary)"
        texts.append(f"ifnull({binary}, X'{KEY_NULL.hex()}')")
    joined = f", X'{KEY_SEPARATOR.hex()}', ".join(texts)
    whole = f"concat({joined})" if len(texts) > 1 else joined
    return f"cast(crc32({whole}) % {VNODE_COUNT} as smallint)"


def _single(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _canonical(  # noqa: PLR0911  one return per family of types
    array: pa.Array, column: Column
) -> tuple[Any, Any, Any]:
    """The column as int64 values, or as binary text, with its validity (empty: all valid)."""
    valid = _EMPTY if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    kind = column.type.kind
    if kind in _INTEGERS:
        return _integers(array.cast(pa.int64())), None, valid
    if kind is Kind.DATE:
        return _integers(array.cast(pa.date32()).view(pa.int32()).cast(pa.int64())), None, valid
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _integers(array.cast(column.type.arrow).view(pa.int64())), None, valid
    if kind in _FLOATS:
        values = np.array(array.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False))
        values[values == 0] = 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.int64), None, valid
    if kind is Kind.BOOLEAN:
        return None, pc.if_else(array, pa.scalar(b"t"), pa.scalar(b"f")), valid
    if kind is Kind.DECIMAL:
        texts = [
            None if value is None else format(value, "f").encode() for value in array.to_pylist()
        ]
        return None, pa.array(texts, pa.binary()), valid
    return None, array.cast(pa.binary()), valid


def _integers(array: pa.Array) -> Any:
    return array.fill_null(0).to_numpy(zero_copy_only=False)


def _buffers(text: pa.Array) -> tuple[Any, Any]:
    array = text.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.frombuffer(data, dtype=np.uint8) if data else np.empty(0, dtype=np.uint8)
    return starts, bytes_
