"""The kept first rows of a top-n: always a prefix of the input, whatever comes and goes."""

from random import Random

import pyarrow as pa
import pytest

from headwater.model.ids import TableId
from headwater.model.types import INTEGER, VARCHAR
from headwater.sql.algebra import Expression, Ordering, Output, Scan, TopN
from headwater.views.merging import ONLY
from headwater.views.spelling import WEIGHT
from headwater.views.topmost import MORE, FirstRows, KeptTop, can_be_kept, merged, refilled

Row = tuple[int, int]

OUTPUTS = (Output("k", INTEGER), Output("v", INTEGER))


def top(limit: int | None = 3, offset: int = 0, key: tuple[str, ...] = ("k",), **more) -> TopN:
    scan = Scan(table=TableId(1), columns=(("k", "k"), ("v", "v")), outputs=OUTPUTS, key=key)
    order = (Ordering(Expression("`v`", INTEGER, frozenset({"v"}))),)
    return TopN(input=scan, partition=(), order=order, limit=limit, offset=offset, **more)


def placed(kept: KeptTop, stored: list[Row], live: dict[Row, int], kept_once: bool) -> pa.Table:
    """What `placed_sql` says of stored rows and changes, in rows of no particular order."""
    rows = sorted({*stored, *live}, key=lambda row: (row[1], row[0]))
    columns = {
        "k": [row[0] for row in rows],
        "v": [row[1] for row in rows],
        "_hw_old": [int(row in stored) for row in rows],
        "_hw_live": [live.get(row, 0) + (kept_once and row in stored) for row in rows],
        "_hw_place": list(range(1, len(rows) + 1)),
    }
    types = [output.type.arrow for output in kept.placed]
    table = pa.table(
        [pa.array(c, t) for c, t in zip(columns.values(), types, strict=True)], names=list(columns)
    )
    return table.take(pa.array(Random(len(rows)).sample(range(len(rows)), len(rows)), pa.int64()))


class Store:
    """The stored rows, changed only by what the rule says."""

    def __init__(self, kept: KeptTop) -> None:
        self.kept = kept
        self.rows: set[Row] = set()
        self.more = False

    def take(self, found: FirstRows) -> None:
        k, v = (self.kept.names[name] for name in ("k", "v"))
        seen = set()
        for change in sorted(found.changes.to_pylist(), key=lambda row: row[WEIGHT]):
            row = (change[k], change[v])
            assert change[ONLY] == 0
            if change[WEIGHT] < 0:
                assert row in self.rows
                self.rows.remove(row)
            else:
                assert row not in self.rows
                self.rows.add(row)
                seen.add(change[MORE])
        assert len(seen) < 2
        self.more = bool(self.rows) and (seen.pop() if seen else self.more)


def pairs(rows: pa.Table) -> list[Row]:
    return list(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_the_first_rows_are_always_those_of_the_whole_input(seed):
    random = Random(f"topmost {seed}")
    kept = KeptTop(top(limit=random.choice((1, 3)), offset=random.choice((0, 2))), 1)
    store = Store(kept)
    rows: set[Row] = set()
    refills = 0
    for epoch in range(60):
        before = set(rows)
        many = random.choice((1, 3, 30, 600 if epoch % 7 == 0 else 2))
        for _ in range(many):
            if rows and random.random() < random.choice((0.2, 0.9)):
                rows.remove(random.choice(sorted(rows)))
            else:
                key = random.randrange(100_000)
                rows = {row for row in rows if row[0] != key} | {(key, random.randrange(40))}
        if random.random() < 0.05:
            rows = set()
        live = {row: int(row in rows) - int(row in before) for row in rows ^ before}
        stored, more = sorted(store.rows), store.more
        found = merged(kept, placed(kept, stored, live, True), more=more) if stored else None
        if found is None:
            refills += 1
            ordered = sorted(rows, key=lambda row: (row[1], row[0]))
            first = dict.fromkeys(ordered[: kept.capacity + 1], 1)
            found = refilled(kept, placed(kept, stored, first, False), more=more)
        store.take(found)
        ordered = sorted(rows, key=lambda row: (row[1], row[0]))
        assert pairs(found.new) == ordered[: len(found.new)]
        assert set(pairs(found.new)) == store.rows
        assert pairs(found.shown(found.new)) == ordered[kept.node.offset : kept.shown]
        assert len(store.rows) <= 2 * kept.capacity
        if store.rows:
            assert store.more == (len(store.rows) < len(rows))
    assert 0 < refills < 60


def test_what_can_be_kept():
    assert can_be_kept(top())
    assert not can_be_kept(top(limit=None))
    assert not can_be_kept(top(limit=100_000))
    assert not can_be_kept(top(key=()))
    assert not can_be_kept(top(with_ties=True))


def test_the_store_holds_every_column_under_a_name_of_ours():
    schema = KeptTop(top(), 1).schema
    assert schema.names[0] == ONLY
    assert schema.names[-1] == MORE
    assert all(name.startswith("_hw_own_") for name in schema.names)
    assert schema.key == (ONLY, "_hw_own_top_0")
    assert schema["_hw_own_top_1"].type == INTEGER != VARCHAR
