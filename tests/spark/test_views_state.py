"""Views over real state tables: lookups by any columns, staging, several epochs, folding."""

from random import Random

import numpy as np
import pyarrow as pa

from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.types import BIGINT, INTEGER
from headwater.sql.algebra import JoinKind, Plan
from headwater.testing.oracle import apply_exact, assert_same_rows, key_of
from headwater.views.desk import Side
from headwater.views.layout import RefreshPolicy, lay_out, view_of
from headwater.views.maintain import LiveView, maintain
from headwater.views.recompute import batch, fill
from headwater.views.relation import StateRelation, among
from state_kit import Rig, plain, small_files
from views_build import Builder, query
from views_kit import exact_changes, quick
from views_plans import SCHEMAS, changed, rows

__all__ = ["quick"]


def rig_of(folder, schema, spark) -> Rig:
    rig = Rig(folder, schema, settings=small_files(), spark=lambda: spark)
    if rig.table.missing:
        rig.stage()
        rig.commit()
    return rig


def relation_of(rig: Rig, spark, changes=None, before=None) -> StateRelation:
    table, cache = rig.table, rig.store.surroundings.cache
    now = table.view()
    old = table.view(before) if before is not None else now
    return StateRelation(
        table, cache, old,
        frames=lambda side: table.frame(old.epoch if side is Side.OLD else now.epoch),
        changes=changes,
    )  # fmt: skip


def test_rows_are_found_by_any_columns(tmp_path, quick):
    random = Random("by any columns")
    schema = SCHEMAS[1]
    rig = rig_of(tmp_path, schema, quick)
    state: dict = {}
    for number in range(8):
        after = changed(random, state, schema, 12)
        rig.stage(exact_changes(state, after, schema))
        state = after
        if number == 5:
            rig.fold()
        rig.commit()
    relation = relation_of(rig, quick)
    everything = plain(rig.table.rows())
    for names in (("id",), ("s",), ("a", "s"), ("f",), ("m", "b"), ("s", "id")):
        keys = everything.select(names).slice(0, 5)
        extra = pa.Table.from_pylist([dict.fromkeys(names)], schema=keys.schema)
        keys = pa.concat_tables([keys, keys, extra])
        wanted = everything.filter(pa.array(among(everything, keys, [schema[n] for n in names])))
        found = relation.lookup(keys.group_by(list(names)).aggregate([]), 1000)
        assert_same_rows(found, wanted)
        narrow = [*names, "m"] if "m" not in names else list(names)
        found = relation.lookup(keys.group_by(list(names)).aggregate([]), 1000, narrow)
        assert found.column_names == narrow
        assert_same_rows(found, wanted.select(narrow))
    assert relation.lookup(everything.select(["id"]), everything.num_rows - 1) is None


def test_among_is_exact_when_hashes_collide(monkeypatch):
    from headwater.views import relation

    monkeypatch.setattr(
        relation, "key_hashes", lambda table, columns: np.zeros(table.num_rows, np.uint64)
    )
    table = pa.table({"x": pa.array([1, 2, None, 3], pa.int32())})
    keys = pa.table({"x": pa.array([None, 3, 7], pa.int32())})
    from headwater.model.schema import Column

    assert among(table, keys, [Column("x", INTEGER)]).tolist() == [False, False, True, True]


def plans() -> list[Plan]:
    b = Builder()
    t, u = b.scan(1, SCHEMAS[1]), b.scan(3, SCHEMAS[3])
    names = {stored: name for name, stored in t.columns}
    other = {stored: name for name, stored in u.columns}
    join = b.join(JoinKind.LEFT, t, u, [(names["a"], other["a"])])
    b2 = Builder()
    v = b2.scan(1, SCHEMAS[1])
    mine = {stored: name for name, stored in v.columns}
    total = b2.aggregate(
        v, [mine["s"]], b2.call(v, "count", None, BIGINT), b2.call(v, "sum", mine["a"], BIGINT)
    )
    b3 = Builder()
    w = b3.scan(1, SCHEMAS[1])
    own = {stored: name for name, stored in w.columns}
    pieces = b3.project(w, x=(own["s"], w.outputs[3].type))
    return [join, total, pieces]


def test_views_on_state_tables_through_epochs(tmp_path, quick):
    random = Random("state views")
    ids = (TableId(1), TableId(3))
    tables = {id_: rig_of(tmp_path / f"t{id_}", SCHEMAS[id_], quick) for id_ in ids}
    states: dict = {id_: {} for id_ in ids}

    def move() -> dict:
        found = {}
        for id_, rig in tables.items():
            before = rig.committed
            after = (
                rows(random, SCHEMAS[id_], 40) if not states[id_]
                else changed(random, states[id_], SCHEMAS[id_], 12)
            )  # fmt: skip
            rig.stage(exact_changes(states[id_], after, SCHEMAS[id_]))
            rig.commit()
            states[id_] = after
            changes = rig.table.change_rows(before, rig.committed)
            kept = changes if changes.num_rows else None
            found[id_] = relation_of(rig, quick, kept, before)
        return found

    move()
    layouts = [
        lay_out(view_of(f"v{n}", query(plan), RefreshPolicy.INCREMENTAL))
        for n, plan in enumerate(plans())
    ]
    stores = []
    for layout in layouts:
        frames = fill(quick, layout, {id_: rig.table.frame() for id_, rig in tables.items()})
        made = []
        for number, (schema, frame) in enumerate(zip(layout.schemas, frames, strict=True)):
            rig = rig_of(tmp_path / f"{layout.view.name}_{number}", schema, quick)
            filled = frame.toArrow()
            kinds = pa.array(["insert"] * filled.num_rows, pa.string())
            rig.stage(filled.append_column(CHANGE_TYPE, kinds))
            rig.commit()
            made.append(rig)
        stores.append(made)
    for _ in range(3):
        relations = move()
        live = [
            LiveView(layout, tuple(relation_of(rig, quick) for rig in made))
            for layout, made in zip(layouts, stores, strict=True)
        ]
        report = maintain(quick, live, relations)
        assert not report.read_whole
        for view, layout, made in zip(report.views, layouts, stores, strict=True):
            for number, chunk in view.stores.items():
                rig = made[number]
                state = {key_of(r, rig.key): r for r in plain(rig.table.rows()).to_pylist()}
                at = rig.committed
                rig.stage(chunk)
                rig.commit()
                apply_exact(state, rig.table.change_rows(at, rig.committed), rig.key)
                assert_same_rows(plain(rig.table.rows()), state)
            wanted = batch(quick, layout.view.plan, {i: r.table.frame() for i, r in tables.items()})
            stored = plain(made[0].table.rows()).select([s for s, _ in layout.view.columns])
            renamed = stored.rename_columns([c for _, c in layout.view.columns])
            assert_same_rows(renamed, wanted, one_zero=True)
