"""One SELECT while it is planned: the plan so far, and answers for the translator.

A block goes through the order that SQL gives a SELECT: FROM, WHERE, GROUP BY, windows, list.
Subqueries and windows met on the way are joined to the plan as it is at that moment, and a
column stands for their value.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from headwater.errors import ParseError
from headwater.sql.algebra import Plan
from headwater.sql.expression.aggregates import is_aggregate
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translate import translator
from headwater.sql.expression.translator import Translator, function_name
from headwater.sql.expression.typed import NULL, Typed, string_literal
from headwater.sql.planning import Environment, Planning, names_of
from headwater.sql.scope import Scope


@dataclass(slots=True)
class Grouped:
    """What may be named after grouping: group expressions by their text, and aggregates."""

    by_text: dict[str, Typed]
    inner: Translator
    calls: dict[str, Typed]
    functional: dict[str, Typed] = field(default_factory=dict)
    groupings: dict[str, Typed] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """A SELECT being planned, seen from its expressions."""

    planning: Planning
    scope: Scope
    environment: Environment
    plan: Plan
    grouped: Grouped | None = None
    windows_allowed: bool = False
    named_windows: dict[str, Any] = field(default_factory=dict)
    correlated: list[Typed] = field(default_factory=list)
    aggregates_allowed: bool = False

    later: list[Any] = field(default_factory=list)
    """Conditions of FROM that wait until all its items are joined."""
    generated: dict[int, Typed] = field(default_factory=dict)
    """Set-returning calls of the select list, by node, as columns."""

    def __post_init__(self) -> None:
        if self.scope.plan is None:
            self.scope.plan = lambda: self.plan

    @property
    def text(self) -> Text:
        """The user's text."""
        return self.planning.text

    def translator(self) -> Translator:
        """A translator that asks this block."""
        return translator(self.text, self)

    def own(self) -> frozenset[str]:
        """The columns of the plan as it is."""
        return names_of(self.plan)

    def outer_columns(self, value: Typed) -> frozenset[str]:
        """The columns of a value that belong to the query around."""
        return value.columns - self.own()

    # What the translator asks.

    def column(self, node: exp.Column) -> Typed:
        """A column by its name; after grouping only what is grouped."""
        found = self.scope.find(node)
        if self.grouped is None or not found.columns & self._grouped_scope():
            return found
        self.text.mistake(
            f'column "{node.sql("postgres")}" must appear in the GROUP BY clause or be used in '
            "an aggregate function",
            node,
            sqlstate="42803",
        )

    def _grouped_scope(self) -> frozenset[str]:
        return self.scope.columns()

    def instead(self, node: exp.Expr) -> Typed | None:
        """Values that do not come from the node's own parts."""
        from headwater.sql.subqueries import subquery_value  # noqa: PLC0415
        from headwater.sql.windows import window_value  # noqa: PLC0415

        if id(node) in self.generated:
            return self.generated[id(node)]
        if isinstance(node, exp.Window):
            if not self.windows_allowed:
                self.text.mistake(
                    "window functions are not allowed here",
                    node,
                    sqlstate="42P20",
                    hint="Compute it in a subquery.",
                )
            return window_value(self, node)
        if is_aggregate(node):
            return self._aggregate(node)
        if self.grouped is not None:
            found = self._group_value(node)
            if found is not None:
                return found
        return subquery_value(self, node)

    def _aggregate(self, node: exp.Expr) -> Typed:
        key = node.sql("postgres", comments=False)
        if self.grouped is not None and key in self.grouped.calls:
            return self.grouped.calls[key]
        self.text.mistake("aggregate functions are not allowed here", node, sqlstate="42803")

    def _group_value(self, node: exp.Expr) -> Typed | None:
        """The group column that stands for a node, if it is one of the group expressions."""
        grouped = self.grouped
        assert grouped is not None
        if isinstance(node, exp.Anonymous) and function_name(node) == "grouping":
            return grouped.groupings.get(node.sql("postgres").lower())
        if isinstance(node, exp.Literal | exp.Null | exp.Boolean | exp.Star):
            return None
        if node.find(exp.Window, exp.Select) or any(
            map(is_aggregate, node.find_all(exp.Anonymous))
        ):
            return None
        if not isinstance(node, exp.Column | exp.Paren) and not grouped.by_text:
            return None
        try:
            value = grouped.inner(node)
        except ParseError:
            # Only a part of it is grouped; what is wrong with it shows when it is translated.
            return None
        found = grouped.by_text.get(value.text)
        if found is None and isinstance(node, exp.Column):
            found = grouped.functional.get(value.text)
        return found

    def impure(self, name: str, node: exp.Expr) -> None:
        """Refuse a clock or a die in what is kept."""
        if self.planning.pure:
            self.text.refuse(
                f"{name}() is not allowed in what is kept current",
                node,
                hint="Its value would depend on when it is computed. Put it into a table.",
            )

    def parameter(self, number: int, node: exp.Expr) -> Typed:
        """The value of `$n`, as a literal without a type."""
        values = self.planning.parameters
        if values is None or not 1 <= number <= len(values):
            self.text.mistake(f"there is no parameter ${number}", node, sqlstate="42P02")
        value = values[number - 1]
        if value is None:
            return replace(NULL, parameter=number)
        return Typed(string_literal(value), None, literal=value, nullable=False, parameter=number)
