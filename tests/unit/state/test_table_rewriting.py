"""A table that is written anew: other names, the same rows, and no change to tell of."""

import pytest

from headwater.errors import HistoryGone
from headwater.model.epoch import Epoch
from headwater.model.schema import Column, Schema
from headwater.model.types import VARCHAR
from headwater.state.manifest import Manifest
from state_kit import SCHEMAS, Rig


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(*(("insert", {"id": n, "name": f"name {n}"}) for n in range(50)))
    rig.put(("delete", {"id": 7}))
    return rig


def rewrite(rig, schema, kept):
    rig.last = Epoch(rig.last + (1 << 16))
    commit = rig.table.rewrite(rig.last, schema, kept)
    old = {new: name for name, new in kept.items()}
    rig.head = {
        key: {c.name: row[old[c.name]] if c.name in old else None for c in schema.columns}
        for key, row in rig.head.items()
    }
    rig.head_schema = schema
    rig.staged.append((rig.last, commit))
    rig.models[rig.last] = (schema, dict(rig.head))
    rig.commit()
    return rig.last


def same(rig):
    """Every epoch has its own columns, and the rows that it had."""
    for epoch, (schema, rows) in rig.models.items():
        found = rig.table.rows(epoch).select(list(schema.names)).to_pylist()
        wanted = [{name: row.get(name) for name in schema.names} for row in rows.values()]
        assert sorted(found, key=str) == sorted(wanted, key=str), epoch


def renamed(rig, old, new):
    columns = tuple(
        Column(new if c.name == old else c.name, c.type) for c in rig.head_schema.columns
    )
    kept = {c.name: new if c.name == old else c.name for c in rig.head_schema.columns}
    return Schema(columns, rig.head_schema.key), kept


def test_a_renamed_column_keeps_its_values_in_every_epoch(rig):
    before = rig.committed
    schema, kept = renamed(rig, "name", "title")
    at = rewrite(rig, schema, kept)
    same(rig)
    assert rig.table.change_rows(before, at).num_rows == 0
    assert "name" in rig.table.rows(before).column_names
    rig.put(
        ("update_postimage", {"id": 3, "title": "changed"}), ("insert", {"id": 99, "title": "x"})
    )
    same(rig)
    assert rig.table.change_rows(at, rig.committed).num_rows == 3
    with pytest.raises(HistoryGone, match="other columns"):
        rig.table.change_rows(Epoch(before - 1), rig.committed)
    # Back again: the name was given up, and no file has it any more.
    rewrite(rig, *renamed(rig, "title", "name"))
    same(rig)


def test_a_new_column_under_an_old_name_has_none_of_its_values(rig):
    schema = rig.head_schema
    kept = {name: name for name in schema.names if name != "name"}
    rewrite(rig, schema, kept)
    assert set(rig.table.rows()["name"].to_pylist()) == {None}
    same(rig)


def test_a_table_without_rows_takes_any_schema(rig):
    rig.put(*(("delete", {"id": n}) for n in range(50)))
    other = Schema((Column("code", VARCHAR), Column("id", VARCHAR)), ("code",))
    rig.last = Epoch(rig.last + 1)
    rig.staged.append((rig.last, rig.table.rewrite(rig.last, other, {})))
    rig.models[rig.last] = (other, {})
    rig.commit()
    assert rig.table.schema == other
    assert rig.table.view().files == ()
    again = Manifest.decode(rig.table.manifest().encode())
    assert again.view() == rig.table.manifest().view()
    assert again.retired == frozenset()
