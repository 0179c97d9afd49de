"""After a FLUSH: wait for what sinks bring from table to table.

A sink into a table is owed an epoch and writes with a later one. Whoever says FLUSH means that too,
also through several tables. A sink that is stalled, filled, limited or takes its time is not
waited for, and nobody waits for long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from headwater.model.epoch import Epoch
from headwater.runtime.sinks.definition import SinkSettings
from headwater.runtime.sinks.delivering import Delivering
from headwater.runtime.sinks.into_table import TableTargets

_SETTLE_S = 5.0
_LOOK_S = 0.005


async def settled(
    sinks: Iterable[Delivering],
    tables: TableTargets,
    epoch: Epoch,
    flush: Callable[[], Awaitable[Epoch]],
) -> Epoch:
    """Let later epochs take what an epoch owes to tables; gives the last of them."""
    ways = [each for each in sinks if _goes_on_at_once(each)]
    give_up = time.monotonic() + _SETTLE_S * len(ways)
    # Tables may write tables, never in a circle.
    for _ in ways:
        goal = epoch
        while any([await _on_its_way(each, tables, goal) for each in ways]):
            # Each delivery takes an epoch, and more than one may have been owed before.
            epoch = await flush()
            if time.monotonic() > give_up:
                return epoch
        if epoch == goal:
            break
    return epoch


def _goes_on_at_once(sink: Delivering) -> bool:
    """Whether a sink writes a table, and with the next epoch."""
    own = SinkSettings.of(sink.live.definition)
    at_once = own.rate_limit is None and own.checkpoints == 1
    return own.into is not None and at_once and not sink.live.filling


async def _on_its_way(sink: Delivering, tables: TableTargets, goal: Epoch) -> bool:
    """Whether rows of an epoch wait to be taken by the table that they go to."""
    ident = SinkSettings.of(sink.live.definition).ident
    give_up = time.monotonic() + _SETTLE_S
    while sink.works and time.monotonic() < give_up:
        # Right after the start of an engine it is still asking where it was.
        if sink.executor is not None:
            status = sink.executor.status
            if status.attempts or status.delivered >= goal:
                return False
            if tables.awaited(ident) > tables.reached(ident):
                return True
        await asyncio.sleep(_LOOK_S)
    return False
