"""A workspace that follows another: what SQL says, what is kept there, and what can go wrong."""

import asyncio
from dataclasses import replace

import pytest

from creating_kit import NAMED, PLAIN
from headwater.errors import ConfigError, HeadwaterError, LedgerUnavailable
from headwater.ledger.ledger import Ledger
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from upstream_kit import check_history, engine_at, follow, position, progress, say, until
from views_engine_kit import create, gone, write

FORGETS = {"retention_s": 0, "maintenance_interval_s": 0.05}


async def filled(there, rows=30):
    await create(there, "t", PLAIN)
    await create(there, "names", NAMED)
    await write(there, "t", *[(i, i % 3, i) for i in range(rows)])
    await there.flush()
    await gone(there, "t", (1,), (2,))
    await write(there, "names", *[(g, f"group {g}") for g in range(3)])
    await there.flush()


async def changed(there, *rows):
    await write(there, "t", *rows)
    return await there.flush()


async def reached(here, epoch, *names):
    await until(lambda: all((position(here, name) or 0) >= epoch for name in names))


def looked_at(here, name):
    """How far the upstream of a table was seen to be."""
    (job,) = here.upstreams.jobs.values()
    return job.followed(here.catalog.snapshot().table(name).id).stream.committed


async def jobs(here):
    """What SHOW JOBS says of how far they are."""
    answer = await say(here, "show jobs")
    batches = [batch.to_pylist() async for batch in answer.batches]
    return [list(row.values())[3] for batch in batches for row in batch]


async def test_tables_are_filled_and_followed_and_a_restart_goes_on(tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    async with engine_at(up) as there:
        await filled(there)
        async with engine_at(down) as here:
            await follow(here, up, "t", "names")
            await reached(here, await changed(there, (3, 9, 9), (100, 1, 1)), "t", "names")
            check_history(here, there, "t")
            # What is still needed is kept there, and nothing that the ledger here lacks is not.
            pins = there.ledger.pins()
            assert len(pins) == 2
            assert all(str(down) in name for name in pins)
            assert max(pins.values()) <= position(here, "t")
            before = progress(here, "t").rows
        last = await changed(there, (4, 4, 44), (5, 5, 55))
        await gone(there, "t", (4,))
        last = await there.flush()
        async with engine_at(down) as here:
            await reached(here, last, "t", "names")
            check_history(here, there, "t")
            assert 0 < progress(here, "t").rows - before < 10, "rows were read again"


async def test_whatever_is_dropped_leaves_nothing_upstream_and_its_name_free(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, tmp_path / "up", "t", "names")
        await until(lambda: progress(here, "t").backfilled)
        await say(here, "drop table t")
        assert len(there.ledger.pins()) == 1
        await say(here, "create table t from other table 'public.t'")
        await reached(here, await changed(there, (3, 9, 9)), "t", "names")
        check_history(here, there, "t")
        await say(here, "drop source other cascade")
        assert not there.ledger.pins()
        assert not here.catalog.snapshot().tables
        assert not [name for name, value in here.committer.progress.items() if value]
        await follow(here, tmp_path / "up", "t")
        await until(lambda: progress(here, "t").backfilled)


async def test_lost_history_stops_one_table_and_says_so(tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    async with engine_at(up, retention_s=0) as there:
        await filled(there)
        async with engine_at(down) as here:
            await follow(here, up, "t", "names", pin="false")
            await until(
                lambda: progress(here, "t").backfilled and progress(here, "names").backfilled
            )
            assert not there.ledger.pins()
            await say(here, "alter table t set backfill_rate_limit = 0")
            for value in range(3):
                last = await changed(there, (3, 9, value))
            await until(lambda: looked_at(here, "names") >= last)
            await there.maintain()
            await changed(there, (3, 9, 9))
            await until(lambda: progress(here, "t").stopped)
            assert "no longer kept" in progress(here, "t").stopped
            (shown,) = await jobs(here)
            assert shown.startswith("stopped: the changes after")
            # Nobody else stops: epochs go on, and so does the other table.
            await write(there, "names", (7, "seven"))
            await reached(here, await there.flush(), "names")
            assert here.failure is None
        async with engine_at(down) as here:
            assert progress(here, "t").stopped
            await write(there, "names", (8, "eight"))
            await reached(here, await there.flush(), "names")


async def test_a_pin_keeps_what_a_slow_follower_needs(tmp_path):
    up = tmp_path / "up"
    async with engine_at(up, **FORGETS) as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, up, "t")
        await until(lambda: progress(here, "t").backfilled)
        await say(here, "alter table t set backfill_rate_limit = 0")
        for value in range(6):
            last = await changed(there, (3, 9, value), (200 + value, 1, 1))
        await asyncio.sleep(0.3)
        await say(here, "alter table t set backfill_rate_limit = default")
        await reached(here, last, "t")
        assert not progress(here, "t").stopped
        rows = here.table("t").rows(here.visible).sort_by("id")
        assert rows.select(["id", "g", "v"]) == there.table("t").rows().sort_by("id").select(
            ["id", "g", "v"]
        )


async def test_a_ledger_that_cannot_be_written_is_followed_without_a_pin(tmp_path, monkeypatch):
    def refuse(self, name, epoch):
        raise LedgerUnavailable("attempt to write a readonly database")

    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        monkeypatch.setattr(Ledger, "pin", refuse)
        await follow(here, tmp_path / "up", "t")
        await reached(here, await changed(there, (3, 9, 9)), "t")
        assert "not held upstream: attempt to write" in progress(here, "t").trouble


async def test_an_upstream_that_is_away_is_waited_for(tmp_path):
    up, away = tmp_path / "up", tmp_path / "away"
    async with engine_at(up) as there:
        await filled(there)
    up.rename(away)
    async with engine_at(tmp_path / "down") as here:
        with pytest.raises(ConfigError, match="there is no workspace"):
            await follow(here, up, "t")
        away.rename(up)
        await follow(here, up, "t")
        await until(lambda: progress(here, "t").backfilled)
    up.rename(away)
    async with engine_at(tmp_path / "down") as here:
        await until(lambda: "cannot be read now" in progress(here, "t").trouble)
        await here.flush()
        away.rename(up)
        async with engine_at(up) as there:
            await reached(here, await changed(there, (3, 9, 9)), "t")
            assert not progress(here, "t").trouble
            check_history(here, there, "t")


async def test_a_rate_limit_holds_in_both_phases_and_over_a_restart(tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    async with engine_at(up) as there:
        await filled(there)
        async with engine_at(down) as here:
            await follow(here, up)
            await say(here, "create table t from other table 't' with (backfill_rate_limit = '0')")
            for _ in range(3):
                await here.flush()
            assert not progress(here, "t").rows
        async with engine_at(down) as here:
            for _ in range(3):
                await here.flush()
            assert not progress(here, "t").rows
            await say(here, "alter table t set backfill_rate_limit = 20")
            await until(lambda: progress(here, "t").rows)
            assert not progress(here, "t").backfilled
            assert 0 < progress(here, "t").percent < 100
            await say(here, "alter table t set backfill_rate_limit = default")
            await reached(here, await changed(there, (3, 9, 9)), "t")
            check_history(here, there, "t")


async def altered(there, schema):
    table = there.catalog.snapshot().table("t")
    await there.ddl.alter_table(table, lambda now, _: replace(now, schema=schema))


async def test_columns_that_come_are_not_followed_and_one_that_goes_stops_the_table(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, tmp_path / "up", "t", "names")
        await until(lambda: progress(here, "t").backfilled)
        await altered(there, Schema((*PLAIN.columns, Column("more", BIGINT)), PLAIN.key))
        await reached(here, await changed(there, (3, 9, 9, 9)), "t")
        check_history(here, there, "t")
        await altered(there, Schema(PLAIN.columns[:2], PLAIN.key))
        await changed(there, (3, 9))
        await until(lambda: progress(here, "t").stopped)
        assert progress(here, "t").stopped == '"t" has no column "v" any more'
        await write(there, "names", (7, "seven"))
        await reached(here, await there.flush(), "names")


async def test_a_table_that_is_dropped_and_made_again_is_another_one(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, tmp_path / "up", "t", "names")
        await until(lambda: progress(here, "t").backfilled and progress(here, "names").backfilled)
        await there.ddl.drop([there.catalog.snapshot().table("t")])
        await create(there, "t", PLAIN)
        await changed(there, (3, 9, 9))
        await until(lambda: progress(here, "t").stopped)
        assert "does not exist" in progress(here, "t").stopped


async def test_a_table_that_is_renamed_is_followed_on(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, tmp_path / "up", "t")
        await until(lambda: progress(here, "t").backfilled)
        table = there.catalog.snapshot().table("t")
        await there.ddl.alter_table(table, lambda now, _: replace(now, name="u"))
        await write(there, "u", (3, 9, 9))
        await reached(here, await there.flush(), "t")
        assert not progress(here, "t").stopped


MISTAKES = [
    ("create source o with (connector = 'headwater')", "option workspace is missing"),
    ("create source o with (connector = 'headwater', workspace = '/none')", "no workspace"),
    (
        "create source o with (connector = 'headwater', workspace = '{up}', slot = 'x')",
        'no option "slot"',
    ),
    (
        "create source o with (connector = 'headwater', workspace = '{up}', pin = 'x')",
        'pin cannot be "x"',
    ),
    ("create source o with (connector = 'headwater', workspace = '{down}')", "follow itself"),
    ("create table x from other table 'nothing'", '"nothing"'),
    ("create table x (id bigint, q int) from other table 't'", 'no column "q"'),
    ("create table x (id int) from other table 't'", "is bigint upstream"),
    ("create table x (g bigint) from other table 't'", "column id"),
    ("create table x from other table 't' with (snapshot = 'no')", 'no option "snapshot"'),
    (
        "create table x from other table 't' with (backfill_rate_limit = 'q')",
        'backfill_rate_limit cannot be "q"',
    ),
]


async def test_bad_input_says_what_is_wrong(tmp_path):
    async with engine_at(tmp_path / "up") as there, engine_at(tmp_path / "down") as here:
        await filled(there)
        await follow(here, tmp_path / "up")
        for text, words in MISTAKES:
            with pytest.raises(HeadwaterError) as caught:
                await say(here, text.format(up=tmp_path / "up", down=tmp_path / "down"))
            assert words in str(caught.value), text
        assert [source.name for source in here.catalog.snapshot().sources] == ["other"]
        assert not here.catalog.snapshot().tables
        await say(here, "create table x (id bigint, v bigint) from other table 't'")
        await until(lambda: progress(here, "x").backfilled)
        assert here.table("x").schema.names == ("id", "v")
