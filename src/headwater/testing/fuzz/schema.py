"""Random tables: all types, keys of one or several columns, no key, append only, odd names."""

from dataclasses import dataclass
from random import Random

from headwater.model import types
from headwater.model.types import DataType
from headwater.testing.fuzz.values import family_of

_TYPES: tuple[tuple[DataType, int], ...] = (
    (types.INTEGER, 6),
    (types.BIGINT, 4),
    (types.SMALLINT, 2),
    (types.decimal(10, 2), 3),
    (types.decimal(38, 4), 1),
    (types.NUMERIC, 2),
    (types.DOUBLE, 3),
    (types.VARCHAR, 5),
    (types.BOOLEAN, 2),
    (types.DATE, 2),
    (types.TIMESTAMP, 2),
    (types.TIMESTAMPTZ, 1),
    (types.TIME, 1),
    (types.INTERVAL, 1),
    (types.UUID, 1),
    (types.JSONB, 1),
    (types.BYTEA, 1),
    (types.list_of(types.INTEGER), 2),
    (types.list_of(types.VARCHAR), 1),
)
_KEY_TYPES = (types.INTEGER, types.BIGINT, types.VARCHAR, types.DATE, types.decimal(6, 1))
_CONFLICTS = ("", "", "", " ON CONFLICT DO NOTHING", " ON CONFLICT DO UPDATE IF NOT NULL")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or of a view or query over it."""

    name: str
    """As SQL spells it: quoted where it must be."""
    family: str
    tame: bool = False
    """Doubles only: sums are exact."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that a query can read from."""

    name: str
    columns: tuple[Column, ...]
    rows: int
    """About how many there are, so that no join becomes too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is written."""

    name: str
    columns: tuple[Column, ...]
    types: tuple[DataType, ...]
    key: tuple[str, ...]
    append_only: bool
    conflict: str

    @property
    def create_sql(self) -> str:
        """The statement that creates it."""
        parts = [f"{c.name} {t.postgres}" for c, t in zip(self.columns, self.types, strict=True)]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        tail = " APPEND ONLY" if self.append_only else self.conflict
        return f"CREATE TABLE {self.name} ({', '.join(parts)}){tail}"

    def relation(self, rows: int) -> Relation:
        """As queries see it."""
        return Relation(self.name, self.columns, rows)


def random_table(random: Random, number: int) -> Table:
    """A table; columns of one family have the same names in all tables, for USING."""
    kind = random.choice(("one", "one", "two", "none"))
    chosen: list[DataType] = []
    if kind != "none":
        chosen += [random.choice(_KEY_TYPES[:3])]
    if kind == "two":
        chosen += [random.choice(_KEY_TYPES)]
    keys = len(chosen)
    # Every table has something to join by and something to add up.
    chosen += [types.INTEGER, random.choice((types.BIGINT, types.decimal(10, 2)))]
    wanted = [type_ for type_, weight in _TYPES for _ in range(weight)]
    chosen += [random.choice(wanted) for _ in range(random.randrange(1, 6))]
    columns = tuple(_named(random, chosen))
    return Table(
        name=f"t{number}" if random.random() < 0.9 else f'"T {number}"',
        columns=columns,
        types=tuple(chosen),
        key=tuple(column.name for column in columns[:keys]),
        append_only=kind == "none" and random.random() < 0.3,
        conflict=random.choice(_CONFLICTS) if keys else "",
    )


def _named(random: Random, chosen: list[DataType]) -> list[Column]:
    found: list[Column] = []
    for type_ in chosen:
        family = family_of(type_)
        number = 1 + sum(column.family == family for column in found)
        name = f"{family}{number}" if family != "int" else f"i{number}"
        if random.random() < 0.04:
            name = f'"{name} Odd"'
        found.append(Column(name, family, tame=family == "float" and random.random() < 0.7))
    return found
