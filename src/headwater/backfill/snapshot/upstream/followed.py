"""One table that is followed: what it is made of, what is under way, and what is wrong with it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headwater.backfill.snapshot.mark import mark_chunk
from headwater.backfill.snapshot.slices import Group
from headwater.backfill.snapshot.state import BackfillState, unread
from headwater.backfill.snapshot.target import Prepared
from headwater.backfill.snapshot.upstream.stream import (
    Instruction,
    ReadChanges,
    ReadSnapshot,
    UpstreamStream,
)
from headwater.backfill.snapshot.upstream.table import LoggedEpoch, UpstreamTable
from headwater.backfill.snapshot.vnode_stream import owned
from headwater.crash_points import crash_point
from headwater.errors import CommitUnknown, HistoryGone, RetryableError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.table_commit import TableCommit
from headwater.model.vnode import VnodeBitmap

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0


class LocalTable(Protocol):
    """The table here that is kept in step. Its methods block; `insert` may overlap with itself."""

    @property
    def exists(self) -> bool:
        """Whether the ledger has it."""
        ...

    def insert(self, rows: Any, epoch: Epoch) -> Prepared:
        """Write rows whose keys are all new. Replay: writes files under new names."""
        ...

    def apply(self, changes: Any, epoch: Epoch) -> Prepared:
        """Write changes; nothing that was prepared before may be without its epoch.

        Replay: as of `insert`.
        """
        ...

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> TableCommit | None:
        """Let an epoch have what is prepared. Replay: an epoch that is staged again is whole."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A table here, the one that it follows, and what is stored of how far it is."""

    id: TableId
    upstream: UpstreamTable
    local: LocalTable
    stored: Callable[[], Sequence[BackfillState]]
    """What the ledger has, of all vnodes; nothing before the first rows."""
    limit: Callable[[], int | None] = lambda: None
    """Rows a second that a user allows."""
    pins: bool = True
    """Whether the upstream is asked to keep what is needed."""
    stopped: str = ""
    """Why it is not followed any more, if the ledger says so."""


@dataclass(slots=True, eq=False)
class Begun:
    """A read that is under way, or waits for its epoch."""

    doing: Instruction
    work: "asyncio.Future[Prepared | None]"
    ready: bool = False


@dataclass(slots=True, eq=False)
class Followed:
    """One table while it is followed."""

    following: Following
    stopped: str = ""
    stream: UpstreamStream | None = None
    """None until the upstream has been reached."""
    pinned: Epoch | None = None
    begun: list[Begun] = field(default_factory=list)
    looking: "asyncio.Future[None] | None" = None
    """A look at the upstream that is under way, the first one included."""
    pinning: "asyncio.Future[None] | None" = None
    look_at: float = 0.0
    """When to look again."""
    pin_at: float = 0.0
    troubles: dict[str, str] = field(default_factory=dict)
    """What goes wrong, by what was tried."""
    _failures: int = 0

    @property
    def trouble(self) -> str:
        """What is wrong, in a line; nothing when nothing is."""
        return self.stopped or next(iter(self.troubles.values()), "")

    @property
    def stalled(self) -> bool:
        """Whether it waits for an upstream that does not answer."""
        return any(what != "pin" for what in self.troubles)

    @property
    def ready(self) -> bool:
        """Whether everything that was begun waits for its epoch."""
        return bool(self.begun) and all(each.ready for each in self.begun)

    @property
    def waits(self) -> "Iterable[asyncio.Future[Any]]":
        """Work that is under way."""
        yield from (each.work for each in self.begun if not each.ready)
        yield from (each for each in (self.looking, self.pinning) if each is not None)

    @property
    def missed(self) -> bool:
        """Whether it is filled, and not reached yet: the others do not go on without it."""
        if self.stream is not None or self.stopped:
            return False
        stored = self.following.stored()
        return bool(stored) and all(state.finished for state in stored)

    def backoff(self, now: float) -> None:
        """Look again after a wait that grows."""
        self.look_at = now + min(_FIRST_WAIT_S * 2**self._failures, _LONGEST_WAIT_S)
        self._failures += 1

    def looked(self) -> None:
        """The upstream has answered."""
        self._failures = 0
        self.troubles.pop("look", None)

    def give_up(self, doing: Sequence[Instruction]) -> None:
        """Let some of what was begun end unheard; the files that it writes have no epoch."""
        for each in [each for each in self.begun if each.doing in doing]:
            _end_unheard(each.work)
            self.begun.remove(each)

    def abandon(self) -> None:
        """The same with all that is under way."""
        for work in self.waits:
            _end_unheard(work)
        self.begun.clear()
        self.looking = self.pinning = None


def _end_unheard(work: "asyncio.Future[Any]") -> None:
    work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


# What runs in threads


@dataclass(frozen=True, slots=True)
class Opened:
    """Where reading goes on, or begins."""

    states: Sequence[BackfillState]
    groups: dict[Epoch, Sequence[Group]]
    committed: Epoch
    log: Sequence[LoggedEpoch]
    pinned: Epoch | None
    unpinned: str = ""
    """Why the upstream does not keep what is needed, if it does not."""


def open_upstream(table: Following, stored: Sequence[BackfillState]) -> Opened:
    """Go on from what is stored, or begin at the upstream's last epoch; it is pinned first.

    Raises `HistoryGone` when what is stored cannot be gone on with. Replay: repeatable.
    """
    upstream = table.upstream
    upstream.refresh()
    known = VnodeBitmap.empty()
    for state in stored:
        known |= state.vnodes
    lacks = VnodeBitmap.full() - known
    epoch = min([*(state.epoch for state in stored), *([upstream.committed] if lacks else [])])
    pinned, unpinned = None, ""
    if table.pins:
        try:
            upstream.pin(epoch)
            pinned = epoch
        except (HistoryGone, RetryableError, CommitUnknown) as error:
            # What is needed may be there all the same, and is looked for below.
            unpinned = str(error)
    crash_point("upstream.after_pin")
    open_at = {state.epoch for state in stored if not state.finished}
    groups = {each: upstream.groups(each) for each in sorted(open_at)}
    if lacks:
        begin = upstream.committed
        groups[begin] = upstream.groups(begin)
        begun = unread([(each.first, each.last) for each in groups[begin]], begin).states
        stored = sorted([*stored, *owned(begun, lacks)], key=lambda state: state.first)
    log = upstream.log(epoch)
    return Opened(stored, groups, upstream.committed, log, pinned, unpinned)


def look_at(upstream: UpstreamTable, after: Epoch) -> tuple[Epoch, Sequence[LoggedEpoch]]:
    """What the upstream has come to, and what it changed after an epoch."""
    upstream.refresh()
    return upstream.committed, upstream.log(after)


def read_snapshot(table: Following, read: ReadSnapshot, epoch: Epoch) -> Prepared:
    """Write the rows of slices to files. Replay: under new names."""
    found = table.local.insert(table.upstream.snapshot(read.epoch, read.slices), epoch)
    crash_point("upstream.after_slice")
    return found


def read_changes(
    table: Following, read: ReadChanges, states: Sequence[BackfillState], epoch: Epoch
) -> Prepared:
    """Write the changes of a stretch that are still needed to files. Replay: under new names."""
    changes = mark_chunk(table.upstream.changes(read.after, read.upto), states)
    found = table.local.apply(changes, epoch)
    crash_point("upstream.after_slice")
    return found
