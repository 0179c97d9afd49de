"""Keys for the rows of tables that have none: a number of 63 bits, never used twice.

    21 bits   the engine's term
    42 bits   a number that this process counts up and never hands out again

A term belongs to one start of one engine: the ledger gives each a higher one and lets only the
newest commit. So no two rows that are ever committed have the same number, whatever crashed in
between. Rows that Spark tasks make are numbered when the driver knows how many there are: it
takes the whole range at once, and each row's place decides its number, also when a task runs
again.
"""

from threading import Lock

from headwater.catalog.relation import TableDef
from headwater.errors import BrokenInvariant
from headwater.model.ids import Term
from headwater.model.reserved import HIDDEN_PREFIX

ROW_ID = f"{HIDDEN_PREFIX}row_id"

_COUNTED_BITS = 42
_MOST_TERMS = 1 << 21
_lock = Lock()
_used = 0


def has_row_ids(table: TableDef) -> bool:
    """Whether the rows of a table get their key here."""
    return table.schema.key == (ROW_ID,)


def take(term: Term, count: int) -> int:
    """The first of `count` numbers that nobody else has."""
    global _used  # noqa: PLW0603  one counter for all engines of the process
    with _lock:
        first = _used
        _used += count
    if term >= _MOST_TERMS or _used >> _COUNTED_BITS:
        raise BrokenInvariant("the numbers for rows are used up")
    return (int(term) << _COUNTED_BITS) | first
