"""Folding: a target after a folded delivery is what it is after every single change."""

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from headwater.errors import UserError
from headwater.model.change import RowOp
from headwater.sinks import fold as folding_module
from headwater.sinks.fold import Folding, fold, folded, folded_batches
from headwater.sinks.sink import SinkKind

SCHEMA = pa.schema([("_op", pa.int8()), ("a", pa.int64()), ("b", pa.string()), ("v", pa.float64())])
LOG = pa.schema([SCHEMA.field(0), ("_vnode", pa.int16()), *list(SCHEMA)[1:]])
INS, D, UI, UD = RowOp.INSERT, RowOp.DELETE, RowOp.UPDATE_INSERT, RowOp.UPDATE_DELETE


def rule(kind, key=("a", "b"), **more):
    return Folding(sink="mine", kind=kind, schema=SCHEMA, key=key, **more)


def rows(*changes):
    columns = [[int(c[0]) for c in changes], [0] * len(changes)]
    columns += [[c[n] for c in changes] for n in (1, 2, 3)]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, LOG, strict=True)], schema=LOG
    )


def result(folding, *changes):
    found = fold(folding, rows(*changes))
    assert found.schema == SCHEMA
    return [tuple(row) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)]


def check(seed, *, several, own_key):
    dice = Random(seed)
    _, live = follow(dice, {}, several=several)
    start = {row[:2]: row for row in live.values()}
    changes, live = follow(dice, live, several=several)
    wanted = {row[:2]: row for row in live.values()}
    upserts = result(rule(SinkKind.UPSERT, own_key=own_key), *changes)
    assert applied_upserts(start, upserts) == wanted
    retracts = result(rule(SinkKind.RETRACT, own_key=own_key), *changes)
    assert applied_retractions(start, retracts) == wanted


@pytest.mark.parametrize("own_key", [False, True])
def test_a_folded_delivery_leaves_what_all_changes_leave(own_key):
    for seed in range(400):
        check(seed, several=own_key, own_key=own_key)


def test_a_key_that_rows_share_needs_more_than_their_order():
    with pytest.raises((AssertionError, KeyError)):
        [check(seed, several=True, own_key=False) for seed in range(400)]


def follow(dice, live, *, several):
    """Changes of rows under stream keys; where several share a sink's key, in any order."""
    live, changes = dict(live), []
    for _ in range(dice.randrange(4)):
        epoch = []
        touched = set()
        for _ in range(dice.randrange(8)):
            stream = dice.randrange(6)
            if several and stream in touched:
                continue
            touched.add(stream)
            key = (
                (dice.choice((1, 2, None)), dice.choice(("x", None))) if several else (stream, None)
            )
            if stream in live and dice.random() < 0.5:
                epoch.append([(D, *live.pop(stream))])
                continue
            if key in {row[:2] for other, row in live.items() if other != stream}:
                continue
            new = (*key, dice.randrange(3) / 2)
            if stream in live:
                old = live[stream]
                same = old[:2] == key
                epoch.append([(UD, *old), (UI, *new)] if same else [(D, *old), (INS, *new)])
            else:
                epoch.append([(INS, *new)])
            live[stream] = new
        if several:
            dice.shuffle(epoch)
        changes += [change for each in epoch for change in each]
    return changes, live


def applied_upserts(start, changes):
    found = dict(start)
    ops = [op for op, *_ in changes]
    assert ops == sorted(ops, key=lambda op: op != D), "deletes come first"
    assert len({row[1:3] for row in changes}) == len(changes), "a key is there twice"
    for op, *row in changes:
        if op == D:
            found.pop(tuple(row[:2]), None)
        else:
            assert op == INS
            found[tuple(row[:2])] = tuple(row)
    return found


def applied_retractions(start, changes):
    found = dict(start)
    place = {D: 0, UD: 1, UI: 1, INS: 2}
    places = [place[op] for op, *_ in changes]
    assert places == sorted(places)
    for number, (op, *row) in enumerate(changes):
        key = tuple(row[:2])
        if op in (D, UD):
            assert found.pop(key) == tuple(row), "the old row is the one that was there"
        if op == UD:
            assert changes[number + 1][0] == UI
            assert tuple(changes[number + 1][1:3]) == key
        if op in (INS, UI):
            assert key not in found
            found[key] = tuple(row)
    return found


def test_the_insert_of_another_row_wins_over_a_delete_in_any_order():
    for changes in ([(INS, 1, "x", 2.0), (D, 1, "x", 1.0)], [(D, 1, "x", 1.0), (INS, 1, "x", 2.0)]):
        assert result(rule(SinkKind.UPSERT, own_key=True), *changes) == [(INS, 1, "x", 2.0)]
        assert result(rule(SinkKind.RETRACT, own_key=True), *changes) == [
            (UD, 1, "x", 1.0),
            (UI, 1, "x", 2.0),
        ]


def test_a_row_that_came_and_went():
    changes = [(INS, 1, "x", 1.0), (UD, 1, "x", 1.0), (UI, 1, "x", 2.0), (D, 1, "x", 2.0)]
    assert result(rule(SinkKind.UPSERT), *changes) == [(D, 1, "x", 2.0)]
    assert result(rule(SinkKind.UPSERT, own_key=True), *changes) == []
    assert result(rule(SinkKind.RETRACT), *changes) == []


def test_keys_with_nulls_zeros_and_nans():
    schema = pa.schema([("_op", pa.int8()), ("k", pa.float64()), ("v", pa.int64())])
    folding = Folding(sink="s", kind=SinkKind.UPSERT, schema=schema, key=("k",))
    keys = [0.0, -0.0, float("nan"), float("nan"), None, None]
    table = pa.table({"_op": [1] * 6, "_vnode": [0] * 6, "k": keys, "v": [1, 2, 3, 4, 5, 6]}).cast(
        pa.schema([schema.field(0), ("_vnode", pa.int16()), *list(schema)[1:]])
    )
    assert fold(folding, table).column("v").to_pylist() == [2, 4, 6]


def test_rows_without_a_key_are_counted():
    folding = rule(SinkKind.RETRACT, key=())
    x, y, z = (1, "x", None), (2, "y", 1.0), (3, None, 1.0)
    changes = [(INS, *x), (INS, *x), (D, *x), (D, *y), (D, *y), (UD, *z), (UI, *z)]
    assert Counter(result(folding, *changes)) == {(INS, *x): 1, (D, *y): 2}


def test_append_only_refuses_deletes_or_drops_them():
    changes = [(INS, 1, "x", 1.0), (UD, 1, "x", 1.0), (UI, 1, "x", 2.0), (D, 2, "y", 0.0)]
    with pytest.raises(UserError, match='sink "mine" is append-only') as raised:
        result(rule(SinkKind.APPEND_ONLY), *changes)
    assert "ignore_delete" in raised.value.hint
    kept = result(rule(SinkKind.APPEND_ONLY, ignore_delete=True), *changes)
    assert kept == [(INS, 1, "x", 1.0), (INS, 1, "x", 2.0)]
    assert result(rule(SinkKind.UPSERT, ignore_delete=True), *changes) == [(INS, 1, "x", 2.0)]
    assert result(rule(SinkKind.APPEND_ONLY), *changes[:1]) == [(INS, 1, "x", 1.0)]


def test_nothing_folds_to_nothing():
    for kind in SinkKind:
        assert result(rule(kind)) == []


def test_columns_of_lists_can_be_folded():
    schema = pa.schema([("_op", pa.int8()), ("k", pa.int64()), ("v", pa.list_(pa.int64()))])
    folding = Folding(sink="s", kind=SinkKind.UPSERT, schema=schema, key=("k",), own_key=True)
    log = pa.schema([schema.field(0), ("_vnode", pa.int16()), *list(schema)[1:]])
    table = pa.table({"_op": [1, 2], "_vnode": [0, 0], "k": [7, 7], "v": [[1], [2]]}).cast(log)
    assert fold(folding, table).column("v").to_pylist() == [[1]]


def test_an_update_is_never_cut_by_a_batch(monkeypatch):
    monkeypatch.setattr(folding_module, "BATCH_ROWS", 4)
    changes = [(D, n, "d", 0.0) for n in range(3)]
    changes += [(op, n, "u", 1.0) for n in range(10, 19) for op in (UD, UI)]
    changes += [(INS, n, "i", 2.0) for n in range(20, 25)]
    batches = list(folded_batches(rule(SinkKind.RETRACT), [rows(*changes)]))
    assert sum(batch.num_rows for batch in batches) == len(changes)
    assert all(batch.num_rows <= 5 for batch in batches)
    for batch in batches:
        ops = batch.column(0).to_pylist()
        assert ops.count(UD) == ops.count(UI)
        assert ops[0] != UI


@pytest.mark.parametrize("kind", [SinkKind.APPEND_ONLY, SinkKind.UPSERT])
def test_many_new_rows_come_in_the_order_of_their_key(monkeypatch, kind):
    monkeypatch.setattr(folding_module, "_MANY", 4)
    new = [(INS, a, b, 1.0) for a, b in ((3, "x"), (1, "y"), (2, "x"), (1, "x"))]
    found = result(rule(kind, order=("a", "b")), *new)
    assert found == [(INS, 1, "x", 1.0), (INS, 1, "y", 1.0), (INS, 2, "x", 1.0), (INS, 3, "x", 1.0)]


def test_rows_of_one_key_stay_in_their_order(monkeypatch):
    monkeypatch.setattr(folding_module, "_MANY", 4)
    new = [(INS, 2, "x", 1.0), (INS, 1, "x", 1.0), (INS, 2, "x", 2.0), (INS, 1, "x", 2.0)]
    found = result(rule(SinkKind.APPEND_ONLY, order=("a", "b")), *new)
    assert [row[1:] for row in found] == [
        (1, "x", 1.0),
        (1, "x", 2.0),
        (2, "x", 1.0),
        (2, "x", 2.0),
    ]


@pytest.mark.parametrize("kind", list(SinkKind))
@pytest.mark.parametrize("key", [("a", "b"), ("a",), ("v",)])
def test_inserts_that_need_no_folding_go_out_as_folding_would_send_them(monkeypatch, kind, key):
    monkeypatch.setattr(folding_module, "_MANY", 2)
    monkeypatch.setattr(folding_module, "BATCH_ROWS", 6)
    for seed in range(300):
        dice = Random(seed)
        ops = [INS] if seed % 3 else [INS, INS, INS, INS, D, UI]
        changes = [
            (
                dice.choice(ops),
                dice.choice([*range(30), None]) if seed % 5 == 0 else dice.randrange(30),
                dice.choice("xyz"),
                dice.choice([0.0, -0.0, 1.0, float("nan")]) if seed % 2 else float(n),
            )
            for n in range(dice.randrange(2, 12))
        ]
        folding = rule(kind, key, order=key, ignore_delete=kind is SinkKind.APPEND_ONLY)
        batches = list(folded_batches(folding, [rows(*changes), rows(*changes[:2])]))
        wanted = pa.concat_tables(
            [fold(folding, rows(*changes)), fold(folding, rows(*changes[:2]))]
        )
        found = pa.Table.from_batches(batches, schema=SCHEMA)
        assert str(found.to_pylist()) == str(wanted.to_pylist()), f"seed {seed}"


def test_what_can_be_read_again_is_folded_again():
    tables = [rows((INS, 1, "x", 1.0)), rows((INS, 2, "x", 1.0))]
    folding = rule(SinkKind.UPSERT)
    often = folded(folding, tables)
    assert [len(list(often)), len(list(often))] == [2, 2]
    once = folded(folding, iter(tables))
    assert [len(list(once)), len(list(once))] == [2, 0]
