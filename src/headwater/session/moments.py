"""Which epoch FOR SYSTEM_TIME AS OF means.

A number is an epoch; a time means the last epoch that was committed at or before it. What is
older than the retention, or has not happened yet, is refused.
"""

from datetime import UTC, datetime

from headwater.errors import UserError
from headwater.model.epoch import Epoch, epoch_at
from headwater.runtime.engine import Engine
from headwater.sql.algebra import AsOf


def epoch_of(engine: Engine, as_of: AsOf) -> Epoch:
    """The epoch that a moment means; a table's own history says whether it is still known."""
    visible = engine.visible
    if as_of.epoch is None:
        return min(epoch_at(moment_of(as_of)), visible)
    if as_of.epoch > visible:
        raise UserError(
            f"epoch {as_of.epoch} has not happened yet", detail=f"The last epoch is {visible}."
        )
    return Epoch(as_of.epoch)


def moment_of(as_of: AsOf) -> datetime:
    """The time that a clause names, in UTC."""
    assert as_of.moment is not None
    moment = as_of.moment
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
