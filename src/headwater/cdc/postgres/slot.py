"""What the server says about our slot and about itself, and what is lost when it says so.

A position is lost when the slot is gone, when the server threw away the log that it needs, when
somebody else moved it past our position, or when another server (or this one after a failover)
answers. Each of these stops loudly, with the remedy; none is skipped.
"""

from dataclasses import dataclass
from typing import Any

from headwater.cdc.offset import PostgresOffset
from headwater.errors import UserError

_STATUS = """
    SELECT s.slot_name::text, s.plugin::text, s.database::text, s.active, s.active_pid,
           s.confirmed_flush_lsn::text, s.restart_lsn::text, s.wal_status::text,
           pg_current_wal_flush_lsn()::text, pg_current_wal_insert_lsn()::text,
           current_setting('wal_block_size')::int,
           (SELECT system_identifier::text FROM pg_control_system()),
           left(pg_walfile_name(pg_current_wal_flush_lsn()), 8),
           current_setting('server_version_num')::int
    FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = %s"""
_LONGEST_PAGE_HEADER = 40
_REMEDY = (
    "Changes are missing: DROP SOURCE ... CASCADE, then create the source and its tables again."
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server this is, and how often it was promoted."""

    system: str
    timeline: str

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}"

    @staticmethod
    def parse(text: str) -> "ServerIdentity":
        """A stored one."""
        system, _, timeline = text.partition("/")
        return ServerIdentity(system, timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A slot as pg_replication_slots shows it, and the end of the log."""

    name: str
    exists: bool
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed: PostgresOffset | None
    """None while the server still builds the slot."""
    restart: PostgresOffset | None
    wal_status: str | None
    end: PostgresOffset
    settled: bool
    """Whether `end` is surely the end of a record. The server also writes full pages of log whose
    last record goes on behind them; a commit that begins before such an end is not in the log yet,
    and whoever took the end for a position would skip it."""
    identity: ServerIdentity
    server_version: int

    def check(self, after: PostgresOffset, expected: ServerIdentity | None) -> None:
        """Raise if what follows `after` can no longer be read."""
        self.check_identity(expected)
        self.check_kept()
        if self.end < after:
            raise UserError(
                f'the log of the server of slot "{self.name}" ends before our position',
                detail=f"We are at {after}, the log ends at {self.end}. The server was put back "
                "to an older copy of itself.",
                hint=_REMEDY,
            )
        if self.confirmed is not None and after < self.confirmed:
            raise UserError(
                f'slot "{self.name}" was moved past our position by somebody else',
                detail=f"We are at {after}, the slot is at {self.confirmed}.",
                hint=f"No other program may use this slot. {_REMEDY}",
            )

    def check_identity(self, expected: ServerIdentity | None) -> None:
        """Raise if this is not the server that was followed so far."""
        if expected is not None and self.identity != expected:
            other = self.identity.system != expected.system
            raise UserError(
                f'slot "{self.name}" is now answered by '
                + ("another server" if other else "a server that was promoted"),
                detail=f"It was {expected}, and is {self.identity} (system/timeline).",
                hint=f"Point the source to the old server, or: {_REMEDY}",
            )

    def check_kept(self) -> None:
        """Raise if the slot is gone, or the log that it needs."""
        if not self.exists:
            raise UserError(f'replication slot "{self.name}" is gone', hint=_REMEDY)
        if self.wal_status == "lost" or self.restart is None:
            raise UserError(
                f'the server threw away the log that slot "{self.name}" needs',
                detail="Its wal_status is lost: more was kept for it than the server allows.",
                hint=f"Raise max_slot_wal_keep_size. {_REMEDY}",
            )


def _is_settled(end: int, inserted: int, block: int) -> bool:
    # Where nothing was written after it, at most the header of the next page lies between.
    return end % block != 0 or inserted - end <= _LONGEST_PAGE_HEADER


def read_status(connection: Any, slot: str) -> SlotStatus:
    """Ask the server."""
    row = connection.execute(_STATUS, [slot]).fetchone()
    name, plugin, database, _, pid, confirmed, restart, wal, *server = row
    end, inserted, block, system, timeline, version = server
    return SlotStatus(
        name=slot,
        exists=name is not None,
        plugin=plugin,
        database=database,
        active_pid=pid,
        confirmed=PostgresOffset.of(confirmed) if confirmed else None,
        restart=PostgresOffset.of(restart) if restart else None,
        wal_status=wal,
        end=PostgresOffset.of(end),
        settled=_is_settled(PostgresOffset.of(end).lsn, PostgresOffset.of(inserted).lsn, block),
        identity=ServerIdentity(system, timeline),
        server_version=version,
    )
