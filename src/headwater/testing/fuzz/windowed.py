"""Random window functions with orders that leave nothing open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headwater.testing.fuzz.expressions import Value

_FRAMES = (
    "",
    " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
    " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
)


def total_order(random: Random, names: Sequence[str]) -> str:
    """All of the columns, in some order: rows that tie are equal."""
    shuffled = random.sample(list(names), len(names))
    ways = ("", "", " DESC", " DESC NULLS LAST", " NULLS FIRST")
    return ", ".join(f"{name}{random.choice(ways)}" for name in shuffled)


def window_calls(random: Random, values: Sequence[Value]) -> list[Value]:
    """A few calls over one or two windows of these columns."""
    names = [value.sql for value in values]
    part = f"PARTITION BY {random.choice(names)} " if random.random() < 0.75 else ""
    window = _Window(
        random,
        list(values),
        part.strip(),
        f"{part}ORDER BY {total_order(random, names)}",
        f"{part}ORDER BY {random.choice(names)}{random.choice(('', ' DESC'))}",
    )
    return [random.choice(_CALLS)(window) for _ in range(random.choice((1, 1, 2)))]


@dataclass(frozen=True, slots=True)
class _Window:
    random: Random
    values: list[Value]
    part: str
    total: str
    partial: str

    @property
    def any(self) -> Value:
        return self.random.choice(self.values)

    @property
    def peers(self) -> str:
        """A window in which rows that tie have the same frame."""
        return self.random.choice((self.part, self.partial))


def _rank(w: _Window) -> Value:
    return Value(f"{w.random.choice(('rank', 'dense_rank'))}() OVER ({w.partial})", "int")


def _number(w: _Window) -> Value:
    return Value(f"{w.random.choice(('row_number()', 'ntile(3)'))} OVER ({w.total})", "int")


def _offset(w: _Window) -> Value:
    value, by = w.any, w.random.choice(("", ", 2"))
    name = w.random.choice(("lag", "lead"))
    return Value(f"{name}({value.sql}{by}) OVER ({w.total})", value.family, value.tame)


def _first(w: _Window) -> Value:
    value, frame = w.any, w.random.choice(_FRAMES)
    name = w.random.choice(("first_value", "last_value"))
    return Value(f"{name}({value.sql}) OVER ({w.total}{frame})", value.family, value.tame)


def _sum(w: _Window) -> Value:
    exact = [value for value in w.values if value.family in ("int", "dec")]
    small = f"({w.random.choice(exact).sql} % 1000)" if exact else "1"
    name, frame = w.random.choice(("sum", "avg")), w.random.choice(_FRAMES)
    return Value(f"{name}({small}) OVER ({w.total}{frame})", "dec")


def _count(w: _Window) -> Value:
    return Value(f"count({w.any.sql}) OVER ({w.peers})", "int")


def _extreme(w: _Window) -> Value:
    value = w.any
    if value.family in ("bool", "uuid"):
        return _count(w)
    name = w.random.choice(("min", "max"))
    return Value(f"{name}({value.sql}) OVER ({w.peers})", value.family, value.tame)


_CALLS: "Sequence[Callable[[_Window], Value]]" = (
    _rank,
    _number,
    _offset,
    _first,
    _sum,
    _sum,
    _count,
    _extreme,
)
