"""What the system tables show of sinks."""

from collections.abc import Sequence

from headwater.catalog.relation import ObjectDef, ObjectKind
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.epoch import NO_EPOCH, epoch_time
from headwater.runtime.engine import Engine
from headwater.runtime.sinks.definition import SinkSettings
from headwater.runtime.sinks.filling import FILLING
from headwater.session.sink_statements import sink_shown
from headwater.sinks.steps import SinkState
from headwater.system.facts import JobFact, SinkFact


def sink_facts(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[SinkFact]:
    """One row for each sink, with how it is doing."""
    return [_fact(engine, snapshot, sink) for sink in _sinks(snapshot)]


def sink_jobs(engine: Engine, snapshot: CatalogSnapshot) -> Sequence[JobFact]:
    """The sinks whose logs are being filled, as rw_ddl_progress shows them."""
    return [
        JobFact(
            id=filling.sink.id,
            statement=sink_shown(snapshot, filling.sink),
            progress=filling.progress,
            create_type="BACKGROUND",
            initialized_at=filling.began,
        )
        for filling in engine.sinks.filling.values()
    ]


def _sinks(snapshot: CatalogSnapshot) -> list[ObjectDef]:
    return [each for each in snapshot.objects if each.kind is ObjectKind.SINK]


def _fact(engine: Engine, snapshot: CatalogSnapshot, sink: ObjectDef) -> SinkFact:
    own = SinkSettings.of(sink)
    status = engine.sinks.status(sink.id)
    delivering = engine.sinks.delivering.get(sink.id)
    state, reason, delivered = SinkState.STARTING.value, "", None
    if delivering is not None and delivering.failure is not None:
        state, reason = "failed", delivering.failure.message
    elif status is not None:
        state, reason = status.state.value, status.reason
        delivered = int(status.delivered) if status.delivered > NO_EPOCH else None
    return SinkFact(
        id=sink.id,
        name=sink.name,
        connector=own.connector,
        namespace=sink.namespace,
        owner=sink.owner,
        sink_type=own.kind.value,
        definition=sink_shown(snapshot, sink),
        reads=(int(sink.table or 0),),
        created_at=None if sink.created == NO_EPOCH else epoch_time(sink.created),
        state="filling" if FILLING in sink.settings and state == "idle" else state,
        delivered_epoch=delivered,
        lag_s=engine.sinks.lag_seconds(sink.id),
        attempts=0 if status is None else status.attempts,
        reason=reason,
    )
