"""Run blocking calls beside the event loop, a bounded number at a time.

Spark, the ledger's database and files all block. They run in one pool of threads, so that
nothing blocks the loop and nothing starts without bound.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from headwater.runtime.niceness import stand_back

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Blocking:
    """A pool of threads that coroutines hand blocking calls to."""

    def __init__(self, threads: int = 8, *, niceness: int = 0) -> None:
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix="headwater", initializer=stand_back, initargs=(niceness,)
        )
        self.closed = False

    async def __call__(self, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run `call` in a thread and wait for it.

        A call that has begun cannot be interrupted. Cancelling the caller therefore waits until
        it has ended, so that no thread goes on writing for a job that is gone.
        """
        loop = asyncio.get_running_loop()
        bound: Callable[[], Any] = functools.partial(call, *args, **kwargs)
        running = loop.run_in_executor(self._pool, bound)
        # Where nobody is left to hear what became of it, that is no error of its own.
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            result: _R = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
        return result

    def close(self) -> None:
        """Let the threads end."""
        self.closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
