"""Random SELECTs over tables and views, with one result whatever the order of rows.

Where a query picks rows by order (LIMIT, DISTINCT ON, row_number), the order is over all columns,
so that rows which tie are equal. `rows` follows along roughly, so that joins stay small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headwater.testing.fuzz.expressions import ORDERED, Expressions, Value
from headwater.testing.fuzz.from_clauses import FromClauses, Read
from headwater.testing.fuzz.grouped import aggregates, grouping
from headwater.testing.fuzz.schema import Column, Relation
from headwater.testing.fuzz.windowed import total_order, window_calls

MOST_ROWS = 1500


@dataclass(frozen=True, slots=True)
class Made:
    """A query and the columns of its result."""

    sql: str
    columns: tuple[Column, ...]
    rows: int


class Queries:
    """Makes queries; `risk` is how often an expression may raise an error."""

    def __init__(self, random: Random, relations: Sequence[Relation], risk: float = 0.0) -> None:
        self._random = random
        self._relations = list(relations)
        self._risk = risk
        self._sources = FromClauses(random, self._relations, self._derived)

    def query(self, depth: int = 2) -> Made:
        """A query whose result is not too large."""
        while True:
            weights = [weight for _, weight in _SHAPES]
            shape = self._random.choices([shape for shape, _ in _SHAPES], weights)[0]
            made = shape(self, depth)
            if made.rows <= MOST_ROWS:
                return made

    # Shapes

    def plain(self, depth: int) -> Made:
        """Columns and expressions of joined rows that fulfil a condition."""
        read = self._sources.read(depth)
        e = self._expressions(read)
        values = [e.any(2) for _ in range(self._random.randrange(1, 6))]
        values += self._subselects(e, depth)
        return self._select(values, read, self._where(e, depth), rows=read.rows)

    def matched(self, depth: int) -> Made:
        """An inner join of stored relations: what changes on both sides at once must meet once."""
        read = self._sources.matched()
        e = self._expressions(read)
        values = [e.any(0) for _ in range(self._random.randrange(1, 4))]
        return self._select(values, read, "", rows=read.rows)

    def narrow(self, depth: int) -> Made:
        """A column of few values, less some of them: many equal rows, no key."""
        read = self._sources.stored()
        e = self._expressions(read)
        value = e.column("int", "text", "bool") or Value("true", "bool")
        made = self._select([value], read, "")
        less = self._select([value], read, f" WHERE {e.condition(0)}")
        word = self._random.choice(("EXCEPT", "INTERSECT"))
        return Made(f"({made.sql}) {word} ALL ({less.sql})", made.columns, made.rows)

    def distinct(self, depth: int) -> Made:
        """DISTINCT."""
        read = self._sources.read(depth)
        e = self._expressions(read)
        values = [e.ordered(1) for _ in range(self._random.randrange(1, 4))]
        return self._select(values, read, self._where(e, depth), word="DISTINCT ", rows=read.rows)

    def distinct_on(self, depth: int) -> Made:
        """The first row of each group."""
        read = self._sources.read(depth)
        e = self._expressions(read)
        values = [e.ordered(0) for _ in range(self._random.randrange(2, 5))]
        first = self._random.randrange(1, len(values))
        on = ", ".join(value.sql for value in values[:first])
        order = ", ".join(f"{v.sql}{self._direction()}" for v in values)
        made = self._select(
            values, read, self._where(e, depth), word=f"DISTINCT ON ({on}) ", rows=read.rows
        )
        return Made(f"{made.sql} ORDER BY {order}", made.columns, made.rows)

    def grouped(self, depth: int) -> Made:
        """GROUP BY with aggregates, sometimes over several grouping sets, and HAVING."""
        read = self._sources.read(depth)
        e = self._expressions(read)
        keys = [e.ordered(1) for _ in range(self._random.choice((0, 1, 1, 2, 3)))]
        unique = list({key.sql: key for key in keys}.values())
        calls = aggregates(e, self._random.randrange(0 if unique else 1, 4))
        made = self._select([*unique, *calls], read, self._where(e, depth), rows=read.rows)
        sql = made.sql + grouping(self._random, [key.sql for key in unique])
        if calls and self._random.random() < 0.2:
            sql += f" HAVING {self._having(calls)}"
        return Made(sql, made.columns, read.rows if unique else 1)

    def set_operation(self, depth: int) -> Made:
        """UNION, INTERSECT or EXCEPT, with and without ALL."""
        families = [
            self._random.choice(("int", "text", "bool", "date", "int", "float"))
            for _ in range(self._random.randrange(1, 4))
        ]
        sides = [self._of_families(families, depth) for _ in range(self._random.choice((2, 2, 3)))]
        sql = sides[0].sql
        for side in sides[1:]:
            word = self._random.choice(("UNION", "INTERSECT", "EXCEPT"))
            sql = f"({sql}) {word}{self._random.choice(('', ' ALL'))} ({side.sql})"
        return Made(sql, sides[0].columns, sum(side.rows for side in sides))

    def top_n(self, depth: int) -> Made:
        """ORDER BY everything, with LIMIT and OFFSET."""
        inner = self._derived(depth)
        order = total_order(self._random, [f"q.{c.name}" for c in inner.columns])
        limit = self._random.choice((1, 3, 10))
        offset = self._random.choice(("", "", " OFFSET 2"))
        sql = f"SELECT * FROM ({inner.sql}) q ORDER BY {order} LIMIT {limit}{offset}"
        return Made(sql, inner.columns, limit)

    def group_top_n(self, depth: int) -> Made:
        """The first few rows of each group."""
        inner = self._derived(depth)
        names = [f"q.{column.name}" for column in inner.columns]
        part = self._random.choice(names)
        function = self._random.choice(("row_number", "row_number", "rank", "dense_rank"))
        order = total_order(self._random, names)
        sign = self._random.choice(("<= 2", "= 1", "< 3", "<= 1"))
        ranked = (
            f"SELECT q.*, {function}() OVER (PARTITION BY {part} ORDER BY {order}) AS rn "
            f"FROM ({inner.sql}) q"
        )
        shown = self._random.choice(("z.*", ", ".join(f"z.{c.name}" for c in inner.columns)))
        columns = inner.columns
        if shown == "z.*":
            columns = (*columns, Column("rn", "int"))
        return Made(f"SELECT {shown} FROM ({ranked}) z WHERE z.rn {sign}", columns, inner.rows)

    def windowed(self, depth: int) -> Made:
        """Window functions."""
        inner = self._derived(depth)
        values = [Value(f"q.{c.name}", c.family, c.tame) for c in inner.columns]
        calls = window_calls(self._random, values)
        return self._select([*values, *calls], Read(f"({inner.sql}) q", (), inner.rows), "")

    def with_cte(self, depth: int) -> Made:
        """A query over common table expressions, one of them read twice."""
        inner = self.query(max(0, depth - 1))
        relations = [Relation("w", inner.columns, inner.rows), self._random.choice(self._relations)]
        made = Queries(self._random, relations, self._risk).query(max(0, depth - 1))
        return Made(f"WITH w AS ({inner.sql}) {made.sql}", made.columns, made.rows)

    # Parts

    def _derived(self, depth: int) -> Made:
        """A query whose columns can all be ordered by."""
        for _ in range(20):
            made = self.query(depth - 1) if depth > 0 and self._random.random() < 0.6 else None
            if made is not None and all(column.family in ORDERED for column in made.columns):
                return made
        return self._of_families([], 0)

    def _of_families(self, families: Sequence[str], depth: int) -> Made:
        read = self._sources.read(depth)
        e = self._expressions(read)
        values = [e.of(family, 1) for family in families]
        values = values or [e.ordered(0) for _ in range(self._random.randrange(1, 5))]
        return self._select(values, read, self._where(e, depth), rows=read.rows)

    def _select(
        self, values: Sequence[Value], read: Read, where: str, *, word: str = "", rows: int = -1
    ) -> Made:
        columns = tuple(Column(f"o{n}", v.family, v.tame) for n, v in enumerate(values))
        terms = [f"{v.sql} AS {c.name}" for v, c in zip(values, columns, strict=True)]
        sql = f"SELECT {word}{', '.join(terms)} FROM {read.sql}{where}"
        return Made(sql, columns, read.rows if rows < 0 else rows)

    def _expressions(self, read: Read) -> Expressions:
        return Expressions(self._random, read.scope, self._risk)

    def _direction(self) -> str:
        return self._random.choice(("", " DESC", " DESC NULLS LAST", " NULLS FIRST"))

    def _having(self, calls: Sequence[Value]) -> str:
        counted = [call.sql for call in calls if call.family == "int"]
        return f"{self._random.choice(counted)} > 1" if counted else "count(*) > 1"

    def _where(self, e: Expressions, depth: int) -> str:
        parts = [e.condition(2)] if self._random.random() < 0.45 else []
        if self._random.random() < 0.22:
            parts.append(self._semi(e))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _semi(self, e: Expressions) -> str:
        """EXISTS, IN, and what they are not."""
        other = self._random.choice(self._relations)
        inner = Expressions(self._random, [Value(f"s.{c.name}", c.family) for c in other.columns])
        outer, match = e.ordered(0), None
        match = inner.column(outer.family)
        if match is None:
            return e.condition(1)
        word = self._random.choice(("", "NOT "))
        kind = self._random.choice(("exists", "exists", "in", "scalar"))
        more = f" AND {inner.condition(1)}" if self._random.random() < 0.4 else ""
        if kind == "exists":
            correlated = f"{match.sql} = {outer.sql}{more}"
            return f"{word}EXISTS (SELECT 1 FROM {other.name} s WHERE {correlated})"
        if kind == "in":
            filtered = f" WHERE {inner.condition(1)}" if more else ""
            return f"{outer.sql} {word}IN (SELECT {match.sql} FROM {other.name} s{filtered})"
        sign = self._random.choice(("<", ">=", "="))
        function = "max" if match.family not in ("bool", "uuid") else "count"
        if function == "count":
            return f"(SELECT count(*) FROM {other.name} s) > 3"
        return f"{outer.sql} {sign} (SELECT {function}({match.sql}) FROM {other.name} s)"

    def _subselects(self, e: Expressions, depth: int) -> list[Value]:
        """A scalar subquery among the results, now and then."""
        if self._random.random() > 0.12:
            return []
        other = self._random.choice(self._relations)
        inner = Expressions(self._random, [Value(f"s.{c.name}", c.family) for c in other.columns])
        outer = e.ordered(0)
        match = inner.column(outer.family)
        on = f" WHERE {match.sql} = {outer.sql}" if match is not None else ""
        call = aggregates(inner, 1)[0]
        return [Value(f"(SELECT {call.sql} FROM {other.name} s{on})", call.family, call.tame)]


_SHAPES: "Sequence[tuple[Callable[[Queries, int], Made], int]]" = (
    (Queries.plain, 26),
    (Queries.matched, 10),
    (Queries.narrow, 5),
    (Queries.grouped, 25),
    (Queries.distinct, 6),
    (Queries.distinct_on, 5),
    (Queries.set_operation, 10),
    (Queries.top_n, 8),
    (Queries.group_top_n, 7),
    (Queries.windowed, 9),
    (Queries.with_cte, 6),
)
