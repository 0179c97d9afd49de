"""A table counts as filled once readers see it, not when its last rows are on their way."""

import asyncio
from types import SimpleNamespace

from headwater.backfill.cdc.state import BackfillState, encode
from headwater.model.ids import TableId
from headwater.runtime.cdc_sources import CdcSources
from headwater.runtime.cdc_tables import PROGRESS, STOPPED

FILLED = encode(BackfillState(backfill_finished=True, done_splits=1, done_rows=5))


def sources(**facts):
    committer = SimpleNamespace(progress=dict(facts), visible_progress={})
    return committer, CdcSources(
        SimpleNamespace(), committer, SimpleNamespace(), max_bytes=1, metrics=None, tell=None
    )


def test_what_only_the_ledger_has_is_not_shown_yet():
    committer, shown = sources(**{f"{PROGRESS}7": FILLED})
    assert not shown.progress(TableId(7)).backfilled
    committer.visible_progress.update(committer.progress)
    found = shown.progress(TableId(7))
    assert found.backfilled
    assert str(found) == "100.0%"


def test_wait_ends_with_what_is_seen_and_with_tables_that_stopped():
    committer, shown = sources()

    async def story():
        waiting = asyncio.ensure_future(shown.wait(lambda: [TableId(7), TableId(8)]))
        await asyncio.sleep(0.25)
        assert not waiting.done()
        committer.visible_progress[f"{PROGRESS}7"] = FILLED
        committer.visible_progress[f"{STOPPED}8"] = "dropped upstream"
        await asyncio.wait_for(waiting, 60)

    asyncio.run(story())
    assert str(shown.progress(TableId(8))) == "stopped: dropped upstream"
