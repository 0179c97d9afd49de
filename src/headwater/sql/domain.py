"""The values that a query around hands to a subquery, as a relation of their own.

A subquery that reads columns of the query around is planned once, for all rows of that query
together: it is joined with the distinct values of those columns (its *domain*), and its result is
joined back by them. So any correlation becomes joins and groups, which have rules for changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.sql.algebra import Aggregate, JoinKind, Named, Plan, Project
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, column, equality_of, sameness_of
from headwater.sql.planning import Planning, joined, names_of, replaced
from headwater.sql.scope import Scope


@dataclass(frozen=True, slots=True)
class Domain:
    """Distinct values: the plan, and for each column around the column here."""

    plan: Plan
    columns: dict[str, Typed]
    outside: dict[str, Typed]

    @property
    def swaps(self) -> dict[str, str]:
        """For `replaced`: columns around become columns here."""
        return {name: value.text for name, value in self.columns.items()}

    def equalities(self, planning: Planning) -> list[Typed]:
        """What leads from a row around to its row here."""
        return [same(planning, self.outside[name], value) for name, value in self.columns.items()]


def same(planning: Planning, outside: Typed, inside: Typed) -> Typed:
    """An equality that null satisfies too, where there can be one."""
    if planning.is_nullable(outside):
        return sameness_of(outside, inside)
    return equality_of(outside, inside)


def domain_of(planning: Planning, plan: Plan, names: Iterable[str]) -> Domain:
    """The distinct values that some columns of a plan have together."""
    outputs = {output.name: output for output in plan.outputs}
    made_columns: list[Named] = []
    inside: dict[str, Typed] = {}
    outside: dict[str, Typed] = {}
    for name in sorted(names):
        type_ = outputs[name].type
        reference = column(name, type_, nullable=name not in planning.not_null)
        fresh, value = planning.column(name, type_, nullable=name not in planning.not_null)
        made_columns.append(Named(fresh, reference.expression()))
        inside[name], outside[name] = value, reference
    project = Project(input=plan, expressions=tuple(made_columns), key=())
    group = tuple(each.name for each in made_columns)
    return Domain(Aggregate(input=project, group=group, calls=()), inside, outside)


def outer_domain(
    planning: Planning, scope: Scope | None, names: Iterable[str], text: Text
) -> Domain:
    """The domain of columns that belong to one of the queries around."""
    wanted = frozenset(names)
    while scope is not None:
        plan = scope.plan() if scope.plan is not None else None
        if plan is not None and wanted <= names_of(plan):
            return domain_of(planning, plan, wanted)
        scope = scope.outer
    text.refuse("a subquery that reads several queries around it is not supported here")


def within(planning: Planning, plan: Plan, domain: Domain, conditions: Sequence[Typed]) -> Plan:
    """A plan joined with a domain, under conditions that read the query around."""
    inner = [replaced(condition, domain.swaps) for condition in conditions]
    return joined(planning, JoinKind.INNER, domain.plan, plan, inner)
