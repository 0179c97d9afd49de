"""What a reader still needs of a chunk of changes, against a rule that says it row by row."""

from random import Random

import pytest

from headwater.backfill.snapshot.mark import mark_chunk
from headwater.backfill.snapshot.state import BackfillState, Cursor
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, COMMIT_VERSION, VNODE
from upstream_double import chunk, finished, vnode


def needed(row, states):
    """The rule, for one row."""
    for state in states:
        if state.first <= row[VNODE] <= state.last:
            return state.cursor is None and row[COMMIT_VERSION] > state.epoch
    return False


def slowly(rows, states):
    """Pairs by their places, halves that part as plain changes."""
    kept = []
    for place, row in enumerate(rows):
        if not needed(row, states):
            continue
        word = row[CHANGE_TYPE]
        if word == "update_preimage" and not needed(rows[place + 1], states):
            word = "delete"
        if word == "update_postimage" and not needed(rows[place - 1], states):
            word = "insert"
        kept.append({**row, CHANGE_TYPE: word})
    return kept


def drawn(dice):
    changes = []
    for epoch in sorted(dice.sample(range(1, 60), dice.randrange(1, 6))):
        for _ in range(dice.randrange(8)):
            key = dice.randrange(1000)
            if dice.random() < 0.5:
                word = dice.choice(["insert", "delete"])
                changes.append((word, key, "a", epoch))
            else:
                # The halves of an update of the key of a view may lie in different vnodes.
                other = key if dice.random() < 0.7 else dice.randrange(1000)
                changes.append(("update_preimage", key, "a", epoch))
                changes.append(("update_postimage", other, "b", epoch))
    return chunk(changes)


def some_states(dice):
    edges = sorted(dice.sample(range(1, 256), dice.randrange(6)))
    spans = zip([0, *edges], [*(edge - 1 for edge in edges), 255], strict=True)
    found = []
    for first, last in spans:
        if dice.random() < 0.15:
            continue
        cursor = None if dice.random() < 0.8 else Cursor(0, 3)
        epoch = Epoch(dice.randrange(60))
        found.append(BackfillState(first=first, last=last, epoch=epoch, cursor=cursor))
    return found


def test_the_rule_holds_for_any_chunk_and_any_states():
    for seed in range(300):
        dice = Random(seed)
        changes, states = drawn(dice), some_states(dice)
        assert mark_chunk(changes, states).to_pylist() == slowly(changes.to_pylist(), states), seed


def test_nothing_is_copied_where_everything_is_needed():
    changes = chunk([("insert", 1, "a", 7), ("delete", 2, "b", 8)])
    assert mark_chunk(changes, [finished(0, 255, 6)]) is changes


def test_the_epoch_that_a_vnode_is_done_with_is_left_out_and_the_next_is_not():
    changes = chunk([("insert", 1, "a", 6), ("insert", 2, "b", 7)])
    assert mark_chunk(changes, [finished(0, 255, 6)]).column("id").to_pylist() == [2]


def test_a_vnode_inside_its_snapshot_gets_no_change_yet():
    changes = chunk([("insert", 1, "a", 9), ("insert", 2, "b", 9)])
    mine = vnode(1)
    states = [BackfillState(first=mine, last=mine, epoch=Epoch(3), cursor=Cursor(0))]
    states += [finished(vnode(2), vnode(2), 3)]
    assert mark_chunk(changes, states).column("id").to_pylist() == [2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (True, True, ["update_preimage", "update_postimage"]),
        (True, False, ["delete"]),
        (False, True, ["insert"]),
        (False, False, []),
    ],
)
def test_halves_of_an_update_that_part_are_plain_changes(old, new, words):
    first, second = 1, next(key for key in range(2, 99) if vnode(key) != vnode(1))
    changes = chunk([("update_preimage", first, "a", 9), ("update_postimage", second, "b", 9)])
    wanted = [vnode(key) for key, there in ((first, old), (second, new)) if there]
    states = [finished(each, each, 5) for each in wanted]
    assert mark_chunk(changes, states).column(CHANGE_TYPE).to_pylist() == words
