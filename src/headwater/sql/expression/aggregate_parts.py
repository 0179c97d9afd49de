"""An aggregate call taken apart, and what it becomes."""

from dataclasses import dataclass
from typing import Any

from headwater.sql.algebra import Ordering
from headwater.sql.expression import comparison
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import Translator
from headwater.sql.expression.typed import Typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """An aggregate call, translated; `empty` is its value over no rows at all."""

    function: str
    value: Typed
    argument: Typed | None = None
    distinct: bool = False
    filter: Typed | None = None
    empty: str = "NULL"
    finish: str | None = None
    """The value over its states, for an average."""
    ordered: bool = False
    """Whether the call has an ORDER BY of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A call taken apart."""

    name: str
    args: list[Typed]
    star: bool
    distinct: bool
    order: list[Ordering]
    filter: Typed | None
    text: Text
    node: Any

    @property
    def suffix(self) -> str:
        """The FILTER clause."""
        return f" filter (where {self.filter.text})" if self.filter is not None else ""

    @property
    def quantifier(self) -> str:
        """DISTINCT, if asked."""
        return "distinct " if self.distinct else ""

    def one(self) -> Typed:
        """The only argument."""
        if len(self.args) != 1:
            self.text.mistake(f"{self.name} takes one argument", self.node, sqlstate="42883")
        return self.args[0]


def ordering(t: Translator, node: Any) -> Ordering:
    """One ORDER BY term: PostgreSQL puts nulls last, and first when descending."""
    value = comparison.ordered(t(node.this), t.text, node)
    descending = bool(node.args.get("desc"))
    return Ordering(value.expression(), descending, bool(node.args.get("nulls_first")))


def ordering_text(order: Ordering) -> str:
    """An ORDER BY term in Spark."""
    direction = "desc" if order.descending else "asc"
    return f"{order.expression.text} {direction} nulls {'first' if order.nulls_first else 'last'}"
