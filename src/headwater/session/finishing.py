"""Work that goes on when whoever waits for it has gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_R = TypeVar("_R")


async def finished(work: Coroutine[Any, Any, _R]) -> _R:
    """Wait for work that goes on when the waiting is over."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
