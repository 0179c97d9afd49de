"""The columns of a model table, and how they change upstream.

A column has an identity of its own, as in a real database: a name may go to another column, and
come back. Older rows have a column's default without a word in the log.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, VARCHAR, DataType

KEY, NUMBER, BIG = 1, 2, 3
"""What columns every table has: its key, the number of the write, and the large value."""
_MOST = 6
_NAMES = ("big", "x", "c", "d", "e")
_LARGE = 1 << 40

Row = tuple[int, str, Mapping[int, int]]
"""The number of the write, the large value, and values by the identity of their columns."""


@dataclass(frozen=True, slots=True)
class ModelColumn:
    """A column upstream."""

    id: int
    name: str
    type: DataType
    default: int | None = None

    def written(self, number: int) -> int:
        """A value that only this column has in this write; a wide one fits only a wide column."""
        return 16 * number + self.id + (_LARGE if self.type == BIGINT else 0)

    def value(self, row: Row) -> int | str | None:
        """What a row has in it."""
        if self.id == NUMBER:
            return row[0]
        if self.id == BIG:
            return row[1]
        return row[2].get(self.id, self.default)


Columns = tuple[ModelColumn, ...]


def first_columns(key: DataType, random: Random) -> Columns:
    """What a table begins with."""
    own = [ModelColumn(NUMBER, "a", BIGINT), ModelColumn(BIG, "big", VARCHAR)]
    if random.random() < 0.5:
        own.insert(1, ModelColumn(4, "x", INTEGER))
    return (ModelColumn(KEY, "id", key), *own)


@functools.lru_cache(maxsize=256)
def external(columns: Columns, *, numbered: bool) -> ExternalSchema:
    """As a source tells of them; its type's text carries what only the model may know."""
    return ExternalSchema(
        columns=tuple(
            ExternalColumn(
                column=Column(each.name, each.type, nullable=each.id != KEY),
                upstream_type=f"#{each.id}",
                number=each.id if numbered else None,
                filled=each.default is not None,
            )
            for each in columns
        ),
        key=("id",),
    )


def identity(column: ExternalColumn) -> int:
    """Which column it is."""
    return int(column.upstream_type[1:])


@dataclass(frozen=True, slots=True)
class Alteration:
    """An ALTER TABLE: the columns after it, and what its words say of names."""

    columns: Columns
    said: tuple[tuple[str, str], ...] = ()
    """Old and new names; the new one is empty of a column that was dropped."""

    def reuses(self, before: Columns) -> bool:
        """Whether a name goes to another column."""
        ids = {each.name: each.id for each in before}
        return any(ids.get(each.name, each.id) != each.id for each in self.columns)


def draw_alteration(columns: Columns, next_id: int, random: Random) -> Alteration:
    """Something that people do to tables."""
    own = [each for each in columns if each.id > NUMBER]
    extras = [each for each in own if each.id > BIG]
    kinds = ["add", "add", "rename", "replace"]
    kinds += ["drop"] if extras else []
    kinds += ["widen"] if any(each.type == INTEGER for each in extras) else []
    kind = random.choice(kinds if len(columns) < _MOST else ["drop", "rename"])
    match kind:
        case "add":
            return Alteration((*columns, _new(_free(columns, random), next_id, random)))
        case "drop":
            gone = random.choice(extras)
            left = tuple(each for each in columns if each is not gone)
            return Alteration(left, ((gone.name, ""),))
        case "rename":
            old = random.choice(own)
            return _renamed(columns, old, _free(columns, random))
        case "widen":
            old = random.choice([each for each in extras if each.type == INTEGER])
            return Alteration(_with(columns, old, replace(old, type=BIGINT)))
        case _:
            # A column makes room for another one of its name.
            old = random.choice(own)
            made = _renamed(columns, old, _free(columns, random))
            new = _new(old.name, next_id, random)
            return Alteration((*made.columns, new), made.said)


def _renamed(columns: Columns, old: ModelColumn, name: str) -> Alteration:
    return Alteration(_with(columns, old, replace(old, name=name)), ((old.name, name),))


def _with(columns: Columns, old: ModelColumn, new: ModelColumn) -> Columns:
    return tuple(new if each is old else each for each in columns)


def _new(name: str, id_: int, random: Random) -> ModelColumn:
    type_ = random.choice((INTEGER, BIGINT))
    return ModelColumn(id_, name, type_, random.choice((None, None, id_)))


def _free(columns: Columns, random: Random) -> str:
    taken = {each.name for each in columns}
    return random.choice([name for name in _NAMES if name not in taken])
