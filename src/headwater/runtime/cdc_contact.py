"""First contact with the database of a source, another way to it, and what is not needed there.

A position means something at one server only. Which one that is, is asked before anything is made
there, goes into the same epoch as the first position, and is expected from then on.
"""

from collections.abc import Awaitable, Callable, Iterable

from headwater.backfill.cdc.split_reader import SplitReader
from headwater.cdc.offset import CdcOffset, parse_offset
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError
from headwater.observe.events import EventKind
from headwater.runtime.cdc_running import RunningTable
from headwater.runtime.cdc_tables import CdcTables, CdcUpstream


async def first_contact(upstream: CdcUpstream, stored: str | None, known: str | None) -> CdcOffset:
    """Where to read on, at the server `known`; without a stored position, make what is needed.

    Replay: what was made before a crash is found and used.
    """
    identity = known or str(await upstream.readers(upstream.database.identity))
    upstream.database.expect(identity)
    upstream.identity = identity
    if stored:
        first = parse_offset(stored)
        upstream.freshness.applied(first)
    else:
        crash_point("cdc.before_slot")
        first = await upstream.prepare([], begun=False)
        crash_point("cdc.after_slot")
    upstream.prepared.set()
    return first


async def renewed(
    upstream: CdcUpstream,
    running: Iterable[RunningTable],
    reader: Callable[[RunningTable], Awaitable[SplitReader]],
) -> bool:
    """Whether the source was altered; its tables are then read by other connections."""
    if not upstream.renewed.is_set():
        return False
    upstream.renewed.clear()
    try:
        for each in list(running):
            each.renew(await reader(each))
    except HeadwaterError:
        upstream.renewed.set()
        raise
    return True


async def unpublish_dropped(
    upstream: CdcUpstream, tables: CdcTables, tell: Callable[[EventKind, str, str], None]
) -> None:
    """Have nothing upstream for tables that were dropped here; not to be able to is no harm."""
    gone = tables.take_gone()
    if not gone:
        return
    try:
        await upstream.readers(upstream.database.unpublish, gone, followed=tables.upstreams)
    except HeadwaterError as error:
        text = f"{', '.join(gone)} could not be taken out of the publication: {error}"
        tell(EventKind.SOURCE_UNAVAILABLE, upstream.name, text)
