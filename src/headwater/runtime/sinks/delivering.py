"""A sink at work: its log, and who delivers from it."""

import asyncio
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.logstore.open_log import OpenLog
from headwater.logstore.reader import KvLogStoreReader
from headwater.runtime.sinks.keeper import LiveSink
from headwater.runtime.sinks.lending import TableLender
from headwater.sinks.executor import SinkExecutor


@dataclass(slots=True, kw_only=True)
class Delivering:
    """A sink at work."""

    live: LiveSink
    reader: KvLogStoreReader
    log: OpenLog
    lender: TableLender
    executor: SinkExecutor | None = None
    opened: bool = False
    """Whether an executor that has ended has opened the log."""
    task: "asyncio.Task[None] | None" = None
    failure: HeadwaterError | None = None
    """Why it has ended by itself."""

    @property
    def works(self) -> bool:
        """Whether somebody delivers, or is about to."""
        return self.failure is None and self.task is not None and not self.task.done()
