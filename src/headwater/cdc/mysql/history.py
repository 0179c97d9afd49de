"""Whether a server still has the history that an offset belongs to, and the GTIDs along the way."""

import numpy as np

from headwater.cdc.mysql.binlog import lost_position
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.events import GTID, MARIADB_GTID, Events
from headwater.cdc.mysql.gtids import MariaDbGtids, MySqlGtids, uuid_of
from headwater.cdc.mysql.pieces import Array
from headwater.cdc.mysql.schema import literal
from headwater.cdc.offset import BinlogOffset
from headwater.errors import UserError

_LARGEST_START = (1 << 32) - 1
_FIRST_PLACE = 4


def check_position(connection: MySqlConnection, after: BinlogOffset) -> BinlogOffset:
    """Where to read on after an offset; raises `UserError` when that place is gone or foreign."""
    files = {row[0]: int(row[1]) for row in connection.query("SHOW BINARY LOGS")}
    if after.file not in files:
        first = min(files, key=lambda name: BinlogOffset(name, 0).number, default="none")
        raise lost_position(after, f"The oldest binlog file at the server is {first}.")
    if after.position > files[after.file]:
        raise _another_server(after, f"{after.file} ends at {files[after.file]}.")
    if after.gtids:
        _check_gtids(connection, after)
    if after.position > _LARGEST_START:
        # Such a file has grown by one large transaction, after which the server began another.
        names = sorted(files, key=lambda name: BinlogOffset(name, 0).number)
        following = names[names.index(after.file) + 1 :]
        if following and after.position == files[after.file]:
            return BinlogOffset(following[0], _FIRST_PLACE, after.gtids)
        raise lost_position(after, "The replication protocol cannot begin behind 4 GiB of a file.")
    return after


def read_identity(connection: MySqlConnection) -> str:
    """Which server this is. MariaDB has no id but the one that its GTIDs carry."""
    if connection.mariadb:
        return f"mariadb {connection.value('SELECT @@GLOBAL.server_id')}"
    return f"mysql {connection.value('SELECT @@GLOBAL.server_uuid')}"


def check_identity(connection: MySqlConnection, expected: str | None) -> None:
    """Raise if this is not the server that was followed so far."""
    found = read_identity(connection) if expected is not None else None
    if found != expected:
        raise UserError(
            "another server answers than the one that was followed so far",
            detail=f"It was {expected}, and is {found}. The places in their binlogs differ.",
            hint="Point the source to the old server, or: DROP SOURCE ... CASCADE, then create the "
            "source and its tables again.",
        )


def _check_gtids(connection: MySqlConnection, after: BinlogOffset) -> None:
    if connection.mariadb:
        found = connection.value(f"SELECT BINLOG_GTID_POS({literal(after.file)}, {after.position})")
        there = MariaDbGtids.parse(str(found or ""))
        if there.last != MariaDbGtids.parse(after.gtids).last:
            raise _another_server(after, f"It has GTID position {found} there.")
    elif not connection.value(
        f"SELECT GTID_SUBSET({literal(after.gtids)}, @@GLOBAL.gtid_executed)"
    ):
        missing = connection.value(
            f"SELECT GTID_SUBTRACT({literal(after.gtids)}, @@GLOBAL.gtid_executed)"
        )
        raise _another_server(after, f"It has not executed {missing}.")


def _another_server(after: BinlogOffset, detail: str) -> UserError:
    return UserError(
        f"the server has another history than the one that was read up to {after}",
        detail=detail,
        hint="It was restored or replaced. Point the source at the server that was read before, or "
        "drop the source and create it again.",
    )


class GtidTrail:
    """The GTIDs executed up to a place, as transactions are read."""

    def __init__(self, *, mariadb: bool, text: str) -> None:
        self._gtids: MariaDbGtids | MySqlGtids
        self._gtids = MariaDbGtids.parse(text) if mariadb else MySqlGtids.parse(text)
        self._fresh = True

    def __str__(self) -> str:
        return str(self._gtids)

    def extend(self, events: Events, count: int) -> None:
        """Add the transactions among the first events."""
        if isinstance(self._gtids, MariaDbGtids):
            self._extend_mariadb(self._gtids, events, count)
        else:
            self._extend_mysql(self._gtids, events, count)

    def _extend_mariadb(self, gtids: MariaDbGtids, events: Events, count: int) -> None:
        bodies = events.table[:count, 1][events.types[:count] == MARIADB_GTID]
        if not len(bodies):
            return
        domains = _numbers(events.data, bodies + 8, 4)
        sequences = _numbers(events.data, bodies, 8)
        servers = _numbers(events.data, bodies - 14, 4)
        for domain in np.unique(domains).tolist():
            last = int(np.flatnonzero(domains == domain)[-1])
            gtids.add(domain, int(servers[last]), int(sequences[last]))

    def _extend_mysql(self, gtids: MySqlGtids, events: Events, count: int) -> None:
        bodies = events.table[:count, 1][events.types[:count] == GTID]
        if not len(bodies):
            return
        sids = events.data[bodies[:, None] + np.arange(1, 17)]
        numbers = _numbers(events.data, bodies + 17, 8)
        if self._fresh and (uuid_of(sids[0]), int(numbers[0])) in gtids:
            raise UserError(
                "the server's binlog has other transactions at the place that was read up to",
                detail=f"{uuid_of(sids[0])}:{numbers[0]} comes again.",
                hint="It was replaced by another server. Drop the source and create it again.",
            )
        self._fresh = False
        # Nearly always one server wrote them all, and finding that out is cheap.
        for sid in sids[:1] if (sids == sids[0]).all() else np.unique(sids, axis=0):
            mine = numbers[(sids == sid).all(axis=1)]
            gtids.add(uuid_of(sid), mine)


def _numbers(data: Array, places: Array, size: int) -> Array:
    values = np.zeros(len(places), dtype=np.int64)
    for place in range(size):
        values |= data[places + place].astype(np.int64) << 8 * place
    return values
