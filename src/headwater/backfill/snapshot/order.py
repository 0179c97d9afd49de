"""`backfill_order = FIXED(a -> b, b -> c)`: which tables a new view reads before others. Pure.

Each arrow says that the table before it is read whole before the first row of the one after it.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from headwater.errors import UserError
from headwater.model.ids import TableId

Order = tuple[tuple[TableId, TableId], ...]

_FIXED = re.compile(r"\s*fixed\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_INVALID = "22023"


def parse_order(text: str, tables: Mapping[str, TableId]) -> Order:
    """The pairs that a user wrote; `tables` are those of the query, by the names it uses."""
    if text.strip().lower() in ("default", "none", "auto"):
        return ()
    found = _FIXED.fullmatch(text)
    if found is None:
        raise _error(
            f'backfill_order cannot be "{text}"', hint="Write FIXED(a -> b, ...), or DEFAULT."
        )
    pairs: list[tuple[TableId, TableId]] = []
    for written in filter(None, (each.strip() for each in found[1].split(","))):
        names = [name.strip().strip('"') for name in written.split("->")]
        if len(names) < 2 or not all(names):
            raise _error(f'backfill_order has "{written}"', hint="Write table -> table.")
        ids = [_table(name, tables) for name in names]
        pairs += itertools.pairwise(ids)
    order = tuple(dict.fromkeys(pairs))
    in_order(sorted(set(tables.values())), order)
    return order


def in_order(tables: Sequence[TableId], order: Order) -> list[TableId]:
    """The tables, each after all that come before it, otherwise as they were."""
    sorter = TopologicalSorter[TableId](dict.fromkeys(tables, ()))
    for before, after in order:
        sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        raise _error(
            "Backfill order strategy has a cycle",
            detail=" -> ".join(str(table) for table in reversed(error.args[1])),
        ) from None
    found: list[TableId] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=tables.index)
        found += ready
        sorter.done(*ready)
    return found


def encoded(order: Order) -> str:
    """What the catalog keeps."""
    return ",".join(f"{before}>{after}" for before, after in order)


def decoded(text: str) -> Order:
    """The same, back."""
    pairs: Iterable[list[str]] = (each.split(">") for each in text.split(",") if each)
    return tuple((TableId(int(before)), TableId(int(after))) for before, after in pairs)


def _table(name: str, tables: Mapping[str, TableId]) -> TableId:
    plain = {key.rsplit(".", 1)[-1]: table for key, table in tables.items()}
    table = tables.get(name, plain.get(name))
    if table is None:
        raise _error(
            f"Table or source '{name}' specified in backfill_order is not used in the query",
            hint=f"The query reads {', '.join(sorted(tables))}." if tables else "",
        )
    return table


def _error(message: str, *, detail: str = "", hint: str = "") -> UserError:
    error = UserError(message, detail=detail, hint=hint)
    error.sqlstate = _INVALID
    return error
