"""Two engines, one of which follows tables of the other by SQL."""

import asyncio
from contextlib import asynccontextmanager

from engine_kit import FREQUENT
from headwater.model.epoch import NO_EPOCH
from headwater.runtime.blocking import Blocking
from headwater.runtime.engine import Engine
from headwater.runtime.upstream.job import PROGRESS, stored_states
from headwater.session.context import Context
from headwater.session.ddl_statements import drop
from headwater.session.show_statements import alter_setting, show
from headwater.session.source_statements import create_source, create_table_from
from headwater.sql import statement as st
from headwater.sql.parse import parse_one
from headwater.testing.oracle import assert_same_rows

SMALL = {
    "backfill_slice_bytes": 1024,
    "barrier_interval_ms": 30,
    "maintenance_interval_s": 3600.0,
    "retention_s": 3600,
}


def engine_at(folder, spark=None, **settings):
    """An engine of small steps."""
    return Engine(folder, spark=spark, settings={**FREQUENT, **SMALL, **settings})


async def until(condition, timeout=120.0):
    """Wait for something to become true."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def desk(engine):
    """A session of an engine."""
    blocking = Blocking(2)
    try:
        yield Context(engine=engine, blocking=blocking)
    finally:
        blocking.close()


async def say(engine, text):
    """Run one statement that defines, drops, alters or shows."""
    statement = parse_one(text)
    async with desk(engine) as context:
        match statement:
            case st.CreateSource():
                return await create_source(context, statement, await context.snapshot())
            case st.CreateTable():
                return await create_table_from(context, statement, "public", text)
            case st.Drop():
                return await drop(context, statement)
            case st.AlterSetting():
                return await alter_setting(context, statement)
            case st.Show():
                return await show(context, statement)
    raise AssertionError(f"not a statement of these tests: {statement}")


async def follow(engine, workspace, *tables, source="other", **options):
    """Follow some tables of another workspace."""
    said = "".join(f", {key} = '{value}'" for key, value in options.items())
    await say(
        engine,
        f"create source {source} with (connector = 'headwater', workspace = '{workspace}'{said})",
    )
    for table in tables:
        await say(engine, f"create table {table} from {source} table '{table}'")


def progress(engine, table):
    """How far a followed table is."""
    return engine.upstreams.progress(engine.catalog.snapshot().table(table).id)


def history(engine, table):
    """The upstream epochs that a filled table went through, by the epochs here that stored them."""
    id_ = engine.catalog.snapshot().table(table).id
    found = {}
    for record in engine.ledger.records(NO_EPOCH):
        states = stored_states(record.progress.get(f"{PROGRESS}{id_}"))
        if states and all(state.finished for state in states):
            (found[record.epoch],) = {state.epoch for state in states}
    return found


def position(engine, table):
    """The upstream epoch that the last of them is; None while the table is filled."""
    id_ = engine.catalog.snapshot().table(table).id
    states = stored_states(engine.committer.visible_progress.get(f"{PROGRESS}{id_}"))
    if not states or not all(state.finished for state in states):
        return None
    (epoch,) = {state.epoch for state in states}
    return epoch


def check_history(here, there, table):
    """At every epoch here the table has the rows that the upstream had, both ways."""
    seen = history(here, table)
    assert seen
    for mine, theirs in seen.items():
        rows = here.table(table).rows(mine)
        assert_same_rows(rows, there.table(table).rows(theirs).select(rows.column_names))
    return seen
