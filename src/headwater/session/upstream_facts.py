"""What the system tables show of tables that follow another workspace."""

from collections.abc import Sequence

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.epoch import NO_EPOCH, epoch_time
from headwater.runtime.engine import Engine
from headwater.runtime.upstream.sources import FollowedProgress
from headwater.system.facts import CdcFact, JobFact


def upstream_facts(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[CdcFact]:
    """One row for each followed table."""
    return [
        CdcFact(
            source=str(table.source),
            table=table.name,
            table_id=table.id,
            state=_state(found, table.detail.rate_limit),
            percent=found.percent,
            rows=found.rows,
            rows_per_s=None,
            lag_s=None if found.lag is None else found.lag.total_seconds(),
            lag_bytes=None,
            retained_bytes=None,
            last_event_at=None,
            trouble=found.stopped or found.trouble,
        )
        for table, found in _followed(engine, snapshot)
    ]


def upstream_jobs(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[JobFact]:
    """The tables that are being filled, or have stopped."""
    return [
        JobFact(
            id=table.id,
            statement=table.detail.definition,
            progress=str(found),
            create_type="BACKGROUND",
            initialized_at=None if table.created == NO_EPOCH else epoch_time(table.created),
        )
        for table, found in _followed(engine, snapshot)
        if not found.backfilled or found.stopped
    ]


def _followed(engine: Engine, snapshot: CatalogSnapshot) -> list[tuple[TableDef, FollowedProgress]]:
    jobs = engine.upstreams.jobs
    mine = [table for table in snapshot.tables if table.source in jobs]
    return [(table, engine.upstreams.progress(table.id)) for table in mine]


def _state(found: FollowedProgress, limit: int | None) -> str:
    """In the words of `runtime/cdc_status.py`."""
    if found.stopped:
        return "stopped"
    if limit == 0:
        return "paused"
    if found.stalled:
        return "stalled"
    return "streaming" if found.backfilled else "snapshotting"
