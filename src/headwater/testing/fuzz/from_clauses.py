"""Random FROM clauses: relations, subqueries, VALUES, table functions, and all kinds of joins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headwater.testing.fuzz.expressions import ORDERED, Expressions, Value
from headwater.testing.fuzz.schema import Column, Relation

_MOST_PAIRS = 4000
_JOINS = ("JOIN",) * 4 + ("LEFT JOIN",) * 2 + ("RIGHT JOIN", "FULL JOIN")


class Selected(Protocol):
    """A query that can stand in a FROM clause."""

    @property
    def sql(self) -> str:
        """Its text."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns."""
        ...

    @property
    def rows(self) -> int:
        """About how many."""
        ...


@dataclass(frozen=True, slots=True)
class Read:
    """A FROM clause, the columns that it brings, and about how many rows."""

    sql: str
    scope: tuple[Value, ...]
    rows: int


class FromClauses:
    """Makes FROM clauses over some relations."""

    def __init__(
        self,
        random: Random,
        relations: Sequence[Relation],
        derived: "Callable[[int], Selected]",
    ) -> None:
        self._random = random
        self._relations = relations
        self._derived = derived
        self._aliases = 0

    def read(self, depth: int) -> Read:
        """One to three items, joined."""
        read = self._item(depth)
        for _ in range(self._random.choices((0, 1, 2), (45, 45, 10))[0]):
            read = self._joined(read, depth)
        if self._random.random() < 0.08:
            read = self._with_function(read)
        elif self._random.random() < 0.05:
            read = self._with_lateral(read)
        return read

    def stored(self) -> Read:
        """One table or view."""
        return self._relation(self._alias())

    def matched(self) -> Read:
        """Two of them with equal numbers, or the first alone where there is nothing to equal."""
        left, right = self.stored(), self.stored()
        pairs = [(a, b) for a in left.scope for b in right.scope if a.family == b.family == "int"]
        if not pairs or left.rows * right.rows > _MOST_PAIRS * 10:
            return left
        a, b = self._random.choice(pairs)
        rows = max(left.rows, right.rows, left.rows * right.rows // 6)
        joined = f"{left.sql} JOIN {right.sql} ON {a.sql} = {b.sql}"
        return Read(joined, (*left.scope, *right.scope), rows)

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"

    def _item(self, depth: int) -> Read:
        alias = self._alias()
        if depth > 0 and self._random.random() < 0.15:
            made = self._derived(depth - 1)
            scope = _scope(alias, made.columns)
            return Read(f"({made.sql}) {alias}", scope, made.rows)
        if self._random.random() < 0.04:
            rows = "(1, 'a'), (2, NULL), (3, 'red'), (NULL, 'b')"
            scope = (Value(f"{alias}.x", "int"), Value(f"{alias}.y", "text"))
            return Read(f"(VALUES {rows}) AS {alias}(x, y)", scope, 4)
        if self._random.random() < 0.03:
            scope = (Value(f"{alias}.g", "int"),)
            return Read(f"generate_series(0, 6) AS {alias}(g)", scope, 7)
        return self._relation(alias)

    def _relation(self, alias: str) -> Read:
        chosen = self._random.choice(self._relations)
        return Read(f"{chosen.name} {alias}", _scope(alias, chosen.columns), chosen.rows)

    def _joined(self, left: Read, depth: int) -> Read:
        right = self._item(depth)
        if left.rows * right.rows > _MOST_PAIRS * 10:
            return left
        kind = self._random.choice(_JOINS)
        style = self._random.random()
        both = (*left.scope, *right.scope)
        if style < 0.06 and left.rows * right.rows <= _MOST_PAIRS // 4:
            return Read(f"{left.sql} CROSS JOIN {right.sql}", both, left.rows * right.rows)
        pairs = [
            (a, b)
            for a in left.scope
            for b in right.scope
            if a.family == b.family and a.family in ORDERED
        ]
        if not pairs:
            return left
        if style < 0.16:
            used = self._using(left, right, kind)
            if used is not None:
                return used
        if style < 0.24 and left.rows * right.rows <= _MOST_PAIRS:
            a, b = self._random.choice(pairs)
            sign = self._random.choice(("<", ">=", "<>"))
            on = f"{a.sql} {sign} {b.sql}"
            inner = kind if kind != "FULL JOIN" else "JOIN"
            return Read(f"{left.sql} {inner} {right.sql} ON {on}", both, left.rows * right.rows)
        chosen = self._random.sample(pairs, min(len(pairs), self._random.choice((1, 1, 2))))
        on = " AND ".join(f"{a.sql} = {b.sql}" for a, b in chosen)
        if self._random.random() < 0.2:
            on += f" AND {Expressions(self._random, both).compared(0)}"
        rows = max(left.rows, right.rows, left.rows * right.rows // 6)
        return Read(f"{left.sql} {kind} {right.sql} ON {on}", both, rows)

    def _using(self, left: Read, right: Read, kind: str) -> Read | None:
        """JOIN ... USING where both sides have a column of one name and family."""
        mine: dict[str, list[Value]] = {}
        for value in left.scope:
            mine.setdefault(_bare(value), []).append(value)
        shared = [
            value
            for value in right.scope
            if len(mine.get(_bare(value), ())) == 1
            and mine[_bare(value)][0].family == value.family
            and value.family in ORDERED
        ]
        if not shared:
            return None
        chosen = self._random.choice(shared)
        name = _bare(chosen)
        merged = Value(name, chosen.family, chosen.tame)
        rest = [v for v in (*left.scope, *right.scope) if _bare(v) != name]
        rows = max(left.rows, right.rows, left.rows * right.rows // 6)
        return Read(f"{left.sql} {kind} {right.sql} USING ({name})", (merged, *rest), rows)

    def _with_function(self, read: Read) -> Read:
        """Each row with the elements of one of its arrays, or with numbers."""
        alias = self._alias()
        arrays = [value for value in read.scope if value.family in ("ints", "texts")]
        if arrays and read.rows < _MOST_PAIRS:
            array = self._random.choice(arrays)
            element = Value(f"{alias}.e", array.family.removesuffix("s"))
            kind = self._random.choice(("CROSS JOIN", "LEFT JOIN"))
            on = " ON true" if kind == "LEFT JOIN" else ""
            sql = f"{read.sql} {kind} unnest({array.sql}) AS {alias}(e){on}"
            return Read(sql, (*read.scope, element), read.rows * 2)
        numbers = [value for value in read.scope if value.family == "int"]
        if numbers and read.rows < _MOST_PAIRS // 4:
            number = self._random.choice(numbers)
            sql = f"{read.sql} CROSS JOIN generate_series(1, {number.sql} % 4) AS {alias}(g)"
            return Read(sql, (*read.scope, Value(f"{alias}.g", "int")), read.rows * 2)
        return read

    def _with_lateral(self, read: Read) -> Read:
        """Each row with the first of the rows that match it elsewhere."""
        alias = self._alias()
        other = self._random.choice(self._relations)
        inner = [v for v in _scope("s", other.columns) if v.family in ORDERED]
        pairs = [(a, b) for a in read.scope for b in inner if a.family == b.family]
        if not pairs:
            return read
        outer, match = self._random.choice(pairs)
        shown = self._random.sample(inner, min(len(inner), 2))
        terms = ", ".join(f"{v.sql} AS l{n}" for n, v in enumerate(shown))
        order = ", ".join(f"{v.sql}{self._random.choice(('', ' DESC'))}" for v in shown)
        first = f" ORDER BY {order} LIMIT 1" if self._random.random() < 0.7 else ""
        kind, on = self._random.choice((("CROSS JOIN", ""), ("LEFT JOIN", " ON true")))
        sql = (
            f"{read.sql} {kind} LATERAL (SELECT {terms} FROM {other.name} s "
            f"WHERE {match.sql} = {outer.sql}{first}) {alias}{on}"
        )
        found = [Value(f"{alias}.l{n}", v.family, v.tame) for n, v in enumerate(shown)]
        rows = read.rows if first else max(read.rows, read.rows * other.rows // 6)
        return Read(sql, (*read.scope, *found), rows)


def _scope(alias: str, columns: Sequence[Column]) -> tuple[Value, ...]:
    return tuple(Value(f"{alias}.{c.name}", c.family, c.tame) for c in columns)


def _bare(value: Value) -> str:
    return value.sql.split(".", 1)[-1]
