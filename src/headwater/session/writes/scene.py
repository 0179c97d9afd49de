"""What the parts of one statement share: the session, what exists, the table, the values."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.catalog.snapshot import CatalogSnapshot
from headwater.session.context import Context
from headwater.session.writes.literals import Reading
from headwater.session.writes.target import Target, find_target
from headwater.sql.expression.problem import Text
from headwater.sql.statement import Delete, Insert, Update

DataChange = Insert | Update | Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One statement, at one moment of the catalog."""

    context: Context
    snapshot: CatalogSnapshot
    target: Target
    reading: Reading
    alias: str
    """The name that the statement's expressions know the table by."""


def set_scene(
    context: Context,
    snapshot: CatalogSnapshot,
    statement: DataChange,
    reading: Reading,
) -> Scene:
    """Find the table that a statement writes."""
    target = find_target(snapshot, statement.table, context.path)
    alias = getattr(statement, "alias", None) or statement.table.name
    return Scene(context=context, snapshot=snapshot, target=target, reading=reading, alias=alias)


def reading_of(
    context: Context,
    statement: DataChange,
    parameters: Sequence[str | None],
    text: str | None,
) -> Reading:
    """How the values of a statement are read; `text` is the whole text it came in."""
    if text is None:
        # Places count from the beginning of the whole text.
        text = " " * statement.place.start + statement.text
    zone = context.variables["timezone"]
    return Reading(parameters=tuple(parameters), zone=zone, text=Text(text))
