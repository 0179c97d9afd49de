"""How far a followed table is, for people: between 0 and 100, of rows that are alive."""

from creating_kit import PLAIN
from headwater.model.ids import TableId
from headwater.runtime.upstream.sources import FollowedProgress
from upstream_kit import engine_at, follow, progress, say, until
from views_engine_kit import create, gone, write


def shown(**fields):
    return FollowedProgress(table=TableId(1), **{"backfilled": False, **fields})


def test_words_and_numbers():
    assert str(shown()) == "0.0% (0 of 0 rows)"
    assert str(shown(rows=1000, total=4000)) == "25.0% (1,000 of 4,000 rows)"
    assert shown(rows=5000, total=4000).percent == 99.9
    assert str(shown(backfilled=True, rows=7, total=7)) == "100.0%"
    assert str(shown(backfilled=True, trouble="away")) == "100.0% (away)"
    assert str(shown(stopped="gone", rows=3)) == "stopped: gone"


async def test_dead_rows_do_not_count_and_it_goes_on_after_a_restart(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await create(there, "t", PLAIN)
        await write(there, "t", *[(i, i, i) for i in range(100)])
        await there.flush()
        await gone(there, "t", *[(i,) for i in range(50)])
        await there.flush()
        await follow(here, tmp_path / "up")
        await say(here, "create table t from other table 't' with (backfill_rate_limit = '40')")
        seen = []
        while not progress(here, "t").backfilled:
            await until(lambda: len(seen) < 2 or progress(here, "t").percent >= seen[-1])
            found = progress(here, "t")
            seen.append(found.percent)
            assert 0 <= found.percent <= 100
            assert found.rows <= 50
            await here.flush()
        assert seen == sorted(seen)
        assert progress(here, "t").rows == 50
        assert progress(here, "t").percent == 100
    async with engine_at(tmp_path / "down") as here:
        assert progress(here, "t").percent == 100
