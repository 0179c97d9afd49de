"""Which relations of the log are our tables, and what they looked like when.

pgoutput describes a relation before its first change in a session and after each DDL, by name
and oid. A description may be older than what we know: a session begins where the slot stands,
which is before our position. So schemas are compared where a change uses them, and what is known
is kept by position: reading again from an older position says the same again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.changes import RelationView
from headwater.cdc.postgres.pgoutput import Relation
from headwater.cdc.postgres.schema import ColumnToday, columns_today, numbers_ever, split_name
from headwater.cdc.postgres.types import TypeCatalog
from headwater.errors import BrokenInvariant
from headwater.model.schema import Column

_START = PostgresOffset(0)


class KnownRelations:
    """Our tables by name and oid, with the history of their schemas."""

    def __init__(self, tables: Mapping[str, ExternalSchema], default_schema: str) -> None:
        self.schema = default_schema
        """The schema of names that have none."""
        self._names = {split_name(name, default_schema): name for name in tables}
        self._history = {name: [(_START, schema)] for name, schema in tables.items()}
        self._by_oid: dict[int, str] = {}
        self._types = TypeCatalog(unknown_as_text=True)

    @property
    def names(self) -> Mapping[tuple[str, str], str]:
        """Our names of tables, by schema and table."""
        return self._names

    def remember(self, oid: int, table: str) -> None:
        """A table keeps its oid when it is renamed."""
        self._by_oid[oid] = table

    def table_of(self, oid: int) -> str | None:
        """Our table with this oid."""
        return self._by_oid.get(oid)

    def oid_of(self, table: str) -> int | None:
        """The oid of a table, once it is known."""
        return next((oid for oid, name in self._by_oid.items() if name == table), None)

    def view(self, connection: Any, relation: Relation) -> RelationView | None:
        """A relation as our table; None for others."""
        table = self._by_oid.get(relation.oid) or self._names.get((relation.schema, relation.name))
        if table is None:
            return None
        self._by_oid[relation.oid] = table
        self._types.load(connection, [column.oid for column in relation.columns])
        wires = tuple(
            self._types.wire(column.oid, column.typmod, f'column "{column.name}" of {table}')
            for column in relation.columns
        )
        return RelationView(relation=relation, table=table, wires=wires, key=self._key(relation))

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The key as we know it, or by its new names after a rename."""
        table = self._by_oid[relation.oid]
        known = self._history[table][-1][1].key
        names = [column.name for column in relation.columns]
        if relation.identity == "f" or all(name in names for name in known):
            return known
        return tuple(column.name for column in relation.columns if column.key)

    def differs(self, view: RelationView, at: PostgresOffset) -> bool:
        """Whether a relation is not what was known at a position."""
        known = [(each.column.name, each.column.type) for each in self._at(view.table, at).columns]
        shown = [
            (column.name, wire.type)
            for column, wire in zip(view.relation.columns, view.wires, strict=True)
        ]
        return known != shown

    def learn(self, table: str, schema: ExternalSchema, at: PostgresOffset) -> None:
        """From this position on, a table looks like this."""
        history = [each for each in self._history[table] if each[0] < at]
        self._history[table] = [*history, (at, schema)]

    def latest(self, table: str) -> ExternalSchema:
        """What is known of a table at the place where the log is."""
        return self._history[table][-1][1]

    def described(self, connection: Any, view: RelationView) -> ExternalSchema:
        """A relation in the words of the contract.

        The log does not tell what may be null, nor the numbers of columns: these are the
        catalog's, of the columns that are still there under their names.
        """
        today = columns_today(connection, view.relation.oid)
        unknown = ColumnToday(number=None, nullable=True, default=None, filled=True)
        names = [column.name for column in view.relation.columns]
        gone = self._numbers_gone(view, today)
        before = {each.column.name: each.number for each in self.latest(view.table).columns}
        numbers = numbered(
            names,
            {name: number for name, number in before.items() if number not in gone},
            {name: each.number for name, each in today.items()},
            [each for each in numbers_ever(connection, view.relation.oid) if each not in gone],
            anew={name for name, number in before.items() if number in gone},
        )
        spelled = connection.execute(
            "SELECT array_agg(format_type(t, m) ORDER BY n) FROM"
            " unnest(%s::bigint[]::oid[], %s::int[]) WITH ORDINALITY u(t, m, n)",
            [
                [column.oid for column in view.relation.columns],
                [column.typmod for column in view.relation.columns],
            ],
        ).fetchone()[0]
        return ExternalSchema(
            columns=tuple(
                ExternalColumn(
                    column=Column(column.name, wire.type, known.nullable),
                    upstream_type=name,
                    default=known.default,
                    number=number,
                    filled=known.filled,
                )
                for column, wire, name, number in zip(
                    view.relation.columns, view.wires, spelled, numbers, strict=True
                )
                for known in (today.get(column.name, unknown),)
            ),
            key=view.key,
        )

    def _numbers_gone(self, view: RelationView, today: Mapping[str, ColumnToday]) -> set[int]:
        """The numbers of columns that another column of the same name has followed.

        One that is dropped by now, and whose name has another type in the log, may have been
        altered before that. Then its values are read once more than they need be.
        """
        types = {
            column.name: wire.type
            for column, wire in zip(view.relation.columns, view.wires, strict=True)
        }
        alive = {each.number for each in today.values()}
        return {
            each.number
            for each in self.latest(view.table).columns
            if each.number is not None
            and each.number not in alive
            and types.get(each.column.name, each.column.type) != each.column.type
        }

    def _at(self, table: str, at: PostgresOffset) -> ExternalSchema:
        for since, schema in reversed(self._history[table]):
            if since <= at:
                return schema
        raise BrokenInvariant(f"nothing is known about {table} at {at}")


_BEFORE, _TODAY = 3, 2
"""How much it counts that a name had a number before the change, or has it today."""


@dataclass(frozen=True, slots=True)
class _Guess:
    place: int
    number: int
    weight: int
    """Of this and of what it follows."""
    follows: "_Guess | None" = None


def _fitting(
    names: Sequence[str], before: Mapping[str, int | None], today: Mapping[str, int | None]
) -> list[int | None]:
    """The most of what is likely that grows from column to column."""
    chains: list[_Guess] = []
    for place, name in enumerate(names):
        weights: dict[int, int] = {}
        for known, weight in ((before, _BEFORE), (today, _TODAY)):
            if (number := known.get(name)) is not None:
                weights[number] = weights.get(number, 0) + weight
        here = []
        for number, weight in weights.items():
            earlier = [each for each in chains if each.number < number]
            last = max(earlier, key=lambda each: each.weight, default=None)
            here.append(_Guess(place, number, weight + (last.weight if last else 0), last))
        chains += here
    found: list[int | None] = [None] * len(names)
    guess = max(chains, key=lambda each: each.weight, default=None)
    while guess is not None:
        found[guess.place] = guess.number
        guess = guess.follows
    return found


def numbered(
    names: Sequence[str],
    before: Mapping[str, int | None],
    today: Mapping[str, int | None],
    ever: Sequence[int],
    anew: Collection[str] = (),
) -> list[int | None]:
    """The numbers of the columns that a relation had when the log was written; None if unclear.

    They grow from one column to the next, and are never used twice. A name had the number that it
    had before, or has today, or one that is left over between its neighbours' and nobody else's.
    Names are used again, so what each had before or has today need not fit together: as much of
    it is believed as does.
    `anew` are names whose columns are others than before: any of these will do, since one that
    turns out wrong is read once more.
    """
    found = _fitting(names, before, today)
    for place, number in enumerate(found):
        if number is not None:
            continue
        low = max((each for each in found[:place] if each is not None), default=0)
        high = min((each for each in found[place:] if each is not None), default=1 << 16)
        free = [each for each in ever if low < each < high and each not in found]
        if len(free) == 1 or (free and names[place] in anew):
            found[place] = free[-1]
    return found
