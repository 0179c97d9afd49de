"""Change types are Delta's own words; positions compare and are written down; names are ours."""

import pytest

from headwater.model.change import ChangeType
from headwater.model.position import Ordinal
from headwater.model.reserved import RESERVED_COLUMNS, RESERVED_PREFIX, is_reserved


def test_the_words_are_those_of_deltas_change_feed():
    assert [str(change) for change in ChangeType] == [
        "insert",
        "delete",
        "update_preimage",
        "update_postimage",
    ]


def test_a_row_is_there_after_an_insert_and_after_a_postimage():
    assert [change.adds for change in ChangeType] == [True, False, False, True]


@pytest.mark.parametrize("count", [0, 9, 10, 1 << 63])
def test_positions_come_back_unchanged(count):
    assert Ordinal.decode(Ordinal(count).encode()) == Ordinal(count)


def test_positions_compare_as_numbers_not_as_text():
    assert Ordinal(9) < Ordinal(10)
    assert Ordinal(9).encode() > Ordinal(10).encode()


@pytest.mark.parametrize("name", [*sorted(RESERVED_COLUMNS), RESERVED_PREFIX + "anything"])
def test_our_names_are_reserved(name):
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["id", "_id", "change_type", "_change_types", "hw_", "vnode"])
def test_other_names_are_the_users(name):
    assert not is_reserved(name)
