"""Wait for work: such that goes on when whoever waits has gone, and such that goes further."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headwater.model.epoch import Epoch
from headwater.runtime.engine import Engine

_R = TypeVar("_R")


async def finished(work: Coroutine[Any, Any, _R]) -> _R:
    """Wait for work that goes on when the waiting is over."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def flushed(engine: Engine) -> Epoch:
    """FLUSH as users mean it: also what sinks bring from table to table.

    Never called under the lock of those who write, which these sinks need.
    """
    return await engine.sinks.through_tables(await engine.flush(), engine.flush)
