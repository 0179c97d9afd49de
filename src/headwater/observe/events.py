"""A durable log of the few things that people ask about afterwards.

Recoveries, failed jobs, fencing, clocks that went back: each is one row with a time, an epoch, a
subject and a sentence. The newest 10,000 are kept.

Promises
    Harmless   The log never stops the engine. While the database is away, up to 1,000 events wait
               in memory, the oldest giving way, and are written with the next one that gets in.
    Truthful   The time of an event is when it happened, not when it was written. After a commit
               that was not answered an event may be there twice; none is lost by that.
"""

import json
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
)

from headwater.errors import CommitUnknown, RetryableError
from headwater.model.epoch import NO_EPOCH, Epoch, WallClock, system_clock

KEPT = 10_000
WAITING = 1_000

METADATA = MetaData()

EVENT = Table(
    "hw_event",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("kind", Text, nullable=False, index=True),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("details", Text, nullable=False),
)
"""Created by the ledger's second migration."""

_ADD = insert(EVENT)
_NEWEST = select(func.max(EVENT.c.id))
_FORGET = delete(EVENT).where(EVENT.c.id <= bindparam("upto"))


class EventKind(StrEnum):
    """What can have happened."""

    ENGINE_STARTED = "engine_started"
    ENGINE_STOPPED = "engine_stopped"
    RECOVERY_STARTED = "recovery_started"
    RECOVERY_FINISHED = "recovery_finished"
    ACTOR_FAILED = "actor_failed"
    JOB_FAILED = "job_failed"
    VIEW_FAILED = "view_failed"
    VIEW_HEALED = "view_healed"
    JOB_RESTARTED = "job_restarted"
    FENCED = "fenced"
    TAKEN_OVER = "taken_over"
    CLOCK_WENT_BACK = "clock_went_back"
    EPOCH_SLOW = "epoch_slow"
    COMPACTION_DONE = "compaction_done"
    COLLECTION_DONE = "collection_done"
    SETTINGS_CHANGED = "settings_changed"
    RELATION_CHANGED = "relation_changed"
    SOURCE_UNAVAILABLE = "source_unavailable"
    SOURCE_STOPPED = "source_stopped"
    LOG_RETAINED = "log_retained"
    SINK_FAILED = "sink_failed"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    LEDGER_UNAVAILABLE = "ledger_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, as it is stored."""

    id: int
    at: datetime
    kind: EventKind
    subject: str
    text: str
    epoch: Epoch
    details: Mapping[str, Any]


class Database(Protocol):
    """Where events lie: the ledger, by shape."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Write: commit when the body ends, roll back when it raises."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Read as of one moment."""
        ...


class EventLog:
    """Records events and reads the latest; safe to use from several threads."""

    def __init__(
        self, database: Database, *, clock: WallClock = system_clock, kept: int = KEPT
    ) -> None:
        self._database = database
        self._clock = clock
        self._kept = kept
        self._waiting: deque[dict[str, object]] = deque(maxlen=WAITING)
        self._lock = threading.Lock()

    def record(
        self,
        kind: EventKind,
        subject: str,
        text: str,
        *,
        epoch: Epoch = NO_EPOCH,
        details: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write an event down; answers whether it, and all that waited, are stored.

        `details` must be what JSON can hold.
        Replay: after an unanswered commit an event may be written twice.
        """
        row: dict[str, object] = {
            "at": self._clock().isoformat(),
            "epoch": epoch,
            "kind": str(kind),
            "subject": subject,
            "text": text,
            "details": json.dumps(dict(details or {})),
        }
        with self._lock:
            try:
                with self._database.transaction() as connection:
                    connection.execute(_ADD, [*self._waiting, row])
                    newest = connection.execute(_NEWEST).scalar_one()
                    connection.execute(_FORGET, {"upto": newest - self._kept})
            except (RetryableError, CommitUnknown):
                self._waiting.append(row)
                return False
            self._waiting.clear()
            return True

    def recent(self, limit: int = 100, kind: EventKind | None = None) -> list[Event]:
        """The newest events, newest first."""
        query = select(EVENT).order_by(EVENT.c.id.desc()).limit(limit)
        if kind is not None:
            query = query.where(EVENT.c.kind == kind)
        with self._database.reading() as connection:
            return [
                Event(
                    id=row.id,
                    at=datetime.fromisoformat(row.at),
                    kind=EventKind(row.kind),
                    subject=row.subject,
                    text=row.text,
                    epoch=Epoch(row.epoch),
                    details=json.loads(row.details),
                )
                for row in connection.execute(query)
            ]
