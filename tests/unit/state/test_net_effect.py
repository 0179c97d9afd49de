"""Changes of several epochs as those of one."""

import itertools
from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import INTEGER, VARCHAR
from headwater.state.merge import net_effect

SCHEMA = Schema((Column("id", INTEGER), Column("v", VARCHAR)), ("id",))
FIELDS = pa.schema([*SCHEMA.arrow, (CHANGE_TYPE, pa.string())])


def exact(before, after):
    """The exact changes of one epoch."""
    rows = []
    for key in sorted({*before, *after}):
        old, new = before.get(key, ()), after.get(key, ())
        if old == new:
            continue
        if old and new:
            rows += [(key, old[0], "update_preimage"), (key, new[0], "update_postimage")]
        else:
            rows += [(key, (old or new)[0], "delete" if old else "insert")]
    return rows


def as_table(rows):
    names = FIELDS.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], FIELDS)


STATES = st.dictionaries(st.integers(0, 5), st.tuples(st.sampled_from(["a", "b", None])))


@given(st.lists(STATES, min_size=2, max_size=6))
def test_several_epochs_are_the_difference_of_their_ends(states):
    rows = []
    for before, after in itertools.pairwise(states):
        rows += exact(before, after)
    found = net_effect(as_table(rows), SCHEMA)
    got = [(row["id"], row["v"], row[CHANGE_TYPE]) for row in found.to_pylist()]
    assert Counter(got) == Counter(exact(states[0], states[-1]))
    # A preimage stands right before its postimage.
    for place, (key, _, kind) in enumerate(got):
        if kind == "update_preimage":
            assert got[place + 1][0] == key
            assert got[place + 1][2] == "update_postimage"


def test_nothing_is_nothing():
    assert net_effect(FIELDS.empty_table(), SCHEMA).num_rows == 0
