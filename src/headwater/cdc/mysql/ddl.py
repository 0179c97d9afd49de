"""Which tables a statement in the log changes, and how.

Only the head of a statement matters: its verb, and the names of tables after it. What a table
looks like afterwards is read from the server and from the rows that follow, never from the
statement.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a statement does to a table."""

    ALTERED = "altered"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    WRITTEN = "written"
    """Rows were changed by a statement that is not logged as rows."""


@dataclass(frozen=True, slots=True)
class TableEffect:
    """A statement's effect on one table; an empty table stands for the whole database."""

    effect: Effect
    database: str
    table: str


_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$\u0080-\uffff]+)"
_TABLE = rf"({_NAME})(?:\s*\.\s*({_NAME}))?"
_COMMENT = re.compile(r"/\*(?!!|M!).*?\*/|(?:--\s|#)[^\n]*", re.DOTALL)
_VERSIONED = re.compile(r"/\*(?:M?!)\d*(.*?)\*/", re.DOTALL)
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+|OFFLINE\s+)?(?:IGNORE\s+)?TABLE\s+{_IF}(?:(?:NO)?WAIT\s+(?:\d+\s+)?)?"
    rf"{_TABLE}", re.IGNORECASE,
)  # fmt: skip
_RENAME_IN_ALTER = re.compile(
    rf"\bRENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)(?:TO\s+|AS\s+|=\s*)?{_TABLE}", re.IGNORECASE
)
_INDEX = re.compile(rf"(?:CREATE|DROP)\s.*?\bINDEX\b.*?\bON\s+{_TABLE}", re.IGNORECASE | re.DOTALL)
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?{_TABLE}", re.IGNORECASE)
_DROP = re.compile(rf"DROP\s+TABLES?\s+{_IF}(.*)", re.IGNORECASE | re.DOTALL)
_RENAME = re.compile(rf"RENAME\s+TABLES?\s+{_IF}(.*)", re.IGNORECASE | re.DOTALL)
_CREATE = re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+{_IF}{_TABLE}", re.IGNORECASE)
_DROP_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+{_IF}({_NAME})", re.IGNORECASE)
_WRITE = re.compile(
    rf"(?:INSERT|REPLACE|UPDATE|DELETE|LOAD\s+DATA)\b.*?(?:INTO|FROM|UPDATE|TABLE)?\s+"
    rf"(?:LOW_PRIORITY\s+|IGNORE\s+|QUICK\s+|DELAYED\s+)*(?:INTO\s+|FROM\s+)?{_TABLE}",
    re.IGNORECASE | re.DOTALL,
)
_ONE = re.compile(_TABLE)


def _plain(statement: str) -> str:
    return _COMMENT.sub(" ", _VERSIONED.sub(r"\1", statement)).strip()


def effects(statement: str, database: str) -> list[TableEffect]:
    """What a statement does to which tables; `database` is the default one."""
    text = _plain(statement)
    found = _altering(text, database) or _listing(text, database)
    if not found and (write := _WRITE.match(text)):
        found = [_effect(Effect.WRITTEN, write, database)]
    return found


_RENAMED = re.compile(rf"\bRENAME\s+COLUMN\s+{_IF}({_NAME})\s+TO\s+({_NAME})", re.IGNORECASE)
_CHANGED = re.compile(rf"\bCHANGE\s+(?:COLUMN\s+)?{_IF}({_NAME})\s+({_NAME})", re.IGNORECASE)
_TAKEN = re.compile(
    r"\bDROP\s+(?:COLUMN\s+)?(?!COLUMN\b|INDEX\b|KEY\b|PRIMARY\b|FOREIGN\b|CONSTRAINT\b|CHECK\b)"
    rf"{_IF}({_NAME})",
    re.IGNORECASE,
)
_GIVEN = re.compile(rf"\bADD\s+(?:COLUMN\s+)?{_IF}\(?\s*({_NAME})", re.IGNORECASE)
_ANY_NAME = re.compile(_NAME)


@dataclass(frozen=True, slots=True)
class Said:
    """What an ALTER TABLE says of columns."""

    renamed: tuple[tuple[str, str], ...]
    """Old and new names; the new one is empty where a column is dropped."""
    words: frozenset[str]
    """Every name in it, and every word, but for columns that it takes away."""


def said_of_columns(statement: str) -> Said | None:
    """What a statement says of columns; None if it does not alter a table."""
    text = _plain(statement)
    if not _ALTER.match(text):
        return None
    renames = (match for each in (_RENAMED, _CHANGED) for match in each.finditer(text))
    pairs = [(_bare(match[1]), _bare(match[2])) for match in renames]
    dropped = [_bare(match[1]) for match in _TAKEN.finditer(text)]
    given = {_bare(match[1]) for match in _GIVEN.finditer(text)} | {new for _, new in pairs}
    words = {_bare(name) for name in _ANY_NAME.findall(text)}
    leaving = {*dropped, *(old for old, _ in pairs)}
    gone = {word for word in words if word in leaving and word not in given}
    moved = [(old, new) for old, new in pairs if old != new]
    return Said((*moved, *((name, "") for name in dropped)), frozenset(words - gone))


def _altering(text: str, database: str) -> list[TableEffect]:
    if match := _ALTER.match(text):
        found = [_effect(Effect.ALTERED, match, database)]
        if renamed := _RENAME_IN_ALTER.search(text, match.end()):
            found = [
                TableEffect(Effect.DROPPED, found[0].database, found[0].table),
                _effect(Effect.ALTERED, renamed, database),
            ]
        return found
    if match := _INDEX.match(text):
        return []
    if match := _TRUNCATE.match(text):
        return [_effect(Effect.TRUNCATED, match, database)]
    if match := _CREATE.match(text):
        return [_effect(Effect.ALTERED, match, database)]
    if match := _DROP_DATABASE.match(text):
        return [TableEffect(Effect.DROPPED, _bare(match[1]), "")]
    return []


def _listing(text: str, database: str) -> list[TableEffect]:
    if match := _DROP.match(text):
        return [_effect(Effect.DROPPED, each, database) for each in _ONE.finditer(match[1])]
    if match := _RENAME.match(text):
        names = [each for each in _ONE.finditer(match[1]) if each[0].upper() not in ("TO", "WAIT")]
        # A table that is swapped in takes the place of the one that is swapped out.
        arriving = [_effect(Effect.ALTERED, each, database) for each in names[1::2]]
        places = {(each.database, each.table) for each in arriving}
        leaving = [_effect(Effect.DROPPED, each, database) for each in names[::2]]
        return [each for each in leaving if (each.database, each.table) not in places] + arriving
    return []


def _effect(effect: Effect, match: re.Match[str], database: str) -> TableEffect:
    first, second = match[1], match[2]
    if second is None:
        return TableEffect(effect, database, _bare(first))
    return TableEffect(effect, _bare(first), _bare(second))


def _bare(name: str) -> str:
    if name[0] in '`"':
        return name[1:-1].replace(name[0] * 2, name[0])
    return name
