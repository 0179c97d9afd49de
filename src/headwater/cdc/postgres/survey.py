"""Ask a PostgreSQL server how its log and our slot stand."""

from typing import Any

from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.slot import read_status
from headwater.cdc.survey import LogSurvey

_ALLOWED = "SELECT setting::bigint << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"


def survey_slot(connection: Any, slot: str, after: PostgresOffset | None) -> LogSurvey:
    """One look, in two small queries."""
    status = read_status(connection, slot)
    allowed = connection.execute(_ALLOWED).fetchone()
    gauges = {"pg_cdc_upstream_max_lsn": status.end.lsn}
    if status.confirmed is not None:
        gauges["pg_cdc_confirmed_flush_lsn"] = status.confirmed.lsn
    kept = None if status.restart is None else max(0, status.end.lsn - status.restart.lsn)
    return LogSurvey(
        behind_bytes=None if after is None else max(0, status.end.lsn - after.lsn),
        retained_bytes=kept if status.exists else None,
        allowed_bytes=allowed[0] if allowed is not None and allowed[0] >= 0 else None,
        losing=_losing(status.wal_status, slot),
        gauges=gauges,
    )


def _losing(wal_status: str | None, slot: str) -> str:
    if wal_status != "unreserved":
        return ""
    return (
        f'the server is about to throw away the log that slot "{slot}" needs '
        "(its wal_status is unreserved). Raise max_slot_wal_keep_size now"
    )
