"""What the system tables show of followed databases."""

from collections.abc import Sequence

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.epoch import NO_EPOCH, epoch_time
from headwater.runtime.cdc_status import CdcStatus, cdc_status
from headwater.runtime.engine import Engine
from headwater.session.upstream_facts import upstream_facts, upstream_jobs
from headwater.system.facts import BackfillFact, CdcFact, JobFact, RateLimitFact

_NODE = "STREAM_CDC_SCAN"


def cdc_facts(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[CdcFact]:
    """One row for each followed table, and for each source that has none."""
    followed = [
        CdcFact(
            source=each.source,
            table=None if each.table is None else each.table.name,
            table_id=None if each.table is None else each.table.id,
            state=each.state,
            percent=each.percent,
            rows=each.rows,
            rows_per_s=each.rows_per_s,
            lag_s=each.lag_s,
            lag_bytes=each.lag_bytes,
            retained_bytes=each.retained_bytes,
            last_event_at=each.last_event_at,
            trouble=each.trouble,
        )
        for each in cdc_status(engine.cdc, snapshot.tables)
    ]
    return [*followed, *upstream_facts(engine, snapshot)]


def cdc_jobs(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[JobFact]:
    """The tables that are being filled, as rw_ddl_progress shows them."""
    found = []
    for table in snapshot.tables:
        if table.source in engine.cdc.jobs:
            progress = engine.cdc.progress(table.id)
            if not progress.backfilled or progress.stopped:
                began = None if table.created == NO_EPOCH else epoch_time(table.created)
                found.append(
                    JobFact(
                        id=table.id,
                        statement=table.detail.definition,
                        progress=str(progress),
                        create_type="BACKGROUND",
                        initialized_at=began,
                    )
                )
    return [*found, *upstream_jobs(engine, snapshot)]


def backfill_facts(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[BackfillFact]:
    """The splits of tables that are being filled, as rw_cdc_progress shows them."""
    return [
        BackfillFact(
            job_id=table.id,
            splits=each.splits,
            backfilled=each.splits_done,
            completed=each.splits_done,
        )
        for each, table in _filling(engine, snapshot)
    ]


def cdc_limits(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[RateLimitFact]:
    """The limits that hold now, also those that stand in CREATE TABLE."""
    return [
        RateLimitFact(table_id=each.table.id, node=_NODE, limit=each.rate_limit)
        for each in cdc_status(engine.cdc, snapshot.tables)
        if each.table is not None and each.rate_limit is not None
    ]


def _filling(engine: Engine, snapshot: CatalogSnapshot) -> list[tuple[CdcStatus, TableDef]]:
    return [
        (each, each.table)
        for each in cdc_status(engine.cdc, snapshot.tables)
        if each.table is not None and each.splits > each.splits_done
    ]
