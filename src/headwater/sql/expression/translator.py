"""The walk over sqlglot's tree: which node becomes what is said in `translate.py`.

Names, aggregates, windows and subqueries belong to the query around an expression, which answers
through `Surroundings`. A node without a rule is refused, and so is a part of a node that its rule
does not read: nothing the user wrote is dropped, and nothing is handed to Spark as it stands.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sqlglot import exp

from headwater.sql.expression import comparison
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed

_READ = frozenset({"this", "expression", "expressions"})
_READ_BY = {
    (exp.Column, "table"), (exp.Column, "db"), (exp.Column, "catalog"),
    (exp.Literal, "is_string"), (exp.Alias, "alias"), (exp.Cast, "to"), (exp.Cast, "_type"),
    (exp.Div, "typed"), (exp.DPipe, "safe"), (exp.Between, "low"), (exp.Between, "high"),
    (exp.Between, "symmetric"), (exp.Like, "negate"), (exp.ILike, "negate"), (exp.Case, "ifs"),
    (exp.Case, "default"), (exp.Substring, "start"), (exp.Substring, "length"),
    (exp.Trim, "position"), (exp.StrPosition, "substr"), (exp.Overlay, "from_"),
    (exp.Overlay, "for_"), (exp.AtTimeZone, "zone"), (exp.Interval, "unit"),
    (exp.Bracket, "offset"),
}  # fmt: skip


_CHAINS = frozenset({exp.Add, exp.Sub, exp.Mul, exp.DPipe})
_LONG = 20


class Surroundings(Protocol):
    """What the query around an expression knows."""

    def column(self, node: exp.Column) -> Typed:
        """The column that a name means."""
        ...

    def instead(self, node: exp.Expr) -> Typed | None:
        """What stands for a whole node: an aggregate's result, a subquery's value, a group."""
        ...

    def impure(self, name: str, node: exp.Expr) -> None:
        """Asked before a function whose value depends on when it is called."""
        ...

    def parameter(self, number: int, node: exp.Expr) -> Typed:
        """The value of `$n`."""
        ...


class Translator:
    """Translates the expressions of one query."""

    def __init__(
        self, text: Text, around: Surroundings, rules: "Mapping[type[exp.Expr], Rule]"
    ) -> None:
        self.text = text
        self.around = around
        self.rules = rules
        self._known: dict[int, Typed] = {}

    def _walk(self, node: exp.Expr) -> None:
        """Translate the left side of a long chain from its end, which a recursion could not."""
        spine = []
        inner = node.this
        while type(inner) in _CHAINS:
            spine.append(inner)
            inner = inner.this
        if len(spine) > _LONG:
            for each in reversed(spine):
                self._known[id(each)] = self._ruled(each)

    def _ruled(self, node: exp.Expr) -> Typed:
        found = self.around.instead(node)
        return found if found is not None else self.rules[type(node)](self, node)

    def __call__(self, node: exp.Expr) -> Typed:
        """The Spark text, type and columns of an expression."""
        if id(node) in self._known:
            return self._known.pop(id(node))
        if type(node) in _CHAINS:
            self._walk(node)
        found = self.around.instead(node)
        if found is not None:
            return found
        rule = self.rules.get(type(node))
        if rule is None:
            self.text.refuse(f"{node.sql('postgres')[:60]} is not supported", node)
        # A part of the syntax that the rule does not look at must not be dropped.
        for name, part in node.args.items():
            if part and name not in _READ and (type(node), name) not in _READ_BY:
                self.text.refuse(f"{node.sql('postgres')[:60]} is not supported", node)
        return rule(self, node)

    def condition(self, node: exp.Expr) -> Typed:
        """A boolean expression."""
        return comparison.truth(self(node), self.text, node)

    def all(self, nodes: list[exp.Expr]) -> list[Typed]:
        """Several expressions."""
        return [self(node) for node in nodes]


def function_name(node: exp.Anonymous) -> str:
    """The name of a call, folded."""
    name = node.this
    return str(name.this) if isinstance(name, exp.Identifier) else str(name).lower()


Rule = Callable[[Translator, Any], Typed]
