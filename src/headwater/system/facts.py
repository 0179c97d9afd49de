"""What the system tables are made of, handed in by whoever runs the engine.

A catalog query needs little of this. What costs something to find out (sizes, jobs, events) is
therefore a callable, and is called at most once per query, only when the query names a table
that shows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headwater.catalog.relation import PUBLIC, ROOT
from headwater.catalog.snapshot import CatalogSnapshot

DATABASE = "dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """Who asks, and with which settings."""

    user: str = ROOT
    database: str = DATABASE
    search_path: tuple[str, ...] = (PUBLIC,)
    backend_pid: int = 0
    server_version: str = "14.0 (Headwater)"
    """What the client was told at start-up; it chooses its catalog queries by it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The session's own settings, as SHOW gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFact:
    """A user who may connect."""

    id: int
    name: str
    superuser: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFact:
    """How large a stored relation is."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """Something that is being created, and how far it is."""

    id: int
    statement: str
    progress: str
    """As it is shown: `12.3%`."""
    create_type: str = "FOREGROUND"
    initialized_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFact:
    """The splits of a table that is being filled from its source."""

    job_id: int
    splits: int
    backfilled: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcFact:
    """How a followed table stands; `table` is None for a source that has none."""

    source: str
    table: str | None
    table_id: int | None
    state: str
    percent: float | None
    rows: int | None
    rows_per_s: float | None
    lag_s: float | None
    lag_bytes: int | None
    retained_bytes: int | None
    last_event_at: datetime | None
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFact:
    """Something that happened; `details` is JSON."""

    id: int
    at: datetime
    epoch: int
    kind: str
    subject: str
    text: str
    details: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFact:
    """A committed epoch."""

    epoch: int
    committed_at: datetime
    kind: str = "checkpoint"
    changes: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFact:
    """A setting of the engine; `live` ones change without a restart."""

    name: str
    value: str
    unit: str = ""
    description: str = ""
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitFact:
    """How fast a relation may be filled, in rows per second; None is as fast as it can."""

    table_id: int
    node: str
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFact:
    """A sink; its definition and options hold no passwords any more."""

    id: int
    name: str
    connector: str
    namespace: str = PUBLIC
    owner: str = ROOT
    sink_type: str = "append-only"
    definition: str = ""
    reads: tuple[int, ...] = ()
    created_at: datetime | None = None
    state: str = "starting"
    delivered_epoch: int | None = None
    lag_s: float = 0.0
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFact:
    """A session that is open now."""

    pid: int
    user: str
    database: str = DATABASE
    application_name: str = ""
    client_address: str | None = None
    client_port: int | None = None
    started_at: datetime | None = None
    query_started_at: datetime | None = None
    state: str = "idle"
    query: str = ""


def _no_sizes() -> Mapping[int, SizeFact]:
    return {}


def _no_texts() -> Mapping[str, str]:
    return {}


def _nothing() -> Sequence[object]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
    """Everything that the system tables show."""

    snapshot: CatalogSnapshot
    session: SessionFacts = field(default_factory=SessionFacts)
    users: tuple[UserFact, ...] = (UserFact(id=1, name=ROOT),)
    cluster_version: str = ""
    parallelism: int = 1
    sizes: Callable[[], Mapping[int, SizeFact]] = _no_sizes
    """By the id of the stored relation."""
    jobs: Callable[[], Sequence[JobFact]] = _nothing  # type: ignore[assignment]
    backfills: Callable[[], Sequence[BackfillFact]] = _nothing  # type: ignore[assignment]
    cdc: Callable[[], Sequence[CdcFact]] = _nothing  # type: ignore[assignment]
    events: Callable[[], Sequence[EventFact]] = _nothing  # type: ignore[assignment]
    epochs: Callable[[], Sequence[EpochFact]] = _nothing  # type: ignore[assignment]
    settings: Callable[[], Sequence[SettingFact]] = _nothing  # type: ignore[assignment]
    rate_limits: Callable[[], Sequence[RateLimitFact]] = _nothing  # type: ignore[assignment]
    sinks: Callable[[], Sequence[SinkFact]] = _nothing  # type: ignore[assignment]
    source_definitions: Callable[[], Mapping[str, str]] = _no_texts
    """The statement that created a source, by the source's name, without its passwords."""
    connections: Callable[[], Sequence[ConnectionFact]] = _nothing  # type: ignore[assignment]
