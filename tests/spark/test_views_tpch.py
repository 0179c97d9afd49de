"""TPC-H: all 22 queries as materialized views, right at every epoch while the tables change.

Orders come and go by the refresh functions; prices, people and whole nations change, go and come
back. After every epoch each view must equal PostgreSQL's answer after the same statements, and in
the end Spark's. The views are kept by their rules (`incremental`): what `auto` would rather
recompute is not easier for them. Spark interprets their plans, of which each runs only a few times;
it compiles those of `test_views_nexmark.py`.

`WRITE_GOLDEN=1` writes `tests/golden/explain/tpch` anew, for a reviewer to read.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
import pytest

from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.session.synchronous import Headwater
from headwater.testing.tpch.refresh import Scale, new_sales, old_sales, order_key
from servers import not_available, postgres_server
from view_history import GOLDEN, History, check_golden
from views_kit import quick

__all__ = ["quick"]

pytestmark = pytest.mark.timeout(1800)

TPCH = Path(__file__).resolve().parent.parent / "golden" / "sql" / "tpch"
SCALE = Scale(0.01)
NAMES = [f"q{number:02}" for number in range(1, 23)]
QUERIES = {name: (TPCH / f"{name}.sql").read_text().strip().rstrip(";") for name in NAMES}
SET = SCALE.refresh

LARGE = f"({order_key(101)}, {order_key(110)})"
PEOPLE_AND_PRICES = [
    f"update lineitem set l_quantity = case when l_orderkey in {LARGE} then 50 else l_quantity end,"
    " l_receiptdate = case when l_orderkey % 61 = 3 then l_commitdate else l_receiptdate end"
    f" where l_orderkey in {LARGE} or l_orderkey % 61 = 3",
    "update partsupp set ps_supplycost = ps_supplycost * 2, ps_availqty = ps_availqty + 900"
    " where ps_partkey % 10 = 3",
    "update customer set c_mktsegment = 'BUILDING', c_acctbal = c_acctbal + 1000"
    " where c_custkey % 50 = 7",
    "update supplier set s_comment = 'Customer Complaints', s_nationkey = 3"
    " where s_suppkey % 20 = 5",
    "update part set p_size = p_partkey % 40 * 5, p_type = 'LARGE PLATED BRASS',"
    " p_brand = 'Brand#23', p_container = 'MED BOX' where p_partkey % 40 between 1 and 3",
    "update nation set n_regionkey = 2 where n_name = 'FRANCE'",
]
GONE = [
    "delete from lineitem where l_shipdate >= date '1994-03-01' and l_shipdate < date '1994-05-01'",
    "delete from customer where c_custkey % 10 = 4",
    "delete from region where r_name = 'ASIA'",
    "delete from nation where n_name = 'GERMANY'",
]
BACK = [
    "insert into region values (2, 'ASIA', 'again')",
    "insert into nation values (7, 'GERMANY', 3, 'again')",
    *old_sales(1 + SET, SET),
    *new_sales(SCALE, 1 + SET, SET),
]
STEPS = {
    "new sales": new_sales(SCALE, 1, SET),
    "old sales": old_sales(1, SET),
    "people and prices": PEOPLE_AND_PRICES,
    "gone": GONE,
    "back": BACK,
}


def generated(folder: Path) -> None:
    beside = Path(sys.executable).with_name("tpchgen-cli")
    program = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if program is None:
        not_available("tpchgen-cli is not installed")
        return
    command = [program, "csv", "-s", str(SCALE.factor), "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def load(hw: Headwater, postgres: "psycopg.Connection[Any]", folder: Path) -> None:
    changes = {}
    for table in hw.engine.catalog.snapshot().tables:
        path = folder / f"{table.name}.csv"
        options = pyarrow.csv.ConvertOptions(
            column_types={each.name: each.type.arrow for each in table.columns},
            strings_can_be_null=False,
        )
        rows = pyarrow.csv.read_csv(path, convert_options=options)
        rows = rows.select([each.name for each in table.columns])
        kinds = pa.array([ChangeType.INSERT.value] * rows.num_rows)
        changes[table.id] = rows.append_column(CHANGE_TYPE, kinds)
        copy = f"copy {table.name} from stdin with (format csv, header true)"
        with postgres.cursor() as cursor, cursor.copy(copy) as target:
            target.write(path.read_bytes())
    hw._wait(hw.engine.dml.source.put(changes))
    hw.flush()
    # Without it two queries look at all lines for each of them.
    postgres.execute("create index on lineitem (l_partkey, l_suppkey)")
    postgres.execute("analyze")


@pytest.fixture(scope="module")
def opened(quick: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The tables, filled, here and in PostgreSQL."""
    folder = tmp_path_factory.mktemp("tpch")
    generated(folder)
    schema = (TPCH / "schema.sql").read_text()
    # Epochs begin where the history says so, and nowhere else.
    settings = {"barrier_interval_ms": 60_000}
    with postgres_server() as url, Headwater(folder / "hw", spark=quick, settings=settings) as hw:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as postgres:
            postgres.execute(schema)
            hw.sql(schema)
            load(hw, postgres, folder)
            yield History(hw, QUERIES, postgres)


@pytest.fixture(scope="module")
def shown(opened: History) -> dict[str, str]:
    return opened.explain()


@pytest.fixture(scope="module")
def history(opened: History, shown: dict[str, str]) -> History:
    """All of it has happened."""
    opened.create("incremental")
    for name, statements in STEPS.items():
        opened.step(name, statements)
    return opened


@pytest.mark.parametrize("name", NAMES)
def test_explain(shown: dict[str, str], name: str) -> None:
    check_golden(GOLDEN / "tpch" / f"{name}.txt", shown[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_view_is_its_query_at_every_epoch(history: History, name: str) -> None:
    assert not (wrong := history.wrong(name)), "\n".join(wrong)
    assert len(history.moments[name]) == 1 + len(STEPS)


@pytest.mark.parametrize("name", NAMES)
def test_the_view_is_its_query_on_spark_in_the_end(history: History, name: str) -> None:
    assert not history.differs_from_spark(name)


UNMOVED = ("q08", "q18")
"""So few rows answer these at this scale that the history does not change them."""


@pytest.mark.parametrize("name", NAMES)
def test_the_history_moves_every_view(history: History, name: str) -> None:
    """Otherwise this file would prove nothing of it."""
    assert history.changes(name) >= (0 if name in UNMOVED else 1)
    assert any(moment.rows.num_rows for moment in history.moments[name])


def test_the_refresh_functions_hit_what_they_mean(history: History) -> None:
    (count,) = history.postgres.execute("select count(*) from orders").fetchone() or (0,)
    assert count == SCALE.orders, "as many orders have come as have gone"
    text = "select count(*) from orders where o_orderkey % 32 between 8 and 15"
    assert history.hw.sql(text).rows() == [(2 * SET,)]
