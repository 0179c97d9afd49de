"""One view per operator and rule, through epochs that hurt: nulls, duplicates, all gone."""

from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

from headwater.model.ids import TableId
from headwater.model.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, VARCHAR, decimal
from headwater.sql.algebra import JoinKind, Output, Plan, SetKind
from headwater.views.layout import ROW_NUMBER, RefreshPolicy, Shape
from headwater.views.maintain import Way
from views_build import Builder, names_of
from views_kit import World, quick
from views_plans import SCHEMAS, changed, rows

__all__ = ["quick"]


def operators() -> dict[str, Plan]:
    """Every operator, and every way that its rule can go."""
    made: dict[str, Plan] = {}
    for name, maker in {**_linear(), **_joins(), **_aggregates(), **_keyed(), **_stacked()}.items():
        made[name] = maker(Builder())
    return made


def one(b: Builder) -> Plan:
    return b.scan(1, SCHEMAS[1])


def two(b: Builder) -> Plan:
    return b.scan(2, SCHEMAS[2])


def three(b: Builder) -> Plan:
    return b.scan(3, SCHEMAS[3])


def col(plan: Plan, stem: str) -> str:
    return next(name for name in names_of(plan) if name.rstrip("0123456789") == f"{stem}_")


def _linear():
    def projected(b, *, keyed):
        t = one(b)
        key = ["k"] if keyed else []
        terms = {"k": (col(t, "id"), INTEGER)} if keyed else {}
        return b.project(t, key, **terms, x=(f"coalesce({col(t, 'a')}, 0) % 3", INTEGER))

    def unioned(b, *, tag):
        t, u = one(b), three(b)
        left = b.project(t, ["l"], l=(col(t, "id"), INTEGER), m=(col(t, "s"), VARCHAR))
        right = b.project(u, ["r"], r=(f"cast({col(u, 'id')} as int)", INTEGER),
                          q=(col(u, "s"), VARCHAR))  # fmt: skip
        return b.union(left, right, tag=tag)

    return {
        "scan": one,
        "filter": lambda b: b.filter(t := one(b), f"{col(t, 'a')} > 0"),
        "project": lambda b: projected(b, keyed=True),
        "project without key": lambda b: projected(b, keyed=False),
        "generate": lambda b: b.generate(t := three(b), col(t, "many"), INTEGER),
        "generate outer": lambda b: b.generate(t := three(b), col(t, "many"), INTEGER, outer=True),
        "union": lambda b: unioned(b, tag=False),
        "union tagged": lambda b: unioned(b, tag=True),
        "values": lambda b: b.values([INTEGER], ["1"], ["null"], ["1"]),
        "no values": lambda b: b.values([INTEGER, VARCHAR]),
    }


def _joins():
    def join(b, kind, *, safe=False, residual=False, computed=False, cross=False):
        t, u = one(b), two(b)
        on = [] if cross else [(col(t, "s"), col(u, "s"))]
        if computed:
            on = [(f"lower({col(t, 's')})::varchar", f"lower({col(u, 's')})::varchar")]
        text = f"coalesce({col(t, 'a')}, 0) <= coalesce({col(u, 'a')}, 1)" if residual else None
        return b.join(kind, t, u, on, null_safe=safe, residual=text)

    made = {}
    inner, left, right, full, semi, anti = JoinKind
    for kind in JoinKind:
        made[f"{kind} join"] = lambda b, k=kind: join(b, k)
    for kind in (inner, full, anti):
        made[f"{kind} join, null-safe"] = lambda b, k=kind: join(b, k, safe=True)
    for kind in (left, full, semi):
        made[f"{kind} join, residual"] = lambda b, k=kind: join(b, k, residual=True)
    for kind in (inner, right, anti):
        made[f"{kind} join, computed"] = lambda b, k=kind: join(b, k, computed=True)
    for kind in (inner, left):
        made[f"{kind} join, unequal"] = lambda b, k=kind: join(b, k, cross=True, residual=True)
    made["self join"] = lambda b: b.join(
        JoinKind.INNER, t := one(b), u := one(b), [(col(t, "a"), col(u, "a"))]
    )
    return made


def _aggregates():
    def grouped(b, group, *functions, table=one, where=None):
        t = table(b)
        calls = []
        for function, stem, type_ in functions:
            argument = col(t, stem) if stem else None
            distinct = function.startswith("distinct ")
            calls.append(
                b.call(t, function.removeprefix("distinct "), argument, type_,
                       distinct=distinct, where=where and where.format(col(t, "a")))
            )  # fmt: skip
        return b.aggregate(t, [col(t, stem) for stem in group], *calls)

    exact = (
        ("count", None, BIGINT), ("count", "s", BIGINT), ("sum", "a", BIGINT),
        ("avg", "a", DOUBLE), ("sum", "m", decimal(20, 2)), ("avg", "m", decimal(14, 6)),
    )  # fmt: skip
    inexact = (("min", "a", INTEGER), ("max", "s", VARCHAR), ("distinct count", "a", BIGINT))
    floating = (("sum", "f", DOUBLE), ("count", None, BIGINT))
    return {
        "merged": lambda b: grouped(b, ["s"], *exact),
        "merged, filtered": lambda b: grouped(b, ["s"], *exact, where="{} > 0"),
        "merged, two groups": lambda b: grouped(b, ["s", "f"], *exact),
        "merged, no group": lambda b: grouped(b, [], *exact),
        "distinct": lambda b: grouped(b, ["a", "s"]),
        "regrouped": lambda b: grouped(b, ["s"], *inexact),
        "regrouped, no group": lambda b: grouped(b, [], *inexact),
        "regrouped, by date": lambda b: grouped(b, ["day"], ("max", "a", INTEGER), table=two),
        "floating": lambda b: grouped(b, ["s"], *floating),
    }


def _keyed():
    def sides(b):
        t, u = one(b), three(b)
        left = b.project(t, x=(col(t, "a"), INTEGER), y=(col(t, "s"), VARCHAR))
        right = b.project(u, z=(col(u, "a"), INTEGER), w=(col(u, "s"), VARCHAR))
        return left, right

    made = {}
    for kind in SetKind:
        made[f"{kind}"] = lambda b, k=kind: b.set(k, *sides(b), every=False)
        made[f"{kind} all"] = lambda b, k=kind: b.set(k, *sides(b), every=True)
    made["top"] = lambda b: b.top(t := one(b), [], [col(t, "a")], limit=3)
    made["top, offset"] = lambda b: b.top(t := one(b), [], [col(t, "s")], limit=2, offset=2)
    made["top, only offset"] = lambda b: b.top(t := one(b), [], [col(t, "s")], limit=None, offset=2)
    made["top, ties"] = lambda b: b.top(
        t := one(b), [], [col(t, "a")], limit=2, offset=1, with_ties=True
    )
    made["top of group"] = lambda b: b.top(t := one(b), [col(t, "s")], [col(t, "a")], limit=2)
    made["top of group, ties"] = lambda b: b.top(
        t := one(b), [col(t, "s")], [col(t, "a")], limit=1, with_ties=True
    )
    made["window"] = lambda b: b.window(
        t := one(b),
        [col(t, "s")],
        (
            f"cast(rank() over (partition by {col(t, 's')} order by {col(t, 'a')}) as bigint)",
            BIGINT,
        ),
        (f"sum({col(t, 'a')}) over (partition by {col(t, 's')})", BIGINT),
    )
    made["window, no partition"] = lambda b: b.window(
        t := one(b), [], (f"count({col(t, 'a')}) over ()", BIGINT)
    )
    made["opaque"] = lambda b: b.opaque(
        [t := one(b)],
        f"select {col(t, 's')} as o, count(*) as n from {{0}} group by rollup ({col(t, 's')})",
        [Output("o", VARCHAR), Output("n", BIGINT)],
    )
    return made


def _stacked():
    def having(b):
        t = one(b)
        grouped = b.aggregate(t, [col(t, "s")], count := b.call(t, "count", None, BIGINT))
        return b.filter(grouped, f"{count.name} > 1")

    def renamed(b):
        t = one(b)
        total = b.call(t, "sum", col(t, "m"), decimal(20, 2))
        grouped = b.aggregate(t, [col(t, "s")], total)
        return b.project(grouped, ["g"], g=(col(t, "s"), VARCHAR),
                         big=(f"{total.name} > 0", BOOLEAN))  # fmt: skip

    def joined_to_aggregate(b, kind):
        t, u = one(b), two(b)
        count = b.call(u, "count", None, BIGINT)
        return b.join(kind, t, b.aggregate(u, [col(u, "s")], count), [(col(t, "s"), col(u, "s"))])

    def aggregate_of_joins(b):
        t, u, v = one(b), two(b), three(b)
        two_of = b.join(JoinKind.INNER, t, u, [(col(t, "s"), col(u, "s"))])
        all_of = b.join(JoinKind.LEFT, two_of, v, [(col(u, "a"), col(v, "a"))])
        return b.aggregate(all_of, [col(v, "s")], b.call(all_of, "count", None, BIGINT),
                           b.call(all_of, "avg", col(t, "m"), decimal(14, 6)))  # fmt: skip

    def aggregate_of_aggregate(b):
        t = one(b)
        inner = b.aggregate(t, [col(t, "a"), col(t, "s")], n := b.call(t, "count", None, BIGINT))
        return b.aggregate(inner, [col(t, "s")], b.call(inner, "max", n.name, BIGINT))

    def scalar(b):
        t, u = one(b), two(b)
        most = b.aggregate(u, [], m := b.call(u, "sum", col(u, "a"), BIGINT))
        text = f"coalesce({col(t, 'b')}, 0) <= coalesce({m.name}, 0)"
        return b.join(JoinKind.INNER, t, most, [], residual=text)

    return {
        "having": having,
        "aggregate, projected": renamed,
        "join of aggregate": lambda b: joined_to_aggregate(b, JoinKind.INNER),
        "left join of aggregate": lambda b: joined_to_aggregate(b, JoinKind.LEFT),
        "full join of aggregate": lambda b: joined_to_aggregate(b, JoinKind.FULL),
        "aggregate of joins": aggregate_of_joins,
        "aggregate of aggregate": aggregate_of_aggregate,
        "scalar subquery": scalar,
        "filter over top": lambda b: b.filter(
            b.top(t := one(b), [col(t, "s")], [col(t, "a")], limit=1), f"{col(t, 'a')} > 0"
        ),
    }


def started(spark, seed: str, plans, policy=RefreshPolicy.INCREMENTAL) -> tuple[World, Random]:
    random = Random(seed)
    world = World(spark, SCHEMAS)
    for id_, schema in world.schemas.items():
        # Few rows, so that the last match of a row comes and goes.
        world.tables[id_] = rows(random, schema, 20 if id_ == 1 else 6)
    for plan in plans:
        world.add(plan, policy)
    world.fill()
    return world, random


def moved(random: Random, world: World, most: int, tables=(1, 2, 3)):
    return {
        id_: changed(random, world.tables[id_], schema, most)
        if id_ in tables
        else world.tables[id_]
        for id_, schema in world.schemas.items()
    }


@pytest.mark.timeout(1200)
def test_every_operator_equals_its_recomputation(quick):
    world, random = started(quick, "operators", operators().values())
    for most, tables in ((12, (1, 2, 3)), (12, (1,))):
        world.step(moved(random, world, most, tables))
    world.step({**world.tables, TableId(1): {}})
    world.step({id_: rows(random, schema, 12) for id_, schema in world.schemas.items()})


def some(*names: str) -> list[Plan]:
    made = operators()
    return [made[name] for name in names]


MIXED = (
    "filter",
    "inner join",
    "merged",
    "regrouped",
    "union",
    "left join of aggregate",
    "top of group",
)


def test_views_share_one_job_and_read_nothing_whole(quick):
    world, random = started(quick, "jobs", some(*MIXED))
    report = world.step(moved(random, world, 12))
    assert report.jobs == 1
    assert not report.read_whole
    assert {view.way for view in report.views} == {Way.INCREMENTAL}


def test_tables_without_index_are_read_once_for_all_views(quick):
    world, random = started(quick, "scans", some("inner join", "left join", "window"))
    report = world.step(moved(random, world, 12, (1,)), indexed=lambda: False)
    assert report.jobs <= 3
    assert set(report.read_whole) <= set(world.tables)


def test_changes_that_are_frames_come_to_the_driver_only_as_few_groups(quick):
    from pyspark.sql import DataFrame

    world, random = started(quick, "large", some(*MIXED, "merged, no group", "except all"))
    for _ in range(2):
        report = world.step(moved(random, world, 12), large=True)
        assert any(view.stores for view in report.views)
        for layout, view in zip(world.layouts, report.views, strict=True):
            frames = [isinstance(chunk, DataFrame) for chunk in view.stores.values()]
            assert not any(frames) if layout.shape is Shape.MERGED else all(frames)


def test_full_refresh_compares_and_untouched_views_are_skipped(quick):
    world, random = started(quick, "full", some(*MIXED), RefreshPolicy.FULL)
    report = world.step(moved(random, world, 12))
    assert {view.way for view in report.views} == {Way.FULL}
    world.add(some("generate")[0])
    world.fill()
    report = world.step(moved(random, world, 12, (1,)))
    assert report.views[-1].way is Way.SKIPPED
    assert report.views[-1].stores == {}
    report = world.step(dict(world.tables))
    assert report.jobs == 0
    assert {view.way for view in report.views} == {Way.SKIPPED}


def test_auto_takes_the_cheaper_way(quick):
    world, random = started(quick, "auto", some("regrouped", "opaque"), RefreshPolicy.AUTO)
    world.put(1, [{"id": n, "a": n % 5, "b": n, "s": str(n), "m": Decimal(n), "f": 0.5}
                  for n in range(3000)])  # fmt: skip
    world.fill()
    few = dict(world.tables[TableId(1)])
    few.pop((1,))
    report = world.step({**world.tables, TableId(1): few})
    assert [view.way for view in report.views] == [Way.INCREMENTAL, Way.FULL]
    most = {key: row for key, row in few.items() if random.random() < 0.1}
    report = world.step({**world.tables, TableId(1): most})
    assert [view.way for view in report.views] == [Way.FULL, Way.FULL]


def test_a_view_without_key_is_stored_row_by_row(quick):
    world, random = started(quick, "multiset", some("project without key"))
    (layout,) = world.layouts
    assert layout.shape is Shape.MULTISET
    assert layout.view.visible == tuple(n for n in layout.schemas[0].names if "_hw_" not in n)
    for _ in range(3):
        world.step(moved(random, world, 14))
    numbers = pa.array([row[ROW_NUMBER] for row in world.stores[0][0].values()])
    assert len(numbers) == len(world.tables[TableId(1)])
