"""Lend the rows of a table's files to the log of a new sink, instead of copying them.

A table at an epoch is a list of files that never change. Where the sink's key is the table's, the
rows of these files are what the sink is owed, vnodes included: its log needs to name them only.

    a lent segment is named    lent:EPOCH:PATH, a file of the table as that epoch sees it
    the epoch is kept by       a pin of the sink's own, from before its job reads anything until
                               the ledger has a text of the log without what was owed by then

Only whole files are lent: of a part nobody knows how many of its rows are alive. Design:
docs/design/0012-log-store.md.
"""

from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from headwater.ledger.ledger import Ledger
from headwater.logstore.items import Offset, Segment
from headwater.logstore.open_log import OpenLog
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.runtime.blocking import Blocking
from headwater.runtime.sinks.lent_rows import LentFiles, file_of
from headwater.runtime.sinks.owed import Owing
from headwater.state.manifest import LiveFile
from headwater.state.store import StateStore

_PIN = "sink_log/"


def lent_key(id_: int) -> str:
    """What the pin of a sink's lent rows is filed under."""
    return f"{_PIN}{id_}"


class TableLender:
    """Knows the files behind the lent segments of one sink's log."""

    def __init__(
        self, store: StateStore, table: TableId, columns: Callable[[], tuple[Column, ...]]
    ) -> None:
        """`columns` are the sink's, of which it may get more."""
        self._store = store
        self._table = table
        self._columns = columns

    def __call__(self, segment: Segment) -> pa.Table:
        """The rows of a segment, read here."""
        return self.files_of([segment])(segment)

    def files_of(self, segments: Iterable[Segment]) -> LentFiles:
        """What it takes to read some segments; those that are not lent are passed over."""
        table = self._store[self._table]
        found: dict[str, tuple[LiveFile, Owing]] = {}
        known: dict[Epoch, tuple[dict[str, LiveFile], Owing]] = {}
        for segment in segments:
            if segment.lent:
                epoch, path = file_of(segment)
                if epoch not in known:
                    view = table.view(epoch)
                    by_path = {live.file.path: live for live in view.files}
                    known[epoch] = by_path, self._owing(view.schema)
                files, owing = known[epoch]
                found[segment.name] = files[path], owing
        return LentFiles(table.reader, found)

    def _owing(self, schema: Schema) -> Owing:
        # What the table did not have then is null, as in rows that were logged then.
        columns = tuple(each for each in self._columns() if each.name in schema.names)
        return Owing(columns, schema, schema.key)


class Loans:
    """The pins of epochs whose rows are lent, by sink."""

    def __init__(self, ledger: Ledger, blocking: Blocking) -> None:
        self._ledger = ledger
        self._blocking = blocking
        self._kept: dict[int, Epoch | None] = {}
        """The epoch of its log up to which a sink may have lent rows; None until it is filled."""

    async def reopen(self, sinks: Collection[int]) -> None:
        """Know what earlier engines have lent. Replay: pins that nobody needs are let go."""
        for pin in await self._blocking(self._ledger.pins):
            if pin.startswith(_PIN):
                id_ = int(pin.removeprefix(_PIN))
                if id_ in sinks:
                    self._kept[id_] = None
                else:
                    await self._blocking(self._ledger.unpin, pin)

    async def keep(self, id_: int, epoch: Epoch) -> None:
        """Keep an epoch for a sink. Replay: the same pin again."""
        await self._blocking(self._ledger.pin, lent_key(id_), epoch)
        self._kept[id_] = None

    async def settle(self, id_: int, log: OpenLog, *, filling: bool) -> None:
        """Let an epoch go when the ledger's text of the log needs nothing of it any more.

        Replay: a pin that a crash leaves is let go by the next engine, in the same way.
        """
        if id_ not in self._kept or filling:
            return
        upto = self._kept[id_]
        if upto is None:
            # Whatever was lent is in the log by now.
            upto = self._kept[id_] = log.state.epoch
        if log.state.progress.floor() >= Offset(upto):
            await self.forget(id_)

    async def forget(self, id_: int) -> None:
        """Let a sink's epoch go. Replay: as `settle`."""
        if id_ in self._kept:
            await self._blocking(self._ledger.unpin, lent_key(id_))
            self._kept.pop(id_, None)
