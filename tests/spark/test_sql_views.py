"""Planned queries as views: what follows the changes equals the query, at every epoch.

The queries here are the ones that the planner has to take apart most: nested and correlated
queries, recursion, windows, sets of rows in a select list, and jsonb.
"""

from random import Random
from typing import Any

import pytest
from test_sql_queries import DDL, rows_t, rows_u, rows_v

from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.sql.algebra import Opaque, Plan, inputs_of
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.views.rules import Rule, explain_incremental
from sql_kit import relations_of
from views_kit import World, quick

__all__ = ["quick"]

RELATIONS = relations_of(DDL)
QUERIES = [
    "with recursive r as (select id, a from v where id < 4 union all "
    "select v.id, v.a from v join r on v.id = r.id + 7) select * from r",
    "with recursive r(n) as (select min(id) from v union select n + 3 from r where n < 20) "
    "select t.a, t.b from t join r on t.a = r.n",
    "select a, (select sum(x) from u where u.a < t.a) as s from t",
    "select a, (select count(*) from u where u.x > t.c) as n from t",
    "select a, exists (select 1 from u where u.a > t.a and u.x = 3) as e from t",
    "select a from t where exists (select 1 from u where u.a = t.a and u.k in "
    "(select v.id from v where v.a <= t.a))",
    "select a from t where exists (select 1 from u where u.a = t.a union all "
    "select 1 from v where v.a = t.a)",
    "select a from t where a > all (select x from u where x is not null and u.a = t.a)",
    "select id, a < any (select k from u) as m from v",
    "select a, a not in (select k from u where u.a = t.a) as m from t",
    "select a, array(select x from u where u.a = t.a order by k) as xs from t",
    "select a, unnest(e) as x from t",
    "select t.a, l.k from t, lateral (select k from u where u.a < t.a order by u.a desc, k "
    "limit 2) l",
    "select b, jsonb_agg(a order by a), mode() within group (order by d) from t group by b",
    "select a, sum(a) over (order by a range between 3 preceding and current row) from t",
    "select jsonb_build_object('b', b) as j, count(*), max(c) from t group by 1",
    "select a, (jsonb_build_object('x', c) ->> 'x') as c from t where b is not null",
    "select avg(a), avg(x), stddev(x) from t join u using (a)",
    "select k, avg(x), sum(x), count(s) from u group by k",
    "select b, avg(c), sum(c) from t group by b",
]  # fmt: skip


def planned(text: str) -> Plan:
    return plan_query(parse_one(text).query, text, RELATIONS, for_view=True).plan


def world_of(spark: Any) -> World:
    schemas = {
        int(each.id or 0): Schema(each.columns, each.key) for each in RELATIONS._found.values()
    }
    world = World(spark, schemas)
    for number, rows in ((1, rows_t()), (2, rows_u()), (3, rows_v())):
        names = world.schemas[TableId(number)].names
        world.put(number, [dict(zip(names, row, strict=True)) for row in rows])
    return world


def changed(random: Random, rows: dict[Any, dict[str, Any]], key: tuple[str, ...]) -> Any:
    """Some rows gone, and some with the values of others."""
    after = dict(rows)
    for place in random.sample(sorted(after, key=str), min(4, len(after))):
        if random.random() < 0.4:
            del after[place]
        else:
            other = after[random.choice(list(after))]
            kept = {name: rows[place][name] for name in key}
            after[place] = {**other, **kept}
    return after


@pytest.mark.parametrize("text", QUERIES, ids=lambda text: text[:50])
def test_a_view_equals_its_query(quick: Any, text: str) -> None:
    random = Random(text)
    world = world_of(quick)
    world.add(planned(text))
    world.fill()
    world.step(
        {
            id_: changed(random, world.tables[id_], schema.key)
            for id_, schema in world.schemas.items()
        }
    )


def opaque(plan: Plan) -> list[str]:
    here = [plan.reason] if isinstance(plan, Opaque) else []
    return here + [reason for each in inputs_of(plan) for reason in opaque(each)]


def test_only_recursion_needs_to_be_recomputed_as_a_whole() -> None:
    for text in QUERIES:
        assert bool(opaque(planned(text))) == ("recursive" in text), text


def test_explain_says_why_a_recursive_view_is_recomputed(quick: Any) -> None:
    layout = world_of(quick).add(planned(QUERIES[0]))
    steps = [step for step in explain_incremental(layout) if step.operator == "opaque"]
    assert steps[0].rule is Rule.WHOLE
    assert "recursive" in steps[0].reason
