"""The fuzzer finds bugs: each is put in on purpose and must be seen.

Some by random worlds, from the seed on that is named here; those that few worlds show, by a
script of the kind that a failing seed is shrunk to.
"""

import pyarrow as pa
import pytest

from headwater.runtime import view_keeper
from headwater.runtime.view_keeper import ViewKeeper
from headwater.testing.fuzz.life import QUICK
from headwater.testing.fuzz.script import ScriptFailed, run_script
from headwater.testing.fuzz.world import SeedFailed, run_seed
from headwater.views import maintain, relation, spark_desk
from headwater.views.delta import Deltas
from headwater.views.desk import Side
from headwater.views.merging import Merging
from headwater.views.rows import Keys

MOST_SEEDS = 4


def join_counts_new_pairs_twice(patch):
    rows = Deltas.rows

    async def newer(self, plan, side, keys=None):
        return await rows(self, plan, Side.NEW, keys)

    inner = Deltas._inner

    async def wrong(self, join, left, right):
        patch.setattr(Deltas, "rows", newer)
        try:
            return await inner(self, join, left, right)
        finally:
            patch.setattr(Deltas, "rows", rows)

    patch.setattr(Deltas, "_inner", wrong)


def sums_forget_what_goes(patch):
    contributions = Merging.contributions

    def only_added(self, sql, *, weighted):
        return contributions(self, sql, weighted=False)

    patch.setattr(Merging, "contributions", only_added)


def groups_forgotten(patch):
    touched = Deltas._touched_keys

    async def first_only(self, plan, deltas):
        keys = await touched(self, plan, deltas)
        return keys and Keys(keys.table.slice(0, 1))

    patch.setattr(Deltas, "_touched_keys", first_only)


def duplicates_dropped(patch):
    numbered = maintain.numbered

    def once(delta, stored, schema):
        place = delta.schema.get_field_index("_hw_weight")
        weights = [max(-1, min(1, w)) for w in delta.column(place).to_pylist()]
        column = pa.array(weights, pa.int64())
        return numbered(delta.set_column(place, "_hw_weight", column), stored, schema)

    patch.setattr(maintain, "numbered", once)


def lookups_miss_new_rows(patch):
    def stale(old, changes, keys, schema):
        return relation.on_both_sides(old, schema)

    patch.setattr(spark_desk, "with_sides", stale)


def higher_views_forgotten(patch):
    levels = view_keeper.levels_of
    patch.setattr(view_keeper, "levels_of", lambda views: levels(views)[:1])


BUGS = {
    join_counts_new_pairs_twice: 3,
    groups_forgotten: 0,
    lookups_miss_new_rows: 0,
    higher_views_forgotten: 0,
}
"""Each with the first seed to try."""

_TABLE = (
    "CREATE TABLE t (i1 integer PRIMARY KEY, i2 integer)",
    "INSERT INTO t VALUES (1, 1), (2, 2), (3, 2)",
    "-- flush",
)
_VIEW = "CREATE MATERIALIZED VIEW v1 WITH (refresh_policy = 'incremental') AS "
SCRIPTS = {
    sums_forget_what_goes: (
        *_TABLE,
        _VIEW + "SELECT i2, sum(i1) AS s FROM t GROUP BY i2",
        "DELETE FROM t WHERE i1 = 3",
        "-- flush",
    ),
    duplicates_dropped: (
        *_TABLE,
        _VIEW + "SELECT i2 FROM t EXCEPT ALL SELECT i2 FROM t WHERE i1 = 1",
        "INSERT INTO t VALUES (4, 2), (5, 2)",
        "-- flush",
    ),
}


@pytest.fixture(scope="module")
def quick(spark):
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(bug, quick, monkeypatch, tmp_path):
    bug(monkeypatch)
    seeds = range(BUGS[bug], BUGS[bug] + MOST_SEEDS)
    failed = next((f for seed in seeds if (f := _failure(quick, seed, tmp_path))), None)
    assert failed is not None, f"{MOST_SEEDS} seeds did not see it"
    assert "--seed0" in str(failed)
    assert failed.steps


def _failure(spark, seed, folder):
    try:
        run_seed(spark, seed, folder / str(seed))
    except SeedFailed as failed:
        return failed
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", SCRIPTS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found_by_a_script(bug, quick, monkeypatch, tmp_path):
    run_script(quick, tmp_path / "right", SCRIPTS[bug])
    bug(monkeypatch)
    with pytest.raises(ScriptFailed):
        run_script(quick, tmp_path / "wrong", SCRIPTS[bug])


@pytest.mark.timeout(900)
def test_failures_forgotten_over_a_restart_are_found(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(ViewKeeper, "remember", lambda self, facts: None)
    steps = (
        "CREATE TABLE t (i1 integer PRIMARY KEY, i2 integer)",
        "INSERT INTO t VALUES (1, 1)",
        "-- flush",
        "CREATE MATERIALIZED VIEW v1 AS SELECT i1, 10 / i2 AS q FROM t",
        "INSERT INTO t VALUES (2, 0)",
        "-- flush",
        "-- restart",
    )
    with pytest.raises(ScriptFailed, match="view v1 is well, and its query raises"):
        run_script(quick, tmp_path, steps)
