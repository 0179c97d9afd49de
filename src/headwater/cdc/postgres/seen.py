"""What a chunk's rows hold: PostgreSQL's own snapshot, compared with the log's transactions.

A snapshot is xmin, xmax and the transactions in between that were still running. A transaction
is held if it is older than xmin, or older than xmax and not among those. A place in the log
would not do: a commit record can be there before other sessions see the transaction.

Snapshots have 64-bit transaction ids, the log 32-bit ones, which begin again after four billion.
`widened` gives the log's ids their upper half: each lies within half a round of the newest id
that the server shows, since ids are never used further apart. It may also lie after it: a
transaction can be in the log before it is shown. Only top-level ids occur on both sides.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import DamagedState

_FORMAT = 1
_ROUND = 1 << 32


@dataclass(frozen=True, slots=True)
class PostgresSeen:
    """A snapshot, with 64-bit transaction ids."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @staticmethod
    def of(text: str) -> "PostgresSeen":
        """From PostgreSQL's spelling: xmin:xmax:running,running."""
        try:
            xmin, xmax, running = text.split(":")
            return PostgresSeen(
                int(xmin), int(xmax), tuple(int(each) for each in running.split(",") if each)
            )
        except ValueError:
            raise DamagedState(f'"{text[:200]}" is not a snapshot') from None

    @staticmethod
    def parse(text: str) -> "PostgresSeen":
        """A stored one."""
        try:
            stored = json.loads(text)
            if stored["v"] <= _FORMAT and stored["db"] == "postgres":
                return PostgresSeen.of(stored["snapshot"])
        except (ValueError, KeyError, TypeError):
            pass
        raise DamagedState(f"a stored snapshot cannot be read: {text[:200]!r}")

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def serialized(self) -> str:
        """As text, for the ledger."""
        return json.dumps({"v": _FORMAT, "db": "postgres", "snapshot": str(self)})

    def holds(self, transactions: pa.Array) -> pa.Array:
        """For each 64-bit transaction id, whether the snapshot saw it."""
        ids = np.asarray(transactions, dtype=np.int64)
        running = np.isin(ids, np.array(self.running, dtype=np.int64))
        return pa.array((ids < self.xmin) | ((ids < self.xmax) & ~running))


def widened(ids: "np.ndarray[Any, Any] | Sequence[int]", near: int) -> "np.ndarray[Any, Any]":
    """32-bit transaction ids of the log as 64-bit ones; `near` is a recent id of the server."""
    apart = (np.asarray(ids, dtype=np.int64) - near) % _ROUND
    return near + np.where(apart >= _ROUND // 2, apart - _ROUND, apart)
