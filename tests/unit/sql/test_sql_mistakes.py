"""What is wrong with a text: SQLSTATE, position, caret and hint."""

import pytest

from headwater.errors import BindError, NotSupported, ParseError
from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, VARCHAR
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
        "select array(select 1)",
        "select count(*) over (order by id groups 1 preceding) from orders",
        "select customer like any (array['a']) from orders",
        "select * from orders tablesample system (10)",
        "select id from orders for update",
        "select first_value(n ignore nulls) over (order by id) from orders",
        "select id from orders where id in (select id from orders o where o.n = 1 "
        "and exists (select 1 from orders p where p.n = orders.n))",
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


def test_a_text_of_more_than_ten_megabytes_is_refused():
    with pytest.raises(ParseError) as caught:
        parse("select '" + "x" * (11 << 20) + "'")
    assert caught.value.sqlstate == "54000"
