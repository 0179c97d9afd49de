"""What the planner needs to know of the relations that exist."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.sql.statement import ObjectName

DEFAULT_SCHEMA = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A stored relation (a table, a materialized view), or a view with its defining query.

    `query` is the text of a view's query; a view has no id and no key. Columns that a user must
    not see are not listed in `columns`, but may be named in `key`, with types in `hidden`.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    hidden: tuple[Column, ...] = ()
    id: TableId | None = None
    query: str | None = None
    within: "Relations | None" = None
    """What the names in `query` mean; None: the same as outside."""
    schema: str = DEFAULT_SCHEMA


class Relations(Protocol):
    """Finds relations by name."""

    def find(self, name: ObjectName) -> Relation | None:
        """The relation that a name means in this session, or None."""
        ...

    def names(self) -> Iterable[str]:
        """All names, for suggestions."""
        ...


class FixedRelations:
    """Relations that are known beforehand, in one or several schemas."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        self._found = {(each.schema, each.name): each for each in relations}

    def find(self, name: ObjectName) -> Relation | None:
        """By schema and name; without a schema in `public`."""
        return self._found.get((name.schema or DEFAULT_SCHEMA, name.name))

    def names(self) -> Iterable[str]:
        """All names."""
        return (name for _, name in self._found)


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or nothing."""
    close = difflib.get_close_matches(wrong, sorted(set(known)), 1)
    return f'Did you mean "{close[0]}"?' if close else ""
