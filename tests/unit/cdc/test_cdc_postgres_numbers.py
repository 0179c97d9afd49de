"""The numbers of columns that the log does not tell, from their order."""

import numpy as np
import pytest

from headwater.cdc.postgres.relations import numbered
from headwater.cdc.unsent import reordered_marks

BEFORE = {"id": 1, "a": 2, "b": 3}


@pytest.mark.parametrize(
    ("names", "today", "ever", "numbers"),
    [
        ("id a b", {"id": 1, "a": 2, "b": 3}, [1, 2, 3], [1, 2, 3]),
        ("id a b c", {"id": 1, "a": 2, "b": 3, "c": 4}, [1, 2, 3, 4], [1, 2, 3, 4]),
        # Renamed, and renamed once more since: between its neighbours there is one place.
        ("id x b", {"id": 1, "y": 2, "b": 3}, [1, 2, 3], [1, 2, 3]),
        # Dropped and made anew later: the log is still before that, as its order shows.
        ("id a b c", {"id": 1, "b": 3, "c": 4, "a": 5}, [1, 2, 3, 4, 5], [1, 2, 3, 4]),
        # Or behind it.
        ("id b c a", {"id": 1, "b": 3, "c": 4, "a": 5}, [1, 2, 3, 4, 5], [1, 3, 4, 5]),
        # Two places, and nothing to tell them apart.
        ("id x", {"id": 1, "y": 3}, [1, 2, 3], [1, None]),
    ],
)
def test_numbers_are_found_by_their_order(names, today, ever, numbers):
    assert numbered(names.split(), BEFORE, today, ever) == numbers


def test_marks_follow_their_columns():
    bits = np.array([0b0, 0b1, 0b110, 0b100])
    moved = reordered_marks(bits, ["a", "b", "c"], ["c", "x", "a"])
    assert moved.tolist() == [0b0, 0b100, 0b1, 0b1]
    assert reordered_marks(bits, ["a"], ["a"]) is bits


def test_a_column_that_is_another_than_before_gets_any_number_that_is_left():
    # "b" was 2, is dropped, and has been made anew more than once since.
    assert numbered(["a", "b", "z"], {"a": 1, "z": 3}, {"a": 1, "z": 3}, [1, 3, 4, 5]) == [
        1,
        None,
        3,
    ]
    before = {"a": 1}
    assert numbered(["a", "b"], before, {"a": 1}, [1, 4, 5]) == [1, None]
    assert numbered(["a", "b"], before, {"a": 1}, [1, 4, 5], anew={"b"}) == [1, 5]
    assert numbered(["a", "b"], before, {"a": 1}, [1], anew={"b"}) == [1, None]


def test_a_name_that_another_column_has_by_now_is_not_taken_for_that():
    """Upstream "wide" became "x", went back to its name, and "gone" became "x"."""
    before = {"id": 1, "wide": 4, "b": 5, "gone": 6, "large": 7}
    today = {"id": 1, "wide": 4, "b": 5, "x": 6, "large": 7}
    found = numbered(["id", "x", "b", "gone", "large"], before, today, [1, 4, 5, 6, 7])
    assert found == [1, 4, 5, 6, 7]
