"""What is stored of a backfill: both versions, the migration, and what may follow what."""

import dataclasses
import json

import pytest

from backfill_kit import Driven, Holds, chunk, rows
from headwater.backfill.cdc.state import (
    BackfillState,
    SplitProgress,
    decode,
    encode,
    follows,
    keys_as_bytes,
    keys_from_bytes,
    not_begun,
)
from headwater.cdc.external_table import Split
from headwater.cdc.offset import BinlogOffset, PostgresOffset
from headwater.errors import BrokenInvariant, DamagedState

WHOLE = Split(number=1, columns=("id",))
HIGH = PostgresOffset(77)


def thousands(count, **progress):
    bounds = [None, *((str(100_000 * n),) for n in range(1, count)), None]
    return tuple(
        SplitProgress(
            split=Split(number=n + 1, columns=("id",), left=bounds[n], right=bounds[n + 1], rows=9),
            **progress,
        )
        for n in range(count)
    )


@pytest.mark.parametrize(
    "state",
    [
        BackfillState(),
        BackfillState(splits=not_begun((WHOLE,)), to_see=(5, 7), floor=HIGH, keys_high=HIGH),
        BackfillState(splits=thousands(3, cursor=("5",), rows=5, bytes=50, high=HIGH)),
        BackfillState(splits=thousands(2, read=True, done=True, high=BinlogOffset("b.000009", 4))),
        BackfillState(
            splits=(
                SplitProgress(
                    split=Split(number=4, columns=("a", "b"), left=("x", 'y"'), right=None),
                    cursor=("é\n", ""),
                ),
            )
        ),
        BackfillState(splits=thousands(3)[::2]),
        BackfillState(pending=keys_as_bytes(rows((1, "", "")).select(["id"]))),
        BackfillState(snapshot="5:[]", generation=3),
        BackfillState(splits=thousands(2, rows=4)).finished(),
    ],
)
def test_version_2_comes_back_as_it_was(state):
    assert decode(encode(state)) == state
    assert encode(state).startswith("2")


def test_version_1_comes_back_as_one_split_in_the_middle_of_a_backfill():
    one = SplitProgress(split=WHOLE, cursor=("41",), rows=41, bytes=410, high=HIGH)
    state = BackfillState(splits=(one,), to_see=(3,), floor=HIGH)
    stored = encode(state, version=1)
    assert stored.startswith("1")
    assert decode(stored) == state
    assert decode(encode(decode(stored))) == state, "and is version 2 from then on"


def test_version_1_of_a_finished_table():
    state = BackfillState(splits=(SplitProgress(split=WHOLE, read=True, rows=9),)).finished()
    again = decode(encode(state, version=1))
    assert again.backfill_finished
    assert again.rows == 9


def test_version_1_has_no_room_for_splits():
    with pytest.raises(DamagedState, match="cannot be carried on by one reader"):
        encode(BackfillState(splits=thousands(2)), version=1)


def test_a_backfill_that_one_reader_began_is_carried_on_by_several():
    table = Driven(version=1)
    [read] = table.begin()
    table.backfill.arrived(read.read, chunk([(1, "a", "b")], Holds(), cursor=("1",)), 0.0)
    stored = table.seal().state
    assert stored.startswith("1")
    again = Driven(decode(stored), stored=table.rows.values())
    [read] = again.begin()
    assert read.after == ("1",)
    again.backfill.arrived(read.read, chunk([(2, "a", "b")], Holds()), 0.0)
    output = again.seal()
    assert output.state.startswith("2")
    assert output.backfilled
    assert sorted(again.rows) == [1, 2]


def test_thousands_of_splits_take_little_room():
    state = BackfillState(splits=thousands(10_000, read=True, high=HIGH, rows=100_000))
    stored = encode(state)
    assert stored.startswith("2z")
    assert len(stored) < 60_000
    assert decode(stored) == state


def test_a_newer_version_is_refused():
    with pytest.raises(DamagedState, match="version 4, and this program knows 3") as refused:
        decode("4j{}")
    assert "newer" in refused.value.hint


@pytest.mark.parametrize("text", ["", "2", "2q{}", "2j{", "2j{}", "2j[]", "2z!", "1j{}", "xj{}"])
def test_damage_is_told_and_not_guessed(text):
    with pytest.raises(DamagedState):
        decode(text)


def test_a_missing_field_is_damage():
    fields = json.loads(encode(BackfillState(splits=thousands(2)))[2:])
    for name in ("cursor", "left", "stage", "to_see", "highs"):
        rest = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(DamagedState):
            decode("2j" + json.dumps(rest))


BEGUN = SplitProgress(split=WHOLE, cursor=("5",), rows=5, bytes=5, high=HIGH)


@pytest.mark.parametrize(
    ("before", "changed", "complaint"),
    [
        (BEGUN, {"rows": 4}, "4 rows after 5"),
        (BEGUN, {"cursor": None}, "is reset"),
        (BEGUN, {"cursor": ("7",)}, "without rows"),
        (BEGUN, {"rows": 6, "high": PostgresOffset(76)}, "now 0/4C"),
        (BEGUN, {"rows": 6, "high": None}, "now None"),
        (BEGUN, {"rows": 6, "done": True}, "done before it is read"),
        (dataclasses.replace(BEGUN, read=True), {"read": False}, "open again"),
        (dataclasses.replace(BEGUN, read=True, done=True), {"done": False}, "open again"),
    ],
)
def test_nothing_goes_backwards(before, changed, complaint):
    old = BackfillState(splits=(before,))
    new = BackfillState(splits=(dataclasses.replace(before, **changed),))
    with pytest.raises(BrokenInvariant, match=complaint):
        follows(old, new)


def test_more_that_may_not_follow():
    old = BackfillState(splits=(BEGUN,), generation=2)
    with pytest.raises(BrokenInvariant, match="is gone"):
        follows(old, dataclasses.replace(old, splits=()))
    with pytest.raises(BrokenInvariant, match="generation 1 after 2"):
        follows(old, dataclasses.replace(old, generation=1))
    with pytest.raises(BrokenInvariant, match="filled again"):
        follows(old.finished(), old)


def test_what_may_follow():
    old = BackfillState(splits=(BEGUN,))
    further = dataclasses.replace(BEGUN, cursor=("9",), rows=9, bytes=9)
    follows(old, BackfillState(splits=(further, *not_begun((Split(number=2, columns=("id",)),)))))
    follows(old, old.finished())
    follows(old, BackfillState(splits=not_begun((WHOLE,)), generation=2))


def test_keys_come_back():
    keys = rows((1, "", ""), (2, "", "")).select(["id"])
    assert keys_from_bytes(keys_as_bytes(keys)).equals(keys)
    assert keys_from_bytes(keys_as_bytes(keys.slice(0, 0))) is None
