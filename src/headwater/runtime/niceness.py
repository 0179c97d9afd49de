"""Threads and processes that give way to others when there is not processor time for all.

An epoch is little work that somebody waits for; a new view is much that nobody waits for by the
millisecond. Both want the same cores. Where the operating system knows priorities of threads
(Linux), what fills views and the Spark of this machine stand back by a few steps of `nice`: they
take all that is left over, and the epochs keep their pace. Elsewhere nothing happens.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_R = TypeVar("_R")


def stand_back(steps: int) -> None:
    """Let this thread give way, and whatever it starts; it cannot be taken back."""
    if not steps or sys.platform != "linux":
        return
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < steps:
        os.setpriority(os.PRIO_PROCESS, thread, steps)


def standing_back(steps: int, call: Callable[[], _R]) -> _R:
    """The result of a call whose processes are to give way, not the thread that waits for it."""
    with ThreadPoolExecutor(1, initializer=stand_back, initargs=(steps,)) as pool:
        return pool.submit(call).result()
