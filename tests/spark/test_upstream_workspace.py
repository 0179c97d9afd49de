"""Two real workspaces: one engine writes, the other follows its tables and views."""

from random import Random

import pytest

from creating_kit import scribble, tables, written
from engine_kit import lost_files
from upstream_kit import check_history, engine_at, follow, history, position, progress, until
from views_engine_kit import check, keep, write
from views_kit import quick

__all__ = ["quick"]

TOTALS = "select g, count(*) n, sum(v) s from t group by g"
FOLLOWED = ("t", "names", "totals")


async def caught_up(here, there, *names):
    await write(there, "t", (7, 1, 1))
    await write(there, "t", (7, 1, 2))
    last = await there.flush()
    await until(lambda: all((position(here, name) or 0) >= last for name in names))


def in_step(here):
    """The epochs that have moved all tables."""
    return set.intersection(*(set(history(here, name)) for name in FOLLOWED))


def check_together(seen):
    """One source has one cut: tables that have come together stay so at every epoch."""
    at, together = {}, 0
    for mine in sorted({mine for each in seen.values() for mine in each}):
        at |= {name: each[mine] for name, each in seen.items() if mine in each}
        if len(at) == len(seen):
            assert not together or len(set(at.values())) == 1, (mine, at)
            together += len(set(at.values())) == 1
    assert together > 3


@pytest.mark.timeout(600)
async def test_a_follower_keeps_in_step_over_writes_and_restarts(tmp_path, quick):
    up, down = tmp_path / "up", tmp_path / "down"
    async with engine_at(up, quick) as there, engine_at(down, quick) as here:
        await tables(there, rows=60, epochs=2)
        await keep(there, "totals", TOTALS)
        async with written(there):
            await follow(here, up, *FOLLOWED)
            await keep(here, "again", TOTALS)
            await until(lambda: len(in_step(here)) > 4, 120)
        await caught_up(here, there, *FOLLOWED)
        for name in FOLLOWED:
            check_history(here, there, name)
        await here.flush()
        check(here)
    # The upstream goes on alone.
    async with engine_at(up, quick) as there:
        for seed in range(3):
            await scribble(there, Random(seed), 60)
            await there.flush()
        last = there.visible
    async with engine_at(down, quick) as here:
        # Nobody runs upstream; what it had is there to be read all the same.
        await until(lambda: all((position(here, name) or 0) >= last for name in FOLLOWED))
        async with engine_at(up, quick) as there:
            await caught_up(here, there, *FOLLOWED)
            check_together({name: check_history(here, there, name) for name in FOLLOWED})
            await here.flush()
            check(here)
        assert not (lost := lost_files(here)), lost


@pytest.mark.timeout(600)
async def test_what_is_large_is_read_and_written_by_spark(tmp_path, quick):
    up, down = tmp_path / "up", tmp_path / "down"
    async with engine_at(up, quick) as there:
        await tables(there, rows=60, epochs=1)
        async with engine_at(down, quick, driver_bytes=1 << 10) as here:
            await follow(here, up, "t")
            await until(lambda: progress(here, "t").backfilled)
            await scribble(there, Random(3), 60)
            await there.flush()
            await caught_up(here, there, "t")
            check_history(here, there, "t")
