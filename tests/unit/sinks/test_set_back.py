"""A target that knows less than it was given is not fed: what lies between would be missing."""

import pytest

from headwater.errors import UserError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.progress import Progress, check_given
from headwater.sinks.sink import Delivery


def owed(given, epoch=60, after=55):
    return Delivery(
        sink="s", after=Epoch(after), epoch=Epoch(epoch), term=Term(1), rows=1, given=Epoch(given)
    )


def test_a_row_that_is_behind_what_was_given_is_told():
    with pytest.raises(UserError, match="has epoch 40, and was given epoch 50") as told:
        Progress(Epoch(40), Term(1)).owes(owed(50))
    assert "REWIND TO EPOCH 40" in told.value.hint


@pytest.mark.parametrize(
    ("found", "given", "owes"),
    [
        (50, 50, True),
        (55, 50, True),  # an answer was lost: it has more than we know
        (60, 50, False),
        (NO_EPOCH, 50, True),  # another target, which a user has chosen
        (40, NO_EPOCH, True),  # the user has had it owed once more
    ],
)
def test_all_others_go_on(found, given, owes):
    assert Progress(Epoch(found), Term(1)).owes(owed(given)) is owes


def test_two_deliveries_are_the_same_whatever_was_given_before():
    assert owed(50) == owed(40)
    check_given(owed(NO_EPOCH), Epoch(1))
