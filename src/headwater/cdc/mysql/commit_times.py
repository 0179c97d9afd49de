"""When the transactions of a binlog committed.

MySQL's GTID events have the time of the commit in microseconds. MariaDB's have none, and neither
has MySQL's form for GTIDs with tags: there the header of the event that ends the transaction
tells, in seconds.
"""

import numpy as np

from headwater.cdc.mysql.events import GTID, Events
from headwater.cdc.mysql.pieces import Array

_TIMESTAMPS_AT = 25
"""Behind flags, server and number: the kind of what follows, 2 where there is more."""
_COMMITTED_AT, _COMMITTED_BYTES = 42, 7
_MASK = (1 << 55) - 1
"""The last bit says whether another time follows."""
_SECOND = 1_000_000


def commit_times(events: Events, ends: Array) -> Array:
    """For each event that ends a transaction, when it committed, in microseconds since 1970."""
    times = np.asarray(events.table[ends, 4] * _SECOND)
    gtids = np.flatnonzero(events.types == GTID)
    if not len(gtids) or not len(ends):
        return times
    last = np.searchsorted(gtids, ends) - 1
    begins = gtids[np.maximum(last, 0)]
    # The event must belong to this transaction, and not to the one before it.
    own = (last >= 0) & (begins > np.concatenate([[-1], ends[:-1]]))
    body, after = events.table[begins, 1], events.table[begins, 2]
    own &= after - body >= _COMMITTED_AT + _COMMITTED_BYTES
    own[own] = events.data[body[own] + _TIMESTAMPS_AT] == 2
    found = np.zeros(int(own.sum()), dtype=np.int64)
    for place in range(_COMMITTED_BYTES):
        byte = events.data[body[own] + _COMMITTED_AT + place]
        found |= byte.astype(np.int64) << 8 * place
    found &= _MASK
    times[own] = np.where(found > 0, found, times[own])
    return times
