"""WITH RECURSIVE: one opaque node, which Spark repeats until nothing new comes.

The rows of the part that does not name itself come first; then the other part runs over the rows
of the round before. Spark keeps all rounds (UNION ALL); for UNION the rows are made distinct at
the end, which is the same wherever the rounds come to an end. A query whose rounds do not end is
an error after many of them. A view over such a query is recomputed and compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from headwater.model.spelling import quoted
from headwater.sql.algebra import Aggregate, Opaque, Output, Plan
from headwater.sql.expression.coercion import become, can_become, converted
from headwater.sql.expression.typed import Typed
from headwater.sql.planning import Environment, Planning, Shape, extend, is_column

_MOST_ROUNDS = 10_000
_REASON = "a recursive query is recomputed as a whole"

Plan_ = Callable[[Any, None, Environment], Shape]


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The rows of the round before, as the part that names itself sees them."""

    planning: Planning
    name: str
    columns: tuple[tuple[str, Output], ...]

    def shape(self) -> Shape:
        """A leaf that reads them."""
        fresh = [self.planning.column(name, output.type) for name, output in self.columns]
        terms = ", ".join(
            f"{quoted(output.name)} as {quoted(new)}"
            for (_, output), (new, _) in zip(self.columns, fresh, strict=True)
        )
        outputs = tuple(Output(new, value.known) for new, value in fresh)
        sql = f"select {terms} from {quoted(self.name)}"
        leaf = Opaque(inputs=(), sql=sql, outputs=outputs, reason=_REASON)
        shown = [(name, value) for (name, _), (_, value) in zip(self.columns, fresh, strict=True)]
        return Shape(leaf, shown)


@dataclass(frozen=True, slots=True)
class Recursive:
    """A CTE that names itself."""

    planning: Planning
    plan: Plan_
    name: str
    names: tuple[str, ...]
    query: Any
    environment: Environment

    def shape(self) -> Shape:
        """All its rows."""
        text, union = self.planning.text, self.query
        if not isinstance(union, exp.Union) or any(
            union.args.get(each) for each in ("order", "limit", "offset")
        ):
            text.mistake(
                f'recursive query "{self.name}" does not have the form '
                "non-recursive-term UNION [ALL] recursive-term",
                union,
                sqlstate="42P19",
            )
        first = self.plan(union.this, None, self.environment)
        names = [*self.names, *(name for name, _ in first.columns[len(self.names) :])]
        start, columns = _columns(self.planning, first, [value for _, value in first.columns])
        cte = self.planning.name(self.name)
        stored = tuple(
            (name, Output(f"c{place}", output.type))
            for place, (name, output) in enumerate(zip(names, columns, strict=True))
        )
        inside = {**self.environment, self.name: _Rounds(self.planning, cte, stored)}
        following = self.plan(union.expression, None, inside)
        step, stepped = _columns(self.planning, following, self._fitting(following, columns))
        return self._whole(cte, stored, (start, columns), (step, stepped))

    def _fitting(self, shape: Shape, columns: list[Output]) -> list[Typed]:
        text = self.planning.text
        if len(shape.columns) != len(columns):
            text.mistake(
                "each UNION query must have the same number of columns", self.query,
                sqlstate="42601",
            )  # fmt: skip
        values = []
        for (_, value), output in zip(shape.columns, columns, strict=True):
            if value.type is not None and not can_become(value.type, output.type):
                text.mistake(
                    f'recursive query "{self.name}" has type {output.type.postgres} in its '
                    f"non-recursive term but type {value.type.postgres} overall",
                    self.query,
                    hint="Cast the output of the non-recursive term to the correct type.",
                )
            values.append(
                converted(value, output.type)
                if value.type is not None
                else become(value, output.type, text, self.query)
            )
        return values

    def _whole(
        self, cte: str, stored: tuple[tuple[str, Output], ...],
        first: tuple[Plan, list[Output]], step: tuple[Plan, list[Output]],
    ) -> Shape:  # fmt: skip
        def part(place: int, given: list[Output]) -> str:
            terms = ", ".join(
                f"cast({quoted(one.name)} as {kept.type.spark}) as {quoted(kept.name)}"
                for one, (_, kept) in zip(given, stored, strict=True)
            )
            return f"select {terms} from {{{place}}}"

        fresh = [self.planning.column(name, output.type) for name, output in stored]
        listed = ", ".join(quoted(output.name) for _, output in stored)
        shown = ", ".join(
            f"{quoted(output.name)} as {quoted(new)}"
            for (_, output), (new, _) in zip(stored, fresh, strict=True)
        )
        sql = (
            f"with recursive {quoted(cte)}({listed}) max recursion level {_MOST_ROUNDS} as "
            f"({part(0, first[1])} union all {part(1, step[1])}) "
            f"select {shown} from {quoted(cte)}"
        )
        outputs = tuple(Output(new, value.known) for new, value in fresh)
        plan: Plan = Opaque(inputs=(first[0], step[0]), sql=sql, outputs=outputs, reason=_REASON)
        if self.query.args.get("distinct"):
            plan = Aggregate(input=plan, group=tuple(new for new, _ in fresh), calls=())
        columns = [(name, value) for (name, _), (_, value) in zip(stored, fresh, strict=True)]
        return Shape(plan, columns)


def _columns(planning: Planning, shape: Shape, values: list[Typed]) -> tuple[Plan, list[Output]]:
    """A plan that has the user's columns, and which these are."""
    text = planning.text
    if shape.correlated:
        text.refuse("a recursive query may not read a query around it")
    typed = [become(each, each.known, text, None) for each in values]
    plan, references = extend(planning, shape.plan, [("c", each) for each in typed])
    return plan, [Output(is_column(each) or "", each.known) for each in references]
