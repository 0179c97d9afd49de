"""Deliveries for a sink under test, and the rows that its target must hold after each of them.

A history is made by dice: inserts, updates and deletes of a few hundred keys, with nulls and odd
texts, folded as the sink's kind says. It is kept apart from `sinks/fold.py` on purpose: what the
product folds wrongly, this does not repeat.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, VARCHAR
from headwater.sinks.sink import Delivery, SinkKind, SinkSpec

COLUMNS = (
    Column("id", BIGINT, nullable=False),
    Column("name", VARCHAR),
    Column("quantity", INTEGER),
)
KEY = ("id",)
FIRST = Epoch(1000)

Row = tuple[int, str | None, int | None]
Change = tuple[RowOp, Row]

_NAMES = ("ann", "", "O'Brien", 'say "hi"', "tab\tand\nline", "\\N", "ünïcödé 漢字", None, "null")


@dataclass(frozen=True, slots=True)
class Owed:
    """A delivery, its changes by key, and what the target holds once it has them."""

    delivery: Delivery
    changes: Mapping[int, tuple[Change, ...]]
    after: Counter[Row]
    schema: pa.Schema = field(repr=False)

    def under(self, term: Term) -> "Owed":
        """The same, tried by another engine."""
        return replace(self, delivery=replace(self.delivery, term=term))

    def parts(self, count: int) -> list[list[pa.RecordBatch]]:
        """The rows in so many parts; one key is in one part, and deletes come first in it."""
        return [
            list(self._batches([key for key in self.changes if key % count == part]))
            for part in range(count)
        ]

    def _batches(self, keys: Sequence[int]) -> Iterator[pa.RecordBatch]:
        ordered = sorted(keys, key=lambda key: _PLACE[self.changes[key][0][0]])
        changes = [change for key in ordered for change in self.changes[key]]
        low = 0
        while low < len(changes):
            high = min(len(changes), low + max(2, len(changes) // 3))
            if high < len(changes) and changes[high][0] is RowOp.UPDATE_INSERT:
                # The two rows of an update stay together.
                high += 1
            columns: list[list[Any]] = [[int(op) for op, _ in changes[low:high]]]
            columns += [
                list(values) for values in zip(*(row for _, row in changes[low:high]), strict=True)
            ]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            low = high


_PLACE = {RowOp.DELETE: 0, RowOp.UPDATE_DELETE: 1, RowOp.UPDATE_INSERT: 2, RowOp.INSERT: 3}


class History:
    """What is owed to one target, delivery after delivery."""

    def __init__(self, spec: SinkSpec, dice: Random) -> None:
        self.spec = spec
        self.rows: dict[int, Row] = {}
        self.epoch = NO_EPOCH
        self._dice = dice
        self._next_id = 1

    def next(self, term: Term, *, changes: int = 12, gap: int | None = None) -> Owed:
        """What the next epochs owe; the target has everything before."""
        after = self.epoch
        step = self._dice.randrange(1, 5) if gap is None else gap
        self.epoch = Epoch(max(after, FIRST) + step)
        there = list(self.rows)
        self._dice.shuffle(there)
        # One insert at least: a delivery always changes what a reader sees.
        made = dict([self._insert(), *(self._change(there) for _ in range(changes))])
        delivery = Delivery(
            sink=self.spec.ident,
            after=after,
            epoch=self.epoch,
            term=term,
            rows=sum(map(len, made.values())),
        )
        return Owed(delivery, made, Counter(self.rows.values()), self.spec.arrow)

    def _change(self, there: list[int]) -> tuple[int, tuple[Change, ...]]:
        """A change of a key that this delivery has not changed yet."""
        kind = self.spec.kind
        if kind is SinkKind.APPEND_ONLY or not there or self._dice.random() < 0.4:
            return self._insert()
        key = there.pop()
        old = self.rows[key]
        if self._dice.random() < 0.5:
            del self.rows[key]
            return key, ((RowOp.DELETE, old),)
        new = self.rows[key] = self._row(key)
        if kind is SinkKind.RETRACT:
            return key, ((RowOp.UPDATE_DELETE, old), (RowOp.UPDATE_INSERT, new))
        return key, ((RowOp.INSERT, new),)

    def _insert(self) -> tuple[int, tuple[Change, ...]]:
        key = self._next_id
        self._next_id += 1
        row = self.rows[key] = self._row(key)
        return key, ((RowOp.INSERT, row),)

    def _row(self, key: int) -> Row:
        name = self._dice.choice(_NAMES)
        quantity = None if self._dice.random() < 0.1 else self._dice.randrange(-(2**31), 2**31)
        return key, name, quantity


def new_spec(ident: str, kind: SinkKind) -> SinkSpec:
    """The sink that a kit asks for; a case adds its own options."""
    key = () if kind is SinkKind.APPEND_ONLY else KEY
    return SinkSpec(name=ident, ident=ident, columns=COLUMNS, key=key, kind=kind, options={})
