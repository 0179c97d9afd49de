"""The rule of merging: every cell of its table, and what may be forgotten when."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from backfill_kit import SCHEMA, Driven, Holds, chunk, log, pairs, rows
from headwater.backfill.cdc import key_match
from headwater.backfill.cdc.machine import Verdict
from headwater.backfill.cdc.merging import (
    ArrowRows,
    RememberedChanges,
    SnapshotPart,
    TransactionsToSee,
    mark_cdc_chunk,
)
from headwater.backfill.cdc.pace import Pace
from headwater.cdc.external_table import LogEvent, LogEventKind
from headwater.cdc.offset import PostgresOffset
from headwater.errors import BrokenInvariant


def one_chunk_against(*changes, seen):
    """The rows after a chunk of keys 1 and 2, which was begun before the changes."""
    table = Driven()
    [read] = table.begin()
    table.deliver(*changes)
    arrived = chunk([(1, "old", "B"), (2, "old", "B")], seen, high=200)
    assert table.backfill.arrived(read.read, arrived, 0.0) is Verdict.ACCEPT
    table.seal()
    return table.rows


@pytest.mark.parametrize(
    ("change", "held", "after"),
    [
        (("+", 1, "new", "N", 7), False, (1, "new", "N")),
        (("+", 1, "new", "N", 7), True, (1, "old", "B")),
        (("U+", 1, "new", "N", 7), False, (1, "new", "N")),
        (("U+", 1, "new", "N", 7), True, (1, "old", "B")),
        (("-", 1, None, None, 7), False, None),
        (("-", 1, None, None, 7), True, (1, "old", "B")),
        (("U+", 1, "new", ..., 7), False, (1, "new", "B")),
        (("U+", 1, "new", ..., 7), True, (1, "old", "B")),
    ],
)
def test_every_cell_of_the_rule(change, held, after):
    found = one_chunk_against(change, seen=Holds(7) if held else Holds())
    assert found.get(1) == after
    assert found[2] == (2, "old", "B")


def marked(keys, remembered, seen):
    return mark_cdc_chunk(keys, remembered.newer_than(seen), SCHEMA)


def test_mark_cdc_chunk_keeps_rows_without_a_newer_change():
    remembered = RememberedChanges(SCHEMA, max_bytes=1 << 20)
    remembered.remember(log(("+", 1, "x", "x", 7), ("-", 3, None, None, 8)), 1)
    keys = rows((1, "", ""), (2, "", ""), (3, "", "")).select(["id"])
    assert marked(keys, remembered, Holds()).tolist() == [
        False,
        True,
        False,
    ]
    assert marked(keys, remembered, Holds(7)).tolist() == [
        True,
        True,
        False,
    ]
    assert marked(keys, remembered, Holds(7, 8)).tolist() == [True] * 3


def test_mark_cdc_chunk_tells_keys_of_one_hash_apart(monkeypatch):
    monkeypatch.setattr(
        key_match, "key_hashes", lambda table, columns: np.zeros(table.num_rows, np.uint64)
    )
    remembered = RememberedChanges(SCHEMA, max_bytes=1 << 20)
    remembered.remember(log(("+", 1, "x", "x", 7), ("+", 3, "x", "x", 7)), 1)
    keys = rows((1, "", ""), (2, "", ""), (3, "", "")).select(["id"])
    assert marked(keys, remembered, Holds()).tolist() == [
        False,
        True,
        False,
    ]


def test_changes_are_remembered_only_as_long_as_a_chunk_may_need_them():
    table = Driven()
    table.deliver(("+", 1, "x", "x", 7))
    assert table.backfill._remembered.nbytes == 0
    [read] = table.begin()
    table.deliver(("+", 2, "x", "x", 8))
    assert table.backfill._remembered.nbytes > 0
    table.seal()
    assert table.backfill._remembered.nbytes > 0, "the chunk is still under way"
    table.backfill.arrived(read.read, chunk([], Holds(7, 8)), 0.0)
    table.seal()
    assert table.backfill._remembered.nbytes == 0


def test_a_full_memory_reads_the_chunk_again():
    table = Driven(pace=Pace(remembered_bytes=8))
    [read] = table.begin()
    table.deliver(("-", 1, None, None, 7))
    late = chunk([(1, "old", "B")], Holds())
    assert table.backfill.arrived(read.read, late, 0.0) is Verdict.IGNORE
    table.seal()
    assert table.rows == {}
    [again] = table.begin()
    assert again.after is None
    assert table.backfill.arrived(again.read, late, 0.0) is Verdict.AGAIN, "7 must be seen now"


def test_a_chunk_that_misses_an_applied_transaction_is_read_again():
    table = Driven()
    table.deliver(("-", 1, None, None, 7))
    [read] = table.begin()
    arrived = chunk([(1, "old", "B")], Holds())
    assert table.backfill.arrived(read.read, arrived, 0.0) is Verdict.AGAIN
    assert table.begin(0.0) == []
    [again] = table.begin(1.0)
    assert table.backfill.arrived(again.read, chunk([], Holds(7)), 1.0) is Verdict.ACCEPT
    table.seal()
    assert table.rows == {}


def test_what_is_to_be_seen_survives_a_restart():
    table = Driven()
    table.deliver(("-", 1, None, None, 7))
    stored = table.seal().state
    from headwater.backfill.cdc.state import decode

    again = Driven(decode(stored))
    [read] = again.begin()
    arrived = chunk([(1, "old", "B")], Holds())
    assert again.backfill.arrived(read.read, arrived, 0.0) is Verdict.AGAIN


def test_a_late_chunk_is_judged_by_what_was_to_be_seen_when_it_began():
    to_see = TransactionsToSee([7])
    since = to_see.ids
    assert to_see.seen_by(chunk([], Holds(7)), since, None), "begun later, came first"
    assert len(to_see) == 0
    assert not to_see.seen_by(chunk([], Holds()), since, None)


def test_too_many_transactions_become_a_place():
    to_see = TransactionsToSee(most=2)
    to_see.delivered(np.array([1, 2, 3]), PostgresOffset(50))
    assert len(to_see) == 0
    assert to_see.floor == PostgresOffset(50)
    assert not to_see.seen_by(chunk([], Holds(), low=49), to_see.ids, to_see.floor)
    assert to_see.seen_by(chunk([], Holds(), low=50), to_see.ids, to_see.floor)
    assert to_see.floor is None


def test_a_chunk_may_hold_what_the_log_has_not_delivered():
    table = Driven()
    [read] = table.begin()
    table.backfill.arrived(read.read, chunk([(1, "later", "B")], Holds(7), high=130), 0.0)
    output = table.seal()
    assert table.rows == {1: (1, "later", "B")}
    assert not output.backfilled, "the log is not there yet"
    table.deliver(("-", 1, None, None, 6))
    table.seal()
    assert table.rows == {}
    table.deliver(("+", 1, "later", "B", 7))
    assert not table.seal().backfilled
    table.deliver()
    assert table.seal().backfilled
    assert table.rows == {1: (1, "later", "B")}


def test_a_part_leaves_out_its_dropped_rows():
    part = SnapshotPart(ArrowRows(rows((1, "a", "b"), (2, "a", "b")), ("id",)), np.array([0]))
    assert part.rows == 1
    assert pairs(part.table()) == [(2, "a", "b")]


def test_a_row_of_an_old_life_of_the_key_completes_nothing():
    # Key 2 was deleted, and key 1 became key 2: the chunk still has the old row 2.
    table = Driven()
    [read] = table.begin()
    table.deliver(("-", 2, None, None, 6), ("-", 1, None, None, 7), ("+", 2, "moved", ..., 7))
    table.backfill.arrived(read.read, chunk([(1, "one", "B1"), (2, "two", "B2")], Holds()), 0.0)
    table.seal()
    assert table.rows == {}
    [keys] = table.begin()
    assert table.backfill.keys_of(keys)["id"].to_pylist() == [2]
    table.backfill.arrived(keys.read, chunk([(2, "moved", "B1")], Holds(6, 7)), 0.0)
    assert table.seal().backfilled
    assert table.rows == {2: (2, "moved", "B1")}


def test_a_key_that_changed_again_is_read_again():
    table = Driven()
    table.deliver(("-", 1, None, None, 7), ("+", 2, "moved", ..., 7))
    table.seal()
    keys, _ = table.begin()
    table.deliver(("U+", 2, "again", ..., 8))
    table.backfill.arrived(keys.read, chunk([(2, "moved", "B1")], Holds(7)), 0.0)
    table.seal()
    assert table.rows == {}
    [keys] = table.begin()
    table.backfill.arrived(keys.read, chunk([(2, "again", "B1")], Holds(7, 8)), 0.0)
    table.seal()
    assert table.rows == {2: (2, "again", "B1")}


def test_pending_keys_survive_a_restart():
    from headwater.backfill.cdc.state import decode

    table = Driven()
    table.deliver(("-", 1, None, None, 7), ("+", 2, "moved", ..., 7))
    again = Driven(decode(table.seal().state))
    keys = again.begin()[0]
    assert again.backfill.keys_of(keys)["id"].to_pylist() == [2]


def test_a_truncate_clears_the_table_and_what_was_read():
    table = Driven(stored=[(5, "x", "x")])
    [read] = table.begin()
    event = LogEvent(kind=LogEventKind.TRUNCATE, table="t", seq=1)
    table.deliver(("+", 1, "before", "b", 7), ("+", 2, "after", "b", 7), events=[event])
    assert table.backfill.arrived(read.read, chunk([(5, "x", "x")], Holds(7)), 0.0) is (
        Verdict.IGNORE
    )
    assert table.seal().cleared
    assert table.rows == {2: (2, "after", "b")}


def test_a_change_that_was_applied_is_not_applied_again():
    table = Driven()
    table.deliver(("+", 1, "x", "x", 7))
    table.seal()
    table.rows.clear()
    table.place -= 10
    table.deliver(("+", 1, "x", "x", 7))
    table.seal()
    assert table.rows == {}


def test_a_backfilled_table_must_have_the_rows_that_changes_lack():
    table = Driven()
    [read] = table.begin()
    table.backfill.arrived(read.read, chunk([], Holds()), 0.0)
    assert table.seal().backfilled
    table.deliver(("U+", 1, "new", ..., 7))
    with pytest.raises(BrokenInvariant, match="lacks values"):
        table.seal()


def test_a_table_without_a_snapshot_reads_rows_that_changes_lack_by_key():
    from headwater.backfill.cdc.state import BackfillState

    table = Driven(BackfillState(backfill_finished=True), by_key=True)
    table.deliver(("U+", 1, "new", ..., 7), ("+", 2, "two", "b", 7))
    output = table.seal()
    assert table.rows == {2: (2, "two", "b")}
    assert output.backfilled
    [keys] = table.begin()
    table.backfill.arrived(keys.read, chunk([(1, "new", "B")], Holds(7)), 0.0)
    table.seal()
    assert table.rows[1] == (1, "new", "B")
    assert table.begin() == []


def test_a_new_column_has_an_epoch_of_its_own_and_chunks_are_read_again():
    from headwater.cdc.schema_change import SchemaChange
    from headwater.model.schema import Column, Schema
    from headwater.model.types import BIGINT

    table = Driven()
    [read] = table.begin()
    table.deliver(("+", 1, "x", "x", 7))
    wider = Schema((*SCHEMA.columns, Column("c", BIGINT)), SCHEMA.key)
    change = SchemaChange(schema=wider, kept=tuple((n, n) for n in SCHEMA.names), text="more")
    with pytest.raises(BrokenInvariant, match="changes of rows"):
        table.backfill.evolve(change, PostgresOffset(120))
    table.seal()
    table.backfill.evolve(change, PostgresOffset(120))
    assert table.backfill.arrived(read.read, chunk([], Holds(7)), 0.0) is Verdict.IGNORE
    output = table.seal()
    assert output.schema == wider
    assert not output.changes.num_rows
    [read] = table.begin()
    narrow = chunk([(1, "x", "x")], Holds(7))
    assert table.backfill.arrived(read.read, narrow, 0.0) is Verdict.AGAIN
    [read] = table.begin(1.0)
    wide = dataclasses.replace(narrow, rows=narrow.rows.append_column("c", pa.array([5])))
    assert table.backfill.arrived(read.read, wide, 1.0) is Verdict.ACCEPT
    [part] = table.seal().parts
    assert part.table()["c"].to_pylist() == [5]
