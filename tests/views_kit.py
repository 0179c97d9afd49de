"""Tables in memory, and a small world in which views are kept current and checked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headwater.model.change import ChangeType
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.sql.algebra import Output, Plan
from headwater.testing.oracle import Key, Row, apply_changes, apply_exact, assert_same_rows, key_of
from headwater.views.desk import Side
from headwater.views.fused import collect_all
from headwater.views.layout import Layout, RefreshPolicy, lay_out, view_of
from headwater.views.maintain import LiveView, Report, maintain
from headwater.views.recompute import store_queries, typed_sql
from headwater.views.relation import among
from headwater.views.spark_desk import local_frame
from views_build import query


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

    def lookup(
        self, keys: pa.Table, most: int, columns: Sequence[str] | None = None
    ) -> pa.Table | None:
        if not self._indexed:
            return None
        old = self._tables[Side.OLD]
        by = [self.schema[name] for name in keys.column_names]
        found = old.filter(pa.array(among(old, keys, by)))
        return found.select(list(columns or found.column_names)) if found.num_rows <= most else None


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


@pytest.fixture(scope="module")
def quick(spark):
    """A session that does not compile code for a few rows."""
    names = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)
