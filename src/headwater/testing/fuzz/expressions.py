"""Random scalar expressions and conditions, typed by family so that nearly all are valid.

Two rules keep results determined: doubles and `numeric` are never spelled as text, because -0.0
and 0.0, or 1.0 and 1.00, are one value that has two spellings; and what could overflow is made
small first. `risk` is how often the second rule is broken on purpose.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headwater.model import types
from headwater.testing.fuzz.values import literal

_LITERAL_TYPES = {
    "int": types.INTEGER,
    "dec": types.decimal(10, 2),
    "numeric": types.NUMERIC,
    "float": types.DOUBLE,
    "text": types.VARCHAR,
    "bool": types.BOOLEAN,
    "date": types.DATE,
    "ts": types.TIMESTAMP,
    "tstz": types.TIMESTAMPTZ,
    "time": types.TIME,
    "interval": types.INTERVAL,
    "uuid": types.UUID,
    "ints": types.list_of(types.INTEGER),
    "texts": types.list_of(types.VARCHAR),
}
MADE = ("int", "int", "dec", "float", "text", "text", "bool", "date", "ts", "ints", "texts")
"""Families that an expression can be asked for, whatever the columns are."""
ORDERED = frozenset(
    {"int", "dec", "numeric", "float", "text", "bool", "date", "ts", "tstz", "time", "uuid"}
)
"""Families whose equal values cannot be told apart, so that they can be grouped and ordered."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with what is known of it."""

    sql: str
    family: str
    tame: bool = False


class Expressions:
    """Expressions over some columns."""

    def __init__(self, random: Random, scope: Sequence[Value], risk: float = 0.0) -> None:
        self.random = random
        self.scope = list(scope)
        self._risk = risk

    def column(self, *families: str) -> Value | None:
        """A column of one of these families, or of any; None when there is none."""
        fitting = [value for value in self.scope if not families or value.family in families]
        return self.random.choice(fitting) if fitting else None

    def any(self, depth: int = 2) -> Value:
        """A column or an expression of any family."""
        column = self.column()
        if column is not None and (self.random.random() < 0.5 or depth <= 0):
            return column
        return self.of(self.random.choice(MADE), depth)

    def ordered(self, depth: int = 1) -> Value:
        """Something that can be grouped or ordered by."""
        column = self.column(*ORDERED)
        if column is not None and self.random.random() < 0.8:
            return column
        return self.of(self.random.choice(("int", "text", "bool", "date")), depth)

    def of(self, family: str, depth: int = 2) -> Value:
        """An expression of one family."""
        column = self.column(family)
        if column is not None and (depth <= 0 or self.random.random() < 0.45):
            return column
        makers = _MAKERS.get(family)
        if depth <= 0 or makers is None or self.random.random() < 0.1:
            return self.constant(family)
        made = self.random.choice(makers)(self, depth - 1)
        # Sums of doubles stay exact only for what is known to be a quarter's multiple.
        return made if isinstance(made, Value) else Value(made, family)

    def constant(self, family: str) -> Value:
        """A literal, sometimes null."""
        type_ = _LITERAL_TYPES[family]
        text = literal(self.random, type_, nulls=0.05)
        if text == "NULL" or family == "dec":
            text = f"({text})::{type_.postgres}"
        return Value(text if not text.startswith("-") else f"({text})", family, family == "float")

    def small(self, depth: int) -> str:
        """An integer far from any overflow; rarely one that is not."""
        inner = self.of("int", depth).sql
        return inner if self.random.random() < self._risk else f"({inner} % 1000)"

    def condition(self, depth: int = 2) -> str:
        """True, false or null."""
        if depth > 0 and self.random.random() < 0.3:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return self.random.choice((f"({left} AND {right})", f"({left} OR {right})"))
        if depth > 0 and self.random.random() < 0.08:
            return f"NOT ({self.condition(depth - 1)})"
        return self.random.choice(_CONDITIONS)(self, depth)

    def compared(self, depth: int) -> str:
        """Two values of one family with a comparison between them."""
        column = self.column(*ORDERED)
        family = column.family if column else "int"
        left = column.sql if column else self.of(family, 0).sql
        sign = self.random.choice(("=", "=", "<>", "<", "<=", ">", ">="))
        return f"{left} {sign} {self.of(family, min(depth, 1)).sql}"

    def divided(self, depth: int) -> str:
        """A quotient; rarely one that may divide by zero."""
        divisor = self.small(depth)
        safe = divisor if self.random.random() < self._risk else f"nullif({divisor}, 0)"
        return f"({self.small(depth)} / {safe})"


def _case(family: str) -> "Callable[[Expressions, int], Value]":
    def make(e: Expressions, depth: int) -> Value:
        a, b = e.of(family, depth), e.of(family, depth)
        text = f"CASE WHEN {e.condition(depth)} THEN {a.sql} ELSE {b.sql} END"
        return Value(text, family, a.tame and b.tame)

    return make


def _coalesced(family: str) -> "Callable[[Expressions, int], Value]":
    def make(e: Expressions, depth: int) -> Value:
        a, b = e.of(family, depth), e.of(family, depth)
        name = e.random.choice(("coalesce", "coalesce", "nullif"))
        return Value(f"{name}({a.sql}, {b.sql})", family, a.tame and b.tame)

    return make


def _tame(template: str) -> "Callable[[Expressions, int], Value]":
    """Arithmetic on doubles of which sums are exact; on others nothing is done."""

    def make(e: Expressions, depth: int) -> Value:
        a = e.of("float", depth)
        return Value(template.format(a.sql), "float", True) if a.tame else a

    return make


def _day(e: Expressions, depth: int) -> str:
    """A date with room on both sides."""
    return f"least(greatest({e.of('date', depth).sql}, date '1900-01-01'), date '2100-01-01')"


def _moment(e: Expressions, depth: int) -> str:
    value = e.of("ts", depth).sql
    return f"least(greatest({value}, timestamp '1900-01-01'), timestamp '2100-01-01')"


_MAKERS: dict[str, "Sequence[Callable[[Expressions, int], Value | str]]"] = {
    "int": (
        lambda e, d: f"({e.small(d)} {e.random.choice('+-*')} {e.small(d)})",
        lambda e, d: e.divided(d),
        lambda e, d: f"abs({e.small(d)})",
        lambda e, d: f"length({e.of('text', d).sql})",
        lambda e, d: f"extract(month from {e.of('date', d).sql})::int",
        lambda e, d: f"cardinality({e.of('ints', d).sql})",
        lambda e, d: f"({e.of('ints', d).sql})[1]",
        lambda e, d: f"({_day(e, d)} - {_day(e, 0)})",
        lambda e, d: f"greatest({e.of('int', d).sql}, {e.of('int', 0).sql})",
        lambda e, d: f"({e.of('bool', d).sql})::int",
        lambda e, d: f"position('a' in {e.of('text', d).sql})",
        _case("int"),
        _coalesced("int"),
    ),
    "dec": (
        lambda e, d: f"round({e.of('dec', d).sql}, 1)",
        lambda e, d: f"(round({e.of('dec', d).sql}, 2) + {e.small(d)})",
        lambda e, d: f"({e.small(d)} * 1.25)",
        lambda e, d: f"({e.small(d)})::numeric(12,3)",
        lambda e, d: f"round({e.small(d)} / 7.0, 4)",
        _case("dec"),
        _coalesced("dec"),
    ),
    "numeric": (_case("numeric"), _coalesced("numeric")),
    "float": (
        _tame("({} * 2)"),
        _tame("({} + 0.5)"),
        _tame("abs({})"),
        lambda e, d: Value(f"({e.small(d)})::float8", "float", True),
        _case("float"),
        _coalesced("float"),
    ),
    "text": (
        lambda e, d: f"upper({e.of('text', d).sql})",
        lambda e, d: f"({e.of('text', d).sql} || {e.of('text', 0).sql})",
        lambda e, d: f"left({e.of('text', d).sql}, {e.random.randrange(4)})",
        lambda e, d: f"substring({e.of('text', d).sql}, 1, 2)",
        lambda e, d: f"replace({e.of('text', d).sql}, 'a', 'bb')",
        lambda e, d: f"trim({e.of('text', d).sql})",
        lambda e, d: f"({e.of('int', d).sql})::text",
        lambda e, d: f"({e.of('date', d).sql})::text",
        lambda e, d: f"to_char({e.of('ts', d).sql}, 'YYYY-MM')",
        lambda e, d: f"({e.of('texts', d).sql})[1]",
        _case("text"),
        _coalesced("text"),
    ),
    "bool": (
        lambda e, d: f"({e.condition(d)})",
        lambda e, d: f"({e.of('int', d).sql} IS NULL)",
        _coalesced("bool"),
    ),
    "date": (
        lambda e, d: f"({_day(e, d)} + {e.small(0)})",
        lambda e, d: f"({e.of('ts', d).sql})::date",
        _case("date"),
        _coalesced("date"),
    ),
    "ts": (
        lambda e, d: f"({_moment(e, d)} + interval '1 day 2 hours')",
        lambda e, d: f"date_trunc('{e.random.choice(('hour', 'day', 'month'))}', {_moment(e, d)})",
        lambda e, d: f"({e.of('date', d).sql})::timestamp",
        _coalesced("ts"),
    ),
    "ints": (
        lambda e, d: f"ARRAY[{e.of('int', d).sql}, {e.small(0)}]",
        lambda e, d: f"array_append({e.of('ints', d).sql}, {e.of('int', 0).sql})",
        _coalesced("ints"),
    ),
    "texts": (
        lambda e, d: f"ARRAY[{e.of('text', d).sql}]",
        lambda e, d: f"({e.of('texts', d).sql} || {e.of('texts', 0).sql})",
    ),
}


def _is_null(e: Expressions, depth: int) -> str:
    return f"{e.any(0).sql} IS {e.random.choice(('', 'NOT '))}NULL"


def _distinct_from(e: Expressions, depth: int) -> str:
    value = e.ordered(0)
    return (
        f"{value.sql} IS {e.random.choice(('', 'NOT '))}DISTINCT FROM {e.of(value.family, 0).sql}"
    )


_CONDITIONS: "Sequence[Callable[[Expressions, int], str]]" = (
    lambda e, d: e.compared(d),
    lambda e, d: e.compared(d),
    lambda e, d: e.compared(d),
    _is_null,
    _distinct_from,
    lambda e, d: e.of("bool", 0).sql,
    lambda e, d: f"{e.of('int', d).sql} BETWEEN {e.of('int', 0).sql} AND 5",
    lambda e, d: f"{e.of('int', d).sql} IN (1, 2, {e.constant('int').sql})",
    lambda e, d: f"{e.of('text', d).sql} LIKE '{e.random.choice(('a%', '%b', '_', '%e%'))}'",
    lambda e, d: f"{e.of('int', d).sql} = ANY ({e.of('ints', 0).sql})",
)
