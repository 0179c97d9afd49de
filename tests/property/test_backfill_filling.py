"""Values that the log did not send: whole columns at once against one change after the other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_kit import SCHEMA, log, pairs, rows
from headwater.backfill.cdc import filling, key_match
from headwater.backfill.cdc.filling import (
    PartialRows,
    complete,
    fill_unchanged,
    keys_to_look_up,
    without_preimages,
)
from headwater.backfill.cdc.key_match import match_keys

KEYS = st.integers(1, 4)


@st.composite
def histories(draw, *, moves=True):
    """Stored rows, and changes that a database could make to them or to rows not stored."""
    stored = {key: (f"a{key}", f"b{key}") for key in draw(st.sets(KEYS))}
    there = dict.fromkeys(range(1, 5), True) | dict.fromkeys(stored, True)
    changes = []
    for number in range(draw(st.integers(0, 8))):
        key = draw(KEYS)
        if not there[key]:
            there[key] = True
            changes.append(("+", key, f"n{number}", f"B{number}", number))
            continue
        what = draw(
            st.sampled_from(
                ["delete", "whole", "unsent", "move"] if moves else ["delete", "whole", "unsent"]
            )
        )
        target = draw(KEYS)
        if what == "move" and not there[target]:
            there[key], there[target] = False, True
            changes.append(("-", key, None, None, number))
            big = draw(st.sampled_from([..., f"B{number}"]))
            changes.append(("+", target, f"n{number}", big, number))
        elif what == "delete":
            there[key] = False
            changes.append(("-", key, None, None, number))
        else:
            changes.append(("U-", key, None, None, number))
            big = f"B{number}" if what == "whole" else ...
            changes.append(("U+", key, f"n{number}", big, number))
    return stored, changes


def expected(stored, changes):
    """The same by hand: the changes that are whole, and what waits in the end."""
    now = dict(stored)
    whole, waiting, taken = [], {}, None
    for sign, key, name, big, _ in changes:
        if sign == "U-":
            continue
        if sign == "-":
            taken = now.pop(key, None)
            waiting.pop(key, None)
            whole.append((key, None, None, "delete"))
            continue
        if big is ...:
            source = taken if sign == "+" and taken is not None else now.get(key)
            if source is None or source[1] is None:
                waiting[key] = name
                now.pop(key, None)
                continue
        value = source[1] if big is ... else big
        now[key] = (name, value)
        waiting.pop(key, None)
        whole.append((key, name, value, "insert" if sign == "+" else "update_postimage"))
    return whole, waiting


def found(stored, changes):
    if not changes:
        return [], {}
    table = without_preimages(log(*changes))
    keys = keys_to_look_up(table, SCHEMA)["id"].to_pylist()
    assert len(set(keys)) == len(keys)
    base = PartialRows.whole(rows(*((key, *stored[key]) for key in keys if key in stored)))
    filled = fill_unchanged(table, base, SCHEMA, exact=True)
    waiting = dict(
        zip(
            filled.waiting.rows["id"].to_pylist(),
            filled.waiting.rows["a"].to_pylist(),
            strict=True,
        )
    )
    return pairs(filled.changes), waiting


@settings(max_examples=400, deadline=None)
@given(histories())
def test_missing_values_are_found_where_they_stand(history):
    assert found(*history) == expected(*history)


@settings(max_examples=200, deadline=None)
@given(histories(moves=False))
def test_both_ways_of_filling_agree(history):
    stored, changes = history
    at_once = found(stored, changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "group_ids", lambda table, schema: None)
        assert found(stored, changes) == at_once


def test_waiting_rows_are_completed_over_several_batches():
    first = fill_unchanged(
        log(("U+", 1, "x", ..., 5)), PartialRows.none(SCHEMA), SCHEMA, exact=True
    )
    assert first.changes.num_rows == 0
    second = fill_unchanged(log(("U+", 1, "y", ..., 6)), first.waiting, SCHEMA, exact=True)
    assert second.waiting.transactions.tolist() == [6]
    whole = complete(second.waiting, rows((1, "old", "B")))
    assert pairs(whole) == [(1, "y", "B")]


@pytest.mark.parametrize(
    ("stored", "before", "exact", "big"),
    [
        ([(1, "one", "B1")], [], True, "B1"),
        ([(1, "one", "B1")], [], False, None),
        ([(1, "one", "B1"), (2, "two", "B2")], [], False, "B2"),
        ([(1, "one", "B1"), (2, "two", "B2")], [], True, "B2"),
        ([(1, "one", "B1")], [("U+", 1, "new", "B9", 6)], False, "B9"),
        ([(1, "one", "B1")], [("U+", 1, "new", ..., 6)], False, None),
    ],
)
def test_where_a_changed_key_has_its_values_from(stored, before, exact, big):
    changes = log(*before, ("-", 1, None, None, 7), ("+", 2, "moved", ..., 7))
    filled = fill_unchanged(changes, PartialRows.whole(rows(*stored)), SCHEMA, exact=exact)
    if big is None:
        assert filled.moved["id"].to_pylist() == [2]
    else:
        assert pairs(filled.changes)[-1] == (2, "moved", big, "insert")
        assert filled.moved.num_rows == 0


def test_values_from_before_a_delete_are_not_taken_over():
    changes = log(("-", 1, None, None, 6), ("U+", 1, "x", ..., 7))
    base = PartialRows.whole(rows((1, "one", "B1")))
    filled = fill_unchanged(changes, base, SCHEMA, exact=True)
    assert filled.waiting.rows["id"].to_pylist() == [1]


def test_a_wide_table_marks_its_columns_in_bytes():
    import pyarrow as pa

    from headwater.cdc.external_table import UNCHANGED
    from headwater.model.schema import Column, Schema
    from headwater.model.types import BIGINT

    columns = (Column("id", BIGINT), *(Column(f"c{n}", BIGINT) for n in range(70)))
    schema = Schema(columns, ("id",))
    values = {name: pa.array([1], pa.int64()) for name in schema.names}
    values["c69"] = pa.array([None], pa.int64())
    marks = bytearray(9)
    marks[70 // 8] |= 1 << 70 % 8
    changes = pa.table(
        {
            **values,
            "_change_type": ["update_postimage"],
            "_hw_transaction": pa.array([5], pa.int64()),
            UNCHANGED: pa.array([bytes(marks)], pa.binary()),
        }
    )
    stored = pa.table({name: pa.array([1 if name == "id" else 7]) for name in schema.names})
    filled = fill_unchanged(changes, PartialRows.whole(stored), schema, exact=True)
    [row] = filled.changes.to_pylist()
    assert (row["c69"], row["c68"]) == (7, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(KEYS, max_size=8), st.lists(KEYS, max_size=8), st.booleans())
def test_keys_are_matched_to_their_last_row(left, right, collide):
    import numpy as np

    tables = [rows(*((key, "", "") for key in keys)) for keys in (left, right)]
    last = {key: place for place, key in enumerate(right)}
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(
                key_match, "key_hashes", lambda table, _: np.zeros(table.num_rows, np.uint64)
            )
        places = match_keys(*tables, SCHEMA)
    assert places.tolist() == [last.get(key, -1) for key in left]
