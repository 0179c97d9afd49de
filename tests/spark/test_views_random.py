"""Random plans over random tables: incremental equals recompute, at every epoch, both ways.

Many plans share a world, because one fused job costs little more than a single plan's. More
worlds with HEADWATER_VIEW_WORLDS=n; HEADWATER_VIEW_SEED=n begins with another one.
"""

import os
from random import Random

import pytest

from headwater.views.layout import RefreshPolicy
from views_kit import World, quick
from views_plans import SCHEMAS, Planner, changed, rows

__all__ = ["quick"]

FIRST = int(os.environ.get("HEADWATER_VIEW_SEED", "0"))
WORLDS = int(os.environ.get("HEADWATER_VIEW_WORLDS", "2"))
VIEWS = int(os.environ.get("HEADWATER_VIEW_COUNT", "12"))
EPOCHS = 3


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
def test_views_equal_their_queries_at_every_epoch(quick, seed):
    random = Random(f"views {seed}")
    world = World(quick, SCHEMAS)
    for id_, schema in world.schemas.items():
        world.tables[id_] = rows(random, schema, random.choice((3, 8, 30)))
    for number in range(VIEWS):
        planner = Planner(random)
        policies = [RefreshPolicy.INCREMENTAL] * 8 + list(RefreshPolicy)
        world.add(planner.plan(1 + number % 4), random.choice(policies))
    world.fill()
    world.check()
    for _ in range(EPOCHS):
        after = {
            id_: changed(random, world.tables[id_], schema, random.choice((1, 3, 8)))
            for id_, schema in world.schemas.items()
        }
        world.step(
            after,
            indexed=lambda: random.random() < 0.8,
            large=random.random() < 0.15,
        )
