"""The rules' desk on Spark: leaves as temporary views, needs answered in rounds.

round                          costs
lookups that have an index     no Spark job
lookups without one            one job for all of them, however many views ask
keys that a query computes,    no Spark job when everything they read is in memory and Arrow can
and the views' own changes     compute it (`on_arrow`), else one job for all of them

Rows in memory get their temporary view when a query first goes to Spark with their name.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.model.spelling import quoted
from headwater.sql.algebra import Output
from headwater.views.changes import WEIGHT_SQL, weighted
from headwater.views.desk import Collect, Compute, Leaf, Lookup, Side, Source
from headwater.views.fused import collect_all
from headwater.views.on_arrow.desk import ArrowDesk
from headwater.views.relation import Relation, among, on_both_sides, with_sides
from headwater.views.rounds import LATER
from headwater.views.spelling import WEIGHT, listed

_numbers = itertools.count()
_MUCH_MORE = 4
"""An earlier lookup of so many times the keys is not worth carrying along."""


class SparkDesk:
    """Serves all views of one epoch; use as a context manager."""

    def __init__(
        self,
        spark: SparkSession,
        relations: Mapping[Source, Relation],
        *,
        most_looked_up: int = 200_000,
    ) -> None:
        self._spark = spark
        self._relations = relations
        self._most = most_looked_up
        self._prefix = f"_hw_desk_{next(_numbers)}"
        self._names = itertools.count()
        self._registered: list[str] = []
        self._memory: dict[str, pa.Table] = {}
        self._waiting: dict[str, str] = {}
        """Of tables in memory without a temporary view yet: their types."""
        self._refused: dict[int, Collect] = {}
        self._driver = ArrowDesk(self._memory, self._prefix, self._constant)
        self._changes: dict[TableId, Leaf] = {}
        self._past: dict[_Place, list[tuple[pa.Table, frozenset[str], Leaf]]] = {}
        self._wholes: dict[tuple[Source, Side], Leaf] = {}
        self.jobs = 0
        self.rows_looked_up = 0
        self.wholes_read: set[Source] = set()

    def __enter__(self) -> "SparkDesk":
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._registered:
            self._spark.catalog.dropTempView(name)

    def changes(self, table: TableId) -> Leaf:
        """A table's changes, with their weight."""
        if table not in self._changes:
            relation = self._relations[table]
            changes = relation.changes
            assert changes is not None
            if isinstance(changes, DataFrame):
                columns = [F.col(quoted(name)) for name in relation.schema.names]
                frame = changes.select(*columns, F.expr(WEIGHT_SQL).alias(WEIGHT))
                self._changes[table] = Leaf(self._name(frame))
            else:
                rows = weighted(changes, relation.schema)
                self._changes[table] = self._local(rows, relation.schema, f"{WEIGHT} bigint")
        return self._changes[table]

    def whole(self, source: Source, side: Side) -> Leaf:
        """All rows of a relation."""
        relation = self._relations[source]
        side = side if relation.changes is not None else Side.OLD
        self.wholes_read.add(source)
        if (source, side) not in self._wholes:
            self._wholes[source, side] = Leaf(self._name(relation.frame(side)))
        return self._wholes[source, side]

    def memory(self, rows: pa.Table, outputs: Sequence[Output]) -> Leaf:
        """Rows that a rule has itself found."""
        types = ", ".join(f"{quoted(output.name)} {output.type.spark}" for output in outputs)
        return self._in_memory(rows, types)

    def frame(self, sql: str) -> DataFrame:
        """A query of leaves as a DataFrame."""
        self._register(sql)
        return self._spark.sql(sql)

    def answer(self, needs: list[Any]) -> list[Any]:
        """Answer the cheapest kind of need that is there; the others wait."""
        lookups = [need for need in needs if isinstance(need, Lookup)]
        if lookups:
            found = self._look_up(lookups)
            return [found.get(id(need), LATER) for need in needs]
        computes = [need for need in needs if isinstance(need, Compute)]
        if computes:
            rows = {id(each): self._driver.collect(each.sql, each.outputs) for each in computes}
            return [rows.get(id(need), LATER) for need in needs]
        collects = [need for need in needs if isinstance(need, Collect)]
        answers = self._here(collects)
        if not answers:
            now = [need for need in collects if not need.last] or collects
            answers = self._by_spark(now)
        return [answers.get(id(need), LATER) for need in needs]

    def _here(self, collects: Sequence[Collect]) -> dict[int, pa.Table]:
        """What can be computed in memory; what cannot is not tried again."""
        answers = {}
        for need in collects:
            if need.local and id(need) not in self._refused:
                rows = self._driver.collect(need.sql, need.outputs)
                if rows is not None:
                    answers[id(need)] = rows
                else:
                    self._refused[id(need)] = need
        return answers

    def _by_spark(self, collects: Sequence[Collect]) -> dict[int, pa.Table]:
        self.jobs += 1
        for need in collects:
            self._register(need.sql)
        local = [need.local for need in collects]
        queries = [(need.sql, need.outputs) for need in collects]
        tables = collect_all(self._spark, queries, local)
        return {id(need): table for need, table in zip(collects, tables, strict=True)}

    def _look_up(self, lookups: Sequence[Lookup]) -> dict[int, Leaf | None]:
        answers: dict[int, Leaf | None] = {}
        scans: list[tuple[list[Lookup], pa.Table]] = []
        for group in _grouped(lookups):
            relation = self._relations[group[0].source]
            keys = _united([need.keys for need in group], relation.schema)
            if isinstance(relation.changes, DataFrame) or keys.num_rows > self._most:
                answers |= {id(need): None for need in group}
                continue
            schema = _read(group, relation.schema)
            leaf = self._found_before(group, keys, schema)
            if leaf is None:
                rows = relation.lookup(keys, self._most, schema.names)
                if rows is None:
                    scans.append((group, keys))
                    continue
                leaf = self._found(group, rows, keys)
            answers |= {id(need): leaf for need in group}
        answers |= self._scan(scans)
        return answers

    def _found_before(self, group: Sequence[Lookup], keys: pa.Table, schema: Schema) -> Leaf | None:
        """An earlier answer with all these keys and columns; rows beyond them do no harm."""
        columns = [schema[name] for name in keys.column_names]
        most = _MUCH_MORE * keys.num_rows
        for past, names, leaf in self._past.get(_place(group[0]), ()):
            enough = names >= set(schema.names) and past.num_rows <= most
            if enough and among(keys, past, columns).all():
                return leaf
        return None

    def _scan(self, scans: Sequence[tuple[list[Lookup], pa.Table]]) -> dict[int, Leaf | None]:
        """Find rows without an index: one job reads all the relations, if few rows are found."""
        if not scans:
            return {}
        queries = []
        for group, keys in scans:
            schema = self._relations[group[0].source].schema
            names = {name: f"_hw_k{place}" for place, name in enumerate(keys.column_names)}
            types = ", ".join(f"{names[n]} {schema[n].type.spark}" for n in keys.column_names)
            renamed = keys.rename_columns(list(names.values()))
            wanted = self._name(local_frame(self._spark, renamed, types))
            on = " and ".join(f"{quoted(n)} <=> {k}" for n, k in names.items())
            whole = self.whole(group[0].source, Side.OLD).name
            read = _read(group, schema)
            outputs = tuple(Output(column.name, column.type) for column in read.columns)
            queries.append(
                (
                    f"select /*+ BROADCAST({wanted}) */ {listed(read.names)} from {whole} "
                    f"left semi join {wanted} on {on} limit {self._most + 1}",
                    outputs,
                )
            )
        self.jobs += 1
        answers: dict[int, Leaf | None] = {}
        for (group, keys), rows in zip(scans, collect_all(self._spark, queries), strict=True):
            leaf = None
            if rows.num_rows <= self._most:
                leaf = self._found(group, rows, keys)
            answers |= {id(need): leaf for need in group}
        return answers

    def _found(self, group: Sequence[Lookup], rows: pa.Table, keys: pa.Table) -> Leaf:
        self.rows_looked_up += rows.num_rows
        relation = self._relations[group[0].source]
        schema = _read(group, relation.schema)
        if relation.changes is None:
            table = on_both_sides(rows, schema)
        else:
            table = with_sides(rows, relation.changes, keys, schema)
        leaf = self._local(table, schema, "_hw_sides int")
        self._past.setdefault(_place(group[0]), []).append((keys, frozenset(schema.names), leaf))
        return leaf

    def _local(self, rows: pa.Table, schema: Schema, extra: str) -> Leaf:
        return self._in_memory(rows, f"{schema.spark}, {extra}")

    def _in_memory(self, rows: pa.Table, types: str) -> Leaf:
        name = f"{self._prefix}_{next(self._names)}"
        self._memory[name] = rows
        self._waiting[name] = types
        return Leaf(name, rows)

    def _register(self, sql: str) -> None:
        """Make what a query reads known to Spark."""
        for name in re.findall(rf"\b{self._prefix}_\d+\b", sql):
            if name in self._waiting:
                types = self._waiting.pop(name)
                self._view(name, local_frame(self._spark, self._memory[name], types))

    def _name(self, frame: DataFrame) -> str:
        name = f"{self._prefix}_{next(self._names)}"
        self._view(name, frame)
        return name

    def _constant(self, text: str) -> pa.Scalar | None:
        return constant(self._spark, text)

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._registered.append(name)


def constant(spark: SparkSession, text: str) -> pa.Scalar | None:
    """The value of a constant expression; None if it has none."""
    try:
        return spark.sql(f"select {text} as c").toArrow().column(0)[0]
    except PySparkException:
        # Whoever needs the value gets the error with it, from Spark.
        return None


def local_frame(spark: SparkSession, rows: pa.Table, types: str) -> DataFrame:
    """A table in memory as a DataFrame."""
    # PySpark cannot take an Arrow table whose columns have no chunk.
    return spark.createDataFrame(rows if rows.num_rows else [], types)


_Place = tuple[Source, tuple[str, ...]]
"""A relation, and the columns that it is searched by."""


def _place(need: Lookup) -> _Place:
    return need.source, tuple(sorted(need.keys.column_names))


def _grouped(lookups: Sequence[Lookup]) -> list[list[Lookup]]:
    groups: dict[_Place, list[Lookup]] = {}
    for need in lookups:
        groups.setdefault(_place(need), []).append(need)
    return list(groups.values())


def _read(group: Sequence[Lookup], schema: Schema) -> Schema:
    """The columns that some lookups of one relation read, with its key and what they search by."""
    wanted = {*schema.key, *group[0].keys.column_names}
    for need in group:
        wanted |= set(schema.names if need.columns is None else need.columns)
    return Schema(tuple(each for each in schema.columns if each.name in wanted), schema.key)


def _united(tables: Sequence[pa.Table], schema: Schema) -> pa.Table:
    names = sorted(tables[0].column_names)
    wanted = pa.schema([schema.arrow.field(name) for name in names])
    parts = [table.select(names).cast(wanted) for table in tables]
    together: pa.Table = pa.concat_tables(parts).combine_chunks()
    if together.num_rows < 2:
        return together
    return together.group_by(names).aggregate([]).combine_chunks()
