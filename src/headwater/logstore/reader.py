"""Reads a log, item by item, from wherever the rows are.

    what follows the reader's place        items come from
    is in memory                           the buffer
    is not: history, or too far behind     the log's index: the text's epochs, or an index file
    is yet to come                         nowhere: it sleeps until the ledger has more

Items are the same wherever they come from, chunks with the same numbers among them, so truncating
and rewinding are exact to the chunk also far back in history. Only how many barriers without rows
stand in a row may differ: from the index comes the last of them.

Several readers may share a log, each with vnodes of its own. After the barrier at which vnodes
change hands a reader waits for those that it gains, until their former reader has delivered
everything before; so each row goes to one reader, and the rows of a vnode go in their order.
After a restart vnodes may be shared in any way: each is read from where it was.

Promises
    Cancellable   `next_item` may be cancelled at any await and called again: nothing is lost,
                  nothing comes twice. What was being read goes on being read.
    Monotone      `truncate` never goes back, and never beyond what was handed out.
    Quiet         Waiting is waiting; nothing polls.
"""

from dataclasses import replace

import pyarrow as pa

from headwater.errors import BrokenInvariant, DamagedState, HistoryGone
from headwater.logstore.backoff import RewindBackoff
from headwater.logstore.buffer import Behind
from headwater.logstore.items import LogBarrier, LogChunk, LogItem, Offset
from headwater.logstore.open_log import OpenLog, Resharding
from headwater.logstore.progress import LogStoreVnodeProgress
from headwater.logstore.serde import only_vnodes, read_segment
from headwater.logstore.state import IndexFile, entry_after
from headwater.model.epoch import Epoch
from headwater.model.vnode import VnodeBitmap


class KvLogStoreReader:
    """The reading end of a log, for some of its vnodes. Satisfies `LogReader`."""

    def __init__(  # noqa: PLR0913  who reads what, from where, and how patiently
        self,
        log: OpenLog,
        *,
        vnodes: VnodeBitmap,
        number: int = 0,
        since: Epoch | None = None,
        backoff: RewindBackoff | None = None,
        allow_rewind: bool = True,
    ) -> None:
        """`number` is its place where vnodes change hands; `since` is when it came into being."""
        self._log = log
        self._number = number
        self._vnodes = vnodes
        self._backoff = backoff or RewindBackoff()
        self._allow_rewind = allow_rewind
        self._delivered: LogStoreVnodeProgress | None = None
        self._truncated = Offset(since) if since is not None else log.progress.floor(vnodes)
        self._gained = [] if since is None else [(Offset(since), vnodes)]
        """Vnodes that it has from a place on, and may still be another's."""
        self._at: Offset | None = None
        self._failures = 0
        self._rewound_at: Offset | None = None

    @property
    def truncated(self) -> Offset:
        """Everything of this reader's up to here is delivered."""
        return self._truncated

    @property
    def vnodes(self) -> VnodeBitmap:
        """What it reads next."""
        return self._vnodes_at(self._at or self._truncated, ahead=True)

    async def init(self) -> None:
        """Open the log: what of its vnodes is delivered already is not read again."""
        if self._delivered is not None:
            raise BrokenInvariant("a log's reader is opened twice")
        # Vnodes that it takes over later are delivered up to there, so this stays true.
        self._delivered = self._log.progress

    async def start_from(self, epoch: Epoch | None = None) -> None:
        """Read on after the last truncation, or after a given epoch."""
        if self._delivered is None:
            raise BrokenInvariant("a log is read before `init`")
        if epoch is None:
            self._at = self._truncated
            return
        if Offset(epoch) < self._truncated:
            raise HistoryGone(
                f"a sink's log no longer has what follows epoch {epoch}",
                detail=f"It is delivered and truncated up to epoch {self._truncated.epoch}.",
                hint="Begin at a later epoch, or create the sink again with a snapshot.",
            )
        if epoch > self._log.state.epoch:
            raise BrokenInvariant(f"a log that ends at {self._log.state.epoch} has no {epoch}")
        self._at = Offset(epoch)

    async def next_item(self) -> LogItem:
        """Wait for the next item. A call that is cancelled anywhere loses nothing."""
        while True:
            at = self._place()
            if self._log.paused or self._awaits_vnodes(at):
                await self._log.buffer.news()
                continue
            item = self._log.buffer.after(at)
            if isinstance(item, Behind):
                item = await self._stored_after(at)
                if item is None or self._log.paused:
                    continue
            elif item is None:
                await self._log.buffer.news()
                continue
            item = self._earlier_change(at, Offset.after(item)) or item
            self._at = Offset.after(item)
            if (mine := self._as_mine(item)) is not None:
                return mine

    async def load(self, chunk: LogChunk) -> pa.Table:
        """The rows of a chunk, `OP`, `VNODE` and columns, by vnode, then seq_id."""
        if chunk.rows is not None:
            return chunk.rows
        if chunk.stored is None:
            raise BrokenInvariant(f"chunk {chunk.chunk_id} of epoch {chunk.epoch} is nowhere")
        return await self._log.blocking(
            read_segment,
            self._log.storage,
            chunk.stored,
            self._wanted(Offset.after(chunk)),
            vnode_of=self._log.vnode_of,
            lender=self._log.lender,
        )

    def truncate(self, offset: Offset) -> None:
        """Everything up to here is delivered. The same place again changes nothing."""
        at = self._place()
        if offset > at:
            raise BrokenInvariant(
                "a log cannot be truncated beyond what was read of it",
                story=[f"read up to {at}, truncated to {offset}"],
            )
        if offset < self._truncated:
            raise BrokenInvariant(
                "a log's truncation cannot go back",
                story=[f"from {self._truncated} to {offset}"],
            )
        for change in self._changes(self._truncated, offset):
            place, vnodes = Offset(change.epoch), change.of(self._number)
            self._log.truncate(self._vnodes, place)
            self._gained.append((place, vnodes - self._vnodes))
            self._truncated, self._vnodes = place, vnodes
        if offset > self._truncated:
            self._truncated = offset
            self._log.truncate(self._vnodes, offset)

    async def rewind(self) -> None:
        """Something went wrong: wait as the backoff says; `start_from` must follow."""
        if not self._allow_rewind:
            raise BrokenInvariant("this log cannot be rewound")
        self._at = None
        progressed = self._rewound_at is not None and self._truncated > self._rewound_at
        self._failures = 0 if progressed or self._rewound_at is None else self._failures + 1
        self._rewound_at = self._truncated
        await self._backoff.wait(self._failures)

    def _place(self) -> Offset:
        if self._at is None:
            raise BrokenInvariant("a log's reader must be told where to start from")
        return self._at

    async def _stored_after(self, at: Offset) -> LogItem | None:
        """The item behind a place, by the log's index; None when it has just come to memory."""
        state = self._log.state
        found = state.locate(at)
        if isinstance(found, IndexFile):
            try:
                entries = await self._log.index(found)
            except FileNotFoundError as error:
                if found not in self._log.state.indexes:
                    # Another file has its epochs since, and it was collected.
                    return None
                raise DamagedState(f"a list of a sink's log is missing: {found.name}") from error
            found = entry_after(entries, at)
        if found is not None:
            return found.item_after(at)
        if state.progress.floor() < Offset(state.epoch):
            raise BrokenInvariant(
                "a log's items are in no place", story=[f"after {at}, in a log up to {state.epoch}"]
            )
        # Everything is delivered by those who have vnodes; this reader has had none.
        end = Offset(state.epoch)
        if (change := self._earlier_change(at, end)) is None:
            self._at = max(at, end)
        return change

    def _earlier_change(self, at: Offset, place: Offset) -> LogBarrier | None:
        """A barrier between two places that gives vnodes, where the log itself has forgotten it.

        It stands for many without rows by then, or all vnodes have it behind them.
        """
        for change in self._changes(at, place):
            if Offset(change.epoch) < place:
                return LogBarrier(epoch=change.epoch, checkpoint=True)
        return None

    def _as_mine(self, item: LogItem) -> LogItem | None:
        """An item as this reader is to see it; None when nothing of it is its own."""
        if isinstance(item, LogBarrier):
            for change in self._log.reshardings:
                if change.epoch == item.epoch:
                    return replace(item, vnodes=change.of(self._number))
            return item
        wanted = self._wanted(Offset.after(item))
        has = item.stored.vnodes if item.stored is not None else VnodeBitmap.full()
        if not has & wanted:
            return None
        if has - wanted and item.rows is not None:
            return replace(item, rows=only_vnodes(item.rows, wanted))
        return item

    def _wanted(self, place: Offset) -> VnodeBitmap:
        """The vnodes of which this reader has to deliver the item at a place."""
        assert self._delivered is not None
        return self._vnodes_at(place) - self._delivered.beyond(place)

    def _vnodes_at(self, place: Offset, *, ahead: bool = False) -> VnodeBitmap:
        """The reader's vnodes for the item at a place, or for the one after it."""
        vnodes = self._vnodes
        for change in self._changes(self._truncated, place):
            if ahead or Offset(change.epoch) < place:
                vnodes = change.of(self._number)
        return vnodes

    def _changes(self, after: Offset, upto: Offset) -> list[Resharding]:
        changes = self._log.reshardings
        return [change for change in changes if after < Offset(change.epoch) <= upto]

    def _awaits_vnodes(self, at: Offset) -> bool:
        """Whether vnodes that it has from here on are still read by another reader."""
        progress = self._log.progress
        self._gained = [g for g in self._gained if g[1] and progress.floor(g[1]) < g[0]]
        if self._gained:
            return True
        vnodes = self._vnodes
        for change in self._changes(self._truncated, at):
            gained = change.of(self._number) - vnodes
            if gained and progress.floor(gained) < Offset(change.epoch):
                return True
            vnodes = change.of(self._number)
        return False
