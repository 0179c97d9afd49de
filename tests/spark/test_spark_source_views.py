"""Materialized views through the Spark data source and other tools, without the columns of ours."""

import pytest

from delta_readers import READERS
from engine_kit import CALM
from headwater import Headwater
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.spark_source.register import register
from headwater.testing.oracle import assert_same_rows
from spark_source_kit import Collected, load, replayed, stream

DEFINITIONS = (
    "create table orders (id int primary key, shop varchar, amount numeric(10,2))",
    "create schema sales",
    "create materialized view names as select shop from orders",
    "create materialized view sales.sums as "
    "select shop, sum(amount) as total, count(*) as n from orders group by shop",
)


@pytest.fixture(scope="module")
def hw(tmp_path_factory, spark):
    register(spark)
    with Headwater(tmp_path_factory.mktemp("views"), settings=CALM, spark=spark) as hw:
        for statement in DEFINITIONS:
            hw.sql(statement)
        hw.sql("insert into orders values (1,'a',9.5), (2,'a',1), (3,'b',2), (4,null,null)")
        hw.flush()
        yield hw


def _stored(hw, name):
    found = next(t for t in hw.engine.catalog.snapshot().shown_tables if t.name == name)
    assert found.hidden, "the view keeps nothing of its own, and this test shows nothing"
    return hw.engine.store[found.id]


@pytest.mark.parametrize("view", ["names", "sales.sums"])
def test_a_view_is_followed_and_read_without_our_columns(spark, hw, tmp_path, view):
    folder = hw.engine.workspace.path
    collected = Collected(tmp_path / "checkpoint")
    collected.run(stream(spark, folder, view, since="snapshot"))
    hw.sql(f"insert into orders values ({10 + len(view)}, 'c', 3)")
    hw.sql("update orders set amount = amount + 5 where id = 1")
    hw.sql("delete from orders where id = 3")
    hw.sql("insert into orders values (3, 'b', 7)")
    hw.flush()
    collected.run(stream(spark, folder, view, since="snapshot"))
    truth = hw.sql(f"select * from {view}").toArrow()
    got = load(spark, folder, view)
    assert_same_rows(got.toArrow(), truth)
    assert not [name for name in collected.rows.column_names if name.startswith(HIDDEN_PREFIX)]
    if view == "sales.sums":
        assert_same_rows(list(replayed(collected.rows, ["shop"]).values()), truth)
    stored = _stored(hw, view.rpartition(".")[2])
    for read in READERS.values():
        theirs = read(stored.storage.url)
        shown = [name for name in theirs.column_names if not name.startswith(HIDDEN_PREFIX)]
        assert shown == got.columns
        assert_same_rows(theirs.select(shown), truth)
