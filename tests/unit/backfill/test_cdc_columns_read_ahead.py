"""Chunks that were read when the table upstream had other columns than the log knows of."""

import dataclasses

import pyarrow as pa
import pytest

from backfill_kit import SCHEMA, Driven, Holds, chunk
from headwater.backfill.cdc.machine import Verdict
from headwater.backfill.cdc.row_shape import has_columns
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.schema_change import SchemaChange
from headwater.model.schema import Column, Schema
from headwater.model.types import VARCHAR

RENAMED = SchemaChange(
    schema=Schema((*SCHEMA.columns[:2], Column("z", VARCHAR)), SCHEMA.key),
    renamed=(("big", "z"),),
    kept=(("id", "id"), ("a", "a"), ("big", "z")),
    rewrites=True,
    text='column "big" is "z" now',
)
UPTO = PostgresOffset(130)


def begun(high):
    """A table whose first chunk is stored; the log has come to 110."""
    table = Driven()
    [read] = table.begin()
    found = chunk([(1, "x", "x")], Holds(), cursor=("1",), high=high)
    assert table.backfill.arrived(read.read, found, 0.0) is Verdict.ACCEPT
    table.deliver()
    table.seal()
    return table


def test_values_under_a_name_that_another_column_may_have_taken_are_read_again():
    table = begun(high=120)
    table.backfill.evolve(RENAMED, UPTO)
    table.seal()
    state = table.backfill.state
    assert state.fill == ("z",)
    assert state.fill_from == UPTO
    assert state.snapshotting


def test_values_of_chunks_that_the_log_has_passed_are_right():
    table = begun(high=110)
    table.backfill.evolve(RENAMED, UPTO)
    table.seal()
    assert table.backfill.state.fill == ()


@pytest.mark.parametrize(
    ("kind", "verdict"), [(pa.int64(), Verdict.AGAIN), (pa.large_string(), Verdict.ACCEPT)]
)
def test_a_chunk_of_another_type_is_read_again(kind, verdict):
    """The log tells of the type before such values can be stored."""
    table = Driven()
    [read] = table.begin()
    found = chunk([(1, "5", "x")], Holds())
    rows = found.rows.set_column(1, "a", found.rows["a"].cast(kind))
    found = dataclasses.replace(found, rows=rows)
    assert table.backfill.arrived(read.read, found, 0.0) is verdict
    stored = [part.table() for part in table.seal().parts]
    assert [part.schema for part in stored] == [SCHEMA.arrow] * (verdict is Verdict.ACCEPT)


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(12, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), False),
        (pa.string(), pa.int64(), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Etc/UTC"), True),
        (pa.date32(), pa.timestamp("us"), False),
    ],
)
def test_which_types_hold_the_values_of_another(wanted, found, fits):
    class Kind:
        arrow = wanted

    class Named:
        type = Kind

    rows = pa.table({"v": pa.array([], found)})
    assert has_columns(rows, ["v"], {"v": Named}) is fits
    assert not has_columns(rows, ["w"], {"w": Named})
