"""Rows on their way through the rules: their query, and where their values were seen.

A rule that reads the other side of a join, or a group's rows, wants only those that can matter.
Which ones is known without asking Spark: a column that was passed through unchanged holds values
of some Arrow table in the driver's memory, and that table's values are a superset of the
column's. `known_keys` finds such a superset. A superset is enough everywhere, because rows that
did not change come out of the rules twice, once with each sign.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.sql.algebra import Output
from headwater.views.spelling import union_all

MOST_ORIGINS = 32


@dataclass(frozen=True, slots=True)
class Place:
    """A column of a table in memory; places with one slot lie in the same row."""

    table: pa.Table
    column: str
    slot: int


Origin = Mapping[str, Place]
UNKNOWN: tuple[Origin, ...] = ({},)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A query; each of its rows has one of the origins."""

    sql: str
    local: bool
    """Whether everything it reads is in the driver's memory, in one partition."""
    origins: tuple[Origin, ...] = UNKNOWN

    def passed(self, sql: str, names: Mapping[str, str]) -> "Rows":
        """Other rows made one by one from these; `names` maps old columns to new ones."""
        origins = tuple(
            {names[name]: place for name, place in origin.items() if name in names}
            for origin in self.origins
        )
        return Rows(sql=sql, local=self.local, origins=origins)


@dataclass(frozen=True, slots=True)
class Keys:
    """Values of some columns outside of which nothing is asked for."""

    table: pa.Table
    """One column per restricted column, under its name."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The restricted columns."""
        return tuple(self.table.column_names)

    def renamed(self, names: Mapping[str, str]) -> "Keys | None":
        """The restriction for an input, as far as its columns reach."""
        kept = {names[name]: name for name in self.columns if name in names}
        if not kept:
            return None
        return Keys(self.table.select(list(kept.values())).rename_columns(list(kept)))

    def only(self, outputs: Iterable[Output]) -> "Keys | None":
        """The restriction as far as these columns reach."""
        return self.renamed({output.name: output.name for output in outputs})


def together(parts: Sequence[Rows]) -> Rows:
    """The sum of rows."""
    local = all(part.local for part in parts)
    origins = tuple(origin for part in parts for origin in part.origins)
    return Rows(
        sql=union_all([part.sql for part in parts], local=local),
        local=local,
        origins=origins if len(origins) <= MOST_ORIGINS else UNKNOWN,
    )


def side_by_side(left: Rows, right: Rows) -> tuple[Origin, ...]:
    """The origins of pairs."""
    if len(left.origins) * len(right.origins) > MOST_ORIGINS:
        return UNKNOWN
    return tuple({**a, **b} for a in left.origins for b in right.origins)


def known_keys(rows: Rows, columns: Sequence[str]) -> pa.Table | None:
    """Values among which the columns', or as many of them as can be told, must be."""
    wanted = tuple(dict.fromkeys(columns))
    for origin in rows.origins:
        wanted = _in_one_row(origin, wanted)
    if not wanted:
        return None
    parts = []
    for origin in rows.origins:
        table = origin[wanted[0]].table
        taken = table.select([origin[name].column for name in wanted])
        parts.append(taken.rename_columns(list(wanted)))
    # Many origins share a table, as both sides of a self-join do.
    return pa.concat_tables(parts).combine_chunks().group_by(list(wanted)).aggregate([])


def selective(keys: pa.Table, rows: Rows) -> bool:
    """Whether keys that are not whole still say much about the rows they were taken from."""
    seen = sum(next(iter(o.values())).table.num_rows for o in rows.origins if o)
    return bool(10 * keys.num_rows >= seen)


def _in_one_row(origin: Origin, columns: Sequence[str]) -> tuple[str, ...]:
    by_slot: dict[int, list[str]] = {}
    for name in columns:
        if name in origin and not pa.types.is_nested(_type(origin[name])):
            by_slot.setdefault(origin[name].slot, []).append(name)
    longest: list[str] = []
    for names in by_slot.values():
        longest = names if len(names) > len(longest) else longest
    return tuple(longest)


def _type(place: Place) -> pa.DataType:
    return place.table.schema.field(place.column).type
