"""Bring a workspace's database to the schema that this version of Headwater knows.

Migrations are numbered from one and run in order, each in one transaction that also records
its number in hw_schema. A crash between two leaves a workspace at the earlier number, and the
next start goes on from there. Two engines that start at once take turns: each looks at the
number again once it holds the lock.

A workspace with a higher number was written by a newer version and is refused. One that a
living engine uses is not migrated under its feet.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, func, insert, inspect, select, text

from headwater.errors import WorkspaceTooNew
from headwater.ledger.database import Database
from headwater.ledger.fence import read_fence, refuse_living
from headwater.ledger.migrations import (
    m0001_first,
    m0002_pins_and_events,
    m0003_relations,
    m0004_deliveries,
)
from headwater.ledger.tables import SCHEMA
from headwater.model.epoch import WallClock

Migration = Callable[[Connection], None]

MIGRATIONS: tuple[Migration, ...] = (
    m0001_first.upgrade,
    m0002_pins_and_events.upgrade,
    m0003_relations.upgrade,
    m0004_deliveries.upgrade,
)

_ADVISORY_LOCK = 0x4865_6164_7761_7465


def migrate(
    database: Database,
    clock: WallClock,
    *,
    wait_s: float,
    force: bool = False,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> None:
    """Run every migration that has not run yet; `force` does so beside a living engine.

    Replay: each migration commits together with its number, so none runs twice.
    """
    with database.reading() as connection:
        version = _version(connection)
    while _behind(version, len(migrations)):
        with database.transaction() as connection:
            _lock(connection)
            version = _version(connection)
            if not _behind(version, len(migrations)):
                return
            if version == 0:
                SCHEMA.create(connection, checkfirst=True)
            elif not force:
                refuse_living(read_fence(connection, clock, lock=False), wait_s)
            migrations[version](connection)
            version += 1
            connection.execute(
                insert(SCHEMA).values(version=version, applied_at=clock().isoformat())
            )


def _behind(version: int, known: int) -> bool:
    if version > known:
        raise WorkspaceTooNew(
            f"this workspace has schema version {version}; this Headwater knows {known}",
            hint="Upgrade headwater to the version that wrote the workspace, or a later one.",
        )
    return version < known


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table(SCHEMA.name):
        return 0
    return connection.execute(select(func.max(SCHEMA.c.version))).scalar_one() or 0


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
