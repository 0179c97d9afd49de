"""What a chunk saw, as a place in the binlog.

A transaction is named by the place where it ends, as one number: the number of the binlog file
in the upper 24 bits, the byte in the lower 40 (`place`). Commits become visible in the order of
the binlog, so a chunk holds all transactions up to some place. In MariaDB that place is known
exactly: it comes with the snapshot. In MySQL it is the place up to which everything was
committed before the snapshot was taken; some of what follows may be held as well, and is then
applied again.
"""

import json
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from headwater.cdc.offset import BinlogOffset
from headwater.errors import DamagedState

POSITION_BITS = 40
_LARGEST_FILE = (1 << 63 - POSITION_BITS) - 1


def place(offset: BinlogOffset) -> int:
    """An offset as one number that keeps the order of the log."""
    if offset.number > _LARGEST_FILE or offset.position >> POSITION_BITS:
        raise DamagedState(f"{offset} is beyond what a binlog can hold")
    return offset.number << POSITION_BITS | offset.position


@dataclass(frozen=True, slots=True)
class BinlogSeen:
    """A chunk that holds every transaction that ends at this place or before it."""

    up_to: int

    def holds(self, transactions: pa.Array) -> pa.Array:
        """For each transaction of the log, whether the chunk saw it."""
        return pc.less_equal(transactions, pa.scalar(self.up_to, pa.int64()))

    def serialized(self) -> str:
        """As text, for the ledger."""
        return json.dumps({"v": 1, "db": "mysql", "up_to": self.up_to})

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `serialized` wrote."""
        try:
            stored = json.loads(text)
            if (stored["v"], stored["db"]) == (1, "mysql"):
                return cls(int(stored["up_to"]))
        except (ValueError, KeyError, TypeError):
            pass
        raise DamagedState(f"what a chunk saw cannot be read: {text[:200]!r}")
