"""Up to which place of the log a snapshot holds everything, and what runs.

A transaction writes its commit record first and is seen by others a moment later; with
synchronous replication, much later. So the end of the log when a snapshot is taken proves
nothing. What proves something is a mark: an end of the log, and after it the next transaction id
that the server would give out. Whatever committed before that end has a smaller id. A later
snapshot holds everything before the mark if none of the smaller ids still runs in it.

A snapshot's own list is not all that runs. Its xmax is one more than the newest id that has
*ended*: ids from there on that were given out are running, and in no list. A lone open
transaction shows as `750:750:`, with nothing listed.

Sessions that idle inside a transaction have no commit record; where the server lets us see them,
they do not count against a mark.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.seen import PostgresSeen, widened

MARK = "SELECT pg_current_wal_insert_lsn()::text, age('3'::xid)"
"""An end of the log, and then the distance of the next transaction id from the first one."""
SNAPSHOT = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
IDLE = """
    SELECT backend_xid::text::bigint FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND backend_xid IS NOT NULL"""

_FIRST_ID = 3
_MOST_SUSPECTS = 10_000
_MOST_MARKS = 16
NOTHING_KNOWN = PostgresOffset(0)


@dataclass(frozen=True, slots=True)
class Mark:
    """Whatever committed before `end` has an id below `next_id` (its lower 32 bits)."""

    end: PostgresOffset
    next_id: int

    @staticmethod
    def of(end: str, age: int) -> "Mark":
        """From the answer to `MARK`."""
        return Mark(PostgresOffset.of(end), (_FIRST_ID + age) % (1 << 32))

    def suspects(self, seen: PostgresSeen) -> list[int] | None:
        """Ids below the mark that run in a snapshot; None if they are too many to name."""
        next_id = _wide(self.next_id, seen)
        if next_id - seen.xmax > _MOST_SUSPECTS:
            return None
        listed = [each for each in seen.running if each < next_id]
        return listed + list(range(seen.xmax, next_id))


@dataclass(frozen=True, slots=True)
class Marks:
    """The latest marks, oldest first."""

    kept: tuple[Mark, ...] = ()

    def with_mark(self, mark: Mark) -> "Marks":
        """These and a newer one; the oldest is kept, it is what a long transaction lets pass."""
        kept = (*self.kept, mark)
        return Marks(kept if len(kept) <= _MOST_MARKS else (kept[0], *kept[-_MOST_MARKS + 1 :]))

    def low(self, seen: PostgresSeen, idle: Iterable[int] = ()) -> PostgresOffset:
        """The furthest mark before which a snapshot holds everything.

        `idle` are 32-bit ids of transactions that idled after the marks were made.
        """
        known = {_wide(each, seen) for each in idle}
        for mark in reversed(self.kept):
            suspects = mark.suspects(seen)
            if suspects is not None and known.issuperset(suspects):
                return mark.end
        return NOTHING_KNOWN


def all_running(seen: PostgresSeen, age: int) -> tuple[int, ...]:
    """Every transaction that ran when a snapshot was taken; `age` was asked after it."""
    mark = Mark(NOTHING_KNOWN, (_FIRST_ID + age) % (1 << 32))
    # Nothing below xmax is added by the range, and everything that is listed is below it.
    return (*seen.running, *range(seen.xmax, _wide(mark.next_id, seen)))


def _wide(short: int, seen: PostgresSeen) -> int:
    return int(widened([short], seen.xmax)[0])
