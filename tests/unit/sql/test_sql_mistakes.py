"""What is wrong with a text: SQLSTATE, position, caret and hint."""

import time
from datetime import UTC, datetime

import pytest

from headwater.errors import BindError, NotSupported, ParseError
from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, VARCHAR
from headwater.sql.algebra import AsOf
from headwater.sql.parse import parse, parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import FixedRelations, Relation

RELATIONS = FixedRelations(
    [
        Relation(
            name="orders", id=TableId(1), key=("id",),
            columns=(
                Column("id", BIGINT, False), Column("customer", VARCHAR), Column("n", INTEGER),
            ),
        ),
        Relation(
            name="big", columns=(Column("id", BIGINT), Column("twice", INTEGER)),
            query="select id, n * 2 from orders where n > 10",
        ),
    ]
)  # fmt: skip


def planned(text: str, **options):
    return plan_query(parse_one(text).query, text, RELATIONS, **options)


@pytest.mark.parametrize(
    ("text", "state", "position"),
    [
        ("select 1 +", "42601", 11),
        ("select a from t where x = = 3", "42601", 27),
        ("select (1", "42601", 10),
        ("select 'abc", "42601", 12),
        ("selec 1", "42601", 1),
        ("create tabel t", "42601", 8),
        ("create table t (a blob)", "42704", 19),
        ("create table t (a money)", "0A000", 19),
        ("create table t (a int, a int)", "42701", 24),
        ("create table t (a int primary key, primary key (a))", "42P16", 36),
        ("create table t (a int unique)", "0A000", 23),
        ("create table t (a timestamp(3))", "0A000", 19),
        ("insert into t values (1) on conflict do nothing", "0A000", 26),
        ("update t set a = 1 from u", "0A000", 20),
        ("drop tabel t", "42601", 6),
        ("grant all on t to x", "0A000", 1),
        ("flush now", "42601", 7),
        ("cancel jobs x", "42601", 13),
        ("select 1; select 2 from where", "42601", 25),
        ("with x as (select 1) delete from t", "0A000", 1),
        ("create table t ()", "42601", 17),
        ("show tables where x", "0A000", 13),
    ],
)
def test_where_a_text_stops_being_sql(text, state, position):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert (caught.value.sqlstate, caught.value.position) == (state, position)


def test_the_caret_stands_under_the_place():
    with pytest.raises(ParseError) as caught:
        parse("select 1,\n  2 + = 3")
    line, caret = caught.value.detail.splitlines()
    assert line == "LINE 2:   2 + = 3"
    assert line[caret.index("^")] == "="


def test_the_caret_of_a_long_line_is_on_the_screen():
    with pytest.raises(ParseError) as caught:
        parse(f"select {'1 + ' * 500} + = 2")
    line, caret = caught.value.detail.splitlines()
    assert len(line) < 150
    assert line[caret.index("^")] == "="


@pytest.mark.parametrize(
    ("text", "state", "near", "hint"),
    [
        ("select costumer from orders", "42703", "costumer", "customer"),
        ("select o.nn from orders o", "42703", "o.nn", '"n"'),
        ("select x.id from orders o", "42P01", "x.id", ""),
        ("select * from order_", "42P01", "order_", "orders"),
        ("select upperr(customer) from orders", "42883", "upperr", "upper"),
        ("select id + customer from orders", "42804", "id", ""),
        ("select customer = 1 from orders", "42804", "customer", "cast"),
        ("select id from orders where n = 'x'", "22P02", "n = 'x'", ""),
        ("select '2024-02-30'::date", "22007", "'2024", ""),
        ("select sum(sum(n)) from orders", "42803", "sum(sum", ""),
        ("select id, sum(n) from orders", "42803", "id", ""),
        ("select $1", "42P02", "1", ""),
    ],
)
def test_names_and_types_that_do_not_fit(text, state, near, hint):
    with pytest.raises(BindError) as caught:
        planned(text)
    error = caught.value
    assert error.sqlstate == state, error
    assert hint in error.hint
    if error.position is not None:
        assert abs(text.index(near) + 1 - error.position) <= 2, (error, error.position)


@pytest.mark.parametrize(
    "text",
    [
        "select now()", "select current_date", "select random()", "select gen_random_uuid()",
    ],
)  # fmt: skip
def test_clocks_and_dice_are_refused_in_views_only(text):
    assert planned(text).visible
    with pytest.raises(NotSupported):
        planned(text, for_view=True)


@pytest.mark.parametrize(
    "text",
    [
        "select count(*) over (order by id groups 1 preceding) from orders",
        "select customer ~ customer from orders",
        "select regexp_match(customer, '(a|ab)c') from orders",
        "select decode(customer, 'escape') from orders",
        "select * from orders tablesample system (10)",
        "select id from orders for update",
        "select first_value(n ignore nulls) over (order by id) from orders",
        "select 1 from orders left join big on exists (select 1 from orders o where o.id = big.id)",
    ],
)
def test_valid_sql_that_is_not_supported_says_so(text):
    with pytest.raises(NotSupported):
        planned(text)


def test_a_view_is_expanded_and_errors_in_it_are_shown_in_it():
    assert [name for name, _ in planned("select * from big where twice > 30").visible] == [
        "id", "twice",
    ]  # fmt: skip
    itself = FixedRelations(
        [Relation(name="v", columns=(Column("a", INTEGER),), query="select a from v")]
    )
    with pytest.raises(BindError) as caught:
        plan_query(parse_one("select * from v").query, "select * from v", itself)
    assert caught.value.sqlstate == "42P17"


def test_parameters_are_values_without_a_type():
    query = plan_query(
        parse_one("select id from orders where n = $1 and customer = $2").query, "", RELATIONS,
        parameters=("7", None),
    )  # fmt: skip
    assert "= 7" in str(query.plan).replace("cast(7 as int)", "7")


@pytest.mark.parametrize("depth", [3000, 100_000])
def test_too_deep_nesting_is_an_error(depth):
    with pytest.raises(ParseError) as caught:
        parse("select " + "(" * depth + "1" + ")" * depth)
    assert caught.value.sqlstate == "54001"


def test_a_long_list_is_no_problem():
    numbers = ", ".join(map(str, range(20_000)))
    assert planned(f"select id from orders where id in ({numbers})").visible
    chain = " or ".join(f"id = {number}" for number in range(200))
    assert planned(f"select id from orders where {chain}").visible


@pytest.mark.parametrize(
    "text",
    [
        "select " + "abs(" * 10_000 + "1" + ")" * 10_000,
        "select " + "not " * 10_000 + "true",
        "select " + "- " * 10_000 + "1",
        "select " + "case when true then " * 10_000 + "1" + " end" * 10_000,
        "select * from " + "(select * from " * 10_000 + "orders" + ") q" * 10_000,
        "select " + "(select " * 10_000 + "1" + ")" * 10_000,
        "select " + "array[" * 10_000 + "1" + "]" * 10_000,
        "select id from orders where " + "id in (select id from orders where " * 10_000 + "true"
        + ")" * 10_000,
        "select " + " -> ".join(["'{}'::jsonb", *["'a'"] * 10_000]),
    ],
    ids=lambda text: text[7:25],
)  # fmt: skip
def test_ten_thousand_levels_are_an_error_and_no_crash(text):
    with pytest.raises(ParseError) as caught:
        planned(text)
    assert caught.value.sqlstate == "54001"


def test_a_long_chain_of_operators_is_no_nesting():
    assert planned("select " + " + ".join(["n"] * 3000) + " from orders").visible
    assert planned("select " + " || ".join(["customer"] * 3000) + " from orders").visible


@pytest.mark.parametrize(
    "text",
    [
        "select '" + "x" * (10 << 20 >> 1) + "'",
        "select id from orders where id in (" + ", ".join(map(str, range(400_000))) + ")",
        "insert into orders values " + ", ".join(["(1, 'abc', 2)"] * 100_000),
    ],
    ids=("literal", "list", "rows"),
)
def test_a_statement_of_megabytes_is_read_or_refused_in_time(text):
    began = time.monotonic()
    try:
        parse(text)
    except ParseError as problem:
        assert problem.sqlstate in ("54000", "54001")  # noqa: PT017
    assert time.monotonic() - began < 45


def test_a_text_of_more_than_ten_megabytes_is_refused():
    with pytest.raises(ParseError) as caught:
        parse("select '" + "x" * (11 << 20) + "'")
    assert caught.value.sqlstate == "54000"


NOW = datetime(2026, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("clause", "wanted"),
    [
        ("12345", AsOf(epoch=12345)),
        ("'2026-01-01 10:00:00'", AsOf(moment=datetime(2026, 1, 1, 10, tzinfo=UTC))),
        ("timestamp '2026-01-01'", AsOf(moment=datetime(2026, 1, 1, tzinfo=UTC))),
        ("'2026-01-01 10:00:00+02'", AsOf(moment=datetime(2026, 1, 1, 8, tzinfo=UTC))),
        ("now() - interval '1' hour", AsOf(moment=datetime(2026, 1, 2, 2, tzinfo=UTC))),
        ("now() - interval '1 day'", AsOf(moment=datetime(2026, 1, 1, 3, tzinfo=UTC))),
        ("now() - '90 minutes'", AsOf(moment=datetime(2026, 1, 2, 1, 30, tzinfo=UTC))),
        ("proctime()", None),
        ("now()", None),
    ],
)
def test_as_of_is_one_moment_for_the_statement(clause, wanted):
    as_of = f"for system_time as of {clause}"
    for text in (
        f"select * from orders {as_of}",
        f"select o.id from orders {as_of} o join big {as_of} b on o.id = b.id where o.n > 1",
        f"select (select count(*) from orders {as_of})",
    ):
        assert planned(text, now=NOW).as_of == wanted, text
    with pytest.raises(NotSupported):
        planned(f"select * from orders {as_of}", for_view=True)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (
            "select * from orders for system_time as of 1 a, orders for system_time as of 2 b",
            "42601",
        ),
        ("select * from orders for system_time as of 'noon'", "22007"),
        ("select * from orders for system_time as of id", "0A000"),
    ],
)
def test_as_of_that_cannot_be(text, state):
    with pytest.raises(ParseError) as caught:
        planned(text)
    assert caught.value.sqlstate == state


@pytest.mark.parametrize(
    ("text", "state", "word"),
    [
        ("select 1x", "42601", "1x"),
        ("select 100_ as a", "42601", "100_"),
        ("select generate_serie(1, 2)", "42883", "generate_serie"),
        ("select * from unest(array[1])", "42883", "unest"),
        ("select jsonb_build_objct('a', 1)", "42883", "jsonb_build_objct"),
        ("select id from orders order by nn", "42703", "nn"),
        ("select id from orders, big", "42702", "id"),
        ("select '300'::smallint + '70000'::smallint", "22003", "'70000'"),
        ("select 'x'::jsonb", "22P02", "'x'"),
        ("select '{1,x}'::int[]", "22P02", "'{1"),
        ("select n -> 'a' from orders", "42883", "n ->"),
    ],
)
def test_sqlstates_and_places(text, state, word):
    with pytest.raises(ParseError) as caught:
        planned(text)
    error = caught.value
    assert error.sqlstate == state, error
    if error.position is not None:
        assert abs(text.index(word) + 1 - error.position) <= 3, (error, error.position)


@pytest.mark.parametrize(
    ("type_", "hint"),
    [("serial", "key"), ("rw_int256", "numeric"), ("map(varchar, int)", "jsonb")],
)
def test_types_that_are_not_there_name_another(type_, hint):
    with pytest.raises(NotSupported) as caught:
        parse(f"create table t (a {type_} primary key)")
    assert hint in caught.value.hint


def test_limit_takes_a_parameter_and_teaches_its_type():
    learned = {}
    text = "select id from orders order by id limit $1 offset $2 + 1"
    query = plan_query(
        parse_one(text).query, text, RELATIONS, parameters=("5", "2"), learned=learned
    )
    assert (query.limit, query.offset) == (5, 3)
    assert learned == {1: BIGINT, 2: BIGINT}
