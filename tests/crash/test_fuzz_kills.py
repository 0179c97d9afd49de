"""kill -9 in the middle of a fuzzer's seed: afterwards every view still equals its query.

The process dies at a random moment: while it stages, commits, publishes, creates a view or starts
again. The workspace is then opened here, all views are checked as the crash left them, and again
after more writes, which go on from the states that the dead process has stored.
"""

import time
from pathlib import Path
from random import Random

import pytest

from headwater.testing.fuzz.checking import check_views, defined_views
from headwater.testing.fuzz.life import QUICK, Life
from headwater.testing.processes import ChildProcess

CHILD = Path(__file__).resolve().parent / "fuzz_child.py"
KILLED = -9


@pytest.fixture
def quick(spark):
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [0, 3, 5])
def test_killed_at_a_random_moment(seed, quick, tmp_path):
    random = Random(seed)
    with ChildProcess(CHILD, tmp_path, str(seed), forked=True) as child:
        # The second epoch is the first that views can have.
        child.wait_for_line("^(epoch|done)", timeout=480)
        child.wait_for_line("^(epoch|done)", timeout=480)
        time.sleep(random.random() * 3)
        if child.running:
            assert child.kill() == KILLED
    life = Life(tmp_path / "workspace", quick)
    try:
        views = defined_views(life.hw)
        assert views, "the seed was killed before it had a view"
        check_views(life.hw, views)
        for table in life.hw.engine.catalog.snapshot().tables:
            if table.writable:
                name, column = f'"{table.name}"', f'"{table.columns[0].name}"'
                life.hw.sql(f"INSERT INTO {name} SELECT * FROM {name} ORDER BY {column} LIMIT 3")
                if not table.append_only:
                    life.hw.sql(f"DELETE FROM {name} WHERE {column} > (SELECT 4)")
        life.hw.flush()
        check_views(life.hw, views)
    finally:
        life.stop()
