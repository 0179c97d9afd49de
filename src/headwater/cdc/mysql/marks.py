"""Places in the binlog that a transaction of ours can be sure of.

MariaDB tells with each consistent snapshot at which place of the binlog it was taken. MySQL
does not, and what SHOW BINARY LOG STATUS tells is ahead of what can be seen: a transaction is
first written to the binlog and then becomes visible. In between its GTID is *owned*. So the low
mark is a place that was read first, after which every GTID that was owned then has been let go;
what ends at the low mark or before it is visible to a snapshot that begins afterwards. The high
mark is read when the snapshot has begun: whatever it sees had been written to the binlog by
then.
"""

import time

from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.schema import literal
from headwater.cdc.mysql.seen import BinlogSeen, place
from headwater.cdc.offset import BinlogOffset
from headwater.errors import ConfigError, SourceUnavailable

_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_LONGEST_COMMIT_S = 10.0
_PAUSE_S = 0.002
_RENAMED_IN = (8, 2)


def log_end(connection: MySqlConnection) -> BinlogOffset:
    """The end of the log now. Its GTIDs may lack the last ones, and never have one too many."""
    gtids = str(connection.value("SELECT @@GLOBAL.gtid_binlog_pos")) if connection.mariadb else ""
    status = connection.row(
        "SHOW MASTER STATUS" if _old_words(connection) else "SHOW BINARY LOG STATUS"
    )
    if not status:
        raise no_binlog()
    gtids = gtids or str(status.get("Executed_Gtid_Set") or "").replace("\n", "")
    return BinlogOffset(status["File"], int(status["Position"]), gtids)


def with_exact_gtids(connection: MySqlConnection, at: BinlogOffset) -> BinlogOffset:
    """The same place with just the GTIDs before it: one that is stored is compared by them.

    MariaDB tells a place and its GTIDs in two answers, between which others may commit; it finds
    out by reading the file up to there.
    """
    if not connection.mariadb:
        return at
    gtids = connection.value(f"SELECT BINLOG_GTID_POS({literal(at.file)}, {at.position})")
    return BinlogOffset(at.file, at.position, str(gtids or ""))


def no_binlog() -> ConfigError:
    """What to say when the server keeps no log."""
    return ConfigError(
        "the server keeps no binary log, so changes cannot be followed",
        hint="Start it with log_bin, binlog_format=ROW and binlog_row_metadata=FULL.",
    )


def begin_snapshot(
    connection: MySqlConnection,
) -> tuple[BinlogOffset, BinlogOffset, BinlogSeen]:
    """Begin a transaction that sees one moment: its low mark, its high mark, and what it saw."""
    if connection.mariadb:
        connection.query(_BEGIN)
        status = dict(connection.query("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        found = {name.lower(): value for name, value in status.items()}
        if not found.get("binlog_snapshot_file"):
            raise no_binlog()
        at = BinlogOffset(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))
        return at, at, BinlogSeen(place(at))
    low = log_end(connection)
    _await_commits(connection)
    connection.query(_BEGIN)
    return low, log_end(connection), BinlogSeen(place(low))


def _await_commits(connection: MySqlConnection) -> None:
    """Wait until every transaction that is in the binlog now can be seen."""
    waiting = _owned(connection)
    deadline = time.monotonic() + _LONGEST_COMMIT_S
    while waiting:
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                "a transaction upstream is written to the binlog, and not visible yet",
                detail=f"GTIDs: {', '.join(sorted(waiting))[:500]}.",
                hint="A semi-synchronous replica that does not answer can be the cause.",
            )
        time.sleep(_PAUSE_S)
        waiting &= _owned(connection)


def _owned(connection: MySqlConnection) -> set[str]:
    """GTIDs of transactions that are being committed, each with its thread."""
    owned = set()
    text = str(connection.value("SELECT @@GLOBAL.gtid_owned") or "")
    for server in text.replace("\n", "").split(","):
        uuid, _, rest = server.strip().partition(":")
        owned |= {f"{uuid}:{each}" for each in rest.split(":") if each}
    return owned


def _old_words(connection: MySqlConnection) -> bool:
    if connection.mariadb:
        return True
    major, minor = connection.version.split(".")[:2]
    return (int(major), int(minor)) < _RENAMED_IN
