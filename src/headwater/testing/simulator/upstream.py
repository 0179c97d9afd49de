"""A simulated upstream database, and the source that an engine reads it by.

The database outlives engines. It keeps a log of transactions over its tables, and the rows
after each of them, which is the oracle. What is acknowledged it forgets: an engine that comes
back for it has lost data, and the simulation fails.
"""

import asyncio
from collections.abc import Callable
from random import Random

import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.errors import SourceUnavailable
from headwater.model.change import ChangeType
from headwater.model.ids import SourceName
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR

SCHEMA = Schema((Column("id", BIGINT, nullable=False), Column("v", VARCHAR)), ("id",))

Rows = dict[int, str]
Change = tuple[ChangeType, int, str | None]
Transaction = dict[str, list[Change]]

_KEYS = 12


class Upstream:
    """One database with a few tables."""

    def __init__(self, name: str, number: int, tables: tuple[str, ...], random: Random) -> None:
        self.name = name
        self.number = number
        self.tables = tables
        self.acknowledged = 0
        self.away = False
        self._random = random
        self._log: list[Transaction] = []
        self._rows: list[dict[str, Rows]] = [{table: {} for table in tables}]

    @property
    def end(self) -> int:
        """How many transactions there are."""
        return len(self._log)

    def rows_at(self, position: int) -> dict[str, Rows]:
        """The oracle: what each table holds right after a position."""
        return self._rows[position]

    def write(self) -> None:
        """Make one more random transaction. Replay: the simulation calls it once."""
        random = self._random
        now = {table: dict(rows) for table, rows in self._rows[-1].items()}
        transaction: Transaction = {}
        for _ in range(random.choice((1, 1, 2, 3, 5))):
            table = random.choice(self.tables)
            key = random.randrange(_KEYS)
            rows, changes = now[table], transaction.setdefault(table, [])
            if key in rows and random.random() < 0.35:
                del rows[key]
                changes.append((ChangeType.DELETE, key, None))
            else:
                kind = ChangeType.UPDATE_POSTIMAGE if key in rows else ChangeType.INSERT
                rows[key] = f"{self.number}.{len(self._log)}.{random.randrange(100)}"
                changes.append((kind, key, rows[key]))
        self._log.append(transaction)
        self._rows.append(now)

    def batch(self, begin: int, count: int) -> SourceBatch:
        """Some transactions as an engine gets them."""
        end = min(self.end, begin + count)
        changes: dict[str, list[Change]] = {}
        for transaction in self._log[begin:end]:
            for table, rows in transaction.items():
                changes.setdefault(table, []).extend(rows)
        return SourceBatch(
            position=str(end),
            changes={table: _arrow(rows) for table, rows in changes.items()},
            more=end < self.end,
        )


class SimSource:
    """One engine's connection to an upstream; satisfies `headwater.cdc.source.Source`."""

    def __init__(  # noqa: PLR0913  one argument per thing that the world decides
        self,
        upstream: Upstream,
        *,
        is_owner: Callable[[], bool],
        trouble: Callable[[str], Exception | None],
        latency: Callable[[], float],
        acknowledged: Callable[[Upstream, int], None],
        lost: Callable[[str], None],
        random: Random,
    ) -> None:
        self.name = SourceName(upstream.name)
        self._upstream = upstream
        self._is_owner = is_owner
        self._trouble = trouble
        self._latency = latency
        self._acknowledged = acknowledged
        self._lost = lost
        self._random = random
        self._read: int | None = None

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """Give some of the transactions after a position."""
        await self._travel("read")
        begin = int(after or 0)
        upstream = self._upstream
        if not self._is_owner():
            raise SourceUnavailable(f'the slot of "{self.name}" is used by another engine')
        if begin < upstream.acknowledged:
            self._lost(
                f'source "{self.name}" is read after position {begin}, '
                f"but {upstream.acknowledged} was acknowledged and is forgotten"
            )
        if begin > upstream.end:
            self._lost(f'source "{self.name}" is read after position {begin}, which is made up')
        batch = upstream.batch(begin, self._random.choice((1, 2, 4, 100)))
        if (wait := self._latency()) > 0:
            await asyncio.sleep(wait)
        return batch

    async def acknowledge(self, position: str) -> None:
        """Forget everything up to a position."""
        await self._travel("acknowledge")
        self._acknowledged(self._upstream, int(position))

    async def close(self) -> None:
        """Nothing is held open."""

    async def _travel(self, call: str) -> None:
        if (wait := self._latency()) > 0:
            await asyncio.sleep(wait)
        if self._upstream.away:
            raise SourceUnavailable(f'"{self.name}" is away')
        if (error := self._trouble(call)) is not None:
            raise error


def _arrow(changes: list[Change]) -> pa.Table:
    kinds, keys, values = zip(*changes, strict=True)
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "v": pa.array(values, pa.string()),
            CHANGE_TYPE: pa.array([kind.value for kind in kinds], pa.string()),
        }
    )
