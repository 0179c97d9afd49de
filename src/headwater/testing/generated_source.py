"""An endless source of random transactions that can be repeated exactly.

    source = GeneratedSource("shop", seed=7, tables={"orders": orders, "lines": lines})
    batch = await source.read(None, max_bytes=1_000_000)
    source.oracle_at(batch.position)["orders"]        # what the table must hold there

What comes: inserts of keys that are not there, updates and deletes of keys that are, keys that
change (a delete and an insert in one transaction), keys that change several times in one
transaction, transactions over several tables, now and then a large one, nulls, and the values
that break things (`testing/value_pools.py`). A delete carries its key and nulls.

Keys come from a bounded space, so tables stop growing and every key is hit again and again;
a few hot keys are hit much more often.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.model.change import ChangeType
from headwater.model.epoch import WallClock, system_clock
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.testing.block_log import Block, BlockSource, State
from headwater.testing.value_pools import distinct_keys, pool_of

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_HOT_KEYS = 16
_LARGE_SHARE = 0.001
_LARGE_FACTOR = 40
_CHANGES = pa.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE])
_INSERT, _UPDATE, _DELETE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often what happens; shares are between 0 and 1."""

    keys: int = 1000
    """Different keys per table."""
    changes: float = 2.0
    """Changes per transaction on average."""
    several_tables: float = 0.2
    """Share of transactions that may touch several tables."""
    comings_and_goings: float = 0.4
    """Share of changes that insert a key that is not there or delete one that is."""
    key_changes: float = 0.05
    """Share of changes that move a row to another key."""
    hot: float = 0.2
    """Share of changes that hit one of a few hot keys."""
    nulls: float = 0.1
    """Share of nulls in columns that may be null."""
    extremes: float = 0.05
    """Share of extreme values; 0 also keeps them out of the keys."""
    block: int = 1000
    """Transactions that are made at once; another number makes another log."""

    def __post_init__(self) -> None:
        for name in ("several_tables", "comings_and_goings", "key_changes", "hot"):
            _check_share(name, getattr(self, name))
        for name in ("nulls", "extremes"):
            _check_share(name, getattr(self, name))
        if self.keys < 1 or self.block < 1 or self.changes < 1:
            raise ConfigError("keys, block and changes must be at least 1")


@dataclass(frozen=True, slots=True)
class _Draw:
    """One block's changes before they have values."""

    transaction: Numbers
    table: Numbers
    key: Numbers
    toggles: Flags
    """Whether it inserts a missing key or deletes a present one; all others set the row."""


class GeneratedBlocks:
    """Makes the blocks; the state is a flag per table and key that says whether it is there."""

    def __init__(self, seed: int, tables: Mapping[str, Schema], mix: Mix) -> None:
        if seed < 0:
            raise ConfigError(f"a seed is 0 or more, not {seed}")
        if not tables:
            raise ConfigError("a generated source needs at least one table")
        self.schemas = dict(tables)
        self.size = mix.block
        self._seed = seed
        self._mix = mix
        self._keys = [
            distinct_keys(schema, mix.keys, extreme=mix.extremes > 0) for schema in tables.values()
        ]

    def first_state(self) -> State:
        """No key is there."""
        return np.zeros((len(self.schemas), self._mix.keys), dtype=np.bool_)

    def advance(self, number: int, state: State) -> State:
        """Roll the flags over a block, without making its values."""
        draw = self._draw(number)
        after: State = state.copy()
        for table in range(len(self.schemas)):
            rows = np.flatnonzero(draw.table == table)
            keys, toggles = draw.key[rows], draw.toggles[rows]
            before = _present_before(keys, toggles, state[table])
            after[table][keys] = ~(toggles & before)
        return after

    def make(self, number: int, state: State) -> Block:
        """Make all changes of a block."""
        draw = self._draw(number)
        tables, offsets = {}, {}
        for table, (name, schema) in enumerate(self.schemas.items()):
            rows = np.flatnonzero(draw.table == table)
            keys, toggles = draw.key[rows], draw.toggles[rows]
            before = _present_before(keys, toggles, state[table])
            change = np.where(before, np.where(toggles, _DELETE, _UPDATE), _INSERT)
            tables[name] = self._rows(number, table, schema, keys, change)
            edges = np.searchsorted(draw.transaction[rows], np.arange(self.size + 1))
            offsets[name] = edges.astype(np.int64)
        return Block(tables=tables, offsets=offsets)

    def _draw(self, number: int) -> _Draw:
        mix, random = self._mix, np.random.default_rng([self._seed, number, 0])
        counts = 1 + random.poisson(mix.changes - 1, self.size)
        counts = np.where(random.random(self.size) < _LARGE_SHARE, counts * _LARGE_FACTOR, counts)
        transaction = np.repeat(np.arange(self.size), counts)
        total = len(transaction)
        own = random.integers(0, len(self.schemas), self.size)[transaction]
        several = (random.random(self.size) < mix.several_tables)[transaction]
        table = np.where(several, random.integers(0, len(self.schemas), total), own)
        key = random.integers(0, mix.keys, total)
        key = np.where(random.random(total) < mix.hot, key % _HOT_KEYS, key)
        toggles = random.random(total) < mix.comings_and_goings
        moves = np.flatnonzero(random.random(total) < mix.key_changes)
        moves = moves[moves + 1 < total]
        moves = moves[transaction[moves] == transaction[moves + 1]]
        toggles[moves] = True
        toggles[moves + 1] = False
        table[moves + 1] = table[moves]
        return _Draw(transaction, table, key, toggles)

    def _rows(
        self, number: int, table: int, schema: Schema, keys: Numbers, change: Numbers
    ) -> pa.Table:
        random = np.random.default_rng([self._seed, number, 1 + table])
        named = self._keys[table].take(pa.array(keys))
        columns = {
            column.name: named.column(column.name)
            if column.name in schema.key
            else self._values(column, random, change == _DELETE)
            for column in schema.columns
        }
        columns[CHANGE_TYPE] = _CHANGES.take(pa.array(change))
        return pa.table(columns)

    def _values(self, column: Column, random: np.random.Generator, deleted: Flags) -> pa.Array:
        mix, pool, count = self._mix, pool_of(column.type), len(deleted)
        chosen = random.integers(pool.extremes, len(pool.values), count)
        extreme = random.random(count) < mix.extremes
        chosen = np.where(extreme, random.integers(0, pool.extremes, count), chosen)
        null = (random.random(count) < mix.nulls) & column.nullable
        return pool.values.take(pa.array(chosen, mask=null | deleted))


class GeneratedSource(BlockSource):
    """Random transactions over some tables, the same for the same seed."""

    def __init__(  # noqa: PLR0913  one argument per property of the source
        self,
        name: str,
        seed: int,
        tables: Mapping[str, Schema],
        mix: Mix | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
        clock: WallClock = system_clock,
        start: datetime | None = None,
    ) -> None:
        blocks = GeneratedBlocks(seed, tables, mix or Mix())
        super().__init__(name, blocks, rate=rate, limit=limit, clock=clock, start=start)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ConfigError(f'"{name}" is a share between 0 and 1, not {share}')


def _present_before(keys: Numbers, toggles: Flags, at_start: Flags) -> Flags:
    """Whether each change finds its key there, given what was there before the first.

    A change that does not toggle leaves the key there. So a key is there if, since the last
    such change (or since the start, if it was there then), it was toggled an even number of
    times.
    """
    order = np.argsort(keys, kind="stable")
    sorted_keys, sorted_toggles = keys[order], toggles[order]
    places = np.arange(len(keys))
    toggled = np.concatenate(([0], np.cumsum(sorted_toggles)))[:-1]
    begins = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))[: len(keys)]
    begin = np.maximum.accumulate(np.where(begins, places, 0))
    sets = np.maximum.accumulate(np.where(~sorted_toggles, places, -1))
    last_set = np.concatenate(([-1], sets))[:-1]
    after_set = last_set >= begin
    since = np.where(after_set, last_set + 1, begin)
    there = np.where(after_set, True, at_start[sorted_keys])
    before: Flags = np.empty(len(keys), dtype=np.bool_)
    if len(keys):
        before[order] = there ^ ((toggled - toggled[since.clip(max=len(keys) - 1)]) % 2 == 1)
    return before
