"""Hidden keys of equal rows: any history of deltas leaves each row as often as it should be."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BrokenInvariant
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, DOUBLE, list_of
from headwater.testing.oracle import apply_changes
from headwater.views.layout import ROW_HASH, ROW_NUMBER
from headwater.views.multiset import numbered
from headwater.views.spelling import WEIGHT

SCHEMA = Schema(
    (
        Column("x", DOUBLE),
        Column("y", list_of(BIGINT)),
        Column(ROW_HASH, BIGINT),
        Column(ROW_NUMBER, BIGINT),
    ),
    (ROW_HASH, ROW_NUMBER),
)
DELTA = pa.schema([f for f in SCHEMA.arrow if f.name != ROW_NUMBER] + [(WEIGHT, pa.int64())])
CELLS = st.tuples(
    st.sampled_from([None, 0.0, 1.5, float("nan")]), st.sampled_from([None, (), (1,), (1, None)])
)


def hashed(cells) -> int:
    # Few hashes, so that different rows share one.
    return len(repr(cells)) % 3


def delta(counts: Counter) -> pa.Table:
    found = [
        {"x": cells[0], "y": None if cells[1] is None else list(cells[1]), ROW_HASH: hashed(cells),
         WEIGHT: weight}
        for cells, weight in counts.items()
        if weight
    ]  # fmt: skip
    return pa.Table.from_pylist(found, schema=DELTA)


def name_of(row) -> str:
    return repr((row["x"], None if row["y"] is None else tuple(row["y"])))


@given(st.lists(st.lists(CELLS, max_size=8), min_size=1, max_size=6))
def test_each_row_is_stored_as_often_as_it_is_there(history):
    stored: dict = {}
    known: dict = {}
    for now in history:
        wanted = Counter(repr(cells) for cells in now)
        known |= {repr(cells): cells for cells in now}
        there = Counter(name_of(row) for row in stored.values())
        change = Counter({cells: wanted[name] - there[name] for name, cells in known.items()})
        rows = pa.Table.from_pylist(list(stored.values()), schema=SCHEMA.arrow)
        apply_changes(stored, numbered(delta(change), rows, SCHEMA), SCHEMA.key)
        assert Counter(name_of(row) for row in stored.values()) == wanted


def test_a_row_that_is_not_there_cannot_go():
    with pytest.raises(BrokenInvariant, match="lacks a row"):
        numbered(delta(Counter({(1.5, (1,)): -1})), SCHEMA.arrow.empty_table(), SCHEMA)
