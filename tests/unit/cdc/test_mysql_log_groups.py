"""Which row events of a batch count: of our tables, committed, and none that cannot be read."""

from types import SimpleNamespace

import numpy as np
import pytest

from headwater.cdc.mysql.binlog import EventBatch
from headwater.cdc.mysql.events import (
    COMMITTED,
    PARTIAL_UPDATE,
    PREPARED,
    ROLLED_BACK,
    WRITE_V2,
    XID,
    Events,
)
from headwater.cdc.mysql.log import MySqlLog
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.table_map import LogColumn, TableMap
from headwater.errors import UserError

OPTIONS = MySqlOptions.parse({"hostname": "h", "username": "u", "database.name": "d"})
TABLE = TableMap("d", "t", (LogColumn("id", "int", 4),))


def groups(*transactions):
    """What is left of transactions, each a kind of row event, a table's number, and an end."""
    data, table, ends = bytearray(), [], []
    for kind, number, end in transactions:
        for type_, state in ((kind, 0), (XID, end)):
            table.append([type_, len(data), len(data) + 8, len(table) * 10 + 10, 0, 0, len(table)])
            data += number.to_bytes(6, "little") + b"\0\0"
            ends.append(state)
    events = Events(
        np.frombuffer(bytes(data), dtype=np.uint8), np.array(table), np.array(ends), np.zeros(1)
    )
    last = np.flatnonzero(events.ends)
    batch = EventBatch(events, last, events.table[last, 3], None)
    log = MySqlLog(OPTIONS, {})
    log._maps = {7: TABLE, 8: None}
    return log._groups(batch, SimpleNamespace(file="bl.000002"), int(last[-1]))


def test_only_committed_rows_of_our_tables_count():
    [group] = groups(
        (WRITE_V2, 7, COMMITTED), (WRITE_V2, 8, COMMITTED), (WRITE_V2, 7, ROLLED_BACK),
        (WRITE_V2, 7, COMMITTED), (PARTIAL_UPDATE, 8, PREPARED),
    )  # fmt: skip
    assert group.table == TABLE
    assert group.numbers.tolist() == [0, 6]
    assert group.transactions.tolist() == [(2 << 40) + 20, (2 << 40) + 80]


@pytest.mark.parametrize(
    ("kind", "end", "said"),
    [(PARTIAL_UPDATE, COMMITTED, "parts of changed JSON"), (WRITE_V2, PREPARED, "XA")],
)
def test_what_cannot_be_read_is_refused_by_name(kind, end, said):
    with pytest.raises(UserError, match=said):
        groups((kind, 7, end))
