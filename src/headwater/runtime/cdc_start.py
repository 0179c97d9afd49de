"""Make the running form of a table out of what it begins with."""

import asyncio
from dataclasses import replace

from headwater.backfill.cdc.executor import ParallelizedCdcBackfillExecutor, Surroundings
from headwater.backfill.cdc.keyless import KeylessBackfill
from headwater.backfill.cdc.keyless_executor import (
    HeldReader,
    KeylessCdcBackfillExecutor,
    stored_copies,
)
from headwater.backfill.cdc.table_backfill import TableBackfill
from headwater.cdc.offset import CdcOffset
from headwater.runtime.cdc_joining import Joined
from headwater.runtime.cdc_reader import RenewableReader
from headwater.runtime.cdc_running import RunningTable
from headwater.runtime.cdc_tables import CdcTable


def started(
    table: CdcTable, joined: Joined, offset: CdcOffset, around: Surroundings
) -> RunningTable:
    """Begin; the log is at `offset`."""
    reader = RenewableReader(joined.reader)
    around = replace(around, reader=reader)
    if isinstance(joined.reader, HeldReader):
        counted = _counted(table, joined, offset)
        executor: ParallelizedCdcBackfillExecutor = KeylessCdcBackfillExecutor(
            counted, around, joined.reader
        )
    else:
        table.store.filling = joined.state.snapshotting
        executor = ParallelizedCdcBackfillExecutor(_keyed(table, joined, offset), around)
    return RunningTable(table, joined.seen, executor, reader)


def _keyed(table: CdcTable, joined: Joined, offset: CdcOffset) -> TableBackfill:
    return TableBackfill(
        table.store.schema,
        joined.state,
        table.pace,
        offset=offset,
        lookup=lambda keys: table.store.lookup(keys, staged=True),
        at=asyncio.get_running_loop().time(),
        by_key=not table.snapshot,
    )


def _counted(table: CdcTable, joined: Joined, offset: CdcOffset) -> KeylessBackfill:
    return KeylessBackfill(
        table.store.schema,
        joined.state,
        joined.splits,
        table.pace,
        offset=offset,
        copies=stored_copies(lambda keys: table.store.lookup(keys, staged=True)),
        included=table.included.names,
        at=asyncio.get_running_loop().time(),
    )
