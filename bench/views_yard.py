"""The tables and views of `views.py`: TPC-H in state tables, views kept by the engine's keeper.

There is no ledger and no barrier here. What is measured is what an epoch costs from the moment its
changes of the tables are staged to the moment its changes of the views are: `ViewKeeper.maintain`,
as the committer calls it. Views are planned from SQL, as CREATE MATERIALIZED VIEW does it.
"""

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.config import Settings
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId, Term
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.runtime import view_keeper
from headwater.runtime.view_keeper import ViewKeeper
from headwater.runtime.view_world import KeptView
from headwater.sql.algebra import Query
from headwater.sql.create_statements import CreateTable
from headwater.sql.parse import parse, parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import FixedRelations, Relation
from headwater.sql.statement import Select
from headwater.state.row_cache import RowCache
from headwater.state.storage import LocalStorage
from headwater.state.store import StateStore, TableSpec
from headwater.state.surroundings import Surroundings
from headwater.state.table import StateTable
from headwater.views.desk import StoreId
from headwater.views.layout import RefreshPolicy, lay_out, view_of
from headwater.views.maintain import Report, maintain
from headwater.views.recompute import query_sql

TPCH = Path(__file__).resolve().parent.parent / "tests" / "golden" / "sql" / "tpch"
LINES_PER_SCALE = 6_001_215
USED = ("lineitem", "orders", "customer", "supplier", "nation", "region")
_ON_DRIVER = 200_000
"""Changes up to this many are handed over in memory, as a source's are."""


def generated(folder: Path, lines: int) -> Path:
    """TPC-H as Parquet files, with about so many lineitems."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    program = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise SystemExit("tpchgen-cli is missing: make setup")
    scale = f"{lines / LINES_PER_SCALE:.6f}"
    command = [program, "parquet", "-s", scale, "-o", str(folder), "--tables", ",".join(USED)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def tpch_relations() -> dict[str, Relation]:
    """The tables as the planner sees them."""
    found = {}
    for statement in parse((TPCH / "schema.sql").read_text()):
        assert isinstance(statement, CreateTable)
        name = statement.name.name
        if name in USED:
            columns = tuple(Column(c.name, c.type, c.nullable) for c in statement.columns)
            id_ = TableId(len(found) + 1)
            found[name] = Relation(name=name, id=id_, columns=columns, key=statement.key)
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What one epoch of views took."""

    seconds: float
    jobs: int
    read: int
    """Rows that were looked up, and all rows of what was read whole."""
    whole: tuple[str, ...]
    ways: tuple[str, ...]


class _Given:
    """The one session of a benchmark."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self) -> Any:
        return self._spark

    def lost(self) -> None:
        raise SystemExit("Spark is gone; give it more memory")


class Yard:
    """State tables of TPC-H at one size, and the views on them."""

    def __init__(self, spark: Any, folder: Path, files: Path) -> None:
        self.spark = spark
        cache = RowCache(folder / "cache", 32 << 30)
        around = Surroundings(
            storage=LocalStorage(folder / "data"),
            cache=cache,
            settings=Settings(),
            term=Term(1),
            spark=lambda: spark,
            parallelism=2,
        )
        self.data = folder / "data"
        self.store = StateStore(around)
        self.keeper = ViewKeeper(self.store, _Given(spark))
        self.relations = tpch_relations()
        self.fixed = FixedRelations(list(self.relations.values()))
        self._ids = itertools.count(len(self.relations) + 1)
        self._epoch = 1 << 16
        self._reports: list[Report] = []
        view_keeper.maintain = self._recorded  # type: ignore[assignment]
        self._load(files)

    # Tables

    def _load(self, files: Path) -> None:
        epoch = self.next()
        for name, relation in self.relations.items():
            schema = Schema(relation.columns, relation.key)
            table = self._table(name, schema, relation.id)
            casts = [f"cast(`{c.name}` as {c.type.spark}) as `{c.name}`" for c in schema.columns]
            insert = f"'{ChangeType.INSERT}' as {CHANGE_TYPE}"
            frame = self.spark.read.parquet(str(files / f"{name}.parquet"))
            table.stage(epoch, frame.selectExpr(*casts, insert))
            table.confirm(epoch)
        self.loaded = epoch
        self.files = {
            name: [
                str(self.data / f"t{relation.id}" / live.file.path)
                for live in self.store[relation.id].view().files
            ]
            for name, relation in self.relations.items()
        }
        self.lines = self.store[self.relations["lineitem"].id].view().rows
        self._name_frames("first", self.loaded)

    def _table(self, name: str, schema: Schema, id_: TableId) -> StateTable:
        spec = TableSpec(
            id=id_, name=name, folder=f"t{id_}", schema=schema, created=Epoch(self._epoch)
        )
        return self.store.create(spec)

    def _name_frames(self, prefix: str, epoch: Epoch) -> None:
        for name, relation in self.relations.items():
            frame = self.store[relation.id].frame(epoch)
            frame.createOrReplaceTempView(f"{prefix}_{name}")

    def next(self) -> Epoch:
        """The next epoch."""
        self._epoch += 1 << 16
        return Epoch(self._epoch)

    # Views

    def plan(self, text: str) -> Query:
        """A query, as a view would run it."""
        statement = parse_one(text)
        assert isinstance(statement, Select)
        return plan_query(statement.query, text, self.fixed, for_view=True)

    def view(self, name: str, text: str) -> KeptView:
        """A new view, filled; nobody keeps it yet."""
        layout = lay_out(view_of(name, self.plan(text), RefreshPolicy.AUTO))
        ids = [TableId(next(self._ids)) for _ in layout.schemas]
        stores = tuple(
            self._table(f"{name}_{id_}", schema, id_)
            for id_, schema in zip(ids, layout.schemas, strict=True)
        )
        table = TableDef(id=ids[0], name=name, folder=f"t{ids[0]}", schema=layout.schemas[0])
        kept = KeptView(table, layout, stores)
        epoch = self.next()
        self.keeper.fill(kept, epoch)
        for store in stores:
            store.confirm(epoch)
        return kept

    def changes(self, share: float, run: int) -> tuple[pa.Table | Any, int]:
        """Changes of a share of the lineitems: a fifth inserts, a fifth deletes, else updates."""
        dice = f"xxhash64(l_orderkey, l_linenumber, {run}"
        kind = f"pmod({dice}, 1), 5)"
        new = f"{kind} = 0"
        columns = [column.name for column in self.relations["lineitem"].columns]
        computed = {
            "l_linenumber": f"if({new}, l_linenumber + {7 * (run + 1)}, l_linenumber)",
            "l_quantity": f"cast(1 + pmod({dice}, 2), 50) as decimal(15,2))",
            "l_discount": f"cast(pmod({dice}, 3), 11) / 100 as decimal(15,2))",
            "l_extendedprice": f"cast(l_extendedprice * (50 + pmod({dice}, 4), 100)) / 100"
            " as decimal(15,2))",
        }
        terms = [f"{computed.get(name, name)} as {name}" for name in columns]
        words = (
            f"case when {new} then '{ChangeType.INSERT}' when {kind} = 1 then "
            f"'{ChangeType.DELETE}' else '{ChangeType.UPDATE_POSTIMAGE}' end as {CHANGE_TYPE}"
        )
        chosen = f"pmod({dice}), 1000000) < {int(share * 1e6)}"
        frame = self.spark.sql(
            f"select {', '.join(terms)}, {words} from first_lineitem where {chosen}"
        )
        count = int(self.lines * share)
        return (frame.toArrow(), count) if count <= _ON_DRIVER else (frame, count)

    def epoch(self, views: Sequence[KeptView], changes: "pa.Table | Any") -> Cost:
        """Stage changes of the lineitems, and measure what the views make of them."""
        keeper = self.keeper
        for id_ in list(keeper.views):
            keeper.forget(id_)
        for view in views:
            keeper.keep(view)
        lineitem = self.store[self.relations["lineitem"].id]
        epoch = self.next()
        lineitem.stage(epoch, changes)
        self._reports.clear()
        started = time.perf_counter()
        kept = keeper.maintain(epoch)
        took = time.perf_counter() - started
        if kept.failed:
            raise SystemExit(f"views failed: {kept.failed}")
        lineitem.confirm(epoch)
        for view in views:
            for store in view.stores:
                store.confirm(epoch)
        keeper.confirm(kept)
        return self._cost(took, views)

    def _cost(self, seconds: float, views: Sequence[KeptView]) -> Cost:
        reports = self._reports
        stores = {(v.layout.view.name, n): s for v in views for n, s in enumerate(v.stores)}
        names = {relation.id: name for name, relation in self.relations.items()}
        whole = {source for report in reports for source in report.read_whole}
        rows, shown = 0, []
        for source in whole:
            if isinstance(source, StoreId):
                rows += stores[source.view, source.number].view().rows
                shown.append(f"store {source.number}")
            else:
                rows += self.store[source].view().rows
                shown.append(names[source])
        return Cost(
            seconds=seconds,
            jobs=sum(report.jobs for report in reports),
            read=rows + sum(report.rows_looked_up for report in reports),
            whole=tuple(sorted(set(shown))),
            ways=tuple(each.way.value for report in reports for each in report.views),
        )

    def _recorded(self, *arguments: Any) -> Report:
        report = maintain(*arguments)
        self._reports.append(report)
        return report

    # What it is compared with

    def full(self, query: Query) -> float:
        """The time of Spark's refresh: the query, and its rows as Parquet files."""
        started = time.perf_counter()
        frame = self._frame(query)
        frame.write.mode("overwrite").parquet(str(self.data.parent / "refreshed"))
        return time.perf_counter() - started

    def read(self, query: Query, names: Mapping[str, str] | None = None) -> float:
        """The time of Spark's query alone, to nowhere."""
        started = time.perf_counter()
        self._frame(query, names).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def _frame(self, query: Query, names: Mapping[str, str] | None = None) -> Any:
        given = names or {}
        frames = {r.id: given.get(n, f"first_{n}") for n, r in self.relations.items()}
        return self.spark.sql(query_sql(query, frames))

    def floor_tables(self, share: float, run: int) -> dict[str, str]:
        """Tables of only the changed lineitems, and of the rows that these can meet, in memory."""
        lines, _ = self.changes(share, run)
        rows = lines if isinstance(lines, pa.Table) else lines.toArrow()
        self._in_memory("lineitem", rows.drop_columns([CHANGE_TYPE]))
        for name, wanted in (
            ("orders", "o_orderkey in (select l_orderkey from few_lineitem)"),
            ("customer", "c_custkey in (select o_custkey from few_orders)"),
            ("supplier", "s_suppkey in (select l_suppkey from few_lineitem)"),
            ("nation", "true"),
            ("region", "true"),
        ):
            found = self.spark.sql(f"select * from first_{name} where {wanted}")
            self._in_memory(name, found.toArrow())
        return {name: f"few_{name}" for name in self.relations}

    def _in_memory(self, name: str, rows: pa.Table) -> None:
        relation = self.relations[name]
        schema = Schema(relation.columns, relation.key)
        rows = rows.select([column.name for column in relation.columns])
        frame = self.spark.createDataFrame(rows, schema.spark)
        frame.createOrReplaceTempView(f"few_{name}")

    def duckdb(self) -> Any:
        """DuckDB with two threads over the very files that the tables began with."""
        import duckdb

        connection = duckdb.connect(config={"threads": 2, "memory_limit": "8GB"})
        for name, files in self.files.items():
            columns = ", ".join(column.name for column in self.relations[name].columns)
            connection.execute(f"create view {name} as select {columns} from read_parquet({files})")
        return connection


def duckdb_full(connection: Any, text: str) -> float:
    """The time of DuckDB's refresh, into a table in memory."""
    started = time.perf_counter()
    connection.execute(f"create or replace temp table refreshed as {text}")
    return time.perf_counter() - started
