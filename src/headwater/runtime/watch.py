"""Turn what the coordinator tells into durable events and metrics.

Events are written beside the loop, one after the other; the log itself never stops the engine.
"""

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

from headwater.barrier.notices import (
    BarrierSent,
    ClockWentBack,
    CommandStarted,
    CommitDelayed,
    EpochDurable,
    GraphFailed,
    GraphStarted,
    Notice,
    RebuildDelayed,
)
from headwater.errors import LedgerUnavailable
from headwater.model.epoch import Epoch
from headwater.observe.events import EventKind, EventLog
from headwater.observe.metrics import Metrics


class Watch:
    """Listens to the coordinator; `run` writes what it hears."""

    def __init__(self, events: EventLog, metrics: Metrics) -> None:
        self._events = events
        self._metrics = metrics
        self._heard: asyncio.Queue[tuple[EventKind, str, str]] = asyncio.Queue(maxsize=10_000)
        self._sent: dict[Epoch, float] = {}

    def __call__(self, notice: Notice) -> None:
        """Hear a notice; never waits."""
        match notice:
            case BarrierSent(epoch=epoch):
                self._sent[epoch] = time.monotonic()
                self._metrics.barriers_in_flight.set(len(self._sent))
            case EpochDurable(epoch=epoch):
                done = [sent for sent in self._sent if sent <= epoch]
                for sent in done:
                    self._metrics.barrier_duration.observe(time.monotonic() - self._sent.pop(sent))
                self._metrics.barriers_in_flight.set(len(self._sent))
            case CommandStarted():
                pass
            case CommitDelayed(error=error):
                away = isinstance(error, LedgerUnavailable)
                kind = EventKind.LEDGER_UNAVAILABLE if away else EventKind.STORAGE_UNAVAILABLE
                self.tell(kind, "commit", str(error))
            case GraphFailed(jobs=jobs, cause=cause):
                self._metrics.recoveries.labels(type(cause).__name__).inc()
                self.tell(EventKind.ACTOR_FAILED, _names(jobs), _text(cause))
            case GraphStarted(jobs=jobs):
                self.tell(EventKind.JOB_RESTARTED, _names(jobs), "running again")
            case RebuildDelayed(jobs=jobs, error=error):
                self.tell(EventKind.ACTOR_FAILED, _names(jobs), _text(error))
            case ClockWentBack(by=by):
                self.tell(
                    EventKind.CLOCK_WENT_BACK,
                    "clock",
                    f"the clock went back by {by}; epochs go on growing",
                )
            case _ as never:
                assert_never(never)

    async def run(self, write: Callable[..., object]) -> None:
        """Write events down as they come, through `write`, which may wait."""
        while True:
            kind, subject, text = await self._heard.get()
            answer = write(self._events.record, kind, subject, text)
            if asyncio.iscoroutine(answer):
                await answer

    def tell(self, kind: EventKind, subject: str, text: str) -> None:
        """Have an event written soon; never waits."""
        if not self._heard.full():
            self._heard.put_nowait((kind, subject, text))


def _names(jobs: tuple[int, ...]) -> str:
    return ", ".join(f"job {job}" for job in jobs)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
