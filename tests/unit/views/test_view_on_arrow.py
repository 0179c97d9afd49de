"""How small queries are computed on the driver: each step once, within bounds, or not at all."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model.types import BIGINT, VARCHAR
from headwater.sql.algebra import Output
from headwater.views.on_arrow import constants, desk, tables
from headwater.views.on_arrow.desk import ArrowDesk

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
    here = ArrowDesk({"_hw_t_7": ROWS, "_hw_t_8": ROWS.slice(0, 2)}, "_hw_t")
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
    here = ArrowDesk({"_hw_t_1": left, "_hw_t_2": right}, "_hw_t")
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
        here = ArrowDesk({f"_hw_t{epoch}_{epoch}": ROWS}, f"_hw_t{epoch}")
        assert here.collect(f"select k from _hw_t{epoch}_{epoch} where s = 'a'", [K]) is not None
        assert here.collect(f"select upper(s) as s from _hw_t{epoch}_{epoch}", [S]) is None
    assert len(seen) == 2


def test_a_name_of_another_desk_is_no_leaf():
    here = ArrowDesk({"_hw_t_1": ROWS}, "_hw_t")
    assert here.collect("select k from _hw_t_1", [K]) is not None
    assert here.collect("select k from _hw_t_12", [K]) is None
    assert here.collect("select k from _hw_u_1", [K]) is None


@pytest.mark.parametrize(("bound", "value"), [("MOST_ROWS", 3), ("MOST_BYTES", 16)])
def test_beyond_the_bounds_spark_is_asked(monkeypatch, bound, value):
    sql = "select k, s from _hw_t_1 where k > 0"
    assert ArrowDesk({"_hw_t_1": ROWS}, "_hw_t").collect(sql, [K, S]) is not None
    monkeypatch.setattr(desk, bound, value)
    assert ArrowDesk({"_hw_t_1": ROWS}, "_hw_t").collect(sql, [K, S]) is None


def test_a_constant_is_asked_for_once(monkeypatch):
    monkeypatch.setattr(constants, "CONSTANTS", {})
    monkeypatch.setattr("headwater.views.on_arrow.terms.CONSTANTS", constants.CONSTANTS)
    desk._compiled.cache_clear()
    asked = []

    def ask(text):
        asked.append(text)
        return pa.scalar(datetime.datetime(1995, 3, 1), pa.timestamp("us"))  # noqa: DTZ001

    rows = pa.table({"t": pa.array([0, 1 << 60], pa.timestamp("us")), "k": [1, 2]})
    late = "cast(DATE'1995-02-01' as timestamp_ntz) + make_interval(0, 1, 0, 0, 0, 0, 0)"
    for shown in ("k", "k, k as n"):
        here = ArrowDesk({"_hw_t_1": rows}, "_hw_t", ask)
        found = here.collect(f"select {shown} from _hw_t_1 where t < ({late})", [K])
        assert found.column("k").to_pylist() == [1]
    assert len(asked) == 1
    without = ArrowDesk({"_hw_t_1": rows}, "_hw_t")
    unknown = late.replace("0, 1,", "0, 2,")
    assert without.collect(f"select k from _hw_t_1 where t < ({unknown})", [K]) is None


KEYS = st.lists(st.none() | st.integers(-3, 4) | st.sampled_from([1 << 62, -(1 << 62)]), max_size=9)


@given(left=KEYS, right=KEYS)
@pytest.mark.parametrize("type_", [pa.int64(), pa.timestamp("us"), pa.date32(), pa.int16()])
def test_an_index_finds_the_pairs_that_comparing_all_keys_finds(type_, left, right):
    if type_ in (pa.date32(), pa.int16()):
        left, right = ([k % 100 if k is not None else None for k in each] for each in (left, right))
    storage = {pa.date32(): pa.int32(), pa.int16(): pa.int16()}.get(type_, pa.int64())
    ours, theirs = (pa.array(each, storage).cast(type_) for each in (left, right))
    found = tables.KeyIndex(theirs).pairs(ours)
    wanted = tables.pairs([ours], [theirs], (len(ours), len(theirs)), null_safe=False)
    assert [list(each) for each in found] == [list(each) for each in wanted]


def test_a_join_that_makes_too_many_rows_is_sparks(monkeypatch):
    monkeypatch.setattr(tables, "MOST_PAIRS", 10)
    many = pa.table({"k": pa.array([7] * 40, pa.int64())})
    few = pa.table({"n": pa.array([7] * 4, pa.int64())})
    sql = "select k, n from _hw_t_1 join _hw_t_2 on k = n"
    fitting = ArrowDesk({"_hw_t_1": many, "_hw_t_2": few}, "_hw_t").collect(sql, [K, N])
    assert fitting.num_rows == 160
    more = pa.table({"n": pa.array([7] * 5, pa.int64())})
    assert ArrowDesk({"_hw_t_1": many, "_hw_t_2": more}, "_hw_t").collect(sql, [K, N]) is None


def test_what_is_made_of_other_leaves_is_kept_when_one_is_exchanged(monkeypatch):
    made = []
    index = tables.KeyIndex

    class Counted(index):
        def __init__(self, values):
            made.append(values)
            super().__init__(values)

    monkeypatch.setattr("headwater.views.on_arrow.query.KeyIndex", Counted)
    desk._compiled.cache_clear()
    leaves = {"_hw_t_2": pa.table({"n": pa.array([1, 2], pa.int64()), "s": ["x", "y"]})}
    here = ArrowDesk(leaves, "_hw_t")
    sql = "select k, s from _hw_t_1 join (select n, s from _hw_t_2) on k = n"
    found = []
    for keys in ([1, 3], [2, 2], []):
        leaves["_hw_t_1"] = pa.table({"k": pa.array(keys, pa.int64())})
        here.forget("_hw_t_1")
        found.append(pairs(here.collect(sql, [K, S])))
    assert found == [[{"k": 1, "s": "x"}], [{"k": 2, "s": "y"}] * 2, []]
    assert len(made) == 1
    desk._compiled.cache_clear()
