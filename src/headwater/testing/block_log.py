"""Endless logs that can be read from any place, because they are made in blocks.

Transaction number n of such a log is a pure function of (seed, n). It is made together with its
neighbours, a block at a time, from a random generator that is seeded with the block's number.
What a block needs to know of the past (which keys are there, what an account holds) is a small
`state` that can be rolled forward much faster than rows can be made; some states are kept, so
that reading at any position costs about one block.

`BlockSource` is the source over such a log: positions count transactions.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.model.change import ChangeType
from headwater.model.epoch import WallClock, system_clock
from headwater.model.ids import SourceName
from headwater.model.position import Ordinal
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.testing.oracle import Key, Row, key_of
from headwater.testing.source_contract import SourceContract

State = npt.NDArray[Any]

_BLOCKS_KEPT = 8
_STATES_KEPT = 64
_REPLAYED_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The changes of one block by table, in commit order.

    Rows `offsets[table][i]` up to `offsets[table][i + 1]` belong to its transaction i.
    """

    tables: Mapping[str, pa.Table]
    offsets: Mapping[str, npt.NDArray[np.int64]]

    @property
    def bytes(self) -> int:
        """How large all its changes are."""
        return sum(table.nbytes for table in self.tables.values())

    def between(self, begin: int, end: int) -> dict[str, pa.Table]:
        """The changes of some of its transactions; tables without any are left out."""
        chunks = {}
        for name, table in self.tables.items():
            first, last = self.offsets[name][begin], self.offsets[name][end]
            if first < last:
                chunks[name] = table.slice(first, last - first)
        return chunks


class BlockMaker(Protocol):
    """What makes the blocks of one log; the same arguments always give the same result."""

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """The tables of the log."""
        ...

    @property
    def size(self) -> int:
        """Transactions per block."""
        ...

    def first_state(self) -> State:
        """The state before block 0."""
        ...

    def advance(self, number: int, state: State) -> State:
        """The state after a block, from the state before it, which stays as it is."""
        ...

    def make(self, number: int, state: State) -> Block:
        """The block, from the state before it."""
        ...


class BlockLog:
    """Finds the block of any number; may be used from several threads."""

    def __init__(self, maker: BlockMaker) -> None:
        self.maker = maker
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._states: dict[int, State] = {0: maker.first_state()}
        self._spacing = 1
        self._latest = (0, self._states[0])

    def block(self, number: int) -> Block:
        """Make a block, or find it among those used last."""
        with self._lock:
            if number in self._blocks:
                self._blocks.move_to_end(number)
                return self._blocks[number]
            made = self.maker.make(number, self._state_before(number))
            self._blocks[number] = made
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
            return made

    def _state_before(self, number: int) -> State:
        at, state = self._latest
        if at > number:
            at = max(kept for kept in self._states if kept <= number)
            state = self._states[at]
        while at < number:
            state = self.maker.advance(at, state)
            at += 1
            if at % self._spacing == 0:
                self._keep(at, state)
        self._latest = (at, state)
        return state

    def _keep(self, at: int, state: State) -> None:
        self._states[at] = state
        if len(self._states) > _STATES_KEPT:
            self._spacing *= 2
            self._states = {k: s for k, s in self._states.items() if k % self._spacing == 0}


class BlockSource:
    """A source over a log of blocks; satisfies `headwater.cdc.source.Source`.

    With `rate`, that many transactions per second are there since `start`; without, all of
    them. With `limit`, the log ends after that many.
    """

    def __init__(  # noqa: PLR0913  one argument per property of the source
        self,
        name: str,
        maker: BlockMaker,
        *,
        rate: float | None = None,
        limit: int | None = None,
        clock: WallClock = system_clock,
        start: datetime | None = None,
    ) -> None:
        self.name = SourceName(name)
        self.schemas = dict(maker.schemas)
        self._log = BlockLog(maker)
        self._rate = rate
        self._limit = limit
        self._clock = clock
        self._start = start or clock()
        self._contract = SourceContract(self.name)
        self._replayed = 0
        self._rows: dict[str, dict[Key, Row]] = {table: {} for table in self.schemas}

    @property
    def acknowledged(self) -> str:
        """The highest position that was acknowledged; "0" before the first."""
        return self._contract.acknowledged.encode()

    @property
    def available(self) -> int | None:
        """How many transactions there are by now; None is no end."""
        if self._rate is None:
            return self._limit
        elapsed = (self._clock() - self._start).total_seconds()
        arrived = max(0, int(elapsed * self._rate))
        return arrived if self._limit is None else min(arrived, self._limit)

    def restarted(self) -> None:
        """Hear that the reader crashed and may begin again at an older position."""
        self._contract.restarted()

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """Give the transactions after a position, about `max_bytes` of them."""
        begin = self._contract.begin_read(after).count
        batch = await asyncio.to_thread(self._collect, begin, max_bytes)
        self._contract.end_read(Ordinal.decode(batch.position))
        return batch

    async def acknowledge(self, position: str) -> None:
        """Hear that everything up to `position` is stored; checked against what was read."""
        self._contract.acknowledge(position)

    async def close(self) -> None:
        """Nothing is held open."""

    def oracle_at(self, position: str) -> dict[str, dict[Key, Row]]:
        """What the tables hold right after a position, by table and key.

        Cheap when asked with growing positions; an older one replays from the beginning.
        """
        wanted = Ordinal.decode(position).count
        if wanted < self._replayed:
            self._replayed = 0
            self._rows = {table: {} for table in self.schemas}
        step = _REPLAYED_AT_ONCE * self._log.maker.size
        while self._replayed < wanted:
            end = min(wanted, self._replayed + step)
            for table, chunks in self._chunks(self._replayed, end).items():
                self._replay(table, pa.concat_tables(chunks))
            self._replayed = end
        return {table: dict(rows) for table, rows in self._rows.items()}

    def _collect(self, begin: int, max_bytes: int) -> SourceBatch:
        available = self.available
        end, room = begin, float(max_bytes)
        while available is None or end < available:
            number, inside = divmod(end, self._log.maker.size)
            each = self._log.block(number).bytes / self._log.maker.size
            fitting = max(int(room / each), 1 if end == begin else 0)
            count = min(fitting, self._log.maker.size - inside)
            if available is not None:
                count = min(count, available - end)
            if count == 0:
                break
            end += count
            room -= count * each
        chunks = self._chunks(begin, end)
        return SourceBatch(
            position=Ordinal(end).encode(),
            changes={table: pa.concat_tables(parts) for table, parts in chunks.items()},
            more=available is None or end < available,
        )

    def _chunks(self, begin: int, end: int) -> dict[str, list[pa.Table]]:
        chunks: dict[str, list[pa.Table]] = {}
        size = self._log.maker.size
        while begin < end:
            number, inside = divmod(begin, size)
            until = min(size, inside + end - begin)
            for table, chunk in self._log.block(number).between(inside, until).items():
                chunks.setdefault(table, []).append(chunk)
            begin += until - inside
        return chunks

    def _replay(self, table: str, chunk: pa.Table) -> None:
        """Apply only the last change of each key, which is all that is left of the others."""
        names = self.schemas[table].key
        keys = chunk.select(names).to_pylist()
        last = {key_of(key, names): number for number, key in enumerate(keys)}
        rows = self._rows[table]
        changes = chunk.take(pa.array(list(last.values()), pa.int64())).to_pylist()
        for key, row in zip(last, changes, strict=True):
            if row.pop(CHANGE_TYPE) == ChangeType.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row
