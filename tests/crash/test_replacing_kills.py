"""Views that are replaced and swapped survive `kill -9` around the commit of the swap.

A life that is killed before the ledger has the swap leaves the old view; one that is killed after
it, the new one. Either way each view is its query at every epoch, and so is each that reads it.
"""

from pathlib import Path

import pytest
from replacing_child import NEW, OLD, OTHER, READERS, text_of

from engine_kit import CALM, lost_files
from headwater.runtime.engine import Engine
from headwater.testing.oracle import assert_same_rows
from headwater.testing.processes import ChildProcess
from views_engine_kit import rows_at
from views_kit import quick

__all__ = ["quick"]

CHILD = Path(__file__).resolve().parent / "replacing_child.py"
KILLED = -9
KILLS = (
    "swap.in_commit>epoch.before_ledger",
    "swap.in_commit>epoch.after_ledger",
    "swap.in_commit>publish.between_tables",
)
"""The first kills the replacement before it is there, the second after, the last the swap."""


def queries_at(engine, epoch):
    """What v and w were at an epoch, told by their rows alone."""
    rows = {name: rows_at(engine, f"select * from {name}", epoch) for name in ("v", "w")}
    for pair in ((OLD, OTHER), (NEW, OTHER), (OTHER, NEW)):
        try:
            for name, query in zip(rows, pair, strict=True):
                assert_same_rows(rows[name], rows_at(engine, query, epoch))
        except AssertionError:
            continue
        return pair
    raise AssertionError(f"epoch {epoch} shows a view that never was: {rows}")


async def checked(workspace, spark):
    async with Engine(workspace, spark=spark, settings=CALM) as engine:
        assert NEW in text_of(engine, "w")
        assert not engine.creating.running
        assert not engine.ledger.pins()
        id_ = engine.catalog.snapshot().table("v").id
        epochs = [entry.epoch for entry in engine.store[id_].log(0, engine.visible)][1:]
        found = []
        for epoch in [*epochs[:: max(1, len(epochs) // 5)], engine.visible]:
            found.append(queries_at(engine, epoch))
            for reader, text in READERS.items():
                assert_same_rows(
                    rows_at(engine, f"select * from {reader}", epoch), rows_at(engine, text, epoch)
                )
        # Once it is another, it stays that.
        order = [(OLD, OTHER), (NEW, OTHER), (OTHER, NEW)]
        places = [order.index(pair) for pair in found]
        assert places == sorted(places)
        assert places[-1] == 2
        assert not (lost := lost_files(engine)), lost


@pytest.mark.timeout(1500)
async def test_killed_around_the_swap(tmp_path, quick):
    for point in KILLS:
        with ChildProcess(CHILD, tmp_path / "w", crash=point, forked=True) as child:
            code = child.wait(timeout=300)
        assert code == KILLED, f"{point}: {code} {child.output[-500:]} {child.errors[-4000:]}"
    with ChildProcess(CHILD, tmp_path / "w", forked=True) as child:
        child.wait_for_line("^done", timeout=300)
        assert child.wait(timeout=120) == 0, child.errors[-4000:]
    await checked(tmp_path / "w", quick)
