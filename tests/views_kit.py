"""Plans built by hand, tables in memory, and a small world in which views are kept current."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.model.change import ChangeType
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
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
from headwater.testing.oracle import Key, Row, apply_changes, apply_exact, assert_same_rows, key_of
from headwater.views.desk import Side
from headwater.views.fused import collect_all
from headwater.views.layout import Layout, RefreshPolicy, lay_out, view_of
from headwater.views.maintain import LiveView, Report, maintain
from headwater.views.recompute import store_queries, typed_sql
from headwater.views.relation import among
from headwater.views.spark_desk import local_frame


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
            residual=residual and Expression(residual, BOOLEAN) or None,
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
    import re

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


class MemoryRelation:
    """A relation whose rows are in memory; `indexed` says whether lookups find anything."""

    def __init__(
        self,
        spark: Any,
        schema: Schema,
        before: Mapping[Key, Row],
        changes: pa.Table | None = None,
        *,
        indexed: bool = True,
        large: bool = False,
        after: Mapping[Key, Row] | None = None,
    ) -> None:
        self._spark, self.schema, self._indexed = spark, schema, indexed
        self._tables = {Side.OLD: _table(before, schema)}
        if after is not None:
            self._tables[Side.NEW] = _table(after, schema)
        self.changed_rows = 0 if changes is None else changes.num_rows
        if large and changes is not None:
            types = f"{schema.spark}, {CHANGE_TYPE} string"
            self.changes: Any = local_frame(spark, changes, types)
        else:
            self.changes = changes

    @property
    def rows(self) -> int:
        return self._tables[Side.OLD].num_rows

    def frame(self, side: Side) -> Any:
        # In one partition nothing needs a shuffle, which is most of what a small test costs.
        return local_frame(self._spark, self._tables[side], self.schema.spark).coalesce(1)

    def lookup(self, keys: pa.Table, most: int) -> pa.Table | None:
        if not self._indexed:
            return None
        old = self._tables[Side.OLD]
        columns = [self.schema[name] for name in keys.column_names]
        found = old.filter(pa.array(among(old, keys, columns)))
        return found if found.num_rows <= most else None


def _table(rows: Mapping[Key, Row], schema: Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows.values()), schema=schema.arrow)


def exact_changes(before: Mapping[Key, Row], after: Mapping[Key, Row], schema: Schema) -> pa.Table:
    """What leads from some rows to others, as a state table would say it."""
    found: list[Row] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            found.append({**new, CHANGE_TYPE: ChangeType.INSERT.value})
        elif new is None and old is not None:
            found.append({**old, CHANGE_TYPE: ChangeType.DELETE.value})
        elif old is not None and new is not None and repr(old) != repr(new):
            found.append({**old, CHANGE_TYPE: ChangeType.UPDATE_PREIMAGE.value})
            found.append({**new, CHANGE_TYPE: ChangeType.UPDATE_POSTIMAGE.value})
    types = pa.schema([*schema.arrow, (CHANGE_TYPE, pa.string())])
    return pa.Table.from_pylist(found, schema=types)


class World:
    """Tables and views over them, all in memory; every step checks every view."""

    def __init__(self, spark: Any, schemas: Mapping[int, Schema]) -> None:
        self.spark = spark
        self.schemas = {TableId(id_): schema for id_, schema in schemas.items()}
        self.tables: dict[TableId, dict[Key, Row]] = {id_: {} for id_ in self.schemas}
        self.layouts: list[Layout] = []
        self.stores: list[list[dict[Key, Row]]] = []
        self.report: Report | None = None

    def add(self, plan: Plan, policy: RefreshPolicy = RefreshPolicy.INCREMENTAL) -> Layout:
        """Create a view; `fill` it before the first step."""
        layout = lay_out(view_of(f"v{len(self.layouts)}", query(plan), policy))
        self.layouts.append(layout)
        self.stores.append([{} for _ in layout.schemas])
        return layout

    def put(self, table: int, rows: Iterable[Row]) -> None:
        """Rows that are there from the start."""
        id_ = TableId(table)
        for row in rows:
            self.tables[id_][key_of(row, self.schemas[id_].key)] = row

    def fill(self) -> None:
        """Fill every view from nothing, in one job."""
        with _Names(self) as names:
            queries = [
                (sql, [Output(c.name, c.type) for c in schema.columns])
                for layout in self.layouts
                for sql, schema in zip(store_queries(layout, names), layout.schemas, strict=True)
            ]
            found = iter(collect_all(self.spark, queries))
        for layout, stores in zip(self.layouts, self.stores, strict=True):
            for store, schema in zip(stores, layout.schemas, strict=True):
                rows = next(found).to_pylist()
                store.clear()
                store.update({key_of(row, schema.key): row for row in rows})
                assert len(store) == len(rows), f"the key of {layout.view.name} is not one"

    def step(
        self,
        after: Mapping[TableId, dict[Key, Row]],
        *,
        indexed: Callable[[], bool] = lambda: True,
        large: bool = False,
    ) -> Report:
        """Move the tables to other rows, keep the views current, and check them all."""
        relations = {}
        for id_, schema in self.schemas.items():
            changes = exact_changes(self.tables[id_], after[id_], schema)
            apply_exact(dict(self.tables[id_]), changes, schema.key)
            relations[id_] = MemoryRelation(
                self.spark, schema, self.tables[id_], changes if changes.num_rows else None,
                indexed=indexed(), large=large, after=after[id_],
            )  # fmt: skip
        views = [
            LiveView(
                layout,
                tuple(
                    MemoryRelation(self.spark, schema, store)
                    for schema, store in zip(layout.schemas, stores, strict=True)
                ),
            )
            for layout, stores in zip(self.layouts, self.stores, strict=True)
        ]
        report = maintain(self.spark, views, relations)
        for changes, layout, stores in zip(report.views, self.layouts, self.stores, strict=True):
            for number, chunk in changes.stores.items():
                apply_changes(stores[number], chunk, layout.schemas[number].key)
        self.tables = {id_: dict(rows) for id_, rows in after.items()}
        self.check()
        return report

    def check(self) -> None:
        """Every view equals its query over the tables, both ways."""
        with _Names(self) as names:
            queries = [
                (typed_sql(layout.view.plan, names), layout.view.plan.outputs)
                for layout in self.layouts
            ]
            wanted = collect_all(self.spark, queries)
        for layout, stores, rows in zip(self.layouts, self.stores, wanted, strict=True):
            pairs = layout.view.columns
            found = [
                {column: row[stored] for stored, column in pairs} for row in stores[0].values()
            ]
            try:
                assert_same_rows(found, rows.to_pylist(), one_zero=True)
            except AssertionError as error:
                raise AssertionError(f"{layout.view.name}: {layout.view.plan}\n{error}") from error


class _Names:
    """The tables of a world as temporary views."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> dict[TableId, str]:
        names = {}
        for id_, rows in self._world.tables.items():
            names[id_] = f"world_{id_}"
            schema = self._world.schemas[id_]
            frame = local_frame(self._world.spark, _table(rows, schema), schema.spark)
            frame.coalesce(1).createOrReplaceTempView(names[id_])
        return names

    def __exit__(self, *_: object) -> None:
        for id_ in self._world.tables:
            self._world.spark.catalog.dropTempView(f"world_{id_}")


def schema_of(key: Sequence[str], **columns: DataType) -> Schema:
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()), tuple(key))
