"""Ask a MySQL or MariaDB server which binlogs it has, and how near we are to the oldest.

The server keeps its binlogs for a time of its own choosing, whoever reads them. It deletes whole
files, the oldest first; who still reads in the oldest one, with newer ones there, is next.
"""

from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.offset import BinlogOffset
from headwater.cdc.survey import LogSurvey

_EXPIRY = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('binlog_expire_logs_seconds', 'expire_logs_days')"
)


def survey_binlogs(connection: MySqlConnection, after: BinlogOffset | None) -> LogSurvey:
    """One look, in two small queries."""
    rows = connection.query("SHOW BINARY LOGS")
    sizes = {BinlogOffset(str(row[0]), 0).number: int(row[1]) for row in rows}
    if not sizes:
        return LogSurvey()
    gauges = {
        "mysql_cdc_binlog_file_seq_min": min(sizes),
        "mysql_cdc_binlog_file_seq_max": max(sizes),
    }
    if after is None:
        return LogSurvey(gauges=gauges)
    behind = sum(size for number, size in sizes.items() if number >= after.number)
    oldest = after.number == min(sizes) and len(sizes) > 1
    seconds = expiry_s(dict(connection.query(_EXPIRY))) if oldest else 0
    return LogSurvey(
        behind_bytes=max(0, behind - after.position),
        losing=_losing(after, seconds, len(sizes)) if oldest and seconds else "",
        gauges=gauges,
    )


def expiry_s(settings: dict[str, str]) -> int:
    """After how many seconds the server deletes a binlog; 0 is never."""
    found = {name.lower(): float(value) for name, value in settings.items()}
    days = found.get("expire_logs_days", 0.0)
    return int(found.get("binlog_expire_logs_seconds", 0.0) or days * 86_400)


def _losing(after: BinlogOffset, seconds: int, files: int) -> str:
    return (
        f"the position {after} is in the oldest of {files} binlog files, which is the next that "
        f"the server deletes (it keeps them for {seconds / 3600:.1f} hours). "
        "Raise binlog_expire_logs_seconds at the server until this source has caught up"
    )
