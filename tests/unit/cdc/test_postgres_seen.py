"""Which transactions a snapshot holds, and the log's short ids."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cdc.postgres.seen import PostgresSeen, widened
from headwater.errors import DamagedState


def test_a_snapshot_holds_what_ended_before_it():
    seen = PostgresSeen.of("10:20:12,15")
    asked = pa.array([9, 10, 11, 12, 15, 16, 19, 20, 21])
    assert seen.holds(asked).to_pylist() == [
        True, True, True, False, False, True, True, False, False,
    ]  # fmt: skip


def test_a_snapshot_is_stored_and_read_back():
    for text in ("10:20:12,15", "7:7:", f"{5 << 32}:{(5 << 32) + 9}:{(5 << 32) + 3}"):
        seen = PostgresSeen.of(text)
        assert PostgresSeen.parse(seen.serialized()) == seen
        assert str(seen) == text


@pytest.mark.parametrize("text", ["", "{}", '{"v": 9, "db": "postgres", "snapshot": "1:1:"}', "1"])
def test_a_damaged_snapshot_is_refused(text):
    with pytest.raises(DamagedState):
        PostgresSeen.parse(text)


@given(
    st.integers(3, 1 << 50),
    st.lists(st.integers(-(1 << 31) + 1, (1 << 31) - 1), max_size=20),
)
def test_short_ids_get_their_upper_half(near, ages):
    """Whatever the server's counter is, an id less than half a round away comes back whole."""
    whole = [near - age for age in ages if near - age >= 0]
    short = np.array([each & 0xFFFFFFFF for each in whole], dtype=np.uint32)
    assert widened(short, near).tolist() == whole


def test_visibility_survives_the_wrap_of_short_ids():
    base = 3 << 32
    seen = PostgresSeen.of(f"{base - 2}:{base + 3}:{base - 2},{base + 1}")
    short = np.array([0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2, 3], dtype=np.uint32)
    held = seen.holds(pa.array(widened(short, base + 10)))
    assert held.to_pylist() == [True, False, True, True, False, True, False]
