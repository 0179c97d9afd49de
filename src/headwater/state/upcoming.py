"""A table before and after some epochs, of which the ledger may not have the last yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.model.epoch import Epoch
from headwater.model.table_commit import TableCommit
from headwater.state.manifest import LogEntry, Manifest, TableView


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A table before and after some epochs, and what these change, oldest first."""

    before: TableView
    after: TableView
    entries: tuple[LogEntry, ...] = ()

    @property
    def changed_rows(self) -> int:
        """How many rows the changes have; one that changes twice counts twice."""
        return sum(entry.rows for entry in self.entries)


def upcoming(
    committed: Manifest,
    staged: Sequence[tuple[Epoch, TableCommit]],
    epoch: Epoch,
    since: Epoch | None = None,
) -> Upcoming:
    """The table at `epoch`, beside what it was at `since`, or at the last epoch committed."""
    before = committed.view() if since is None else committed.view_at(since)
    due = [(at, commit) for at, commit in staged if at <= epoch]
    if since is None and not due:
        return Upcoming(before, before)
    ahead = committed
    if due:
        ahead = committed.copy()
        for at, commit in due:
            ahead.apply(at, commit)
    if since is None:
        # The horizon may be later than the last epoch that changed this table.
        first = max(before.epoch, ahead.horizon)
        return Upcoming(before, ahead.view(), ahead.changes(first, epoch))
    return Upcoming(before, ahead.view_at(epoch), ahead.changes(since, epoch))
