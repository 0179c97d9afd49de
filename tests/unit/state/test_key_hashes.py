"""Vnodes and key hashes: the compiled kernels against a slow model, for every type of key."""

import itertools
import struct
import zlib
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from headwater.model.schema import Schema
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
)
from headwater.model.vnode import VnodeBitmap, vnode_of
from headwater.state.key_hash import key_hashes, vnodes
from headwater.testing.value_pools import pool_of
from state_kit import schema_of

KEY_TYPES = [
    BOOLEAN, SMALLINT, INTEGER, BIGINT, REAL, DOUBLE, decimal(12, 2), decimal(38, 0),
    decimal(38, 38), NUMERIC, VARCHAR, BYTEA, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, UUID,
]  # fmt: skip


def canonical(value: object, type_: DataType) -> bytes:  # noqa: PLR0911
    """The text that a vnode is made of, as model/vnode.py words it."""
    if value is None:
        return b"\x00"
    match type_.kind:
        case Kind.BOOLEAN:
            return b"t" if value else b"f"
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return str(value).encode()
        case Kind.DATE:
            return str((value - date(1970, 1, 1)).days).encode()
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            moment = value.replace(tzinfo=UTC)
            apart = moment - datetime(1970, 1, 1, tzinfo=UTC)
            micros = (apart.days * 86_400 + apart.seconds) * 1_000_000 + apart.microseconds
            return str(micros).encode()
        case Kind.REAL | Kind.DOUBLE:
            value = 0.0 if value == 0 else value
            value = float("nan") if value != value else value  # noqa: PLR0124
            return str(struct.unpack("<q", struct.pack("<d", value))[0]).encode()
        case Kind.DECIMAL:
            return format(value, "f").encode()
        case Kind.BYTEA:
            return value
        case _:
            return value.encode()


def expected_vnodes(table: pa.Table, schema: Schema) -> list[int]:
    rows = zip(*(table.column(name).to_pylist() for name in schema.key), strict=True)
    types = [column.type for column in schema.key_columns]
    return [
        vnode_of(b"\x1f".join(canonical(v, t) for v, t in zip(row, types, strict=True)))
        for row in rows
    ]


def values_of(type_: DataType, count: int = 300) -> pa.Array:
    """Extremes, ordinary values and nulls of a type."""
    values = pool_of(type_).values.slice(0, count)
    return pa.concat_arrays([values, pa.nulls(3, type_.arrow), values.slice(0, 5)])


@pytest.mark.parametrize("type_", KEY_TYPES, ids=lambda t: t.postgres)
def test_a_vnode_is_the_checksum_of_the_canonical_text(type_):
    schema = schema_of(["k"], k=type_)
    table = pa.table({"k": values_of(type_)})
    assert vnodes(table, schema).tolist() == expected_vnodes(table, schema)


@pytest.mark.parametrize("type_", KEY_TYPES, ids=lambda t: t.postgres)
def test_equal_keys_have_equal_hashes_and_different_keys_different_ones(type_):
    schema = schema_of(["k"], k=type_)
    table = pa.table({"k": values_of(type_)})
    hashes = key_hashes(table, schema.key_columns)
    text = [canonical(value, type_) if value is not None else None for value in
            table.column("k").to_pylist()]  # fmt: skip
    seen: dict[object, int] = {}
    for key, value in zip(text, hashes.tolist(), strict=True):
        assert seen.setdefault(key, value) == value
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("type_", KEY_TYPES, ids=lambda t: t.postgres)
def test_slices_and_chunks_hash_like_whole_arrays(type_):
    schema = schema_of(["k", "n"], k=type_, n=INTEGER)
    values = values_of(type_)
    numbers = pa.array(range(len(values)), pa.int32())
    whole = pa.table({"k": values, "n": numbers})
    slots, hashes = vnodes(whole, schema), key_hashes(whole, schema.key_columns)
    for start in (1, 7, 8, 63, len(values) - 3):
        part = whole.slice(start, 50)
        np.testing.assert_array_equal(vnodes(part, schema), slots[start : start + 50])
        np.testing.assert_array_equal(
            key_hashes(part, schema.key_columns), hashes[start : start + 50]
        )
    cuts = [0, 3, 4, 4, 100, len(values)]
    pieces = [values.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    chunked = pa.table({"k": pa.chunked_array(pieces), "n": numbers})
    np.testing.assert_array_equal(vnodes(chunked, schema), slots)
    np.testing.assert_array_equal(key_hashes(chunked, schema.key_columns), hashes)
    batch = whole.slice(5, 20).to_batches()[0]
    np.testing.assert_array_equal(vnodes(batch, schema), slots[5:25])


@pytest.mark.parametrize(
    "physical",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_hashes_the_same_however_arrow_holds_it(physical):
    schema = schema_of(["k"], k=VARCHAR)
    text = values_of(VARCHAR)
    other = pa.table({"k": text.cast(physical)}).slice(2)
    plain = pa.table({"k": text}).slice(2)
    np.testing.assert_array_equal(vnodes(other, schema), vnodes(plain, schema))
    np.testing.assert_array_equal(
        key_hashes(other, schema.key_columns), key_hashes(plain, schema.key_columns)
    )


@pytest.mark.parametrize("type_", KEY_TYPES, ids=lambda t: t.postgres)
def test_nothing_and_only_nulls_can_be_hashed(type_):
    schema = schema_of(["k"], k=type_)
    empty = pa.table({"k": pa.array([], type_.arrow)})
    assert vnodes(empty, schema).tolist() == []
    assert key_hashes(empty, schema.key_columns).tolist() == []
    assert vnodes(pa.table({"k": pa.chunked_array([], type_.arrow)}), schema).tolist() == []
    nulls = pa.table({"k": pa.nulls(3, type_.arrow)})
    assert set(vnodes(nulls, schema).tolist()) == {zlib.crc32(b"\x00") % 256}
    assert len(set(key_hashes(nulls, schema.key_columns).tolist())) == 1


def test_composite_keys_do_not_run_into_each_other():
    schema = schema_of(["a", "b"], a=VARCHAR, b=VARCHAR)
    rows = [("ab", ""), ("a", "b"), ("", "ab"), (None, "ab"), ("ab", None), (None, None), ("", "")]
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]})
    assert vnodes(table, schema).tolist() == expected_vnodes(table, schema)
    assert len(set(key_hashes(table, schema.key_columns).tolist())) == len(rows)


def test_a_key_that_became_wider_keeps_its_vnode_and_hash():
    for narrow, wide in ((SMALLINT, BIGINT), (REAL, DOUBLE), (decimal(12, 2), decimal(20, 2))):
        values = values_of(narrow)
        before, after = schema_of(["k"], k=narrow), schema_of(["k"], k=wide)
        old, new = pa.table({"k": values}), pa.table({"k": values.cast(wide.arrow)})
        np.testing.assert_array_equal(vnodes(old, before), vnodes(new, after))
        np.testing.assert_array_equal(
            key_hashes(old, before.key_columns), key_hashes(new, after.key_columns)
        )


def test_vnodes_of_many_keys_are_spread():
    schema = schema_of(["k"], k=BIGINT)
    table = pa.table({"k": pa.array(range(100_000))})
    counts = np.bincount(vnodes(table, schema), minlength=256)
    assert counts.min() > 250
    assert set(np.unique(vnodes(table, schema)).tolist()) == set(VnodeBitmap.full())
