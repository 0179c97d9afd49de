"""What a target's own row says about a sink: how far it is, and whose deliveries it takes.

    the row's term        the row's epoch                a delivery
    newer than ours       any                            is refused: `Fenced`
    ours or older         at or after the delivery's     is there already: nothing to do
    ours or older         before what it was given       is refused: the target was set back
    ours or older         at or before what it follows   is written
    ours or older         in between                     would write rows twice: our bug

The row is locked from this decision until the rows and its own new value are committed together.
"""

from dataclasses import dataclass

from headwater.errors import BrokenInvariant, Fenced, UserError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.sink import Delivery
from headwater.sinks.trouble import target_set_back

PROGRESS_TABLE = "headwater_sink_progress"
"""One row per sink, in the target's schema or in the one that an option names."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A row as it was found."""

    epoch: Epoch
    term: Term

    def check_term(self, sink: str, term: Term) -> None:
        """Refuse what an older engine does."""
        if self.term > term:
            raise Fenced(
                f"sink {sink} is delivered by another engine",
                detail=f"The target takes term {self.term}, and this is {term}.",
            )

    def owes(self, delivery: Delivery) -> bool:
        """Whether a delivery has to be written."""
        self.check_term(delivery.sink, delivery.term)
        if self.epoch >= delivery.epoch:
            return False
        check_given(delivery, self.epoch)
        if self.epoch > delivery.after:
            raise BrokenInvariant(
                f"a delivery of sink {delivery.sink} overlaps what the target has",
                story=(
                    f"the target has epoch {self.epoch}",
                    f"the delivery is after {delivery.after}, up to {delivery.epoch}",
                ),
            )
        return True


def check_given(delivery: Delivery, target: Epoch) -> None:
    """Refuse to go on at a target that knows less than it was given: rows between are missing.

    One that knows nothing is another target, which a user has chosen.
    """
    if NO_EPOCH < target < delivery.given:
        raise target_set_back(target, delivery.given)


def row_gone(sink: str, table: str, delivery: Delivery) -> UserError:
    """The row was there at `begin`, and somebody removed it."""
    return UserError(
        f"the progress of sink {sink} is gone from {table}",
        detail="Without it nobody can say which deliveries the target has.",
        hint="If the target is as it was, put it back: "
        f"INSERT INTO {table} (sink, epoch, term) VALUES "
        f"('{sink}', {delivery.after}, {delivery.term}).",
    )
