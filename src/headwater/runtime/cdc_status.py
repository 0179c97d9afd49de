"""How each followed table stands, in the words that `hw_catalog.cdc_progress` shows.

state          the table
created        is known; its source has not been reached yet
snapshotting   is being filled, and follows the log already
paused         is not filled further: its rate limit is 0; it follows the log
streaming      is filled and follows the log
stalled        waits for a source that does not answer; goes on by itself
failed         waits for a person: what the source has lost, the trouble says
stopped        alone does not follow any more; drop it and create it again
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headwater.catalog.relation import TableDef
from headwater.runtime.cdc_job import CdcJob
from headwater.runtime.cdc_sources import CdcSources, TableProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcStatus:
    """One followed table, or a source that has none."""

    source: str
    table: TableDef | None
    state: str
    percent: float | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    splits: int = 0
    splits_done: int = 0
    rate_limit: int | None = None
    lag_s: float | None = None
    lag_bytes: int | None = None
    retained_bytes: int | None = None
    last_event_at: datetime | None = None
    trouble: str = ""


def cdc_status(sources: CdcSources, tables: Sequence[TableDef]) -> list[CdcStatus]:
    """How all of them stand now."""
    found = []
    for name, job in list(sources.jobs.items()):
        mine = [table for table in tables if table.source == name]
        found += [_of_table(job, table, sources.progress(table.id)) for table in mine]
        if not mine:
            found.append(_of_source(job))
    return found


def _of_source(job: CdcJob) -> CdcStatus:
    upstream = job.upstream
    survey, event = upstream.survey, upstream.freshness.last_event_at
    return CdcStatus(
        source=upstream.name,
        table=None,
        state=_state(job),
        lag_s=upstream.freshness.lag_s(time.time()),
        lag_bytes=None if survey is None else survey.behind_bytes,
        retained_bytes=None if survey is None else survey.retained_bytes,
        last_event_at=None if event is None else datetime.fromtimestamp(event, UTC),
        trouble=str(upstream.lost or upstream.trouble or upstream.away),
    )


def _of_table(job: CdcJob, table: TableDef, progress: TableProgress) -> CdcStatus:
    source, running, seen = _of_source(job), job.running.get(table.id), progress.progress
    limit = None if running is None else running.executor.backfill.machine.limit.rows_per_s
    found = replace(
        source,
        table=table,
        state=_table_state(source.state, progress, limit),
        percent=progress.percent,
        rate_limit=limit,
    )
    if seen is not None:
        found = replace(
            found,
            rows=seen.rows,
            rows_per_s=None if progress.backfilled else seen.rows_per_second,
            splits=seen.splits,
            splits_done=seen.splits_done,
            trouble=source.trouble or seen.trouble,
        )
    if progress.stopped:
        found = replace(found, lag_s=None, lag_bytes=None, trouble=progress.stopped)
    return found


def _table_state(source: str, progress: TableProgress, limit: int | None) -> str:
    if progress.stopped:
        return "stopped"
    if source != "streaming" or progress.backfilled:
        return source
    return "paused" if limit == 0 else "snapshotting"


def _state(job: CdcJob) -> str:
    upstream = job.upstream
    if upstream.trouble is not None or upstream.lost is not None:
        return "failed"
    if upstream.away:
        return "stalled"
    return "streaming" if upstream.prepared.is_set() else "created"
