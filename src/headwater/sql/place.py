"""Places in the user's text, and errors that show them.

A place is an offset into the whole text, from 0. Errors carry PostgreSQL's position (characters,
from 1) and a detail with the line and a caret under the place.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from headwater.errors import ParseError

_WIDEST = 120

Problem = TypeVar("Problem", bound=ParseError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement stands: offsets into the text, and the line from 1."""

    start: int
    end: int
    line: int


def error_at(  # noqa: PLR0913
    kind: type[Problem],
    message: str,
    text: str,
    offset: int | None,
    *,
    hint: str = "",
    sqlstate: str = "",
) -> Problem:
    """An error of that kind whose detail shows the line and a caret."""
    if offset is None:
        return kind(message, hint=hint, sqlstate=sqlstate)
    return kind(
        message,
        detail=caret(text, offset),
        hint=hint,
        position=offset + 1,
        sqlstate=sqlstate,
    )


def caret(text: str, offset: int) -> str:
    """The line of that offset, cut to a readable width, with a caret below."""
    offset = min(max(offset, 0), len(text))
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : end if end >= 0 else len(text)]
    column = offset - start
    first = max(0, column - _WIDEST // 2)
    shown = line[first : first + _WIDEST].replace("\t", " ")
    number = text.count("\n", 0, offset) + 1
    left = f"LINE {number}: " + ("..." if first else "")
    return f"{left}{shown}\n{' ' * (len(left) + column - first)}^"


def offset_of(node: Any) -> int | None:
    """Where a node begins, as far as the parser noted it: the first place in its tree."""
    places = [each.meta["start"] for each in node.walk() if each.meta.get("start") is not None]
    return min(places, default=None)
