"""What Arrow computes on the driver is what Spark computes, in value and in type."""

import datetime
import decimal
from random import Random

import pyarrow as pa
import pytest

from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    SMALLINT,
    TIMESTAMP,
    VARCHAR,
    DataType,
)
from headwater.model.types import decimal as decimal_type
from headwater.sql.algebra import Output
from headwater.views.on_arrow.desk import ArrowDesk
from headwater.views.spark_desk import SparkDesk
from views_kit import quick

__all__ = ["quick"]

TYPES = {
    "b": BOOLEAN,
    "h": SMALLINT,
    "i": INTEGER,
    "l": BIGINT,
    "n": decimal_type(15, 2),
    "m": decimal_type(10, 0),
    "w": decimal_type(38, 2),
    "s": VARCHAR,
    "d": DATE,
    "t": TIMESTAMP,
    "f": DOUBLE,
}
TEXTS = ["", "a", "A", "a ", "ab", "b", "é", "z", "\U0001f600", "'", "100%"]


def value(random: Random, type_: DataType) -> object:  # noqa: PLR0911  one per kind
    if random.random() < 0.2:
        return None
    match type_.kind.value:
        case "boolean":
            return random.random() < 0.5
        case "smallint" | "integer" | "bigint":
            return random.choice([-3, -1, 0, 1, 2, 7, 100])
        case "decimal":
            cents = random.choice([-1000, -50, 0, 1, 5, 50, 99, 100, 12345])
            return decimal.Decimal(cents).scaleb(-(type_.scale or 0))
        case "varchar":
            return random.choice(TEXTS)
        case "date":
            days = random.choice([-40000, -1, 0, 1])
            return datetime.date(1995, 3, 15) + datetime.timedelta(days)
        case "timestamp":
            start = datetime.datetime(1995, 3, 15)  # noqa: DTZ001  a timestamp without zone
            return start + datetime.timedelta(microseconds=random.choice([-1, 0, 1, 10**12]))
        case _:
            return random.choice([0.0, -0.0, 1.5, float("nan")])


def table(seed: str, count: int, prefix: str = "") -> pa.Table:
    random = Random(seed)
    return pa.table(
        {
            f"{prefix}{name}": pa.array([value(random, t) for _ in range(count)], t.arrow)
            for name, t in TYPES.items()
        }
    )


class Both:
    """The same query here and in Spark."""

    def __init__(self, spark, count: int = 60) -> None:
        self.spark = spark
        self.leaves = {"_hw_t_0": table("left", count), "_hw_t_1": table("right", count, "r_")}
        for name, rows in self.leaves.items():
            names = rows.schema.names
            types = ", ".join(f"`{n}` {TYPES[n.removeprefix('r_')].spark}" for n in names)
            spark.createDataFrame(rows, types).createOrReplaceTempView(name)

    def here(self, sql: str, outputs: list[Output]) -> pa.Table | None:
        return ArrowDesk(self.leaves, "_hw_t", self._constant).collect(sql, outputs)

    def _constant(self, text: str) -> pa.Scalar | None:
        with SparkDesk(self.spark, {}) as desk:
            return desk._constant(text)

    def by_spark(self, sql: str) -> pa.Table:
        return self.spark.sql(sql).toArrow()

    def compare(self, sql: str) -> None:
        theirs = self.by_spark(sql)
        outputs = [Output(field.name, _type(field.type)) for field in theirs.schema]
        ours = self.here(sql, outputs)
        assert ours is not None, f"left to Spark: {sql}"
        assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist())), sql


def _type(arrow: pa.DataType) -> DataType:
    if pa.types.is_decimal(arrow):
        return decimal_type(arrow.precision, arrow.scale)
    return next(type_ for type_ in TYPES.values() if type_.arrow == arrow)


TERMS = [
    *TYPES,
    "i + h", "l - i", "i * 2", "-l", "l + 3L", "(i)",
    "l % 1000L", "i % 7", "i % -3", "h % h_7", "(l div 3)", "(i div h_7)", "l % nullif(i, 0)",
    "(l div nullif(l, 0))", "-l % 5L", "(cast(null as bigint) % 0L)",
    "n + n", "n - m", "n * m", "n * (cast(1 as decimal(10,0)) - n)", "-w", "m * m",
    "cast(m as bigint)", "cast(m as int)",
    "cast(i as bigint)", "cast(h as int)", "cast(l as decimal(22,2))", "cast(n as decimal(20,4))",
    "cast(n as decimal(38,2))", "cast(d as timestamp_ntz)", "cast(24 as decimal(15,2))",
    "cast('0.05' as decimal(2,2))", "cast('-7.5' as decimal(15,2))", "cast(null as string)",
    "i = l", "i <> h", "l < 3", "n >= cast('0.50' as decimal(15,2))", "n > m", "w <= n",
    "s = 'a'", "s < 'b'", "s >= 'é'", "d < DATE'1995-03-15'", "t >= t", "b = true",
    "cast(d as timestamp_ntz) <= t", "i <=> l", "s <=> null_s", "n <=> n",
    "b and i > 0", "b or i > 0", "not b", "i > 0 and s = 'a' or b", "s is null", "n is not null",
    "f is null", "f is not null and b",
    "i in (1, 2)", "s in ('a', 'b')", "i not in (1, 7)", "l between 0 and 7", "i & 1 <> 0",
    "case when i > 0 then 1L else -1L end", "case when b then l else 0 end",
    "case when b then n end", "case when i = 1 then 's' when i = 2 then s else 'x' end",
    "case when s is not null and true then cast(n as decimal(38,2)) end",
    "coalesce(l, 0)", "coalesce(w, 0)", "coalesce(s, 'none')", "nullif(i, 1)", "nullif(n, n)",
]  # fmt: skip


@pytest.fixture(scope="module")
def both(quick):
    return Both(quick)


def test_terms_are_the_same(both):
    terms = [
        text.replace("null_s", "cast(null as string)").replace("h_7", "cast(7 as smallint)")
        for text in TERMS
    ]
    shown = ", ".join(f"{text} as c{number}" for number, text in enumerate(terms))
    both.compare(f"select {shown} from _hw_t_0")
    conditions = [text for text in terms if " = " in text or "is " in text or " and " in text]
    for text in conditions[:6]:
        if "case" not in text:
            both.compare(f"select i, s from _hw_t_0 where {text}")


JOINS = [
    "(`i`) = (`r_i`)",
    "(`i`) <=> (`r_i`)",
    "(`i`) = (`r_i`) and (`s`) = (`r_s`)",
    "(`n`) = (`r_n`) and (`d` < `r_d`)",
    "(`s`) <=> (`r_s`) and (`t`) <=> (`r_t`)",
    "(`l`) = (`r_l`) and (`b` or `r_b`)",
    "true",
    "(`i` > `r_i`)",
]


@pytest.mark.parametrize("kind", ["join", "left join", "left semi join", "left anti join"])
@pytest.mark.parametrize("on", JOINS)
def test_joins_are_the_same(both, kind, on):
    right = "" if "semi" in kind or "anti" in kind else ", `r_i`, `r_s`, `r_d`"
    columns = f"`i`, `s`, `n`{right}"
    both.compare(
        f"select /*+ SHUFFLE_HASH(_hw_r) */ {columns} from (select * from _hw_t_0) _hw_l {kind} "
        f"(select /*+ COALESCE(1) */ * from _hw_t_1) _hw_r on {on}"
    )


NONE = "(select * from _hw_t_0 where i > 1000) _hw_l"
ALSO_NONE = "(select * from _hw_t_1 where r_i > 1000) _hw_r"
QUERIES = [
    f"select i, r_s from {NONE} join {ALSO_NONE} on i = r_i and s = r_s",
    f"select i, r_s from {NONE} left join (select * from _hw_t_1) _hw_r on i = r_i",
    f"select i, r_s from (select * from _hw_t_0) _hw_l left join {ALSO_NONE} on i = r_i",
    f"select i from (select * from _hw_t_0) _hw_l left anti join {ALSO_NONE} on i <=> r_i",
    f"select distinct i, s from {NONE}",
    f"select i, rank() over (partition by s order by i desc nulls last) as r from {NONE}",
    f"select i, s, sum(n) as x from {NONE} group by i, s",
    f"select i, n * n as x, case when b then s end as y from {NONE} order by i asc nulls last",
    "select i, s, n, cast(rank() over (partition by `s` order by `i` desc nulls first) as bigint) "
    "as r, dense_rank() over (partition by s, b order by n asc nulls last, d desc nulls last) "
    "as e, rank() over (order by d asc nulls first) as q from _hw_t_0",
    "select i, row_number() over (partition by i order by s asc nulls last) as r "
    "from (select distinct i, s from _hw_t_0) where i > 1000",
    "select s, i, row_number() over (partition by i order by s asc nulls first) as r "
    "from (select distinct i, s from _hw_t_0)",
    "select d from _hw_t_0 where cast(`d` as timestamp_ntz) < (cast(DATE'1995-04-15' as "
    "timestamp_ntz) + make_interval(0, cast(-(1L) as int), 0, cast((0L) as int), 0, 0, "
    "cast(cast((0L) as decimal(18,6)) / 1000000 as decimal(18,6)))) and d is not null",
    "select distinct s, b from _hw_t_0",
    "select s, sum(l) as x, count(*) as c, count(n) as cn, min(d) as y, max(i) as z "
    "from _hw_t_0 group by s",
    "select i, cast(coalesce(sum(w), 0) as decimal(38,2)) as x from _hw_t_0 group by i "
    "having sum(l) <> 0",
    "select n, d, t, b, sum(m) as x, sum(h) as y from _hw_t_0 group by n, d, t, b",
    "select sum(l) as x, count(*) as c, sum(n) as y, max(w) as z from _hw_t_0",
    "select sum(l) as x, count(*) as c, max(w) as z from (select * from _hw_t_0 where false)",
    "select cast(coalesce(sum(l), 0) as bigint) as x from _hw_t_0 where i > 1000",
    "(select i, s from _hw_t_0) union all (select r_i, r_s from _hw_t_1) union all "
    "(select 1 as i, 'x' as s from _hw_t_0)",
    "select *, row_number() over (order by n desc nulls first, i asc nulls last, "
    "s asc nulls last, l asc nulls first, h desc nulls last, m asc nulls last, w asc nulls last, "
    "d desc nulls first, t asc nulls last, b asc nulls last) as p "
    "from (select distinct b, h, i, l, n, m, w, s, d, t from _hw_t_0)",
    "select i, s from (select distinct i, s from _hw_t_0) "
    "order by s desc nulls last, i asc nulls first limit 7 offset 2",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_queries_are_the_same(both, sql):
    both.compare(sql)


LEFT_TO_SPARK = [
    "select f = 1.5 as x from _hw_t_0",
    "select n / n as x from _hw_t_0",
    "select n % n as x from _hw_t_0",
    "select l % 0L as x from _hw_t_0",
    "select (l div 0L) as x from _hw_t_0",
    "select distinct f from _hw_t_0",
    "select upper(s) as x from _hw_t_0",
    "select s like 'a%' as x from _hw_t_0",
    "select cast(s as int) as x from _hw_t_0",
    "select try_cast(s as int) as x from _hw_t_0",
    "select TRY_CAST (s as int) as x from _hw_t_0",
    "select cast(n as decimal(15,1)) as x from _hw_t_0",
    "select w * w as x from _hw_t_0",
    "select sum(distinct l) as x from _hw_t_0",
    "select count(l) filter (where b) as x from _hw_t_0",
    "select s || '\\\\n' as x from _hw_t_0",
    "select '_hw_leaf_0' as x from _hw_t_0",
    "select i from _hw_t_0 limit 3",
    "select i from _hw_t_2",
    "select rand() as x from _hw_t_0",
    "select lag(i) over (order by i asc nulls first) as x from _hw_t_0",
    "select sum(l) over (partition by i) as x from _hw_t_0",
    "select rank() over (partition by f order by i asc nulls first) as x from _hw_t_0",
    "select i from _hw_t_0 where t < now()",
    "select i from _hw_t_0 where t < current_timestamp() - make_interval(0, 0, 0, 1, 0, 0, 0)",
    "select * from values (1) as _hw_l(x)",
    "select i from _hw_t_0 lateral view explode(array(1)) q as y",
    "select i from _hw_t_0 union select r_i from _hw_t_1",
    "select i, n from _hw_t_0 full join _hw_t_1 on i = r_i",
]


@pytest.mark.parametrize("sql", LEFT_TO_SPARK)
def test_what_is_not_certain_is_left_to_spark(both, sql):
    assert both.here(sql, [Output("x", BIGINT)]) is None


def test_overflows_are_left_to_spark(both):
    large = pa.table({"l": pa.array([1 << 62] * 3), "i": pa.array([2**31 - 1] * 3, pa.int32())})
    digits = [decimal.Decimal(4 * 10**37)] * 3
    large = large.append_column("w", pa.array(digits, pa.decimal128(38, 0)))
    desk = ArrowDesk({"_hw_t_0": large}, "_hw_t")
    wide = decimal_type(38, 0)
    for text, type_ in (
        ("sum(l)", BIGINT),
        ("l + l", BIGINT),
        ("i * i", INTEGER),
        ("cast(l as int)", INTEGER),
        ("cast(w as bigint)", BIGINT),
        ("(cast(-9223372036854775808 as bigint) div -1)", BIGINT),
        ("cast(l as decimal(15,0))", decimal_type(15, 0)),
        ("sum(w)", wide),
        ("w + w", wide),
    ):
        assert desk.collect(f"select {text} as x from _hw_t_0", [Output("x", type_)]) is None, text
    for text, type_ in (("l", BIGINT), ("max(w)", wide), ("sum(i)", BIGINT)):
        assert desk.collect(f"select {text} as x from _hw_t_0", [Output("x", type_)]) is not None


def test_large_products_are_left_to_spark(both):
    many = {f"_hw_t_{n}": pa.table({f"c{n}": pa.array(range(1001))}) for n in range(2)}
    desk = ArrowDesk(many, "_hw_t")
    sql = "select c0 from (select * from _hw_t_0) _hw_l join (select * from _hw_t_1) _hw_r on true"
    assert desk.collect(sql, [Output("c0", BIGINT)]) is None
