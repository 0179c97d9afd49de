"""Every cell of the merge table, and the equality it rests on."""

import math

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import SchemaError
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.types import BIGINT, DATE, DOUBLE, REAL, VARCHAR, decimal, list_of
from headwater.state import lookup, merge, row_cache
from headwater.testing.oracle import assert_same_rows
from headwater.testing.pretty import from_pretty
from state_kit import Rig, changes_of, schema_of

SCHEMA = schema_of(["id"], id=BIGINT, name=VARCHAR)


def merged(tmp_path, before: str, changes: str, schema=SCHEMA):
    """What an epoch of `changes` does to a table that holds the rows inserted by `before`."""
    rig = Rig(tmp_path / "w", schema)
    rig.stage(from_pretty(before, schema))
    rig.commit()
    start = rig.committed
    commit = rig.stage(from_pretty(changes, schema))
    rig.commit()
    rig.check(every=True)
    found = rig.table.change_rows(start, rig.committed)
    return commit, found.select([*schema.names, CHANGE_TYPE])


CELLS = {
    "insert of a new key": ("+ 1 ann", "+ 2 bob", "+ 2 bob"),
    "update of a new key": ("+ 1 ann", "U+ 2 bob", "+ 2 bob"),
    "insert over a row": ("+ 1 ann", "+ 1 bob", "U- 1 ann \n U+ 1 bob"),
    "update of a row": ("+ 1 ann", "U+ 1 bob", "U- 1 ann \n U+ 1 bob"),
    "insert of an equal row": ("+ 1 ann", "+ 1 ann", ""),
    "update to an equal row": ("+ 1 ann", "U+ 1 ann", ""),
    "delete of a row": ("+ 1 ann", "- 1 .", "- 1 ann"),
    "delete of a missing row": ("+ 1 ann", "- 2 .", ""),
    "preimage alone": ("+ 1 ann", "U- 1 zzz", ""),
    "preimage of another row, then postimage": (
        "+ 1 ann",
        "U- 1 zzz \n U+ 1 bob",
        "U- 1 ann \n U+ 1 bob",
    ),
    "last change wins": ("+ 1 ann", "U+ 1 b \n U+ 1 c \n U+ 1 d", "U- 1 ann \n U+ 1 d"),
    "changed and changed back": ("+ 1 ann", "U+ 1 bob \n U+ 1 ann", ""),
    "delete then insert": ("+ 1 ann", "- 1 . \n + 1 bob", "U- 1 ann \n U+ 1 bob"),
    "delete then the same insert": ("+ 1 ann", "- 1 . \n + 1 ann", ""),
    "insert then delete": ("+ 1 ann", "+ 2 bob \n - 2 .", ""),
    "insert then delete of a stored key": ("+ 1 ann", "+ 1 bob \n - 1 .", "- 1 ann"),
    "delete twice": ("+ 1 ann", "- 1 . \n - 1 .", "- 1 ann"),
    "null to null": ("+ 1 .", "U+ 1 .", ""),
    "null to text": ("+ 1 .", 'U+ 1 ""', 'U- 1 . \n U+ 1 ""'),
    "text to null": ("+ 1 ann", "U+ 1 .", "U- 1 ann \n U+ 1 ."),
}


@pytest.mark.parametrize("cell", CELLS)
def test_cell(tmp_path, cell):
    before, changes, expected = CELLS[cell]
    commit, found = merged(tmp_path, f"id name\n{before}", f"id name\n{changes}")
    assert found.to_pylist() == from_pretty(f"id name\n{expected}", SCHEMA).to_pylist()
    assert (commit is None) == (expected == "")


def test_changes_come_by_vnode_and_a_preimage_right_before_its_postimage(tmp_path):
    lines = "\n".join(f"+ {n} a" for n in range(200))
    more = "\n".join(
        [f"U+ {n} b" for n in range(0, 200, 3)] + [f"- {n} ." for n in range(1, 200, 3)]
    )
    rig = Rig(tmp_path / "w", SCHEMA)
    rig.stage(from_pretty(f"id name\n{lines}", SCHEMA))
    rig.stage(from_pretty(f"id name\n{more}", SCHEMA))
    rig.commit()
    found = rig.table.change_rows(rig.records[0].epoch, rig.committed)
    slots = found.column("_vnode").to_pylist()
    assert slots == sorted(slots)
    kinds = found.column(CHANGE_TYPE).to_pylist()
    ids = found.column("id").to_pylist()
    for place, kind in enumerate(kinds):
        if kind == "update_preimage":
            assert (kinds[place + 1], ids[place + 1]) == ("update_postimage", ids[place])


FLOATS = schema_of(["id"], id=BIGINT, x=DOUBLE, y=REAL, l=list_of(DOUBLE))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (math.nan, math.nan, False),
        (math.nan, None, True),
        (None, math.nan, True),
        (None, None, False),
        (0.0, 0.0, False),
        (-0.0, -0.0, False),
        # A source stores either zero, so the difference is kept.
        (0.0, -0.0, True),
        (-0.0, 0.0, True),
        (math.inf, -math.inf, True),
        (1.5, math.nan, True),
    ],
)
@pytest.mark.parametrize("column", ["x", "y", "l"])
def test_equality_of_floating_point_values(tmp_path, column, old, new, changes):
    def value(number):
        return [1.0, number] if column == "l" else number

    rig = Rig(tmp_path / "w", FLOATS)
    rig.put(("insert", {"id": 1, column: value(old)}))
    commit = rig.put(("update_postimage", {"id": 1, column: value(new)}))
    assert (commit is not None) == changes
    rig.check(every=True)


def test_equality_of_nested_dates_beyond_the_calendar_of_python(tmp_path):
    schema = schema_of(["id"], id=BIGINT, l=list_of(DATE))
    far = pa.array([[10_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    changes = pa.table({"id": [1], "l": far, CHANGE_TYPE: ["insert"]})
    rig = Rig(tmp_path / "w", schema)
    for expected in (True, False):
        rig.last += 1 << 16
        commit = rig.table.stage(rig.last, changes)
        assert (commit is not None) == expected


def test_both_zeros_and_all_nans_are_one_key(tmp_path):
    schema = schema_of(["k"], k=DOUBLE, v=VARCHAR)
    rig = Rig(tmp_path / "w", schema)
    rig.put(("insert", {"k": 0.0, "v": "a"}), ("insert", {"k": math.nan, "v": "n"}))
    rig.put(("insert", {"k": -0.0, "v": "b"}), ("insert", {"k": -math.nan, "v": "m"}))
    assert rig.table.rows().num_rows == 2
    rig.check(every=True)
    rig.put(("delete", {"k": 0.0}), ("delete", {"k": math.nan}))
    assert rig.table.rows().num_rows == 0


COLLIDING = {
    "text": schema_of(["k"], k=VARCHAR, v=BIGINT),
    "composite": schema_of(["a", "b"], a=BIGINT, b=VARCHAR, v=BIGINT),
    "float": schema_of(["k"], k=DOUBLE, v=BIGINT),
    "decimal": schema_of(["k"], k=decimal(10, 3), v=BIGINT),
    "date": schema_of(["k"], k=DATE, v=BIGINT),
}


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("name", COLLIDING)
def test_results_stay_exact_when_hashes_collide(tmp_path, monkeypatch, name, buckets):
    from state_kit import Dice, look_up, wander

    real = row_cache.key_hashes

    def few(table, columns):
        return real(table, columns) % np.uint64(buckets)

    for module in (merge, lookup, row_cache):
        monkeypatch.setattr(module, "key_hashes", few)
    schema = COLLIDING[name]
    rig, dice = Rig(tmp_path / "w", schema), Dice(f"collide {buckets}", schema, keys=30)
    wander(rig, dice, 40, most=30)
    look_up(rig, dice)


def test_colliding_zeros_and_far_dates_are_told_apart_exactly(tmp_path, monkeypatch):
    def one(table, columns):
        return np.zeros(table.num_rows, dtype=np.uint64)

    for module in (merge, lookup, row_cache):
        monkeypatch.setattr(module, "key_hashes", one)
    schema = schema_of(["k", "d"], k=DOUBLE, d=DATE)
    days = pa.array([10_000_000, 10_000_000, 10_000_001, 5], pa.int32()).cast(pa.date32())
    changes = pa.table({"k": [0.0, -0.0, 0.0, 1.0], "d": days, CHANGE_TYPE: ["insert"] * 4})
    rig = Rig(tmp_path / "w", schema)
    rig.table.stage(rig.last, changes)
    rig.table.confirm(rig.last)
    assert rig.table.rows().num_rows == 3
    keys = changes.select(["k", "d"])
    assert rig.table.lookup(keys).num_rows == 4


def test_misfits_are_refused_with_the_reason(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMA)
    good = changes_of([("insert", {"id": 1, "name": "a"})], SCHEMA)
    for bad, match in (
        (good.drop_columns([CHANGE_TYPE]), "need a column _change_type"),
        (good.drop_columns(["name"]), '"name" is missing'),
        (good.set_column(0, "id", pa.array(["x"])), '"id" does not fit type bigint'),
        (good.set_column(0, "id", pa.array([1.5])), '"id" does not fit'),
        (good.set_column(0, "id", pa.array([2**63], pa.uint64())), '"id" does not fit'),
        (good.set_column(2, CHANGE_TYPE, pa.array(["upsert"])), "unknown change type 'upsert'"),
        (good.set_column(2, CHANGE_TYPE, pa.array([None], pa.string())), "unknown change type"),
    ):
        with pytest.raises(SchemaError, match=match):
            rig.table.stage(rig.last, bad)
    assert rig.files() == set()
    narrower = good.set_column(0, "id", pa.array([1], pa.int32())).append_column(
        "more", pa.array([1])
    )
    rig.stage(narrower)
    rig.commit()
    assert_same_rows(rig.table.rows().select(["id", "name"]), [{"id": 1, "name": "a"}])
