"""Look at a followed database every few seconds: how far behind we are, what it keeps for us.

It asks on connections of its own, so it still sees the log grow while the reader is busy, waits
for storage, or does not get on. What it finds becomes metrics, rows of `hw_catalog.cdc_progress`
and, when somebody should act, events.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.cdc.offset import parse_offset
from headwater.cdc.survey import LogSurvey
from headwater.errors import HeadwaterError, UserError
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.events import EventKind
from headwater.runtime.cdc_budget import MAX_RETAINED, BudgetWatch, Verdict, spelled
from headwater.runtime.cdc_tables import CdcUpstream

_LOOK_S = 5.0
_LOSING_REPEAT_S = 300.0

Tell = Callable[[EventKind, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the watch of one source is given."""

    upstream: CdcUpstream
    position: Callable[[], str | None]
    tables: Callable[[], list[str]]
    """The names of the tables that follow."""
    tell: Tell
    metrics: CdcSourceMetrics | None = None
    every_s: float = _LOOK_S
    clock: Callable[[], float] = field(default=time.time)


class CdcWatch:
    """The watch of one source."""

    def __init__(self, watched: Watched) -> None:
        self._given = watched
        self._budget = BudgetWatch()
        self._losing_told_at: float | None = None
        self._was_losing = False
        self._shown_tables: set[str] = set()

    async def run(self) -> None:
        """Look again and again; a server that does not answer is the reader's concern."""
        while True:
            try:
                await self.look()
            except HeadwaterError:
                # It cannot be asked now; whoever reads the log says so, and why.
                self._given.upstream.survey = None
            self._measure()
            await asyncio.sleep(self._given.every_s)

    async def look(self) -> None:
        """Ask the server once, and do what that calls for."""
        upstream, stored = self._given.upstream, self._given.position()
        after = parse_offset(stored) if stored else None
        found = await upstream.watching(upstream.database.survey, after)
        upstream.survey = found
        self._warn_of_loss(found)
        match self._budget.judge(
            upstream.budget, found.retained_bytes, found.allowed_bytes, self._given.clock()
        ):
            case Verdict.WARN:
                self._given.tell(EventKind.LOG_RETAINED, upstream.name, self._retained(found))
            case Verdict.DROP:
                await self._release(found)
            case Verdict.FINE:
                pass

    def _warn_of_loss(self, found: LogSurvey) -> None:
        """Twice in a row, since a file that was just begun makes the last one the oldest."""
        now, told = self._given.clock(), self._losing_told_at
        due = told is None or now - told >= _LOSING_REPEAT_S
        if found.losing and self._was_losing and due:
            self._losing_told_at = now
            self._given.tell(EventKind.LOG_RETAINED, self._given.upstream.name, found.losing)
        self._was_losing = bool(found.losing)
        if not found.losing:
            self._losing_told_at = None

    def _retained(self, found: LogSurvey) -> str:
        upstream = self._given.upstream
        limit = upstream.budget.limit(found.allowed_bytes)
        kept = found.retained_bytes or 0
        behind = f"; we are {spelled(found.behind_bytes)} behind" if found.behind_bytes else ""
        return (
            f"the server keeps {spelled(kept)} of log for this source, {100 * kept // limit} % of "
            f"{spelled(limit)}{behind}. See hw_catalog.cdc_progress for what holds it up, look for "
            "long transactions upstream, and for space on the server's disk"
        )

    async def _release(self, found: LogSurvey) -> None:
        """Save the disk of the server. Replay: a slot that is gone is not missed."""
        upstream = self._given.upstream
        limit = upstream.budget.limit(found.allowed_bytes)
        why = UserError(
            f'source "{upstream.name}" is stopped: its slot was dropped to save the disk of the '
            "server",
            detail=f"It kept {spelled(found.retained_bytes or 0)} of log, and {MAX_RETAINED} is "
            f"{spelled(limit)}.",
            hint=f"DROP SOURCE {upstream.name} CASCADE, then create the source and its tables "
            "again.",
        )
        # First we stop, then the log goes: nobody reads on from a slot that is made anew.
        upstream.lost = why
        await upstream.watching(upstream.database.release)
        self._given.tell(EventKind.SOURCE_STOPPED, upstream.name, f"{why} {why.detail} {why.hint}")

    def _measure(self) -> None:
        metrics, upstream = self._given.metrics, self._given.upstream
        if metrics is None:
            return
        now, name = self._given.clock(), upstream.name
        lag = upstream.freshness.lag_s(now)
        if lag is not None:
            metrics.lag_ms.labels(name).set(1000 * lag)
        if upstream.freshness.last_event_at is not None:
            metrics.last_event_seconds.labels(name).set(upstream.freshness.last_event_at)
        metrics.trouble.labels(name).set(int(upstream.trouble is not None))
        self._measure_tables(metrics, lag)
        found = upstream.survey
        if found is None:
            return
        metrics.server(name, found.gauges)
        if found.behind_bytes is not None:
            metrics.lag_bytes.labels(name).set(found.behind_bytes)
        if found.retained_bytes is not None:
            metrics.retained_bytes.labels(name).set(found.retained_bytes)
            metrics.budget_bytes.labels(name).set(upstream.budget.limit(found.allowed_bytes))

    def _measure_tables(self, metrics: CdcSourceMetrics, lag: float | None) -> None:
        name, tables = self._given.upstream.name, set(self._given.tables())
        for gone in self._shown_tables - tables:
            metrics.forget_table(name, gone)
        self._shown_tables = tables
        if lag is not None:
            for table in tables:
                metrics.table_lag_seconds.labels(name, table).set(lag)

    def forget(self) -> None:
        """The source is gone: its series end."""
        metrics, name = self._given.metrics, self._given.upstream.name
        if metrics is not None:
            for table in self._shown_tables:
                metrics.forget_table(name, table)
            metrics.forget(name)
