"""Who looks at a followed database says the right thing at the right time, and drops last."""

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headwater.cdc.survey import LogSurvey
from headwater.errors import SourceUnavailable
from headwater.model.ids import SourceName
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.events import EventKind
from headwater.runtime.cdc_budget import OnRetained, WalBudget
from headwater.runtime.cdc_tables import CdcUpstream
from headwater.runtime.cdc_watch import CdcWatch, Watched

GB = 1 << 30


@dataclass
class ScriptedServer:
    """Answers what a test has written down, once each; the last answer stays."""

    answers: list
    released: list = field(default_factory=list)
    upstream: CdcUpstream | None = None

    def survey(self, after):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def release(self):
        assert self.upstream is not None
        self.released.append(self.upstream.lost)


def watched(*answers, budget=None):
    """A watch of a server, what it told, its clock and its metrics."""
    server, told, now = ScriptedServer(list(answers)), [], [0.0]
    upstream = CdcUpstream(SourceName("shop"), server, budget)
    server.upstream = upstream
    registry = CollectorRegistry()
    watch = CdcWatch(
        Watched(
            upstream=upstream,
            position=lambda: None,
            tables=lambda: ["t"],
            tell=lambda kind, subject, text: told.append((kind, text)),
            metrics=CdcSourceMetrics(registry),
            every_s=0.01,
            clock=lambda: now[0],
        )
    )
    return watch, server, told, now, lambda: generate_latest(registry).decode()


async def test_a_position_that_may_be_lost_is_told_when_it_stays_so():
    losing = LogSurvey(losing="it goes next")
    watch, _, told, now, _ = watched(losing, LogSurvey(), losing, losing, losing)
    for _ in range(3):
        await watch.look()
    assert told == []
    await watch.look()
    assert told == [(EventKind.LOG_RETAINED, "it goes next")]
    await watch.look()
    assert len(told) == 1
    now[0] = 301.0
    await watch.look()
    assert len(told) == 2


async def test_the_source_is_over_before_its_slot_is_dropped():
    budget = WalBudget(max_bytes=GB, action=OnRetained.DROP)
    watch, server, told, _, _ = watched(LogSurvey(retained_bytes=2 * GB), budget=budget)
    await watch.look()
    [lost] = server.released
    assert "max_wal_retained is 1.0 GB" in str(lost.detail)
    [(kind, text)] = told
    assert kind is EventKind.SOURCE_STOPPED
    assert "DROP SOURCE shop CASCADE" in text


async def test_without_a_limit_nothing_is_ever_dropped():
    watch, server, told, _, _ = watched(LogSurvey(retained_bytes=1 << 50, behind_bytes=GB))
    await watch.look()
    assert server.released == []
    assert [kind for kind, _ in told] == [EventKind.LOG_RETAINED]
    assert "1.0 GB behind" in told[0][1]


async def test_a_server_that_does_not_answer_is_asked_again_and_its_figures_go():
    figures = LogSurvey(behind_bytes=5, retained_bytes=7, gauges={"pg_cdc_upstream_max_lsn": 99})
    watch, server, told, _, metrics = watched(figures, SourceUnavailable("away"), figures)
    upstream = server.upstream
    assert upstream is not None
    running = asyncio.ensure_future(watch.run())
    try:
        while len(server.answers) > 1:
            await asyncio.sleep(0.005)
        while upstream.survey is None:
            await asyncio.sleep(0.005)
    finally:
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told == []
    assert 'headwater_cdc_lag_bytes{source="shop"} 5.0' in metrics()
    assert 'pg_cdc_upstream_max_lsn{source="shop"} 99.0' in metrics()
    watch.forget()
    assert 'source="shop"' not in metrics()
