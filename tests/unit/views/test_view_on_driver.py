"""How small queries are computed on the driver: each step once, within bounds, or not at all."""

import datetime

import pyarrow as pa
import pytest

from headwater.model.types import BIGINT, VARCHAR
from headwater.sql.algebra import Output
from headwater.views.on_driver import constants, desk, tables
from headwater.views.on_driver.desk import DriverDesk

ROWS = pa.table({"k": pa.array([1, 1, 2, None], pa.int64()), "s": ["a", "b", "a", None]})
K, N, S = Output("k", BIGINT), Output("n", BIGINT), Output("s", VARCHAR)
COUNTED = "select `k`, count(*) as `n` from ({0}) group by `k`"


@pytest.fixture(name="groupings")
def _groupings(monkeypatch):
    made = []
    grouped = tables.grouped

    def counted(*arguments):
        made.append(arguments)
        return grouped(*arguments)

    monkeypatch.setattr(tables, "grouped", counted)
    return made


def pairs(table):
    return sorted(table.to_pylist(), key=repr)


def test_a_step_is_computed_once_for_all_queries_of_an_epoch(groupings):
    here = DriverDesk({"_hw_t_7": ROWS, "_hw_t_8": ROWS.slice(0, 2)}, "_hw_t")
    counted = COUNTED.format("select * from _hw_t_7")
    first = here.collect(f"select k, n from ({counted}) where n > 1", [K, N])
    second = here.collect(f"({counted}) union all ({counted})", [K, N])
    assert pairs(first) == [{"k": 1, "n": 2}]
    assert second.num_rows == 6
    assert len(groupings) == 1
    other = here.collect(COUNTED.format("select * from _hw_t_8"), [K, N])
    assert pairs(other) == [{"k": 1, "n": 2}]
    assert len(groupings) == 2


def test_leaves_that_change_places_are_not_mixed_up():
    left, right = ROWS.slice(0, 1), ROWS.slice(2, 1)
    here = DriverDesk({"_hw_t_1": left, "_hw_t_2": right}, "_hw_t")
    for first, second in ((1, 2), (2, 1)):
        sql = (
            f"(select k from _hw_t_{first} where s = 'a') union all (select k from _hw_t_{second})"
        )
        found = here.collect(sql, [K])
        assert found.column("k").to_pylist() == ([1, 2] if first == 1 else [2, 1])


def test_a_text_is_compiled_once_whatever_the_leaves_are_called(monkeypatch):
    seen = []
    compiled = desk.compiled
    monkeypatch.setattr(desk, "compiled", lambda *a: (seen.append(a), compiled(*a))[1])
    desk._compiled.cache_clear()
    for epoch in range(3):
        here = DriverDesk({f"_hw_t{epoch}_{epoch}": ROWS}, f"_hw_t{epoch}")
        assert here.collect(f"select k from _hw_t{epoch}_{epoch} where s = 'a'", [K]) is not None
        assert here.collect(f"select upper(s) as s from _hw_t{epoch}_{epoch}", [S]) is None
    assert len(seen) == 2


def test_a_name_of_another_desk_is_no_leaf():
    here = DriverDesk({"_hw_t_1": ROWS}, "_hw_t")
    assert here.collect("select k from _hw_t_1", [K]) is not None
    assert here.collect("select k from _hw_t_12", [K]) is None
    assert here.collect("select k from _hw_u_1", [K]) is None


@pytest.mark.parametrize(("bound", "value"), [("MOST_ROWS", 3), ("MOST_BYTES", 16)])
def test_beyond_the_bounds_spark_is_asked(monkeypatch, bound, value):
    sql = "select k, s from _hw_t_1 where k > 0"
    assert DriverDesk({"_hw_t_1": ROWS}, "_hw_t").collect(sql, [K, S]) is not None
    monkeypatch.setattr(desk, bound, value)
    assert DriverDesk({"_hw_t_1": ROWS}, "_hw_t").collect(sql, [K, S]) is None


def test_a_constant_is_asked_for_once(monkeypatch):
    monkeypatch.setattr(constants, "CONSTANTS", {})
    monkeypatch.setattr("headwater.views.on_driver.terms.CONSTANTS", constants.CONSTANTS)
    desk._compiled.cache_clear()
    asked = []

    def ask(text):
        asked.append(text)
        return pa.scalar(datetime.datetime(1995, 3, 1), pa.timestamp("us"))  # noqa: DTZ001

    rows = pa.table({"t": pa.array([0, 1 << 60], pa.timestamp("us")), "k": [1, 2]})
    late = "cast(DATE'1995-02-01' as timestamp_ntz) + make_interval(0, 1, 0, 0, 0, 0, 0)"
    for shown in ("k", "k, k as n"):
        here = DriverDesk({"_hw_t_1": rows}, "_hw_t", ask)
        found = here.collect(f"select {shown} from _hw_t_1 where t < ({late})", [K])
        assert found.column("k").to_pylist() == [1]
    assert len(asked) == 1
    without = DriverDesk({"_hw_t_1": rows}, "_hw_t")
    unknown = late.replace("0, 1,", "0, 2,")
    assert without.collect(f"select k from _hw_t_1 where t < ({unknown})", [K]) is None
