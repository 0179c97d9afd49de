"""Names in sight: the sources of a FROM clause, their columns, and the query around.

A column is found by PostgreSQL's rules: names are folded before, an unqualified name must be in
exactly one source, a merged column of USING or NATURAL hides both of its sides, and what is not
found here is looked for in the query around, which makes the query correlated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from headwater.sql.algebra import Plan
from headwater.sql.data_statements import identifier
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed
from headwater.sql.relations import suggestion


@dataclass(slots=True)
class Source:
    """One item of a FROM clause; `merged` names are shown by the join that merged them."""

    name: str
    columns: list[tuple[str, Typed]]
    merged: set[str] = field(default_factory=set)
    schema: str | None = None
    key: frozenset[str] = frozenset()
    """The plan's columns that identify a row of a stored relation."""
    scalar: bool = False
    """Whether the source's own name stands for its only column: a function in FROM."""


def _imported(found: Typed, passed: "list[Scope]") -> Typed:
    """The column, or what the query nearest to it has in its place."""
    for scope in reversed(passed):
        for name in found.columns:
            if name in scope.imported:
                found = scope.imported[name]
    return found


@dataclass(slots=True)
class Scope:
    """The sources of one FROM clause."""

    text: Text
    outer: "Scope | None" = None
    sources: list[Source] = field(default_factory=list)
    merged: list[tuple[str, Typed]] = field(default_factory=list)
    plan: "Callable[[], Plan | None] | None" = None
    """The rows that these names belong to, as far as they are planned."""
    imported: dict[str, Typed] = field(default_factory=dict)
    """Columns of queries around that this query has as columns of its own."""

    def add(self, source: Source) -> None:
        """A further source; its name must be new."""
        if any(each.name == source.name for each in self.sources if each.name):
            self.text.mistake(
                f'table name "{source.name}" specified more than once', sqlstate="42712"
            )
        self.sources.append(source)

    def find(self, node: exp.Column) -> Typed:
        """The column that a name means, here or around."""
        name = identifier(node.this)
        table = node.args.get("table")
        qualifier = identifier(table) if table is not None else None
        scope: Scope | None = self
        passed: list[Scope] = []
        while scope is not None:
            found = scope._here(name, qualifier, node)
            if found is not None:
                return _imported(found, passed)
            passed.append(scope)
            scope = scope.outer
        self._missing(name, qualifier, node)

    def _here(self, name: str, qualifier: str | None, node: exp.Column) -> Typed | None:
        found: list[Typed] = []
        if qualifier is None:
            found += [value for shown, value in self.merged if shown == name]
        for source in self.sources:
            if qualifier is not None and source.name != qualifier:
                continue
            if qualifier is None and name in source.merged:
                continue
            found += [value for shown, value in source.columns if shown == name]
        if not found and qualifier is None:
            found = [
                each.columns[0][1] for each in self.sources if each.scalar and each.name == name
            ]
        if len(found) > 1:
            self.text.mistake(
                f'column reference "{name}" is ambiguous',
                node,
                sqlstate="42702",
                hint="Put the table's name in front.",
            )
        return found[0] if found else None

    def _missing(self, name: str, qualifier: str | None, node: exp.Column) -> NoReturn:
        if qualifier is not None and not any(
            source.name == qualifier for scope in self._chain() for source in scope.sources
        ):
            names = [source.name for scope in self._chain() for source in scope.sources]
            self.text.mistake(
                f'missing FROM-clause entry for table "{qualifier}"',
                node,
                sqlstate="42P01",
                hint=suggestion(qualifier, names),
            )
        known = [shown for scope in self._chain() for each in scope.sources
                 for shown, _ in each.columns]  # fmt: skip
        full = f"{qualifier}.{name}" if qualifier else f'"{name}"'
        self.text.mistake(
            f"column {full} does not exist",
            node,
            sqlstate="42703",
            hint=suggestion(name, known),
        )

    def _chain(self) -> "list[Scope]":
        return [self, *(self.outer._chain() if self.outer is not None else [])]

    def star(self, qualifier: str | None, node: exp.Expr) -> list[tuple[str, Typed]]:
        """What `*` or `t.*` stands for."""
        if qualifier is not None:
            for source in self.sources:
                if source.name == qualifier:
                    return list(source.columns)
            self.text.mistake(
                f'missing FROM-clause entry for table "{qualifier}"',
                node,
                sqlstate="42P01",
                hint=suggestion(qualifier, [source.name for source in self.sources]),
            )
        found = list(self.merged)
        for source in self.sources:
            found += [pair for pair in source.columns if pair[0] not in source.merged]
        return found

    def columns(self) -> frozenset[str]:
        """All plan columns that belong to this scope itself."""
        return frozenset().union(
            *(value.columns for source in self.sources for _, value in source.columns),
            *(value.columns for _, value in self.merged),
        )
