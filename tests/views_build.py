"""Plans built by hand, by method calls."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, BOOLEAN, DataType
from headwater.sql.algebra import (
    Aggregate,
    AggregateCall,
    Expression,
    Filter,
    Generate,
    Join,
    JoinKind,
    Named,
    Opaque,
    Ordering,
    Output,
    Plan,
    Project,
    Query,
    Scan,
    SetKind,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
)


class Builder:
    """Plans by method calls; every column gets a name of its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def fresh(self, stem: str) -> str:
        return f"{stem.rstrip('0123456789')}{next(self._numbers)}"

    def scan(self, table: int, schema: Schema) -> Scan:
        names = {column.name: self.fresh(f"{column.name}_") for column in schema.columns}
        return Scan(
            table=TableId(table),
            columns=tuple((new, old) for old, new in names.items()),
            outputs=tuple(Output(names[c.name], c.type) for c in schema.columns),
            key=tuple(names[name] for name in schema.key),
        )

    def filter(self, plan: Plan, text: str) -> Filter:
        return Filter(input=plan, predicate=expr(text, BOOLEAN, plan))

    def project(self, plan: Plan, key: Sequence[str] = (), **terms: tuple[str, DataType]) -> Plan:
        named = tuple(Named(name, expr(text, type_, plan)) for name, (text, type_) in terms.items())
        return Project(input=plan, expressions=named, key=tuple(key))

    def join(
        self,
        kind: JoinKind,
        left: Plan,
        right: Plan,
        on: Sequence[tuple[str, str]],
        *,
        null_safe: bool = False,
        residual: str | None = None,
    ) -> Join:
        kept = left.key if kind in (JoinKind.SEMI, JoinKind.ANTI) else (*left.key, *right.key)
        keyed = left.key and (right.key or kind in (JoinKind.SEMI, JoinKind.ANTI))
        return Join(
            kind=kind,
            left=left,
            right=right,
            on=tuple((column(a, left), column(b, right)) for a, b in on),
            null_safe=null_safe,
            residual=(residual and Expression(residual, BOOLEAN)) or None,
            key=kept if keyed else (),
        )

    def aggregate(self, plan: Plan, group: Sequence[str], *calls: AggregateCall) -> Aggregate:
        return Aggregate(input=plan, group=tuple(group), calls=calls)

    def call(
        self,
        plan: Plan,
        function: str,
        argument: str | None,
        type_: DataType,
        *,
        distinct: bool = False,
        where: str | None = None,
        text: str | None = None,
    ) -> AggregateCall:
        inside = ("distinct " if distinct else "") + (argument or "*")
        whole = text or f"{function}({inside})"
        if where is not None:
            whole += f" filter (where {where})"
        return AggregateCall(
            name=self.fresh(f"{function}_"),
            function=function,
            expression=expr(whole, type_, plan),
            argument=None if argument is None else column(argument, plan),
            distinct=distinct,
            filter=None if where is None else expr(where, BOOLEAN, plan),
        )

    def union(self, *plans: Plan, tag: bool = False) -> UnionAll:
        names = [self.fresh("u") for _ in plans[0].outputs]
        outputs = [Output(n, o.type) for n, o in zip(names, plans[0].outputs, strict=True)]
        marked = self.fresh("tag") if tag else None
        places = {tuple(names_of(p).index(k) for k in p.key) for p in plans}
        keyed = tag and len(places) == 1 and all(p.key for p in plans)
        key = (*(names[place] for place in next(iter(places))), marked) if keyed else ()
        return UnionAll(
            inputs=plans,
            outputs=(*outputs, *([Output(marked, BIGINT)] if marked else [])),
            columns=tuple(tuple(names_of(plan)) for plan in plans),
            tag=marked,
            key=key,  # type: ignore[arg-type]
        )

    def set(self, kind: SetKind, left: Plan, right: Plan, *, every: bool) -> SetOperation:
        outputs = tuple(Output(self.fresh("s"), o.type) for o in left.outputs)
        return SetOperation(kind=kind, all=every, left=left, right=right, outputs=outputs)

    def window(self, plan: Plan, partition: Sequence[str], *calls: tuple[str, DataType]) -> Plan:
        named = tuple(Named(self.fresh("w"), expr(text, type_, plan)) for text, type_ in calls)
        return WindowFunctions(input=plan, partition=tuple(partition), calls=named)

    def top(self, plan: Plan, partition: Sequence[str], order: Sequence[str], **more: Any) -> TopN:
        terms = tuple(
            Ordering(column(name, plan), descending=number % 2 == 0, nulls_first=number % 3 == 0)
            for number, name in enumerate(order)
        )
        return TopN(input=plan, partition=tuple(partition), order=terms, **more)

    def generate(self, plan: Plan, text: str, type_: DataType, *, outer: bool = False) -> Generate:
        name = self.fresh("e")
        whole = f"transform({text}, x -> named_struct('{name}', x))"
        return Generate(
            input=plan,
            expression=expr(whole, type_, plan),
            generated=(Output(name, type_),),
            ordinality=self.fresh("n"),
            outer=outer,
        )

    def values(self, types: Sequence[DataType], *rows: Sequence[str]) -> Values:
        outputs = tuple(Output(self.fresh("v"), type_) for type_ in types)
        cells = tuple(
            tuple(Expression(text, type_) for text, type_ in zip(row, types, strict=True))
            for row in rows
        )
        return Values(rows=cells, outputs=outputs)

    def opaque(self, plans: Sequence[Plan], sql: str, outputs: Sequence[Output]) -> Opaque:
        return Opaque(inputs=tuple(plans), sql=sql, outputs=tuple(outputs), reason="a test")


def names_of(plan: Plan) -> list[str]:
    return [output.name for output in plan.outputs]


def expr(text: str, type_: DataType, plan: Plan) -> Expression:
    """An expression, with the columns that its text names."""
    used = set(re.findall(r"\w+", text)) & set(names_of(plan))
    return Expression(text, type_, frozenset(used))


def column(name: str, plan: Plan) -> Expression:
    """A column, or another expression of an input with the type of what it names first."""
    types = {output.name: output.type for output in plan.outputs}
    if name in types:
        return Expression(f"`{name}`", types[name], frozenset({name}))
    text, _, kind = name.partition("::")
    return expr(text, DataType(kind) if kind else BIGINT, plan)  # type: ignore[arg-type]


def query(plan: Plan) -> Query:
    """A query whose columns users see under names of their own."""
    return Query(plan=plan, visible=tuple((f"c_{o.name}", o.name) for o in plan.outputs))


def schema_of(key: Sequence[str], **columns: DataType) -> Schema:
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()), tuple(key))
